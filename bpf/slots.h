/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Slots of watched threads, and the sets in which LC threads wait.
 */
#ifndef QUELL_SLOTS_H
#define QUELL_SLOTS_H

#include "maps.h"

/* ---- sets: LC threads that wait while a core they may use is idle ---- */

static __always_inline bool is_wasteful(__u64 word)
{
	return QUELL_WAITING_OF(word) && QUELL_IDLE_OF(word);
}

/* What set_add() found. */
#define SET_WAITS 1
#define SET_RUNS_LC 2

static __always_inline int set_has(__u64 word)
{
	return (QUELL_WAITING_OF(word) ? SET_WAITS : 0) | (QUELL_LC_RUNNING_OF(word) ? SET_RUNS_LC : 0);
}

/*
 * Returns whether LC threads wait in the set then, and whether LC runs on a core
 * of it. A global function: the verifier looks at it once and not wherever it is
 * called.
 */
__noinline int set_add(__u32 set, __u64 delta, __u64 now)
{
	struct core_set *s = bpf_map_lookup_elem(&sets, &set);
	struct totals *t = totals_page();
	__u64 old;
	int has;

	if (!s || !t)
		return 0;
	if (!delta)
		return set_has(READ_ONCE(s->word));
	old = atomic_fetch_add(&s->word, delta);
	has = set_has(old + delta);
	if (is_wasteful(old) == is_wasteful(old + delta))
		return has;
	if (is_wasteful(old)) {
		if (atomic_fetch_add(&t->active, -1ULL) == 1)
			atomic_add(&t->idle_while_waiting, now);
	} else if (atomic_fetch_add(&t->active, 1) == 0) {
		atomic_add(&t->idle_while_waiting, -now);
	}
	return has;
}

static __noinline void send_queued(struct task *t, __u32 task, __u32 generation, __u64 now)
{
	struct event *e = event_new(QUELL_EVENT_LC_QUEUED);

	if (!e) {
		WRITE_ONCE(t->told_queued, 0);
		return;
	}
	e->task = task;
	e->generation = generation;
	event_send(e, WAKE_HINT, now);
}

/*
 * Tells that an LC thread waits for something that only the observer can change:
 * its task has no core, or LC runs on each core that it may use.
 */
static __always_inline void tell_if_queued(__u32 set, __u32 task, __u32 generation, __u64 now)
{
	struct core_set *s = bpf_map_lookup_elem(&sets, &set);
	struct task *t = bpf_map_lookup_elem(&tasks, &task);
	struct control *c = control_page();

	if (!s || !t || !c || !READ_ONCE(c->wake_on_events))
		return;
	if (!READ_ONCE(t->unserved) &&
	    (!s->cores || QUELL_LC_RUNNING_OF(READ_ONCE(s->word)) < s->cores))
		return;
	if (!READ_ONCE(t->told_queued) && !atomic_xchg(&t->told_queued, 1))
		send_queued(t, task, generation, now);
}

/* Wakes the scheduler of a lane by its own ring; it finds in the slots why. */
static __noinline void wake_lane(struct task *t, __u32 ring, __u32 task)
{
	void *events = bpf_map_lookup_elem(&lane_rings, &ring);
	__u64 *record = NULL;

	if (events)
		record = bpf_ringbuf_reserve(events, sizeof(*record), 0);
	if (!record) {
		WRITE_ONCE(t->lane, QUELL_LANE_SLEEPS | QUELL_LANE_WAKES);
		return;
	}
	*record = task;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

/*
 * Counts that a thread of a lane began or ceased to be runnable. The caller
 * holds the slot: the exchange that unlocks it orders the count before the look
 * at `lane`, and a reader that sees the count waits for the slot.
 */
static __always_inline void count_lane_change(struct slot *s)
{
	__u32 task = s->task;
	struct task *t = bpf_map_lookup_elem(&tasks, &task);

	if (t && READ_ONCE(t->ring))
		atomic_add(&t->changes, 1);
}

/*
 * Tells the scheduler of a lane what it waits for. The exchange that ended the
 * write of the slot orders it before the look at `lane`: either user space,
 * which sets `lane` and then reads the slots, sees the change, or it is told.
 */
static __always_inline void tell_lane(__u32 task, __u32 what)
{
	struct task *t = bpf_map_lookup_elem(&tasks, &task);
	__u32 ring;

	if (!t || !(READ_ONCE(t->lane) & what) || !atomic_xchg(&t->lane, 0))
		return;
	ring = READ_ONCE(t->ring);
	if (ring)
		wake_lane(t, ring - 1, task);
}

/* ---- slots; the caller holds the slot ---- */

/* 1 + the set that counts this thread while it waits, or 0. */
static __always_inline __u32 set_of(struct slot *s)
{
	__u32 task = s->task;
	struct task *t = bpf_map_lookup_elem(&tasks, &task);

	return s->lc && t && t->set < QUELL_SETS ? t->set + 1 : 0;
}

/* Returns 1 + the set that gains a waiting LC thread, or 0. */
static __always_inline __u32 wait_begin(struct slot *s, __u32 flags, __u64 now)
{
	s->state = QUELL_WAITING;
	s->since = now;
	s->flags = flags;
	s->transitions++;
	s->counted = set_of(s);
	return s->counted;
}

/* What a task did on a core. */
static __always_inline struct task_time *time_of(__u32 cpu, __u32 task)
{
	struct control *c = control_page();
	__u32 at = c ? cpu * c->tasks + task : 0;

	return c ? bpf_map_lookup_elem(&task_times, &at) : NULL;
}

/* Returns 1 + the set that loses a waiting LC thread, or 0. */
static __always_inline __u32 wait_end(struct slot *s, __u64 now)
{
	__u32 cpu = bpf_get_smp_processor_id(), counted = s->counted;
	__u64 waited = now > s->since ? now - s->since : 0;
	struct task_time *time = time_of(cpu, s->task);

	s->waited += waited;
	s->counted = 0;
	/* A program that user space calls may be interrupted by a switch of its core. */
	if (time)
		atomic_add(&time->waited, waited);
	return counted;
}

static __always_inline void run_end(struct slot *s, __u64 now)
{
	if (now > s->since)
		s->ran += now - s->since;
}

struct alloc {
	__u32 first;
	__u32 words;
	__u32 slot;
	bool found;
};

static long alloc_in_word(__u32 i, struct alloc *a)
{
	__u32 at = a->first + i;
	__u64 *word, free, bit;

	if (at >= a->words)
		at -= a->words;
	word = bpf_map_lookup_elem(&used, &at);
	if (!word)
		return 1;
	free = ~READ_ONCE(*word);
	/* The lowest free bit; another CPU may take it first: try the next word. */
	free &= -free;
	if (!free)
		return 0;
	bit = highest_bit(free);
	if (atomic_fetch_or(word, free) & free)
		return 0;
	a->slot = at * BITS_PER_WORD + bit;
	a->found = true;
	return 1;
}

static __u32 alloc_hint;

static __always_inline bool slot_alloc(__u32 *slot)
{
	struct control *c = control_page();
	struct alloc a = {};

	if (!c)
		return false;
	a.words = c->words;
	a.first = alloc_hint;
	if (a.first >= a.words)
		a.first = 0;
	bpf_loop(a.words, alloc_in_word, &a, 0);
	if (!a.found)
		return false;
	alloc_hint = a.slot / BITS_PER_WORD;
	*slot = a.slot;
	return true;
}

/* The caller does not hold the slot but has ended its use. */
static __always_inline void slot_free(__u32 slot)
{
	__u32 at = slot / BITS_PER_WORD;
	__u64 *word = bpf_map_lookup_elem(&used, &at);
	struct totals *t = totals_page();

	if (word)
		atomic_fetch_and(word, ~(1ULL << (slot % BITS_PER_WORD)));
	if (t)
		atomic_add(&t->watched, -1ULL);
}

/* Unlocks the slot of a thread that is watched no more: from here on no handle names it. */
static __always_inline void slot_retire(struct slot *s, __u64 handle, __u32 seq)
{
	count_lane_change(s);
	s->state = QUELL_UNKNOWN;
	s->tid = 0;
	s->reuse_count++;
	slot_unlock(s, seq);
	mark_dirty(handle);
	slot_free(handle_slot(handle));
}

struct membership {
	__u32 task;
	__u32 generation;
	__u32 lc;
	__u32 children;
	__u32 guest;
	__u32 member;
	__s32 parent_tid;
};

/* Gives the thread a slot. Returns its handle, or 0 with the reason counted and in `err`. */
static __always_inline __u64 slot_attach(struct task_struct *p, struct membership *m, __u32 state,
					 __u64 now, int *err)
{
	struct totals *t = totals_page();
	__u64 *stored, handle;
	struct waker *waker;
	struct slot *s;
	__u32 at, seq;

	*err = -ENOSPC;
	if (!t)
		return 0;
	if (!slot_alloc(&at)) {
		atomic_add(&t->table_full, 1);
		return 0;
	}
	*err = -ENOMEM;
	s = bpf_map_lookup_elem(&slots, &at);
	waker = bpf_map_lookup_elem(&wakers, &at);
	if (!s || !waker)
		return 0;
	__builtin_memset(waker, 0, sizeof(*waker));
	atomic_add(&t->watched, 1);
	handle = make_handle(at, s->reuse_count);
	stored = bpf_task_storage_get(&handles, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!stored || !slot_lock(s, handle, &seq)) {
		atomic_add(&t->storage_failed, 1);
		slot_free(at);
		return 0;
	}
	s->state = state;
	s->since = now;
	s->awake_since = now;
	s->ran = 0;
	s->waited = 0;
	s->transitions = 0;
	s->core = p->thread_info.cpu;
	s->task = m->task;
	s->lc = m->lc;
	s->children = m->children;
	s->guest = m->guest;
	s->member = m->member;
	s->flags = 0;
	s->counted = 0;
	s->told_lock = 0;
	s->role = QUELL_EVENT_THREAD;
	s->proved_sent = 0;
	s->needs = 0;
	s->proved = 0;
	s->burst_exec = p->se.sum_exec_runtime;
	s->burst_ran = 0;
	s->input_ran = 0;
	s->stretch_max = 0;
	s->overrun_sent = 0;
	s->start_boottime = p->start_boottime;
	s->generation = m->generation;
	s->tid = p->pid;
	s->tgid = p->tgid;
	s->parent_tid = m->parent_tid;
	count_lane_change(s);
	slot_unlock(s, seq);
	atomic_xchg(stored, handle);
	mark_dirty(handle);
	return handle;
}

#endif
