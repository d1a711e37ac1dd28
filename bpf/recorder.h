/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the recorder's programs and user space share;
 * crates/observe/src/recorder/record.rs mirrors the records. Times are
 * CLOCK_MONOTONIC nanoseconds.
 */
#ifndef QUELL_RECORDER_H
#define QUELL_RECORDER_H

#include "queues.h"

/* Callers of set_task_cpu() that are kept: who moved the thread is among the first. */
#define QUELL_STACK_DEPTH 24

/* The kinds of events that share programs with others. */
#define QUELL_TELL_SWITCHES 1
#define QUELL_TELL_WAKES 2
#define QUELL_TELL_LIVES 4
#define QUELL_TELL_QUEUES 8
#define QUELL_TELL_LOAD 16
#define QUELL_TELL_ALLOWED 32
/* All softirqs, not only the load balancer's. */
#define QUELL_TELL_SOFTIRQS 64
/* Switches that no tracepoint showed, as soon as anything else happens on their core. */
#define QUELL_TELL_UNSEEN 128
#define QUELL_TELL_WOKEN 256

/* Processes that wake-ups can be filtered by. */
#define QUELL_PROCESSES 16

enum quell_record {
	QUELL_RECORD_SWITCH = 1,
	QUELL_RECORD_WAKING,
	QUELL_RECORD_WOKEN,
	QUELL_RECORD_WOKEN_NEW,
	QUELL_RECORD_FORK,
	QUELL_RECORD_EXEC,
	QUELL_RECORD_EXIT,
	QUELL_RECORD_MIGRATE,
	/* As before, while the thread becomes another program. */
	QUELL_RECORD_MIGRATE_EXEC,
	QUELL_RECORD_QUEUE,
	QUELL_RECORD_LOAD,
	QUELL_RECORD_SOFTIRQ_ENTRY,
	QUELL_RECORD_ALLOWED,
	/* As a switch, which was not seen itself. */
	QUELL_RECORD_UNSEEN,
	QUELL_RECORD_ONLINE,
	QUELL_RECORD_SOFTIRQ_EXIT,
	QUELL_RECORD_IRQ_ENTRY,
	QUELL_RECORD_IRQ_EXIT,
};

/* `sequence` counts the records of a core, those that found no room as well. */
struct record {
	__u64 at;
	__u64 sequence;
	__u16 core;
	__u16 kind;
	/* Switch, unseen: who leaves. Waking: by whom. Woken: where. Fork: the parent. */
	/* Exit, migrate, allowed: who. Queue, load: whose. Online: which core. */
	/* Softirq: its vector. Interrupt: its number. */
	__u32 subject;
};

/* Softirqs and interrupts have no body. */

/* Switch, unseen, waking, woken, fork, exec. */
struct record_thread {
	struct record head;
	__s32 thread;
	__s32 process;
	__u16 priority;
	__u16 policy;
	/* Switch: the state of who left, and the stolen time in ns. Waking: the target. */
	__u32 state;
	__u32 stolen;
	__u32 target;
	char comm[16];
};

/* Exit. Migrate: from, to, stack. Queue: queued, runnable. Online: to, 1 if it came. */
struct record_short {
	struct record head;
	__u16 from;
	__u16 to;
	__s32 stack;
	__u32 queued;
	__u32 runnable;
};

struct record_load {
	struct record head;
	__u64 weight;
	__u64 average;
};

struct record_allowed {
	struct record head;
	__u64 mask[QUELL_MASK_WORDS];
};

/* What a core keeps of itself; user space reads the sequence. */
struct own {
	__u64 sequence;
	__u64 steal;
	/* Who got the core last, as it was told. */
	__s32 running;
	__u32 is_known;
	__u64 reserved[5];
};

#endif
