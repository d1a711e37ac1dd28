/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The maps, and the small operations on them that every program shares.
 */
#ifndef QUELL_MAPS_H
#define QUELL_MAPS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "quell.h"

extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;

#define BITS_PER_WORD 64

typedef __u64 word_t;

/*
 * A max_entries of 1 stands for a size that the loader sets. User space maps
 * all arrays.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

/* Which sleeps in futex an LC thread ends, and which thread ended its own: wakers.h. Handles; 0: none. */
struct waker {
	/* Of the slot's thread while it is QUELL_BACKGROUND: the thread whose sleep it ended last. */
	__u64 ends_sleep_of;
	/* Of any: the background thread that ended its last sleep that one ended. */
	__u64 sleep_ended_by;
	/* When that was. */
	__u64 ended;
	/* When QUELL_EVENT_ENDS_SLEEP was last sent. */
	__u64 sent;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct waker);
} wakers SEC(".maps");

/* One bit a slot: in use, and changed since user space last looked. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, word_t);
} used SEC(".maps"), dirty SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct core);
} cores SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct core_order);
} orders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, QUELL_SETS);
	__type(key, __u32);
	__type(value, struct core_set);
} sets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct task);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct histograms);
} histograms SEC(".maps");

/* For each core a row with an entry for each task. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct task_time);
} task_times SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} totals SEC(".maps");

/* include/uapi/linux/bpf.h; the verifier knows it by name. */
struct bpf_timer {
	__u64 __opaque[2];
} __attribute__((aligned(8)));

/* The timer that looks at the burst in progress on a core. */
struct burst_check {
	struct bpf_timer timer;
	/* When it fires; 0: it is not armed. */
	__u64 due;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct burst_check);
} burst_checks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

/* What wakes the scheduler of a lane; the loader makes one for each lane. */
struct lane_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, QUELL_LANE_RINGS);
	__type(key, __u32);
	__array(values, struct lane_ring);
} lane_rings SEC(".maps");

/*
 * From a thread to its slot: 1 + slot in the low half, the slot's use count
 * in the high half; 0 if it is not watched.
 */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, word_t);
} handles SEC(".maps");

/*
 * Atomics that return the old value are full barriers, on each architecture
 * with a BPF JIT. The BPF instruction set of clang-16 has no other barrier.
 */
#define atomic_fetch_add(p, v) __sync_fetch_and_add(p, v)
#define atomic_fetch_or(p, v) __sync_fetch_and_or(p, v)
#define atomic_fetch_and(p, v) __sync_fetch_and_and(p, v)
#define atomic_cmpxchg(p, old, new) __sync_val_compare_and_swap(p, old, new)
#define atomic_xchg(p, v) __sync_lock_test_and_set(p, v)
/* Result unused: a plain locked add, without ordering promised. */
#define atomic_add(p, v) ((void)__sync_fetch_and_add(p, v))

static const __u32 zero;

/*
 * The loader sets it to load the programs without bursts and locks, to measure what those cost. The verifier
 * removes what can then not be reached.
 */
SEC(".rodata.roles") const volatile __u32 without_roles;

static __always_inline struct control *control_page(void)
{
	return bpf_map_lookup_elem(&control, &zero);
}

static __always_inline struct totals *totals_page(void)
{
	return bpf_map_lookup_elem(&totals, &zero);
}

/* Position of the highest set bit; `value` is not 0. */
static __always_inline __u32 highest_bit(__u64 value)
{
	__u32 bit = 0;

	if (value >> 32) {
		bit += 32;
		value >>= 32;
	}
	if (value >> 16) {
		bit += 16;
		value >>= 16;
	}
	if (value >> 8) {
		bit += 8;
		value >>= 8;
	}
	if (value >> 4) {
		bit += 4;
		value >>= 4;
	}
	if (value >> 2) {
		bit += 2;
		value >>= 2;
	}
	return bit + (value >> 1);
}

static __always_inline __u32 handle_slot(__u64 handle)
{
	return (__u32)handle - 1;
}

static __always_inline __u32 handle_use(__u64 handle)
{
	return handle >> 32;
}

static __always_inline __u64 make_handle(__u32 slot, __u32 use)
{
	return (__u64)use << 32 | (slot + 1);
}

static __always_inline __u64 handle_of(struct task_struct *p)
{
	__u64 *handle = bpf_task_storage_get(&handles, p, 0, 0);

	return handle ? READ_ONCE(*handle) : 0;
}

static __always_inline struct slot *slot_of(__u64 handle)
{
	__u32 at = handle_slot(handle);

	return handle ? bpf_map_lookup_elem(&slots, &at) : NULL;
}

/*
 * Some 100 us. A switch or a wake-up has interrupts off and needs ~100 ns. A call of user space has not: one that is
 * interrupted by a wake-up of its own core is waited for in vain, and a longer wait would hold up the core for nothing.
 */
#define LOCK_WAITS (1 << 14)

struct lock_try {
	struct slot *slot;
	__u32 seen;
	bool locked;
};

static long lock_once(__u32 i, struct lock_try *try)
{
	__u32 seen = READ_ONCE(try->slot->seq);

	if (seen & 1 || atomic_cmpxchg(&try->slot->seq, seen, seen + 1) != seen)
		return 0;
	try->seen = seen;
	try->locked = true;
	return 1;
}

/*
 * The writer missed its caches, or was stopped by its hypervisor: a
 * wake-up that is given up here is lost for half a second. Out of line, as
 * all that is seldom: instructions are driven out of the cache, too.
 */
static __noinline bool slot_lock_busy(struct slot *s, __u64 handle, __u32 *seq)
{
	struct lock_try try = { .slot = s };
	struct totals *t;

	bpf_loop(LOCK_WAITS, lock_once, &try, 0);
	if (!try.locked) {
		t = totals_page();
		if (t)
			atomic_add(&t->contended, 1);
		return false;
	}
	*seq = try.seen;
	if (s->reuse_count == handle_use(handle))
		return true;
	atomic_xchg(&s->seq, try.seen + 2);
	return false;
}

/*
 * Takes the slot that `handle` names, unless it has been freed since. The
 * switch and the waking of one thread may run on two CPUs at once: seq is
 * lock and sequence word in one.
 */
static __always_inline bool slot_lock(struct slot *s, __u64 handle, __u32 *seq)
{
	__u32 seen = READ_ONCE(s->seq);

	if (seen & 1 || atomic_cmpxchg(&s->seq, seen, seen + 1) != seen)
		return slot_lock_busy(s, handle, seq);
	if (s->reuse_count == handle_use(handle)) {
		*seq = seen;
		return true;
	}
	atomic_xchg(&s->seq, seen + 2);
	return false;
}

static __always_inline void slot_unlock(struct slot *s, __u32 seq)
{
	atomic_xchg(&s->seq, seq + 2);
}

/*
 * Notes that the slot changed. Pairs with user space, which clears the word
 * and then reads the slots: the exchange in slot_unlock orders the slot's new
 * content before the look at the word, so a bit left alone is one that user
 * space has yet to clear.
 */
static __always_inline void mark_dirty(__u64 handle)
{
	__u32 at = handle_slot(handle) / BITS_PER_WORD;
	__u64 bit = 1ULL << (handle_slot(handle) % BITS_PER_WORD);
	__u64 *word = bpf_map_lookup_elem(&dirty, &at);

	if (word && !(READ_ONCE(*word) & bit))
		atomic_fetch_or(word, bit);
}

enum wake {
	/* Read when the observer looks anyway. */
	WAKE_NOT,
	/* A hint, not more often than each wake_gap. */
	WAKE_HINT,
	/* As soon as the observer emptied the ring. */
	WAKE_NOW,
};

/*
 * NO_WAKEUP by default: waking the observer on each event doubles the cost of
 * a switch. `armed` is set by the observer once it has emptied the ring, and
 * cleared by the event that wakes it.
 */
static __always_inline __u64 wake_flag(enum wake wake, __u64 now)
{
	struct control *c = control_page();
	struct totals *t = totals_page();

	if (wake == WAKE_NOT || !c || !t || !READ_ONCE(c->armed))
		return BPF_RB_NO_WAKEUP;
	if (wake == WAKE_HINT && now - READ_ONCE(t->last_wake) < c->wake_gap)
		return BPF_RB_NO_WAKEUP;
	if (!atomic_xchg(&c->armed, 0))
		return BPF_RB_NO_WAKEUP;
	WRITE_ONCE(t->last_wake, now);
	return BPF_RB_FORCE_WAKEUP;
}

static __always_inline struct event *event_new(__u32 kind)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	struct totals *t;

	if (!e) {
		t = totals_page();
		if (t)
			atomic_add(&t->events_dropped, 1);
		return NULL;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->kind = kind;
	return e;
}

static __always_inline void event_send(struct event *e, enum wake wake, __u64 now)
{
	bpf_ringbuf_submit(e, wake_flag(wake, now));
}

static __always_inline void identify(struct identity *id, struct task_struct *p)
{
	id->tid = p->pid;
	id->tgid = p->tgid;
	id->start_boottime = p->start_boottime;
}

#endif
