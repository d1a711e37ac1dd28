/* An open-loop client that does nothing but spin: what quell's own is compared with, for servers that no packaged
 * open-loop client speaks to. GETs of one key over several connections in turn, Poisson arrivals; latencies count from
 * the time at which a request was due.
 *
 *     spin memcached|redis PORT CORE RATE SECONDS CONNECTIONS SEED
 *
 * Writes the latency of each request in nanoseconds, one a line.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64
#define QUEUE 4096 /* requests that wait on one connection, a power of two */

struct connection {
	int fd;
	uint64_t due[QUEUE];
	unsigned head, tail;
	char part[256];
	size_t held;
};

static struct connection connections[CONNECTIONS_MAX];
static int is_redis;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int connected(int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)))
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void store(int fd)
{
	const char *set = is_redis ? "SET key value\r\n" : "set key 0 0 5\r\nvalue\r\n";
	char answer[64];

	if (write(fd, set, strlen(set)) < 0 || read(fd, answer, sizeof(answer)) <= 0)
		die("store a value");
}

/* Whole answers at the start of the text; their length. Memcached: VALUE line, value, END. Redis: $5, value. */
static size_t answers(const char *text, size_t length, unsigned *count)
{
	const char *last = is_redis ? "value\r\n" : "END\r\n";
	size_t used = 0, size = strlen(last);

	for (size_t at = 0; at + size <= length; at++) {
		if (memcmp(text + at, last, size) == 0) {
			(*count)++;
			used = at + size;
		}
	}
	return used;
}

static void receive(struct connection *one, uint64_t start, uint64_t end)
{
	char text[65536];
	unsigned count = 0;
	size_t used, length;
	ssize_t got;
	uint64_t at;

	if (one->head == one->tail)
		return;
	memcpy(text, one->part, one->held);
	got = recv(one->fd, text + one->held, sizeof(text) - one->held, MSG_DONTWAIT);
	at = now();
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0)
		die("receive");
	length = one->held + (size_t)got;
	used = answers(text, length, &count);
	one->held = length - used;
	if (one->held > sizeof(one->part))
		die("an answer is too long");
	memcpy(one->part, text + used, one->held);
	for (; count > 0 && one->head != one->tail; count--, one->head++) {
		uint64_t due = one->due[one->head % QUEUE];

		if (due >= start && due < end)
			printf("%llu\n", (unsigned long long)(at - due));
	}
}

int main(int argc, char **argv)
{
	const char *get;
	unsigned count, turn = 0;
	double rate;
	uint64_t start, end, due;
	cpu_set_t core;

	if (argc != 8) {
		fprintf(stderr, "usage: %s memcached|redis PORT CORE RATE SECONDS CONNECTIONS SEED\n", argv[0]);
		return 2;
	}
	is_redis = strcmp(argv[1], "redis") == 0;
	get = is_redis ? "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n" : "get key\r\n";
	rate = atof(argv[4]);
	count = (unsigned)atoi(argv[6]);
	srand48(atol(argv[7]));
	if (count == 0 || count > CONNECTIONS_MAX || rate <= 0)
		return 2;
	CPU_ZERO(&core);
	CPU_SET(atoi(argv[3]), &core);
	if (sched_setaffinity(0, sizeof(core), &core))
		die("sched_setaffinity");
	for (unsigned at = 0; at < count; at++)
		connections[at].fd = connected(atoi(argv[2]));
	store(connections[0].fd);
	setvbuf(stdout, NULL, _IOFBF, 1 << 24);
	/* Half a second of load first. */
	due = now() + 1000000;
	start = due + 500000000;
	end = start + (uint64_t)(atof(argv[5]) * 1e9);
	for (;;) {
		uint64_t at = now();
		int waiting = 0;

		if (due <= at && due < end) {
			struct connection *one = &connections[turn++ % count];

			if (one->tail - one->head == QUEUE)
				die("the server does not answer");
			one->due[one->tail++ % QUEUE] = due;
			if (write(one->fd, get, strlen(get)) < 0)
				die("send");
			due += (uint64_t)(-log(1.0 - drand48()) / rate * 1e9);
		}
		for (unsigned each = 0; each < count; each++) {
			receive(&connections[each], start, end);
			waiting |= connections[each].head != connections[each].tail;
		}
		if (at > end && (!waiting || at > end + 1000000000))
			return 0;
	}
}
