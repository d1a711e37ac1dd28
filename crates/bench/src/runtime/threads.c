/*
 * The cases of `quell bench runtime` with POSIX threads: what a program without a runtime has.
 * threads CASE WORKERS WARM_UP_MS TIME_MS | threads list
 * Threads go where the affinity of the program lets them; workers are what it lets them be.
 */
#define _GNU_SOURCE
#include "threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void run_mutex(const struct request *request)
{
	struct meter meter = meter_start(request);
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	volatile uint64_t value = 0;

	while (goes_on(&meter, 1000)) {
		for (int at = 0; at < 1000; at++) {
			pthread_mutex_lock(&mutex);
			value++;
			pthread_mutex_unlock(&mutex);
		}
	}
	finish(&meter);
}

static atomic_bool over;
static _Atomic uint64_t others;

static void *yields(void *unused)
{
	(void)unused;
	while (!atomic_load_explicit(&over, memory_order_relaxed)) {
		sched_yield();
		atomic_fetch_add_explicit(&others, 1, memory_order_relaxed);
	}
	return NULL;
}

static void run_yield(const struct request *request)
{
	pthread_t other = start(yields, NULL);
	struct meter meter = meter_start(request);

	while (goes_on_with(&meter, 100, others))
		for (int at = 0; at < 100; at++)
			sched_yield();
	finish_with(&meter, others);
	over = true;
	pthread_join(other, NULL);
}

/* Whose turn it is; TURNS_OVER: nobody's any more. */
#define TURNS_OVER 2
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed[2] = { PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER };
static int turn;

static bool pass(int mine)
{
	bool passed;

	pthread_mutex_lock(&turn_lock);
	while (turn != mine && turn != TURNS_OVER)
		pthread_cond_wait(&turn_changed[mine], &turn_lock);
	passed = turn != TURNS_OVER;
	if (passed) {
		turn = 1 - mine;
		pthread_cond_signal(&turn_changed[1 - mine]);
	}
	pthread_mutex_unlock(&turn_lock);
	return passed;
}

static void *passes(void *unused)
{
	(void)unused;
	while (pass(1))
		;
	return NULL;
}

static void run_condvar(const struct request *request)
{
	pthread_t other = start(passes, NULL);
	struct meter meter = meter_start(request);

	while (goes_on(&meter, 200))
		for (int at = 0; at < 100; at++)
			pass(0);
	finish(&meter);
	pthread_mutex_lock(&turn_lock);
	turn = TURNS_OVER;
	pthread_cond_broadcast(&turn_changed[1]);
	pthread_mutex_unlock(&turn_lock);
	pthread_join(other, NULL);
}

static void *nothing(void *argument)
{
	return argument;
}

static void run_spawn_join(const struct request *request)
{
	struct meter meter = meter_start(request);

	while (goes_on(&meter, 10))
		for (int at = 0; at < 10; at++)
			pthread_join(start(nothing, NULL), NULL);
	finish(&meter);
}

/* A bounded queue: what a program without channels writes. */
struct channel {
	pthread_mutex_t lock;
	pthread_cond_t filled, emptied;
	uint64_t ring[BURST];
	size_t holds, head, count;
	bool closed;
};

#define CHANNEL(size) { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, \
			PTHREAD_COND_INITIALIZER, { 0 }, size, 0, 0, false }

static void send_message(struct channel *channel, uint64_t message)
{
	pthread_mutex_lock(&channel->lock);
	while (channel->count == channel->holds)
		pthread_cond_wait(&channel->emptied, &channel->lock);
	channel->ring[(channel->head + channel->count++) % BURST] = message;
	pthread_cond_signal(&channel->filled);
	pthread_mutex_unlock(&channel->lock);
}

static bool receive_message(struct channel *channel, uint64_t *message)
{
	bool is_open;

	pthread_mutex_lock(&channel->lock);
	while (!channel->count && !channel->closed)
		pthread_cond_wait(&channel->filled, &channel->lock);
	is_open = channel->count;
	if (is_open) {
		*message = channel->ring[channel->head++ % BURST];
		channel->count--;
		pthread_cond_signal(&channel->emptied);
	}
	pthread_mutex_unlock(&channel->lock);
	return is_open;
}

static void close_channel(struct channel *channel)
{
	pthread_mutex_lock(&channel->lock);
	channel->closed = true;
	pthread_cond_broadcast(&channel->filled);
	pthread_mutex_unlock(&channel->lock);
}

static struct channel there = CHANNEL(BURST), back = CHANNEL(1);

static void *receives(void *unused)
{
	uint64_t message, seen = 0;

	(void)unused;
	while (receive_message(&there, &message))
		if (++seen % BURST == 0)
			send_message(&back, 0);
	return NULL;
}

static void run_channel_stream(const struct request *request)
{
	pthread_t other = start(receives, NULL);
	struct meter meter = meter_start(request);
	uint64_t ignored;

	while (goes_on(&meter, BURST)) {
		for (uint64_t message = 0; message < BURST; message++)
			send_message(&there, message);
		receive_message(&back, &ignored);
	}
	finish(&meter);
	close_channel(&there);
	pthread_join(other, NULL);
}

static void *answers(void *unused)
{
	uint64_t message;

	(void)unused;
	while (receive_message(&there, &message))
		send_message(&back, message);
	return NULL;
}

static void run_channel_hand_over(const struct request *request)
{
	pthread_t other;
	struct meter meter;
	uint64_t answer;

	there.holds = 1;
	other = start(answers, NULL);
	meter = meter_start(request);
	while (goes_on(&meter, 200)) {
		for (uint64_t message = 0; message < 100; message++) {
			send_message(&there, message);
			receive_message(&back, &answer);
		}
	}
	finish(&meter);
	close_channel(&there);
	pthread_join(other, NULL);
}

/* Parks a thread as std does: a futex of its own. */
static _Atomic uint32_t bell[2];

static void unpark(int whom)
{
	atomic_store(&bell[whom], 1);
	syscall(SYS_futex, &bell[whom], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void park(int me)
{
	while (!atomic_exchange(&bell[me], 0))
		syscall(SYS_futex, &bell[me], FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static void *parks(void *unused)
{
	(void)unused;
	for (;;) {
		park(1);
		if (over)
			return NULL;
		unpark(0);
	}
}

static void run_park(const struct request *request)
{
	pthread_t other = start(parks, NULL);
	struct meter meter = meter_start(request);

	while (goes_on(&meter, 200)) {
		for (int at = 0; at < 100; at++) {
			unpark(1);
			park(0);
		}
	}
	finish(&meter);
	over = true;
	unpark(1);
	pthread_join(other, NULL);
}

static void run_timer(const struct request *request)
{
	struct meter meter = meter_start(request);

	while (goes_on(&meter, 1)) {
		uint64_t due = now() + SLEEP_NS, at;

		sleep_ns(SLEEP_NS);
		at = now();
		sample(&meter, at > due ? at - due : 0);
	}
	finish(&meter);
}

static void *sleeps(void *unused)
{
	(void)unused;
	while (!atomic_load_explicit(&over, memory_order_relaxed)) {
		sleep_ns(LONG_SLEEP_NS);
		atomic_fetch_add_explicit(&others, 1, memory_order_relaxed);
	}
	return NULL;
}

static void run_sleepers(const struct request *request)
{
	static pthread_t sleeper[SLEEPERS];
	struct meter meter;

	for (int at = 0; at < SLEEPERS; at++)
		sleeper[at] = start(sleeps, NULL);
	meter = meter_start(request);
	while (goes_on_with(&meter, 0, others)) {
		uint64_t due = now() + LONG_SLEEP_NS, at;

		sleep_ns(LONG_SLEEP_NS);
		at = now();
		sample(&meter, at > due ? at - due : 0);
	}
	finish_with(&meter, others);
	over = true;
	for (int at = 0; at < SLEEPERS; at++)
		pthread_join(sleeper[at], NULL);
}

/* A pool of one idle thread, which is given two tasks: the nearest to stealing. */
static _Atomic uint64_t first;
static _Atomic int done;

static void *takes(void *unused)
{
	uint64_t message;

	(void)unused;
	while (receive_message(&there, &message)) {
		uint64_t untaken = 0;

		atomic_compare_exchange_strong(&first, &untaken, now());
		atomic_fetch_add(&done, 1);
	}
	return NULL;
}

static void run_steal(const struct request *request)
{
	bool parked = !strcmp(request->name, "steal-parked");
	pthread_t other = start(takes, NULL);
	struct meter meter = meter_start(request);

	while (goes_on(&meter, 1)) {
		uint64_t ready;

		compute(parked ? GAP_PARKED_NS : GAP_POLLING_NS);
		first = 0;
		done = 0;
		ready = now();
		send_message(&there, 0);
		send_message(&there, 1);
		while (done < 2)
			__builtin_ia32_pause();
		sample(&meter, first - ready);
	}
	finish(&meter);
	close_channel(&there);
	pthread_join(other, NULL);
}

static void *serves(void *argument)
{
	int connection = (int)(intptr_t)argument, yes = 1;
	char buffer[4096];
	ssize_t taken;

	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	while ((taken = read(connection, buffer, sizeof(buffer))) > 0)
		for (ssize_t sent = 0, some; sent < taken; sent += some) {
			some = write(connection, buffer + sent, (size_t)(taken - sent));
			if (some <= 0)
				goto gone;
		}
gone:
	close(connection);
	return NULL;
}

static void run_echo(const struct request *request)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)request;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	must(listener >= 0, "socket");
	must(!bind(listener, (struct sockaddr *)&address, length), "bind");
	must(!listen(listener, 128), "listen");
	must(!getsockname(listener, (struct sockaddr *)&address, &length), "getsockname");
	printf("{\"port\":%u}\n", ntohs(address.sin_port));
	fflush(stdout);
	for (;;) {
		int connection = accept(listener, NULL, NULL);

		must(connection >= 0, "accept");
		pthread_detach(start(serves, (void *)(intptr_t)connection));
	}
}

static const struct {
	const char *name;
	void (*run)(const struct request *);
} CASES[] = {
	{ "mutex", run_mutex },
	{ "yield", run_yield },
	{ "condvar", run_condvar },
	{ "spawn-join", run_spawn_join },
	{ "channel-stream", run_channel_stream },
	{ "channel-ping-pong", run_channel_hand_over },
	{ "park", run_park },
	{ "timer", run_timer },
	{ "sleepers", run_sleepers },
	{ "steal-polling", run_steal },
	{ "steal-parked", run_steal },
	{ "echo", run_echo },
};

int main(int count, char **words)
{
	const size_t all = sizeof(CASES) / sizeof(CASES[0]);

	if (count == 2 && !strcmp(words[1], "list")) {
		for (size_t at = 0; at < all; at++)
			puts(CASES[at].name);
		return 0;
	}
	for (size_t at = 0; count == 5 && at < all; at++) {
		struct request request = { .name = words[1] };

		if (strcmp(words[1], CASES[at].name))
			continue;
		request.warm_up_ns = strtoull(words[3], NULL, 10) * 1000000u;
		request.time_ns = strtoull(words[4], NULL, 10) * 1000000u;
		CASES[at].run(&request);
		return 0;
	}
	fprintf(stderr, "usage: threads CASE WORKERS WARM_UP_MS TIME_MS | threads list\n");
	return 2;
}
