/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the keyframe programs write; crates/observe/src/keyframe/ mirrors
 * it. Both records have one size, and are followed by `mask_words` words.
 */
#ifndef QUELL_KEYFRAME_H
#define QUELL_KEYFRAME_H

enum quell_keyframe {
	QUELL_KEYFRAME_CORE = 1,
	QUELL_KEYFRAME_THREAD,
};

enum quell_activity {
	QUELL_THREAD_RUNNING = 1,
	QUELL_THREAD_WAITING,
	QUELL_THREAD_THROTTLED,
	QUELL_THREAD_DELAYED,
	QUELL_THREAD_MOVING,
	QUELL_THREAD_SLEEPING,
};

/* The mask is the span of the core's top domain; empty: it has none. */
struct keyframe_core {
	__u16 kind;
	__u16 core;
	__s32 running;
	__u32 queued;
	__u32 runnable;
	__u64 weight;
	__u64 average;
	__u32 online;
	__u32 wake_pending;
};

/* The mask is where the thread may run. */
struct keyframe_thread {
	__u16 kind;
	__u16 core;
	__s32 thread;
	__s32 process;
	__u16 priority;
	__u16 policy;
	__u16 activity;
	__u16 bound;
	__u32 reserved;
	char comm[16];
};

#endif
