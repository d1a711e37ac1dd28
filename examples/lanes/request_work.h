/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The work of a request. It is counted, not timed: a worker that was preempted has as much left as before. For
 * request-server.c; include quell_lane.h first.
 */
#ifndef REQUEST_WORK_H
#define REQUEST_WORK_H

#include <stdint.h>

/* For how long the work is timed. */
#define REQUEST_WORK_CALIBRATION_NS 200000000u

static inline void request_work_spin(uint64_t times)
{
	for (; times; times--)
		__asm__ volatile("" ::: "memory");
}

/*
 * How often that fits into a microsecond: the most in many tries, because what disturbs a try makes it slower, never faster.
 * Some of that lasts for milliseconds, as work on the core's other hyperthread does.
 */
static inline uint64_t request_work_calibrate(void)
{
	const uint64_t times = 200000, until = quell_lane_now() + REQUEST_WORK_CALIBRATION_NS;
	uint64_t best = UINT64_MAX;

	do {
		uint64_t begin = quell_lane_now(), took;

		request_work_spin(times);
		took = quell_lane_now() - begin;
		if (took && took < best)
			best = took;
	} while (quell_lane_now() < until);
	return times * 1000 / best + 1;
}

#endif /* REQUEST_WORK_H */
