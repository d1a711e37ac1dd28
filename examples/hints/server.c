/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A server that hints: it tells Quell which of its threads serves a request since when, how many wait in its own queue,
 * and since when the oldest does. docs/reference/hints.md is the guide.
 *
 *     cc -O2 -pthread -Icrates/shm/include -o sums examples/hints/server.c
 *     QUELL_HINTS=/dev/shm/sums.hints ./sums /tmp/sums.sock 4
 *
 * Who connects to the Unix socket sends a line with a number N and gets the sum of 1/n up to N. One thread accepts and
 * queues connections, the others serve one each. A request whose client hangs up is given up.
 */
#include "quell_hints.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#define WORKERS_MAX 64
#define WAITING_MAX 256

struct waiting {
	int client;
	uint64_t since;
};

static struct quell_hints hints;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;
/* Under the lock: a ring, and the slot that tells of it. */
static struct waiting queue[WAITING_MAX];
static unsigned first, waiting;
static struct quell_hints_slot *queue_slot;

/* With the lock held, after each change: one thread at a time writes the slot, though not always the same. */
static void tell_queue(void)
{
	quell_hints_queue(queue_slot, waiting, waiting ? queue[first].since : 0);
}

/* Whether there was room. */
static int push(int client)
{
	int room;

	pthread_mutex_lock(&lock);
	room = waiting < WAITING_MAX;
	if (room) {
		struct waiting *last = &queue[(first + waiting++) % WAITING_MAX];
		last->client = client;
		last->since = quell_hints_now();
		tell_queue();
		pthread_cond_signal(&came);
	}
	pthread_mutex_unlock(&lock);
	return room;
}

/* The client that has waited for longest. */
static int pop(void)
{
	int oldest;

	pthread_mutex_lock(&lock);
	while (waiting == 0)
		pthread_cond_wait(&came, &lock);
	oldest = queue[first].client;
	first = (first + 1) % WAITING_MAX;
	waiting--;
	tell_queue();
	pthread_mutex_unlock(&lock);
	return oldest;
}

static int hung_up(int client)
{
	char byte;

	return recv(client, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void serve(int client)
{
	char line[64];
	double sum = 0;
	unsigned long long n, upto;
	ssize_t bytes = recv(client, line, sizeof(line) - 1, 0);

	if (bytes <= 0)
		return;
	line[bytes] = 0;
	upto = strtoull(line, NULL, 10);
	for (n = 1; n <= upto; n++) {
		if (n % 1000000 == 0 && hung_up(client))
			return;
		sum += 1.0 / (double)n;
	}
	bytes = snprintf(line, sizeof(line), "%.6f\n", sum);
	/* Who hung up meanwhile misses it. */
	(void)send(client, line, (size_t)bytes, MSG_NOSIGNAL);
}

static void *worker(void *none)
{
	struct quell_hints_slot *slot = quell_hints_register(&hints);

	(void)none;
	for (;;) {
		int client = pop();
		quell_hints_begin(slot);
		serve(client);
		quell_hints_end(slot);
		close(client);
	}
	return NULL;
}

static int listen_at(const char *path)
{
	struct sockaddr_un address = {0};
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sun_family = AF_UNIX;
	if (listener < 0 || strlen(path) >= sizeof(address.sun_path))
		return -1;
	strcpy(address.sun_path, path);
	unlink(path);
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listener, 128) < 0)
		return -1;
	return listener;
}

int main(int argc, char **argv)
{
	/* Whoever sends nothing does not hold a thread for ever. */
	const struct timeval patience = {1, 0};
	const struct timespec nap = {0, 10 * 1000 * 1000};
	int listener, n, workers = argc > 2 ? atoi(argv[2]) : 2;
	pthread_t thread;

	if (argc < 2 || workers < 1 || workers > WORKERS_MAX) {
		fprintf(stderr, "usage: %s SOCKET [WORKERS, %d at most]\n", argv[0], WORKERS_MAX);
		return 64;
	}
	/* Without a page it serves all the same. */
	if (quell_hints_open(&hints, NULL, WORKERS_MAX + 1) < 0)
		fprintf(stderr, "no hints: %s\n", strerror(errno));
	queue_slot = quell_hints_register(&hints);
	listener = listen_at(argv[1]);
	if (listener < 0) {
		fprintf(stderr, "cannot listen at %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	for (n = 0; n < workers; n++)
		if (pthread_create(&thread, NULL, worker, NULL) != 0)
			return 1;
	for (;;) {
		int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (client < 0) {
			/* Too many are open: some will be closed. */
			nanosleep(&nap, NULL);
			continue;
		}
		setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		if (!push(client))
			close(client);
	}
}
