/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sends requests to request-server.c and says what became of them.
 *
 *     cc -O2 -o request-client examples/lanes/request-client.c -lm
 *     ./request-client --server ./request-server --core 1 [--rate 20000] [--seconds 3] [--budgets 5,0]
 *     ./request-client --server ./request-server --core 1 --burst 20000000,500,500 [--budgets 5,0]
 *
 * Without --burst: an open-loop load, 99.5 % of 0.5 us and 0.5 % of 500 us, once for each budget (microseconds; 0:
 * without preemption), and percentiles of the time from when a request was due until its work was done. With a budget
 * p99 is that of short requests; without, short ones wait behind long ones and p99 is above 500 us.
 *
 * With --burst: these requests, of so many nanoseconds, wait in the ring before the server takes the first one. A line
 * for each response in the order of their end: its id (from 0) and how often it was preempted.
 */
#define _GNU_SOURCE
#include "request_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CAPACITY 65536u
#define SHORT_NS 500u
#define LONG_NS 500000u
#define LONG_SHARE 0.005
#define PATIENCE_NS 30000000000u

struct run {
	const char *budget;
	struct request_ring *ring;
	uint64_t sent, answered;
	pid_t server;
	char path[64];
};

static const char *program, *core, *workers = "128", *budgets = "5,0", *burst;
static double rate = 20000, seconds = 3;

static void die(const char *what, const char *why)
{
	fprintf(stderr, "request-client: %s: %s\n", what, why);
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* xorshift64*: the same requests for every budget. */
static double uniform(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return (double)((*state * 2685821657736338717u) >> 11) / 9007199254740992.0;
}

static void make_ring(struct run *run)
{
	int file;

	snprintf(run->path, sizeof(run->path), "/dev/shm/request-ring-%d", (int)getpid());
	file = open(run->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (file < 0)
		die(run->path, strerror(errno));
	errno = posix_fallocate(file, 0, (off_t)request_ring_bytes(CAPACITY));
	if (errno)
		die(run->path, strerror(errno));
	run->ring = mmap(NULL, request_ring_bytes(CAPACITY), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (run->ring == MAP_FAILED)
		die(run->path, strerror(errno));
	close(file);
	memcpy(run->ring->magic, REQUEST_RING_MAGIC, sizeof(run->ring->magic));
	run->ring->version = REQUEST_RING_VERSION;
	run->ring->capacity = CAPACITY;
}

static void start_server(struct run *run)
{
	uint64_t begin = now_ns();

	run->server = fork();
	if (run->server < 0)
		die("fork", strerror(errno));
	if (run->server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* What it says at its end is not what this program prints. */
		dup2(STDERR_FILENO, STDOUT_FILENO);
		execl(program, program, "--ring", run->path, "--core", core, "--workers", workers, "--budget",
		      run->budget, (char *)NULL);
		_exit(127);
	}
	while (__atomic_load_n(&run->ring->server, __ATOMIC_ACQUIRE) == REQUEST_SERVER_ABSENT) {
		if (waitpid(run->server, NULL, WNOHANG) == run->server) {
			unlink(run->path);
			die(program, "it did not start");
		}
		if (now_ns() - begin > PATIENCE_NS)
			die(program, "it does not get ready");
		usleep(1000);
	}
}

static void end_server(struct run *run)
{
	int status;

	__atomic_store_n(&run->ring->closing, 1, __ATOMIC_RELEASE);
	if (waitpid(run->server, &status, 0) < 0 || status != 0)
		die(program, "it did not end in order");
	munmap(run->ring, request_ring_bytes(CAPACITY));
	unlink(run->path);
}

/* Whether there was room. */
static bool send_request(struct run *run, uint64_t sent_ns, uint64_t service_ns)
{
	struct request request = { .id = run->sent, .sent_ns = sent_ns, .service_ns = service_ns };

	if (run->sent - __atomic_load_n(&run->ring->request_tail, __ATOMIC_ACQUIRE) >= CAPACITY)
		return false;
	request_ring_requests(run->ring)[run->sent % CAPACITY] = request;
	__atomic_store_n(&run->ring->request_head, ++run->sent, __ATOMIC_RELEASE);
	return true;
}

static bool take_response(struct run *run, struct response *response)
{
	if (__atomic_load_n(&run->ring->response_head, __ATOMIC_ACQUIRE) == run->answered)
		return false;
	*response = request_ring_responses(run->ring, CAPACITY)[run->answered % CAPACITY];
	__atomic_store_n(&run->ring->response_tail, ++run->answered, __ATOMIC_RELEASE);
	return true;
}

static int by_value(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

/* The latencies of a load, sorted; seen marks who was answered. */
static void load(struct run *run, uint64_t total, uint64_t *latency, uint8_t *seen)
{
	uint64_t random = 88172645463325252u, due = now_ns() + 1000000u, last = now_ns(), service = 0;
	struct response response;

	while (run->answered < total) {
		uint64_t now = now_ns();
		if (run->sent < total && now >= due) {
			if (!service)
				service = uniform(&random) < LONG_SHARE ? LONG_NS : SHORT_NS;
			/* Sent when it was due, however late this program or the ring is. */
			if (send_request(run, due, service)) {
				due += (uint64_t)(-log(1 - uniform(&random)) * 1e9 / rate);
				service = 0;
			}
		}
		while (take_response(run, &response)) {
			if (response.id >= total || seen[response.id]++)
				die("a response", "it is of no request, or a second one");
			latency[run->answered - 1] = response.done_ns - response.sent_ns;
			last = now;
		}
		if (now > last && now - last > PATIENCE_NS)
			die(program, "it does not answer");
	}
	qsort(latency, total, sizeof(*latency), by_value);
}

static void run_load(struct run *run)
{
	static const double percentiles[] = { 50, 75, 90, 99, 99.9, 99.99, 100 };
	uint64_t total = (uint64_t)(rate * seconds), *latency;
	uint8_t *seen;

	if (total == 0)
		total = 1;
	latency = calloc(total, sizeof(*latency));
	seen = calloc(total, 1);
	if (!latency || !seen)
		die("memory", strerror(errno));
	/* Not while requests are due. */
	memset(latency, 1, total * sizeof(*latency));
	memset(seen, 0, total);
	start_server(run);
	load(run, total, latency, seen);
	end_server(run);
	printf("%9s", run->budget);
	for (size_t n = 0; n < sizeof(percentiles) / sizeof(percentiles[0]); n++) {
		uint64_t rank = (uint64_t)ceil(percentiles[n] / 100 * (double)total);
		printf(" %9.1f", (double)latency[rank - 1] / 1e3);
	}
	printf("\n");
	fflush(stdout);
	free(latency);
	free(seen);
}

static void run_burst(struct run *run)
{
	char *services = strdup(burst), *rest = services, *service;
	uint64_t begin = now_ns();
	struct response response;

	while ((service = strsep(&rest, ",")))
		if (!send_request(run, begin, strtoull(service, NULL, 10)))
			die("--burst", "these are too many");
	free(services);
	printf("budget %s\n", run->budget);
	start_server(run);
	while (run->answered < run->sent) {
		if (take_response(run, &response))
			printf("%" PRIu64 " %" PRIu32 "\n", response.id, response.preempted);
		else if (now_ns() - begin > PATIENCE_NS)
			die(program, "it does not answer");
	}
	end_server(run);
	fflush(stdout);
}

static void read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{ "server", required_argument, NULL, 's' },  { "core", required_argument, NULL, 'c' },
		{ "workers", required_argument, NULL, 'w' }, { "budgets", required_argument, NULL, 'b' },
		{ "burst", required_argument, NULL, 'u' },   { "rate", required_argument, NULL, 'r' },
		{ "seconds", required_argument, NULL, 't' }, { NULL, 0, NULL, 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 's': program = optarg; break;
		case 'c': core = optarg; break;
		case 'w': workers = optarg; break;
		case 'b': budgets = optarg; break;
		case 'u': burst = optarg; break;
		case 'r': rate = atof(optarg); break;
		case 't': seconds = atof(optarg); break;
		default: exit(2);
		}
	}
	if (!program || !core || optind != argc || !(rate > 0 && rate <= 1e7) || !(seconds > 0 && seconds <= 3600)) {
		fprintf(stderr, "usage: request-client --server PROGRAM --core N [--workers N] [--budgets US,US..]\n"
				"                      [--rate PER_SECOND] [--seconds S] [--burst NS,NS..]\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	char *list, *rest, *budget;

	read_options(argc, argv);
	if (!burst)
		printf("%.0f requests a second; microseconds\n%9s %9s %9s %9s %9s %9s %9s %9s\n", rate, "budget", "p50",
		       "p75", "p90", "p99", "p99.9", "p99.99", "max");
	fflush(stdout);
	list = rest = strdup(budgets);
	while ((budget = strsep(&rest, ","))) {
		struct run run = { .budget = budget };

		make_ring(&run);
		if (burst)
			run_burst(&run);
		else
			run_load(&run);
	}
	free(list);
	return 0;
}
