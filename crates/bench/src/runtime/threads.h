/* What the cases in C share: the clock, the request, counting, and the answer as one line of JSON. */
#ifndef QUELL_BENCH_THREADS_H
#define QUELL_BENCH_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BURST 128
#define SLEEP_NS 100000u
#define LONG_SLEEP_NS 10000000u
#define SLEEPERS 1000
#define GAP_POLLING_NS 3000u
#define GAP_PARKED_NS 500000u
#define SAMPLES_MAX 50000u

struct request {
	const char *name;
	uint64_t warm_up_ns, time_ns;
};

/* Counts operations: first for nothing, then for the time asked. */
struct meter {
	uint64_t counts_from, time_ns, since, cpu_since, ops, others;
	bool counting;
	size_t samples;
	uint64_t *sample;
};

static inline uint64_t read_clock(clockid_t id)
{
	struct timespec at;

	clock_gettime(id, &at);
	return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static inline uint64_t now(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

static inline void compute(uint64_t ns)
{
	uint64_t until = now() + ns;

	while (now() < until)
		__builtin_ia32_pause();
}

static inline void must(bool done, const char *what)
{
	if (!done) {
		perror(what);
		exit(2);
	}
}

static inline void sleep_ns(uint64_t ns)
{
	struct timespec time = { .tv_sec = 0, .tv_nsec = (long)ns };

	nanosleep(&time, NULL);
}

static inline struct meter meter_start(const struct request *request)
{
	struct meter meter = {
		.counts_from = now() + request->warm_up_ns,
		.time_ns = request->time_ns,
		.sample = calloc(SAMPLES_MAX, sizeof(uint64_t)),
	};

	must(meter.sample, "memory for latencies");
	return meter;
}

/* Whether to go on; `done` operations were done since the last call, and `others` by others for ever. */
static inline bool goes_on_with(struct meter *meter, uint64_t done, uint64_t others)
{
	uint64_t at = now();

	if (meter->counting) {
		meter->ops += done;
		return at - meter->since < meter->time_ns;
	}
	if (at >= meter->counts_from) {
		meter->counting = true;
		meter->since = at;
		meter->cpu_since = read_clock(CLOCK_PROCESS_CPUTIME_ID);
		meter->others = others;
		meter->samples = 0;
	}
	return true;
}

static inline bool goes_on(struct meter *meter, uint64_t done)
{
	return goes_on_with(meter, done, 0);
}

static inline void sample(struct meter *meter, uint64_t ns)
{
	if (meter->samples < SAMPLES_MAX)
		meter->sample[meter->samples++] = ns;
}

static inline void finish_with(const struct meter *meter, uint64_t others)
{
	uint64_t ns = now() - meter->since;
	uint64_t cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID) - meter->cpu_since;

	printf("{\"ops\":%lu,\"ns\":%lu,\"cpu_ns\":%lu,\"samples\":[",
	       meter->ops + (others - meter->others), ns, cpu);
	for (size_t at = 0; at < meter->samples; at++)
		printf(at ? ",%lu" : "%lu", meter->sample[at]);
	printf("]}\n");
	fflush(stdout);
}

static inline void finish(const struct meter *meter)
{
	finish_with(meter, 0);
}

static inline pthread_t start(void *(*body)(void *), void *argument)
{
	pthread_t thread;

	must(!pthread_create(&thread, NULL, body, argument), "pthread_create");
	return thread;
}

#endif
