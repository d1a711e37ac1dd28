/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What happens on a core when its thread changes: turns, stolen time, and who
 * made LC wait.
 */
#ifndef QUELL_CORES_H
#define QUELL_CORES_H

#include "slots.h"
#include "steal.h"

struct turn {
	__u32 kind;
	__u32 task;
	__u32 generation;
	/* 1 + the set that gains or loses a waiting LC thread, or 0. */
	__u32 gains;
	__u32 loses;
	__u64 handle;
};

/* The watched thread that runs on the core; 0: none. */
static __always_inline __u64 handle_on(struct core *core)
{
	return core->slot ? make_handle(core->slot - 1, core->reuse_count) : 0;
}

static __noinline __u64 remember(struct core *core, struct task_struct *next)
{
	__u64 handle = handle_of(next);
	struct slot *s = slot_of(handle);
	__u32 i;

	/* Not of one that is not watched yet, or no more: it would be looked up each time, and drive out others. */
	if (s && s->reuse_count == handle_use(handle)) {
		i = core->recent_next++ % QUELL_RECENT;
		core->recent_handle[i] = handle;
		core->recent_task[i] = (unsigned long)next;
	}
	return handle;
}

/* As handle_of(), of a thread that gets this core. */
static __always_inline __u64 handle_of_next(struct core *core, struct task_struct *next)
{
	__u64 task = (unsigned long)next, handle;
	struct slot *s;
	__u32 i;

	for (i = 0; i < QUELL_RECENT; i++) {
		if (core->recent_task[i] != task)
			continue;
		handle = core->recent_handle[i];
		s = slot_of(handle);
		/* Else it is watched no more, or by another slot, or the address has gone to another thread. */
		if (s && s->reuse_count == handle_use(handle) && s->tid == next->pid)
			return handle;
		core->recent_task[i] = 0;
	}
	return remember(core, next);
}

static __always_inline __u64 weight(__u32 kind)
{
	if (kind == QUELL_IDLE)
		return QUELL_IDLE_ONE;
	return kind == QUELL_LC || kind == QUELL_LC_FAIR ? QUELL_LC_RUNNING_ONE : 0;
}

/*
 * Since when the BE task on this core has it: its threads that follow each
 * other are one stretch.
 */
static __always_inline __u64 be_stretch_from(struct core *core)
{
	if (core->be_task == core->task && core->be_until == core->since)
		return core->be_from;
	return core->since;
}

/* The task had this core until now. */
static __always_inline void count_run(struct core *core, __u32 cpu, __u64 now)
{
	struct task_time *time = time_of(cpu, core->task);

	if (time)
		time->ran += now - core->since;
}

/*
 * A core turns to something else. Runs on that core with interrupts off: it
 * is the only writer, and the exchanges order its stores for readers. Returns
 * whether LC threads wait in a set of the core.
 *
 * A global function: the verifier looked at it for each way that leads here,
 * which took it half a second.
 */
__noinline int core_turn(struct core *core, __u32 cpu, __u32 sets_now, struct turn *turn,
			 __u64 now)
{
	__u32 was, sets_before, seq, mask, set;
	int crowded = 0;
	__u64 delta;

	if (!core || !turn)
		return 0;
	was = core->kind;
	sets_before = core->sets;
	seq = core->seq;
	if (!sets_now && turn->kind == QUELL_IDLE)
		turn->kind = QUELL_OTHER;
	atomic_xchg(&core->seq, seq + 1);
	if (was < QUELL_KINDS)
		core->total[was] += now - core->since;
	if (was >= QUELL_LC)
		count_run(core, cpu, now);
	if (was == QUELL_BE) {
		core->be_from = be_stretch_from(core);
		core->be_task = core->task;
		core->be_until = now;
	}
	if (turn->kind == QUELL_IDLE && was != QUELL_IDLE)
		core->idles++;
	core->kind = turn->kind;
	core->since = now;
	core->slot = turn->handle ? handle_slot(turn->handle) + 1 : 0;
	core->reuse_count = handle_use(turn->handle);
	core->task = turn->task;
	core->generation = turn->generation;
	core->sets = sets_now;
	atomic_xchg(&core->seq, seq + 2);

	mask = sets_before | sets_now;
	if (turn->gains)
		mask |= 1U << (turn->gains - 1);
	if (turn->loses)
		mask |= 1U << (turn->loses - 1);
	for (set = 0; set < QUELL_SETS && mask >> set; set++) {
		if (!(mask >> set & 1))
			continue;
		delta = 0;
		if (sets_before >> set & 1)
			delta -= weight(was);
		if (sets_now >> set & 1)
			delta += weight(turn->kind);
		if (turn->gains == set + 1)
			delta += QUELL_WAITING_ONE;
		if (turn->loses == set + 1)
			delta -= QUELL_WAITING_ONE;
		if (set_add(set, delta, now) & SET_WAITS && sets_now >> set & 1)
			crowded = 1;
	}
	return crowded;
}

static __noinline void send_stall(struct core *core, struct task_struct *prev, __u64 stolen, __u64 now)
{
	struct event *e = event_new(QUELL_EVENT_STALL);

	if (!e)
		return;
	e->core = bpf_get_smp_processor_id();
	e->from = core->since;
	e->to = now;
	e->stolen = stolen;
	e->subject.tid = prev->pid;
	e->subject.tgid = prev->tgid;
	event_send(e, WAKE_NOT, now);
}

static __always_inline void note_steal(struct core *core, struct task_struct *prev,
				       struct task_struct *next, __u64 now)
{
	__u64 steal = steal_clock(next), stolen = steal - core->steal;
	struct control *c;

	if (steal == core->steal)
		return;
	c = control_page();
	if (core->steal && c && stolen >= c->stall_min)
		send_stall(core, prev, stolen, now);
	core->steal = steal;
}

static __noinline void send_idle(struct core_order *order, __u64 now)
{
	struct event *e;

	WRITE_ONCE(order->told_idle, 1);
	e = event_new(QUELL_EVENT_CORE_IDLE);
	if (!e) {
		WRITE_ONCE(order->told_idle, 0);
		return;
	}
	e->core = bpf_get_smp_processor_id();
	event_send(e, WAKE_HINT, now);
}

static __always_inline void tell_idle(struct core_order *order, struct task_struct *prev,
				      __u64 now)
{
	struct control *c = control_page();

	if (!c || !READ_ONCE(c->wake_on_events) || !READ_ONCE(c->idle_wanted))
		return;
	/* The observer going to sleep must not wake the observer. */
	if ((__u32)prev->tgid != c->self_tgid && !READ_ONCE(order->told_idle))
		send_idle(order, now);
}

/* ---- wake-to-run ---- */

static __always_inline __u32 bucket_of(__u64 ns)
{
	__u32 octave, bucket;

	if (ns < 1ULL << QUELL_BUCKET_MIN_LOG2)
		return 0;
	octave = highest_bit(ns);
	bucket = 1 + (octave - QUELL_BUCKET_MIN_LOG2) * 8 + (ns >> (octave - 3) & 7);
	return bucket < QUELL_BUCKETS ? bucket : QUELL_BUCKETS - 1;
}

/*
 * An LC thread that was woken gets to run. Its wait is charged to the BE task
 * that was on this core when the wait began, if one was: the one that leaves
 * now, or the last one before.
 */
static __always_inline void count_wake_to_run(struct core *core, __u32 task, __u64 since, __u64 now)
{
	struct histograms *h = bpf_map_lookup_elem(&histograms, &task);
	__u64 be_from = core->be_from, be_until = core->be_until;
	__u32 bucket = bucket_of(now - since), be = core->be_task;

	if (bucket >= QUELL_BUCKETS)
		return;
	if (h)
		atomic_add(&h->own[bucket], 1);
	if (core->kind == QUELL_BE) {
		be_from = be_stretch_from(core);
		be_until = now;
		be = core->task;
	}
	if (be_from <= since && since < be_until) {
		h = bpf_map_lookup_elem(&histograms, &be);
		if (h)
			atomic_add(&h->caused[bucket], 1);
	}
}

#endif
