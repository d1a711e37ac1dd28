/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the BPF programs and user space share.
 *
 * crates/observe/src/bpf/abi.rs mirrors these structures; its test compares
 * each field by layout.bpf.c. All times are CLOCK_MONOTONIC nanoseconds, except
 * start_boottime, which counts from boot and includes suspends.
 */
#ifndef QUELL_H
#define QUELL_H

/* Lanes at once: each has a ring of its own for wake-ups of its scheduler. */
#define QUELL_LANE_RINGS 64

/* A set of cores that LC tasks may use, and a bit of core_order.sets. */
#define QUELL_SETS 16

/* Histogram buckets: 8 for each power of two from 256 ns to 17 s. */
#define QUELL_BUCKETS 208
#define QUELL_BUCKET_MIN_LOG2 8

enum quell_state {
	QUELL_UNKNOWN,
	QUELL_RUNNING,
	QUELL_WAITING,
	QUELL_SLEEPING,
};

/* What runs on a core; also the index in core.total. */
enum quell_kind {
	QUELL_OTHER,
	QUELL_IDLE,
	QUELL_LC,
	QUELL_BE,
	/* An LC thread in the fair class: QUELL_FAIR, and QUELL_BACKGROUND unless that is elevated. */
	QUELL_LC_FAIR,
	QUELL_KINDS,
};

/* Role of an LC thread; the order of `Role` in crates/model/src/role.rs. */
enum quell_role {
	QUELL_EVENT_THREAD,
	QUELL_LONG_EVENT,
	QUELL_BACKGROUND,
	QUELL_FAIR,
	/* In the background by its bursts, above event threads for one of their budgets. */
	QUELL_BOOSTED,
};

enum quell_children {
	QUELL_ADOPT,
	QUELL_BEST_EFFORT,
	QUELL_LEAVE,
};

enum quell_event_kind {
	QUELL_EVENT_FORKED = 1,
	QUELL_EVENT_EXITED,
	QUELL_EVENT_EXECED,
	QUELL_EVENT_LC_QUEUED,
	QUELL_EVENT_CORE_IDLE,
	QUELL_EVENT_STALL,
	QUELL_EVENT_OVERRAN,
	QUELL_EVENT_PROVED,
	QUELL_EVENT_CONTENDED,
	QUELL_EVENT_RELEASED,
	QUELL_EVENT_STOPPED,
	QUELL_EVENT_ENDS_SLEEP,
};

/* Flags of a slot. The wait in progress began with a wake-up, not with a preemption. */
#define QUELL_WOKEN 1
/*
 * It waits where it was preempted inside the kernel, or woken from an uninterruptible sleep, or it is in
 * such a sleep: it may hold what others need.
 */
#define QUELL_IN_KERNEL 2
/* An LC thread that sleeps in futex: another thread, or a time, ends that. */
#define QUELL_IN_FUTEX 4
/* Besides QUELL_IN_KERNEL: in the middle of a transaction of a file system. */
#define QUELL_IN_TRANSACTION 8
#define QUELL_STOPPED (QUELL_IN_KERNEL | QUELL_IN_TRANSACTION)
/* sched_waking was seen while the slot said running: `pending` says when. */
#define QUELL_PENDING 16

/*
 * A watched thread. Written with seq odd; a reader that saw seq even and
 * unchanged around its loads has a coherent copy. Batch work drives these lines
 * out of the cache between two wake-ups, and each that is missed costs as much
 * as some hundred instructions: the first holds all that a switch touches.
 */
struct slot {
	__u32 seq;
	__u32 state;
	__u64 since;
	__u64 ran;
	__u64 waited;
	__u64 transitions;
	__u32 core;
	__u32 task;
	__u8 lc;
	/* enum quell_role; user space, by `set_role`. */
	__u8 role;
	/* QUELL_WOKEN and those that follow it. */
	__u8 flags;
	/* 1 + the set that counts this thread as waiting, or 0. */
	__u8 counted;
	/* How often the slot was freed: a handle with another count is stale. */
	__u32 reuse_count;
	__u32 generation;
	/* 0: the slot is free. */
	__s32 tid;

	/* What each wake-up and each input touches besides. Since when it has not slept. */
	__u64 awake_since;
	/* With QUELL_PENDING. */
	__u64 pending;
	/* se.sum_exec_runtime, and `ran`, when its burst began. */
	__u64 burst_exec;
	__u64 burst_ran;
	/* When QUELL_EVENT_OVERRAN was last sent for this burst; 0: not yet. */
	__u64 overrun_sent;
	/* `ran` when it last received from a socket in this burst, else when that began; its longest stretch before that. */
	__u64 input_ran;
	__u64 stretch_max;
	/* The address of the lock that it was said to wait for (QUELL_EVENT_CONTENDED); 0: none. */
	__u64 told_lock;

	__u64 start_boottime;
	__s32 tgid;
	__s32 parent_tid;
	__u8 children;
	/* A process that an LC task created, treated as BE: not one of its threads. */
	__u8 guest;
	/* Its member of a lane; 0 in a task that is no lane. */
	__u8 member;
	/* QUELL_EVENT_PROVED was sent for this role. */
	__u8 proved_sent;
	/* Short bursts in a row that earn a higher role, and those so far. */
	__u16 needs;
	__u16 proved;
	__u64 reserved[5];
};

/* In `kthread_since`: the thread is bound to the core. A nanosecond more or less is no matter. */
#define QUELL_BOUND 1ULL

/* Threads that a core remembers. */
#define QUELL_RECENT 4

/* A core, written by the core itself with interrupts off. */
struct core {
	__u32 seq;
	__u32 kind;
	/* Since when `kind`, `slot` and `task` hold. */
	__u64 since;
	__u64 total[QUELL_KINDS];
	/* 1 + the slot of the watched thread that runs, or 0. */
	__u32 slot;
	__u32 reuse_count;
	__u32 task;
	__u32 generation;

	/* How often it fell idle. */
	__u64 idles;
	/* The last stretch of time that one BE task ran. */
	__u64 be_from;
	__u64 be_until;
	__u32 be_task;
	/* The sets in which this core is counted now. */
	__u32 sets;
	__u64 steal;
	/* The thread that has it, watched or not; 0: idle. */
	__s32 running;
	/* The entry of `recent_task` that the next thread replaces. */
	__u32 recent_next;
	/* Since when a kernel thread of the fair class waits behind LC, with QUELL_BOUND; 0: none. */
	__u64 kthread_since;

	/*
	 * Watched threads that had the core lately: the address of each, and its handle. The way from a thread to its
	 * slot through task storage misses three lines where caches are cold, and a core mostly turns between few.
	 */
	__u64 recent_task[QUELL_RECENT];
	__u64 recent_handle[QUELL_RECENT];
};

/* What user space wants of a core. */
struct core_order {
	/* The sets that the core belongs to; 0: not managed. */
	__u32 sets;
	/* An idle event was sent and is not yet consumed. */
	__u32 told_idle;
	__u64 reserved[7];
};

/*
 * A set of managed cores that some LC tasks may use, with one packed counter:
 * waiting LC threads, idle cores, cores that run LC threads. Each change is
 * one atomic add, so exactly one CPU sees each edge.
 */
struct core_set {
	__u64 word;
	/* How many cores the set has; written by user space. */
	__u32 cores;
	__u32 reserved0;
	__u64 reserved[6];
};

#define QUELL_WAITING_ONE 1ULL
#define QUELL_IDLE_ONE (1ULL << 24)
#define QUELL_LC_RUNNING_ONE (1ULL << 44)
#define QUELL_WAITING_OF(word) ((word) & 0xffffff)
#define QUELL_IDLE_OF(word) (((word) >> 24) & 0xfffff)
#define QUELL_LC_RUNNING_OF(word) ((word) >> 44)

/* A task: threads of one application, LC or BE. Nothing here is written at each switch, so that cores share the line. */
struct task {
	/* The set that its waiting LC threads are counted in; user space. */
	__u32 set;
	/* An LC-queued event was sent and is not yet consumed. */
	__u32 told_queued;
	/* It has no core of its own: each wait of LC threads is told; user space. */
	__u32 unserved;
	/*
	 * It is a lane: QUELL_LANE_*, what its scheduler waits for; user space.
	 * The event that tells clears it.
	 */
	__u32 lane;
	/* 1 + the index in lane_rings, or 0: the task is no lane; user space. */
	__u32 ring;
	__u32 reserved0;
	/* Of a lane: how often a thread of it began or ceased to be runnable. */
	__u64 changes;
	__u64 reserved[4];
};

/* What the threads of a task did on one core. */
struct task_time {
	/* Stretches that ended; written by the core itself with interrupts off. */
	__u64 ran;
	/* Until they got this core, or a wait was found to have ended here. */
	__u64 waited;
};

#define QUELL_LANE_SLEEPS 1
#define QUELL_LANE_WAKES 2

/* Wake-to-run times, counted in buckets. */
struct histograms {
	/* Of the task's own LC threads. */
	__u32 own[QUELL_BUCKETS];
	/* Of LC threads that this BE task held up. */
	__u32 caused[QUELL_BUCKETS];
};

/* What user space wants of the observer. */
struct control {
	__u32 wake_on_events;
	/* Somebody would use a core that falls idle. */
	__u32 idle_wanted;
	/* The observing process: a core it leaves idle is no news to it. */
	__u32 self_tgid;
	/* The next event may wake the observer; one event clears it. */
	__u32 armed;
	/* Least time between wake-ups for LC-queued and idle events. */
	__u64 wake_gap;
	/* Words of the slot bitmaps. */
	__u32 words;
	/* Task places: the length of a core's row in `task_times`. */
	__u32 tasks;
	/* Steal beyond this is reported as a stall. */
	__u64 stall_min;
	/* Budgets of bursts of QUELL_EVENT_THREAD and QUELL_LONG_EVENT; 0: bursts are not checked. */
	__u64 budgets[2];
	/* Threads of QUELL_BACKGROUND are above the fair class. */
	__u32 elevated_background;
	__u32 reserved;
};

/* Sums over all cores, and what went wrong. */
struct totals {
	/*
	 * Time during which, in at least one set, an LC thread waited while a
	 * core was idle: an edge up subtracts the clock, an edge down adds it.
	 * `active` counts the sets for which that holds now.
	 */
	__u64 idle_while_waiting;
	__u64 active;
	__u64 last_wake;
	/* When a BE thread was last stopped inside the kernel, and QUELL_EVENT_STOPPED last sent. */
	__u64 be_in_kernel;
	__u64 told_stopped;
	__u64 reserved[3];

	__u64 table_full;
	__u64 storage_failed;
	__u64 events_dropped;
	__u64 contended;
	/* A thread ran although its wake-up was not seen. */
	__u64 missed_wakes;
	__u64 watched;
	/* A watched thread got or left a core, and no switch had told. */
	__u64 missed_switches;
	__u64 reserved1;
};

#define QUELL_FORKED_PROCESS 1
#define QUELL_FORKED_WATCHED 2
#define QUELL_FORKED_LC 4

struct identity {
	__s32 tid;
	__s32 tgid;
	__u64 start_boottime;
};

struct event {
	__u32 kind;
	__u32 core;
	__u32 task;
	__u32 generation;
	struct identity subject;
	struct identity parent;
	/* FORKED: QUELL_FORKED_*. */
	__u32 flags;
	__u32 reserved;
	/* STALL: the window and what the hypervisor took of it. */
	__u64 from;
	__u64 to;
	__u64 stolen;
	/*
	 * OVERRAN, PROVED, CONTENDED, RELEASED, ENDS_SLEEP: the thread's slot and that slot's
	 * reuse count, and the burst.
	 */
	__u32 slot;
	__u32 reuse_count;
	__u64 length;
	/* CONTENDED: the thread that holds the lock. */
	__u32 owner_slot;
	__u32 owner_reuse_count;
};

/* Argument of the `watch` and `unwatch` programs. */
struct watch_args {
	__s32 tid;
	__u32 task;
	__u64 start_ticks;
	__u32 generation;
	__u32 lc;
	__u32 children;
	/* Out: the state after the call, and the thread's core. */
	__u32 state;
	__u32 core;
	__u32 member;
	/* Of `set_role`. */
	__u32 role;
	__u32 needs;
};

#endif
