/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A lane inside a program: its own threads take turns on one core, in an order that the program decides. Header only;
 * C11 and C++11, GCC or Clang, Linux. docs/reference/lanes.md of Quell is the guide, examples/lanes/request-server.c a program.
 *
 * Four levels of SCHED_FIFO order the threads of a lane, lowest first:
 *
 *     parked      workers whose turn it is not
 *     dispatcher  one thread that chooses: it runs whenever no chosen worker does
 *     running     the chosen worker
 *     switcher    one thread that sleeps on a timer and ends turns
 *
 *     struct quell_lane lane;
 *     if (quell_lane_open(&lane, 1, NULL) < 0)               // core 1; once, before any thread enters
 *         die(lane.why);
 *     each thread:    quell_lane_enter(&lane, &own, level);  // its core and its level
 *     dispatcher:     quell_lane_run(&lane, &worker, 5000);  // its turn, for 5 us
 *     worker:         quell_lane_disarm(&lane);              // done in time
 *     switcher:       while (quell_lane_wait(&lane, NULL) > 0)
 *                         quell_lane_preempt(&lane, current, 5000);
 *     each thread:    quell_lane_leave(&lane, &own);         // what it had before; before it ends
 *
 * Only threads of the own process are changed, and the kernel forgets what it knew of them when they end: whatever
 * ends the program, nothing is left behind. Functions return -1 with errno where they fail, and change nothing then;
 * quell_lane_explain() has it in words. None of them ends the program.
 *
 * A thread that joins while another one polls on the core gets no further until that one sleeps: let all threads
 * enter before the dispatcher begins. A thread made by one that is in the lane starts under SCHED_OTHER, but on the
 * lane's core.
 */
#ifndef QUELL_LANE_H
#define QUELL_LANE_H

/* With -std=c11 rather than gnu11, include this header first. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUELL_LANE_LEVELS 4

enum quell_lane_level {
	QUELL_LANE_PARKED = 0,
	QUELL_LANE_DISPATCHER = 1,
	QUELL_LANE_RUNNING = 2,
	QUELL_LANE_SWITCHER = 3,
};

/*
 * The levels' priorities. They lie between two rungs of Quell's ladder: above batch work that Quell parks (2), below
 * a member of `quell lane` that has its turn (10) and below every latency-critical task (20, 30). None is a rung's
 * own priority: two threads of one FIFO priority would wait for each other.
 */
#define QUELL_LANE_PARKED_PRIORITY 4
#define QUELL_LANE_DISPATCHER_PRIORITY 5
#define QUELL_LANE_RUNNING_PRIORITY 6
#define QUELL_LANE_SWITCHER_PRIORITY 7
/* The highest that a program may choose: 99 is the kernel's own. */
#define QUELL_LANE_PRIORITY_MAX 98

/* Cores that a mask has room for. */
#define QUELL_LANE_CORES_MAX 8192
#define QUELL_LANE_WORD_BITS (8 * sizeof(unsigned long))
#define QUELL_LANE_WORDS (QUELL_LANE_CORES_MAX / (8 * sizeof(unsigned long)))

struct quell_lane_cores {
	unsigned long words[QUELL_LANE_WORDS];
};

/* SCHED_FLAG_RESET_ON_FORK of sched_setattr(2). */
#define QUELL_LANE_RESET_ON_FORK 1u

/* The first 48 bytes of the kernel's struct sched_attr, which not every libc has. */
struct quell_lane_attr {
	uint32_t size;
	uint32_t policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime;
	uint64_t deadline;
	uint64_t period;
};

/* A lane of this process. */
struct quell_lane {
	int core;
	int timer; /* a timerfd */
	int priorities[QUELL_LANE_LEVELS];
	struct quell_lane_cores allowed; /* the cores that this process may use */
	uint64_t turn; /* a generation, and below it one of QUELL_LANE_TURN_* */
	uint64_t deadline; /* of the armed turn: CLOCK_MONOTONIC in nanoseconds */
	uint64_t timer_at; /* what the timer is set for; 0 once it went off */
	uint32_t stopping;
	uint32_t early; /* expiries in a row before the worker was raised: the switcher's own */
	char why[512]; /* what quell_lane_open() missed */
};

/* A thread in a lane, and what it had before. Others raise and lower it by this. */
struct quell_lane_thread {
	uint64_t member_ref; /* its tid, 0: not in a lane; above it how many threads are about to change its level */
	struct quell_lane_attr orig_attr;
	struct quell_lane_cores orig_cores;
};

#define QUELL_LANE_MEMBER_REF_HELD ((uint64_t)1 << 32)

/* Doublings at most of a turn that expired early: a million times. */
#define QUELL_LANE_EARLY_MAX 20u

#define QUELL_LANE_TURN_IDLE 0u
#define QUELL_LANE_TURN_ARMED 1u
#define QUELL_LANE_TURN_EXPIRED 2u
#define QUELL_LANE_TURN_BITS 2u
#define QUELL_LANE_TURN_MASK 3u

/* CLOCK_MONOTONIC in nanoseconds; no system call. */
static inline uint64_t quell_lane_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline pid_t quell_lane_tid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static inline int quell_lane_has_core(const struct quell_lane_cores *cores, int core)
{
	return core >= 0 && core < QUELL_LANE_CORES_MAX &&
	       (cores->words[(size_t)core / QUELL_LANE_WORD_BITS] >> ((size_t)core % QUELL_LANE_WORD_BITS) & 1);
}

static inline void quell_lane_one_core(struct quell_lane_cores *cores, int core)
{
	memset(cores, 0, sizeof(*cores));
	cores->words[(size_t)core / QUELL_LANE_WORD_BITS] = 1ul << ((size_t)core % QUELL_LANE_WORD_BITS);
}

static inline int quell_lane_get_cores(struct quell_lane_cores *cores)
{
	memset(cores, 0, sizeof(*cores));
	return syscall(SYS_sched_getaffinity, 0, sizeof(*cores), cores) < 0 ? -1 : 0;
}

static inline int quell_lane_set_cores(const struct quell_lane_cores *cores)
{
	return (int)syscall(SYS_sched_setaffinity, 0, sizeof(*cores), cores);
}

static inline int quell_lane_get_attr(struct quell_lane_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	if (syscall(SYS_sched_getattr, 0, attr, sizeof(*attr), 0) < 0)
		return -1;
	attr->size = sizeof(*attr);
	attr->flags &= QUELL_LANE_RESET_ON_FORK;
	/* What cannot be put back as it was is not taken: SCHED_DEADLINE, and policies that are not known here. */
	if (attr->policy != SCHED_OTHER && attr->policy != SCHED_FIFO && attr->policy != SCHED_RR &&
	    attr->policy != SCHED_BATCH && attr->policy != SCHED_IDLE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return 0;
}

/* Explicit in all it sets: nothing that a thread inherited counts. Threads and programs it starts get none of it. */
static inline int quell_lane_fifo(pid_t tid, int priority)
{
	struct sched_param param;
	memset(&param, 0, sizeof(param));
	param.sched_priority = priority;
	return (int)syscall(SYS_sched_setscheduler, tid, SCHED_FIFO | SCHED_RESET_ON_FORK, &param);
}

/* Gives the calling thread a policy back. */
static inline int quell_lane_restore_attr(const struct quell_lane_attr *orig)
{
	struct quell_lane_attr attr = *orig;

	if (syscall(SYS_sched_setattr, 0, &attr, 0) == 0)
		return 0;
	if (errno != EPERM || attr.flags & QUELL_LANE_RESET_ON_FORK)
		return -1;
	/* Without CAP_SYS_NICE nobody may clear reset-on-fork again (sched(7)). It does nothing to an ordinary thread. */
	attr.flags |= QUELL_LANE_RESET_ON_FORK;
	return (int)syscall(SYS_sched_setattr, 0, &attr, 0);
}

/* Gives the calling thread its cores back. Who could use all that the process may use follows its cpuset again. */
static inline int quell_lane_restore_cores(const struct quell_lane_cores *allowed, const struct quell_lane_cores *orig)
{
	struct quell_lane_cores all;

	if (memcmp(allowed, orig, sizeof(*orig)) != 0)
		return quell_lane_set_cores(orig);
	memset(&all, 0xff, sizeof(all));
	return quell_lane_set_cores(&all);
}

static inline int quell_lane_has_cap_sys_nice(void)
{
	char line[256];
	int has = 0;
	FILE *status = fopen("/proc/thread-self/status", "re");

	if (!status)
		return 0;
	while (fgets(line, sizeof(line), status))
		if (!strncmp(line, "CapEff:", 7))
			has = (int)(strtoull(line + 7, NULL, 16) >> 23 & 1);
	fclose(status);
	return has;
}

/* Says what errno of a function of this header means. */
static inline void quell_lane_explain(const struct quell_lane *lane, int error, char *why, size_t bytes)
{
	const int top = lane->priorities[QUELL_LANE_SWITCHER];
	struct rlimit limit;

	if (error == ESRCH)
		snprintf(why, bytes, "the thread is not in the lane, or has ended");
	else if (error == EOPNOTSUPP)
		snprintf(why, bytes,
			 "the thread is under a policy that could not be given back (SCHED_DEADLINE or sched_ext)");
	else if (error != EPERM)
		snprintf(why, bytes, "%s", strerror(error));
	else if (quell_lane_has_cap_sys_nice())
		snprintf(why, bytes,
			 "SCHED_FIFO is refused in spite of CAP_SYS_NICE: the cgroup of this process has no real-time budget "
			 "(cgroup v1: write e.g. 500000 to its cpu.rt_runtime_us; v2 with RT_GROUP_SCHED: "
			 "sysctl -w kernel.sched_rt_runtime_us=-1), or a container forbids it");
	else
		snprintf(why, bytes,
			 "SCHED_FIFO at priority %d is refused: this process has neither CAP_SYS_NICE nor an RLIMIT_RTPRIO of %d "
			 "(it is %lu): run it as root, `setcap cap_sys_nice+ep` the program, or raise the limit "
			 "(`ulimit -r %d`, LimitRTPRIO=%d); the cgroup needs a real-time budget as well",
			 top, top, getrlimit(RLIMIT_RTPRIO, &limit) == 0 ? (unsigned long)limit.rlim_cur : 0ul, top, top);
}

/* Which cores this process may use: its cpuset, whatever the calling thread keeps to. */
static inline int quell_lane_find_allowed(struct quell_lane *lane)
{
	struct quell_lane_cores own, all;
	int error = 0;

	if (quell_lane_get_cores(&own) < 0)
		return -1;
	memset(&all, 0xff, sizeof(all));
	if (quell_lane_set_cores(&all) < 0)
		return -1;
	if (quell_lane_get_cores(&lane->allowed) < 0)
		error = errno;
	if (quell_lane_restore_cores(&lane->allowed, &own) < 0 && !error)
		error = errno;
	errno = error;
	return error ? -1 : 0;
}

static inline int quell_lane_check_core(struct quell_lane *lane)
{
	char path[96];

	if (quell_lane_find_allowed(lane) < 0) {
		snprintf(lane->why, sizeof(lane->why), "cores of this process cannot be set: %s", strerror(errno));
		return -1;
	}
	if (quell_lane_has_core(&lane->allowed, lane->core))
		return 0;
	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d", lane->core);
	if (lane->core < 0 || lane->core >= QUELL_LANE_CORES_MAX || access(path, F_OK) < 0)
		snprintf(lane->why, sizeof(lane->why), "there is no core %d", lane->core);
	else
		snprintf(lane->why, sizeof(lane->why), "core %d is offline, or not in the cpuset of this process",
			 lane->core);
	errno = EINVAL;
	return -1;
}

/* Asks the kernel by trying, with the calling thread: for a moment it is under SCHED_FIFO. */
static inline int quell_lane_check_rights(struct quell_lane *lane)
{
	struct quell_lane_attr orig;
	struct sched_param param;
	int error = 0;

	memset(&param, 0, sizeof(param));
	param.sched_priority = lane->priorities[QUELL_LANE_SWITCHER];
	/* Without reset-on-fork, which could not be taken back without CAP_SYS_NICE; nothing is forked meanwhile. */
	if (quell_lane_get_attr(&orig) < 0 ||
	    syscall(SYS_sched_setscheduler, 0, SCHED_FIFO | (orig.flags ? SCHED_RESET_ON_FORK : 0), &param) < 0 ||
	    quell_lane_restore_attr(&orig) < 0)
		error = errno;
	if (error)
		quell_lane_explain(lane, error, lane->why, sizeof(lane->why));
	errno = error;
	return error ? -1 : 0;
}

static inline int quell_lane_check_priorities(struct quell_lane *lane, const int *priorities)
{
	static const int defaults[QUELL_LANE_LEVELS] = {
		QUELL_LANE_PARKED_PRIORITY,
		QUELL_LANE_DISPATCHER_PRIORITY,
		QUELL_LANE_RUNNING_PRIORITY,
		QUELL_LANE_SWITCHER_PRIORITY,
	};
	int level, below = 0;

	for (level = 0; level < QUELL_LANE_LEVELS; level++) {
		lane->priorities[level] = priorities ? priorities[level] : defaults[level];
		if (lane->priorities[level] <= below || lane->priorities[level] > QUELL_LANE_PRIORITY_MAX) {
			snprintf(lane->why, sizeof(lane->why),
				 "priorities have to rise from level to level, within 1 to %d",
				 QUELL_LANE_PRIORITY_MAX);
			errno = EINVAL;
			return -1;
		}
		below = lane->priorities[level];
	}
	return 0;
}

/*
 * A lane on a core, if this process may have one. priorities: one for each level, rising; NULL for the defaults.
 * Nobody is in it yet. On failure lane->why says in words what is missing.
 */
static inline int quell_lane_open(struct quell_lane *lane, int core, const int *priorities)
{
	memset(lane, 0, sizeof(*lane));
	lane->core = core;
	lane->timer = -1;
	if (quell_lane_check_priorities(lane, priorities) < 0 || quell_lane_check_core(lane) < 0 ||
	    quell_lane_check_rights(lane) < 0)
		return -1;
	lane->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	if (lane->timer < 0) {
		snprintf(lane->why, sizeof(lane->why), "no timer: %s", strerror(errno));
		return -1;
	}
	return 0;
}

/* Once all threads have left. */
static inline void quell_lane_close(struct quell_lane *lane)
{
	if (lane->timer >= 0)
		close(lane->timer);
	lane->timer = -1;
}

/* The calling thread gets the lane's core and a level, and remembers in thread what it orig. */
static inline int quell_lane_enter(const struct quell_lane *lane, struct quell_lane_thread *thread,
				   enum quell_lane_level level)
{
	struct quell_lane_cores core;
	int error;

	memset(thread, 0, sizeof(*thread));
	if (quell_lane_get_attr(&thread->orig_attr) < 0 || quell_lane_get_cores(&thread->orig_cores) < 0)
		return -1;
	/* The level first: an ordinary thread might never get to run on a core on which another one polls. */
	if (quell_lane_fifo(0, lane->priorities[level]) < 0)
		return -1;
	quell_lane_one_core(&core, lane->core);
	if (quell_lane_set_cores(&core) < 0) {
		error = errno;
		quell_lane_restore_attr(&thread->orig_attr);
		errno = error;
		return -1;
	}
	/* Release: pairs with the Acquire in quell_lane_get(), which reads nothing else by it. */
	__atomic_store_n(&thread->member_ref, (uint64_t)quell_lane_tid(), __ATOMIC_RELEASE);
	return 0;
}

/* Whether it entered and did not leave: for the thread itself. */
static inline int quell_lane_is_in(const struct quell_lane_thread *thread)
{
	return (uint32_t)__atomic_load_n(&thread->member_ref, __ATOMIC_RELAXED) != 0;
}

/* The thread's number; it does not leave before quell_lane_put(). 0 with ESRCH: it has left. */
static inline pid_t quell_lane_get(struct quell_lane_thread *thread)
{
	uint64_t member_ref = __atomic_load_n(&thread->member_ref, __ATOMIC_RELAXED);

	do {
		if ((uint32_t)member_ref == 0) {
			errno = ESRCH;
			return 0;
		}
	} while (!__atomic_compare_exchange_n(&thread->member_ref, &member_ref, member_ref + QUELL_LANE_MEMBER_REF_HELD, 0, __ATOMIC_ACQUIRE,
					      __ATOMIC_RELAXED));
	return (pid_t)(uint32_t)member_ref;
}

static inline void quell_lane_put(struct quell_lane_thread *thread)
{
	/* Release: pairs with the Acquire in quell_lane_leave(): what this thread asked of the kernel is done. */
	__atomic_fetch_sub(&thread->member_ref, QUELL_LANE_MEMBER_REF_HELD, __ATOMIC_RELEASE);
}

/*
 * The calling thread gets back what it orig, once nobody is about to change its level. It has to, before it ends: its number
 * may become somebody else's.
 */
static inline int quell_lane_leave(const struct quell_lane *lane, struct quell_lane_thread *thread)
{
	const struct timespec again = { 0, 20000 };
	int error = 0;

	/* Relaxed: the thread wrote it itself, and others see no more by it than that it has left. */
	if ((uint32_t)__atomic_load_n(&thread->member_ref, __ATOMIC_RELAXED) != (uint32_t)quell_lane_tid()) {
		errno = ESRCH;
		return -1;
	}
	__atomic_fetch_and(&thread->member_ref, ~(uint64_t)UINT32_MAX, __ATOMIC_RELAXED);
	/* Asleep: who is at it may be below this thread on the same core. Acquire: pairs with quell_lane_put(). */
	while (__atomic_load_n(&thread->member_ref, __ATOMIC_ACQUIRE))
		nanosleep(&again, NULL);
	/* The core first, for the same reason as above. Both are tried. */
	if (quell_lane_restore_cores(&lane->allowed, &thread->orig_cores) < 0)
		error = errno;
	if (quell_lane_restore_attr(&thread->orig_attr) < 0)
		error = errno;
	errno = error;
	return error ? -1 : 0;
}

/* Puts a thread of the lane on a level: the own one, or another. */
static inline int quell_lane_set(const struct quell_lane *lane, struct quell_lane_thread *thread,
				 enum quell_lane_level level)
{
	pid_t tid = quell_lane_get(thread);
	int done;

	if (tid == 0)
		return -1;
	done = quell_lane_fifo(tid, lane->priorities[level]);
	quell_lane_put(thread);
	return done;
}

/*
 * The turn goes from one worker to another: the next is raised, then the last is lowered, so that no third thread
 * slips in between. For the switcher, or a thread on another core: whoever is below would not get to the second half.
 */
static inline int quell_lane_switch_to(const struct quell_lane *lane, struct quell_lane_thread *last,
				       struct quell_lane_thread *next)
{
	int error;

	if (quell_lane_set(lane, next, QUELL_LANE_RUNNING) < 0)
		return -1;
	if (quell_lane_set(lane, last, QUELL_LANE_PARKED) == 0 || errno == ESRCH)
		return 0;
	error = errno;
	quell_lane_set(lane, next, QUELL_LANE_PARKED);
	errno = error;
	return -1;
}

/*
 * The timer. A turn is armed by the dispatcher or by the worker itself, one thread at a time. It ends once: either
 * by quell_lane_disarm() or by an expiry that quell_lane_wait() returns; whoever is first wins. So an expiry that was
 * already under way when its turn ended preempts nobody, least of all the next turn.
 */

/* Sets the timer for timer_at. Two threads may at once: the last one looks what it should be. */
static inline int quell_lane_set_timer(struct quell_lane *lane, uint64_t at)
{
	for (;;) {
		struct itimerspec spec;
		uint64_t now;

		memset(&spec, 0, sizeof(spec));
		spec.it_value.tv_sec = (time_t)(at / 1000000000u);
		spec.it_value.tv_nsec = (long)(at % 1000000000u);
		if (timerfd_settime(lane->timer, TFD_TIMER_ABSTIME, &spec, NULL) < 0)
			return -1;
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		now = __atomic_load_n(&lane->timer_at, __ATOMIC_RELAXED);
		if (now == at || now == 0)
			return 0;
		at = now;
	}
}

/*
 * A turn begins, and expires in so many nanoseconds. To set a timer takes microseconds on a virtual machine: it is
 * set only if it would not go off in time as it is; an expiry that finds a later deadline sets it for that. The fences
 * here and in quell_lane_expired() make one see the other.
 */
static inline int quell_lane_arm(struct quell_lane *lane, uint64_t ns)
{
	uint64_t generation = (__atomic_load_n(&lane->turn, __ATOMIC_RELAXED) >> QUELL_LANE_TURN_BITS) + 1;
	uint64_t deadline = quell_lane_now() + ns, timer;

	/* The deadline first: whoever sees the turn, sees its deadline or a later one. */
	__atomic_store_n(&lane->deadline, deadline, __ATOMIC_RELAXED);
	__atomic_store_n(&lane->turn, generation << QUELL_LANE_TURN_BITS | QUELL_LANE_TURN_ARMED, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	timer = __atomic_load_n(&lane->timer_at, __ATOMIC_RELAXED);
	do {
		if (timer != 0 && timer <= deadline)
			return 0;
	} while (!__atomic_compare_exchange_n(&lane->timer_at, &timer, deadline, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
	return quell_lane_set_timer(lane, deadline);
}

/*
 * The turn has ended in time: 1, or 0 where its expiry came first, or none was armed. No system call: the timer runs
 * on, and wakes the switcher once: for the turn that is armed then, or in vain.
 */
static inline int quell_lane_disarm(struct quell_lane *lane)
{
	uint64_t turn = __atomic_load_n(&lane->turn, __ATOMIC_RELAXED);

	return (turn & QUELL_LANE_TURN_MASK) == QUELL_LANE_TURN_ARMED &&
	       __atomic_compare_exchange_n(&lane->turn, &turn, turn & ~(uint64_t)QUELL_LANE_TURN_MASK, 0,
					   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* An expiry was read: claims the armed turn, if it is over: 1. Sets the timer for one that is not: 0; or -1. */
static inline int quell_lane_expired(struct quell_lane *lane, uint64_t now)
{
	uint64_t turn, deadline, spent = 0;

	__atomic_store_n(&lane->timer_at, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	turn = __atomic_load_n(&lane->turn, __ATOMIC_ACQUIRE);
	if ((turn & QUELL_LANE_TURN_MASK) != QUELL_LANE_TURN_ARMED)
		return 0;
	deadline = __atomic_load_n(&lane->deadline, __ATOMIC_RELAXED);
	if (now >= deadline)
		return __atomic_compare_exchange_n(&lane->turn, &turn,
						   (turn & ~(uint64_t)QUELL_LANE_TURN_MASK) | QUELL_LANE_TURN_EXPIRED,
						   0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	if (!__atomic_compare_exchange_n(&lane->timer_at, &spent, deadline, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return 0;
	return quell_lane_set_timer(lane, deadline);
}

/*
 * The switcher sleeps until an armed turn is over: 1. 0 after quell_lane_stop(), -1 with errno. spurious, where it is
 * not NULL, counts expiries of turns that had ended.
 */
static inline int quell_lane_wait(struct quell_lane *lane, uint64_t *spurious)
{
	uint64_t times;
	int over;

	/*
	 * The expiry of a stop is read once, and may have been read. Acquire: pairs with the Release in quell_lane_stop(),
	 * which comes before the timer is set there: who reads that expiry sees it.
	 */
	while (!__atomic_load_n(&lane->stopping, __ATOMIC_ACQUIRE)) {
		ssize_t got = read(lane->timer, &times, sizeof(times));
		if (got < 0 && errno != EINTR && errno != EAGAIN)
			return -1;
		if (got < 0 || __atomic_load_n(&lane->stopping, __ATOMIC_ACQUIRE))
			continue;
		over = quell_lane_expired(lane, quell_lane_now());
		if (over)
			return over;
		if (spurious)
			++*spurious;
	}
	return 0;
}

/* Ends quell_lane_wait(), now and from now on. */
static inline int quell_lane_stop(struct quell_lane *lane)
{
	struct itimerspec at;

	/* Release: pairs with the Acquires in quell_lane_wait(). */
	__atomic_store_n(&lane->stopping, 1, __ATOMIC_RELEASE);
	memset(&at, 0, sizeof(at));
	at.it_value.tv_nsec = 1;
	return timerfd_settime(lane->timer, 0, &at, NULL);
}

/*
 * A parked worker gets a turn of so many nanoseconds (0: until it sleeps). On the dispatcher, whom the worker thereby
 * preempts: this returns when the worker sleeps or is preempted itself. The turn counts from here: what it takes to set
 * the timer and to switch threads, some microseconds on a virtual machine, is the worker's loss.
 */
static inline int quell_lane_run(struct quell_lane *lane, struct quell_lane_thread *worker, uint64_t ns)
{
	if (ns && quell_lane_arm(lane, ns) < 0)
		return -1;
	return quell_lane_set(lane, worker, QUELL_LANE_RUNNING);
}

/*
 * On the switcher, after an expiry: the worker whose turn it was is parked: 1. Where the turn expired before the
 * dispatcher came to raise the worker, it is armed again with twice so many nanoseconds, and twice that the next time in
 * a row: 0. (A worker raised after its expiry would run for ever; a dispatcher that is stopped again and again would
 * never come to raise it.)
 */
static inline int quell_lane_preempt(struct quell_lane *lane, struct quell_lane_thread *worker, uint64_t ns)
{
	struct sched_param param;
	pid_t tid = quell_lane_get(worker);
	int early, done;

	if (tid == 0)
		return -1;
	memset(&param, 0, sizeof(param));
	done = (int)syscall(SYS_sched_getparam, tid, &param);
	early = done == 0 && param.sched_priority < lane->priorities[QUELL_LANE_RUNNING];
	if (done == 0 && !early)
		done = quell_lane_fifo(tid, lane->priorities[QUELL_LANE_PARKED]);
	quell_lane_put(worker);
	if (done < 0)
		return -1;
	if (!early) {
		lane->early = 0;
		return 1;
	}
	if (lane->early < QUELL_LANE_EARLY_MAX)
		lane->early++;
	return quell_lane_arm(lane, (ns ? ns : 1) << lane->early);
}

#ifdef __cplusplus
}
#endif

#endif /* QUELL_LANE_H */
