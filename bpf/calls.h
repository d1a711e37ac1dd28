/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Programs that user space calls: to watch a thread, to let go of it, and to
 * settle what a core does now. They follow the tracepoints, whose catch_up()
 * they share.
 */
#ifndef QUELL_CALLS_H
#define QUELL_CALLS_H

#include "wakers.h"

/* kernel/sched/sched.h */
#define TASK_ON_RQ_QUEUED 1
#define TASK_ON_RQ_MIGRATING 2

/* Moves a watched thread to another task or class; its core is settled after. */
static __always_inline void slot_retask(struct slot *s, __u64 handle, struct watch_args *args,
					__u64 now)
{
	__u32 seq, loses, gains = 0;

	if (!slot_lock(s, handle, &seq))
		return;
	loses = s->counted;
	if (s->task != args->task || s->generation != args->generation || s->lc != args->lc)
		s->role = QUELL_EVENT_THREAD;
	s->task = args->task;
	s->generation = args->generation;
	s->lc = args->lc;
	s->children = args->children;
	s->guest = 0;
	s->member = args->member;
	count_lane_change(s);
	if (s->state == QUELL_WAITING)
		gains = set_of(s);
	s->counted = gains;
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (loses)
		set_add(loses - 1, -QUELL_WAITING_ONE, now);
	if (gains)
		set_add(gains - 1, QUELL_WAITING_ONE, now);
}

/*
 * It stands in a queue, or goes to another one, and wants to run: kernels since
 * 6.12 leave some that sleep there for a while.
 */
static __always_inline bool is_queued(struct task_struct *p)
{
	if (bpf_core_field_exists(p->se.sched_delayed) && p->se.sched_delayed)
		return false;
	return READ_ONCE(p->on_rq) == TASK_ON_RQ_QUEUED || READ_ONCE(p->on_rq) == TASK_ON_RQ_MIGRATING;
}

/*
 * What the thread does, from its own fields, where no event has told yet, or
 * where what was told is wrong. One that is on a core is left as it is:
 * only that core can tell (`settle`). One that is not cannot get there unseen,
 * for its handle is stored already.
 */
static __always_inline void slot_seed(struct slot *s, __u64 handle, struct task_struct *p,
				      __u64 now)
{
	__u32 seq, gains = 0, loses = 0;
	__u64 transitions;
	bool awake;

	if (READ_ONCE(p->on_cpu) || !slot_lock(s, handle, &seq))
		return;
	transitions = s->transitions;
	awake = READ_ONCE(p->__state) & TASK_WAKING || is_queued(p);
	if ((s->state == QUELL_UNKNOWN || s->state == QUELL_SLEEPING) && awake) {
		if (s->state == QUELL_SLEEPING) {
			s->awake_since = now;
			burst_begin(s, p);
		}
		gains = wait_begin(s, 0, now);
	} else if (s->state == QUELL_UNKNOWN || (s->state == QUELL_WAITING && !awake)) {
		if (s->state == QUELL_WAITING)
			loses = wait_end(s, now);
		s->state = QUELL_SLEEPING;
		s->flags = READ_ONCE(p->__state) & TASK_UNINTERRUPTIBLE ? QUELL_IN_KERNEL : 0;
		s->since = now;
		s->transitions++;
	}
	transitions -= s->transitions;
	if (transitions)
		count_lane_change(s);
	slot_unlock(s, seq);
	if (transitions)
		mark_dirty(handle);
	if (gains)
		set_add(gains - 1, QUELL_WAITING_ONE, now);
	if (loses)
		set_add(loses - 1, -QUELL_WAITING_ONE, now);
}

/* Ends a slot's use, whatever its state. */
static __always_inline void slot_release(struct slot *s, __u64 handle, __u64 now)
{
	__u32 seq, loses = 0;

	if (!slot_lock(s, handle, &seq))
		return;
	if (s->state == QUELL_WAITING)
		loses = wait_end(s, now);
	slot_retire(s, handle, seq);
	if (loses)
		set_add(loses - 1, -QUELL_WAITING_ONE, now);
}

/* USER_HZ is 100 on every architecture with a BPF JIT: field 22 of stat. */
#define NSEC_PER_TICK 10000000

static __always_inline struct task_struct *find(struct watch_args *args)
{
	struct task_struct *p = bpf_task_from_pid(args->tid);

	if (p && p->start_boottime / NSEC_PER_TICK != args->start_ticks) {
		bpf_task_release(p);
		return NULL;
	}
	return p;
}

SEC("syscall")
int watch(struct watch_args *args)
{
	struct task_struct *p = find(args);
	struct membership m = {};
	__u64 handle, now = bpf_ktime_get_ns();
	struct slot *s;
	int err = 0;

	if (!p)
		return -ESRCH;
	handle = handle_of(p);
	s = slot_of(handle);
	if (s && s->reuse_count == handle_use(handle)) {
		slot_retask(s, handle, args, now);
	} else {
		m.task = args->task;
		m.generation = args->generation;
		m.lc = args->lc;
		m.children = args->children;
		m.member = args->member;
		handle = slot_attach(p, &m, QUELL_UNKNOWN, now, &err);
		s = slot_of(handle);
		if (!s)
			goto out;
		err = 0;
		slot_seed(s, handle, p, now);
	}
	/* Dead since: the last switch may have missed the slot. */
	if (READ_ONCE(p->__state) & TASK_DEAD) {
		slot_release(s, handle, now);
		err = -ESRCH;
		goto out;
	}
	args->core = p->thread_info.cpu;
	args->state = s->state;
out:
	bpf_task_release(p);
	return err;
}

/*
 * Seeds the slot of a thread that `settle` did not find on its core, or of which
 * nothing was told for long.
 */
SEC("syscall")
int seed(struct watch_args *args)
{
	struct task_struct *p = find(args);
	struct slot *s;
	__u64 handle;

	if (!p)
		return -ESRCH;
	handle = handle_of(p);
	s = slot_of(handle);
	if (s) {
		slot_seed(s, handle, p, bpf_ktime_get_ns());
		args->core = p->thread_info.cpu;
		args->state = s->state;
	}
	bpf_task_release(p);
	return 0;
}

SEC("syscall")
int unwatch(struct watch_args *args)
{
	struct task_struct *p = find(args);
	__u64 handle;
	struct slot *s;

	if (!p)
		return -ESRCH;
	handle = handle_of(p);
	s = slot_of(handle);
	if (s) {
		args->state = s->state;
		args->core = s->core;
		slot_release(s, handle, bpf_ktime_get_ns());
	}
	bpf_task_release(p);
	return 0;
}

/* A boost or a time in the fair class begins or ends: the thread has to prove as much as before. */
static __always_inline bool is_for_a_time(__u32 from, __u32 to)
{
	return from >= QUELL_BACKGROUND && to >= QUELL_BACKGROUND;
}

/* A thread gets a role (`args->role`); another one than before it has to prove itself for anew. */
static __always_inline bool slot_set_role(struct slot *s, __u64 handle, struct watch_args *args)
{
	__u32 seq;

	if (!slot_lock(s, handle, &seq))
		return false;
	/* Fewer bursts to go: those so far count. */
	if (s->role != args->role && !is_for_a_time(s->role, args->role)) {
		s->proved = 0;
		s->proved_sent = 0;
	}
	s->role = args->role;
	s->needs = args->needs;
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (args->role < QUELL_BACKGROUND)
		forget_sleeper(handle);
	if (READ_ONCE(s->state) == QUELL_WAITING)
		note_wait(s, handle, bpf_ktime_get_ns());
	return true;
}

SEC("syscall")
int set_role(struct watch_args *args)
{
	struct task_struct *p = find(args);
	__u64 handle;
	struct slot *s;
	int err = 0;

	if (!p)
		return -ESRCH;
	handle = handle_of(p);
	s = slot_of(handle);
	if (s && !slot_set_role(s, handle, args))
		err = -EAGAIN;
	args->state = s ? s->state : QUELL_UNKNOWN;
	args->core = s ? s->core : 0;
	bpf_task_release(p);
	return err;
}

/* A core runs an LC thread that no switch has announced: looks at its burst in time. */
SEC("syscall")
int look_at_burst(struct watch_args *args)
{
	arm_check(args->core, bpf_ktime_get_ns());
	return 0;
}

/*
 * Run on a given core with interrupts off (test_run with a CPU): brings the
 * core's entry, and the slot of the thread that runs there, to what holds now.
 */
SEC("raw_tp")
int settle(void *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	__u32 cpu = bpf_get_smp_processor_id();
	struct core *core = bpf_map_lookup_elem(&cores, &cpu);
	struct core_order *order = bpf_map_lookup_elem(&orders, &cpu);

	if (core && order)
		catch_up(core, p->pid ? handle_of(p) : 0, p->pid, READ_ONCE(order->sets),
			 bpf_ktime_get_ns());
	return 0;
}

#endif
