/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the recorder of transitions and user space share;
 * crates/linux/src/observe/transitions/ mirrors it. Times are CLOCK_MONOTONIC
 * nanoseconds.
 */
#ifndef QUELL_TRANSITIONS_H
#define QUELL_TRANSITIONS_H

#define QUELL_PROCESSES 16
#define QUELL_COMM 16

enum quell_transition {
	QUELL_SWITCHED = 1,
	QUELL_WOKEN,
	QUELL_SOFTIRQ_ENTRY,
	QUELL_SOFTIRQ_EXIT,
	QUELL_IRQ_ENTRY,
	QUELL_IRQ_EXIT,
};

struct transition {
	__u64 at;
	__u16 kind;
	__u16 core;
	/* Switched: who got the core. Woken: who. Softirq, interrupt: its number. */
	__s32 thread;
	__s32 process;
	/* Who left the core, and in which state (0: it would rather have stayed). */
	__s32 left;
	__u32 left_state;
	/* The kernel's priority (0 to 99 real time) and policy of `thread`. */
	__u16 priority;
	__u16 policy;
	/* What the hypervisor took from the core since its last switch, in ns. */
	__u32 stolen;
	__u32 reserved;
	char comm[QUELL_COMM];
};

#endif
