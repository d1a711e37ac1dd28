// SPDX-License-Identifier: GPL-2.0
/*
 * What watched threads do, seen as it happens.
 *
 * Each watched thread has a slot, found through task storage, and each core
 * an entry; user space maps both and reads them with plain loads. The
 * scheduler's tracepoints drive a slot through its states:
 *
 *   SLEEPING --sched_waking--> WAITING --sched_switch in--> RUNNING
 *   RUNNING --sched_switch out--> SLEEPING (blocked) | WAITING (preempted)
 *
 * Waiting starts at sched_waking: sched_wakeup fires on the target CPU only
 * after that CPU has left its idle state, which is most of the delay.
 *
 * A waking may be seen while the slot says running. Either the thread was on
 * its way to sleep and goes on running, or the waker was quicker than the
 * switch. The waking therefore only leaves a note (`pending`), and the switch
 * decides by the thread itself: TASK_WAKING means that it is woken, and so does
 * a lock that its waker still holds (a waker that found it queued waits for the
 * queue until the switch is over, and goes on then).
 */
#include "bursts.h"
#include "locks.h"
#include "wakers.h"

/* Its address alone is passed. */
struct sock;

char LICENSE[] SEC("license") = "GPL";

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	__u64 handle = handle_of(p), now;
	struct slot *s = slot_of(handle);
	__u32 seq, gains = 0, task, generation, has;
	bool in_futex;

	if (!s) {
		note_kthread(p);
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (!slot_lock(s, handle, &seq))
		return 0;
	if (s->state == QUELL_RUNNING) {
		s->pending = now;
		s->flags |= QUELL_PENDING;
		slot_unlock(s, seq);
		return 0;
	}
	if (s->state == QUELL_WAITING) {
		slot_unlock(s, seq);
		return 0;
	}
	s->awake_since = now;
	s->core = p->thread_info.cpu;
	burst_begin(s, p);
	in_futex = s->flags & QUELL_IN_FUTEX;
	gains = wait_begin(s, QUELL_WOKEN | (s->flags & QUELL_STOPPED), now);
	count_lane_change(s);
	task = s->task;
	generation = s->generation;
	slot_unlock(s, seq);
	lock_ends(s, handle, 0, now);
	mark_dirty(handle);
	if (!without_roles && in_futex)
		note_futex_wake(s, handle, now);
	note_wait(s, handle, now);
	if (gains) {
		has = set_add(gains - 1, QUELL_WAITING_ONE, now);
		tell_if_queued(gains - 1, task, generation, now);
		/* A core that turns to LC after this finds the wait by itself, and where none runs there is no burst to look at. */
		if (has & SET_RUNS_LC)
			arm_check(p->thread_info.cpu, now);
	}
	tell_lane(task, QUELL_LANE_WAKES);
	return 0;
}

/* A new thread is queued for the first time; no sched_waking precedes. */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	__u64 handle = handle_of(p), now;
	struct slot *s = slot_of(handle);
	__u32 seq, gains, task;

	if (!s)
		return 0;
	now = bpf_ktime_get_ns();
	if (!slot_lock(s, handle, &seq))
		return 0;
	s->awake_since = now;
	s->core = p->thread_info.cpu;
	burst_begin(s, p);
	gains = wait_begin(s, QUELL_WOKEN, now);
	count_lane_change(s);
	task = s->task;
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (gains) {
		set_add(gains - 1, QUELL_WAITING_ONE, now);
		arm_check(p->thread_info.cpu, now);
	}
	tell_lane(task, QUELL_LANE_WAKES);
	return 0;
}

/* A waiting thread is moved to another core's queue. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int dest_cpu)
{
	__u64 handle = handle_of(p);
	struct slot *s = slot_of(handle);
	__u32 seq, counted;

	if (!s || !slot_lock(s, handle, &seq))
		return 0;
	s->core = dest_cpu;
	counted = s->counted;
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (counted)
		arm_check(dest_cpu, bpf_ktime_get_ns());
	return 0;
}

/*
 * Somebody holds the lock under which a thread is woken. Who changes its
 * policy holds it, too: beside an old note that makes it wait for a while
 * although it sleeps, which is found (`seed`).
 */
static __always_inline bool is_being_woken(struct task_struct *p)
{
	if (!bpf_core_field_exists(p->pi_lock.raw_lock.val.counter))
		return false;
	return *(volatile int *)&p->pi_lock.raw_lock.val.counter != 0;
}

/*
 * A small number is no handle: ext4 without a journal counts how often the
 * thread is inside (EXT4_NOJOURNAL_MAX_REF_COUNT), Btrfs marks a `send` by 1.
 */
static __always_inline bool in_transaction(const struct task_struct *p)
{
	return (unsigned long)p->journal_info >= 4096;
}

/*
 * The thread leaves the core. Returns 1 + the set in which it now waits, or 0.
 *
 * prev_state alone does not tell that it blocks: kernels before 6.14 pass the
 * state of a thread that a pending signal kept runnable.
 */
static __always_inline __u32 switch_out(struct slot *s, __u64 handle, struct task_struct *prev,
					bool preempt, unsigned int prev_state, __u64 now)
{
	__u32 seq, task, gains = 0;
	__u32 stop = QUELL_IN_KERNEL | (in_transaction(prev) ? QUELL_IN_TRANSACTION : 0);
	__u32 uninterruptible = prev_state & TASK_UNINTERRUPTIBLE ? stop : 0;
	__u64 pending;
	bool sleeps = false, proved = false, stopped, in_futex;
	unsigned int state;

	if (!slot_lock(s, handle, &seq))
		return 0;
	/* After the note: a waker that left none by now finds the slot asleep. */
	state = READ_ONCE(prev->__state);
	pending = s->flags & QUELL_PENDING ? s->pending : 0;
	if (s->state == QUELL_RUNNING)
		run_end(s, now);
	if (preempt || prev_state == TASK_RUNNING || state == TASK_RUNNING) {
		gains = wait_begin(s, preempt ? stop : 0, now);
	} else if (state & TASK_WAKING || (pending && is_being_woken(prev))) {
		s->awake_since = pending ? pending : now;
		proved = burst_proves(s, prev);
		burst_begin(s, prev);
		gains = wait_begin(s, QUELL_WOKEN | uninterruptible, s->awake_since);
	} else {
		proved = burst_proves(s, prev);
		s->state = QUELL_SLEEPING;
		s->since = now;
		s->flags = uninterruptible;
		if (!without_roles && s->lc && !uninterruptible && is_in_futex(prev))
			s->flags = QUELL_IN_FUTEX;
		s->transitions++;
		sleeps = true;
		count_lane_change(s);
	}
	task = s->task;
	stopped = s->flags & QUELL_IN_KERNEL;
	in_futex = s->flags & QUELL_IN_FUTEX;
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (stopped)
		note_stopped(s, handle, sleeps, now);
	if (!without_roles && in_futex)
		note_futex_sleep(handle, now);
	/* If the ring is full, the next sleep reports it. */
	if (proved && !send_burst(QUELL_EVENT_PROVED, s, handle, 0, now))
		WRITE_ONCE(s->proved_sent, 0);
	if (sleeps)
		tell_lane(task, QUELL_LANE_SLEEPS);
	return gains;
}

/* The last switch of a thread: nothing refers to its slot after this. */
static __noinline void switch_dead(struct slot *s, __u64 handle, struct task_struct *prev, __u64 now)
{
	struct event *e = event_new(QUELL_EVENT_EXITED);
	__u32 seq, task, generation;

	if (!slot_lock(s, handle, &seq)) {
		if (e)
			bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);
		return;
	}
	if (s->state == QUELL_RUNNING)
		run_end(s, now);
	task = s->task;
	generation = s->generation;
	slot_retire(s, handle, seq);
	if (e) {
		e->task = task;
		e->generation = generation;
		identify(&e->subject, prev);
		event_send(e, WAKE_NOW, now);
	}
}

/* Whether LC threads in this role are in the fair class. */
static __always_inline bool is_fair(__u32 role)
{
	struct control *c = control_page();

	if (without_roles)
		return false;
	return role == QUELL_FAIR ||
	       (role == QUELL_BACKGROUND && !(c && READ_ONCE(c->elevated_background)));
}

/*
 * The thread gets the core, or is found on it: fills in what the core turns to.
 * How long a thread that is found there waited is not known.
 */
static __always_inline void switch_in(struct slot *s, __u64 handle, struct core *core,
				      struct turn *turn, bool found, __u32 cpu, __u64 now)
{
	struct totals *t = totals_page();
	__u32 seq, state;
	__u64 since;
	bool woken;

	if (!slot_lock(s, handle, &seq))
		return;
	state = s->state;
	since = s->since;
	woken = state == QUELL_WAITING && s->flags & QUELL_WOKEN && !found;
	if (state == QUELL_WAITING) {
		turn->loses = wait_end(s, now);
	} else if (state == QUELL_SLEEPING) {
		s->awake_since = now;
		s->burst_ran = s->ran;
		s->input_ran = s->ran;
		s->stretch_max = 0;
		s->overrun_sent = 0;
		count_lane_change(s);
		if (t)
			atomic_add(&t->missed_wakes, 1);
	} else if (state == QUELL_RUNNING) {
		run_end(s, now);
	}
	s->state = QUELL_RUNNING;
	s->since = now;
	s->core = cpu;
	/* One that is found running may have been woken on its way to sleep. */
	s->flags = state == QUELL_RUNNING ? s->flags & QUELL_PENDING : 0;
	s->transitions++;
	turn->handle = handle;
	turn->kind = !s->lc ? QUELL_BE : is_fair(s->role) ? QUELL_LC_FAIR : QUELL_LC;
	turn->task = s->task;
	turn->generation = s->generation;
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (woken && turn->kind == QUELL_LC)
		count_wake_to_run(core, turn->task, since, now);
}

/* How it left is not known. It is taken for asleep; its next wake-up or switch tells better. */
static __always_inline void leave_unseen(struct slot *s, __u64 handle, __u32 cpu, __u64 now)
{
	__u32 seq, task;
	bool leaves;

	if (!slot_lock(s, handle, &seq))
		return;
	leaves = s->state == QUELL_RUNNING && s->core == cpu;
	if (leaves) {
		run_end(s, now);
		s->state = QUELL_SLEEPING;
		s->since = now;
		s->flags = 0;
		s->transitions++;
		count_lane_change(s);
	}
	task = s->task;
	slot_unlock(s, seq);
	if (!leaves)
		return;
	mark_dirty(handle);
	tell_lane(task, QUELL_LANE_SLEEPS);
}

/*
 * Brings a core's entry, and the slots that it is about, to what holds: this
 * thread has the core. Returns whether that had not been told.
 *
 * A switch may be missed: some guests have threads of their hypervisor's, the
 * switch away from which no tracepoint tells, and the kernel leaves out a
 * program that is running already on that CPU.
 *
 * A global function, as core_turn().
 */
__noinline int catch_up(struct core *core, __u64 handle, __s32 pid, __u32 sets_now, __u64 now)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct turn turn = {};
	struct slot *s;
	__u64 told;

	if (!core)
		return 0;
	told = handle_on(core);
	core->running = pid;
	if (!pid)
		turn.kind = QUELL_IDLE;
	s = slot_of(told);
	if (s && told != handle)
		leave_unseen(s, told, cpu, now);
	s = slot_of(handle);
	if (s)
		switch_in(s, handle, core, &turn, true, cpu, now);
	core_turn(core, cpu, sets_now, &turn, now);
	return told != handle;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct core *core = bpf_map_lookup_elem(&cores, &cpu);
	struct core_order *order = bpf_map_lookup_elem(&orders, &cpu);
	__u64 handle_prev, handle_next = 0, now;
	__u32 sets_now, task, generation;
	struct turn turn = {};
	struct totals *t;
	struct slot *s;
	bool missed, crowded;

	if (!core || !order)
		return 0;
	sets_now = READ_ONCE(order->sets);
	if (next->pid)
		handle_next = handle_of_next(core, next);
	else
		turn.kind = QUELL_IDLE;
	handle_prev = handle_on(core);
	missed = core->running != prev->pid;
	/* A thread that began to be watched as it died is known to its storage alone. */
	if (missed || (!handle_prev && prev_state & TASK_DEAD))
		handle_prev = prev->pid ? handle_of(prev) : 0;
	if (!handle_prev && !handle_next && !sets_now && !core->sets && !core->slot) {
		core->running = next->pid;
		return 0;
	}

	now = bpf_ktime_get_ns();
	if (missed && catch_up(core, handle_prev, prev->pid, sets_now, now)) {
		t = totals_page();
		if (t)
			atomic_add(&t->missed_switches, 1);
	}
	core->running = next->pid;
	if (sets_now)
		note_steal(core, prev, next, now);
	task = core->task;
	generation = core->generation;
	s = slot_of(handle_prev);
	if (s) {
		if (prev_state & TASK_DEAD)
			switch_dead(s, handle_prev, prev, now);
		else
			turn.gains = switch_out(s, handle_prev, prev, preempt, prev_state, now);
	}
	s = slot_of(handle_next);
	if (s)
		switch_in(s, handle_next, core, &turn, false, cpu, now);
	crowded = core_turn(core, cpu, sets_now, &turn, now);
	if (!without_roles && core->kthread_since) {
		if (ends_kthread_wait(core->kthread_since, turn.kind, next))
			WRITE_ONCE(core->kthread_since, 0);
		else
			crowded = true;
	}
	if (crowded && turn.kind == QUELL_LC)
		arm_check(cpu, now);
	/* The entry of the core names the next thread by now. */
	s = slot_of(handle_prev);
	if (s && s->reuse_count == handle_use(handle_prev) && READ_ONCE(s->state) == QUELL_WAITING)
		note_wait(s, handle_prev, now);
	/* A thread that was woken while it fell asleep may wait elsewhere. */
	if (turn.gains && prev->thread_info.cpu != cpu)
		arm_check(prev->thread_info.cpu, now);
	if (turn.gains)
		tell_if_queued(turn.gains - 1, task, generation, now);
	if (turn.kind == QUELL_IDLE)
		tell_idle(order, prev, now);
	return 0;
}

/* A thread has received from a socket (from Linux 6.3 on; before, a backlog of requests is one burst). */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_input, struct sock *sk, int ret, int flags)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct core *core = bpf_map_lookup_elem(&cores, &cpu);
	__u64 handle;
	struct slot *s;
	__u32 kind;

	if (ret <= 0 || flags & (MSG_PEEK | MSG_ERRQUEUE) || !core)
		return 0;
	kind = READ_ONCE(core->kind);
	if ((kind != QUELL_LC && kind != QUELL_LC_FAIR) || !core->slot)
		return 0;
	handle = make_handle(core->slot - 1, core->reuse_count);
	s = slot_of(handle);
	/* The core's entry is an old one where a switch was missed. */
	if (!s || s->reuse_count != handle_use(handle) || (__s32)bpf_get_current_pid_tgid() != s->tid)
		return 0;
	note_input(s, handle, bpf_ktime_get_ns());
	return 0;
}

/*
 * Children of a watched thread are watched before they first run. A new
 * process of a BEST_EFFORT task is followed under its creator's task, as BE.
 */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	__u64 handle = handle_of(parent), now;
	struct slot *s = slot_of(handle);
	struct membership m = {};
	bool process, watched = false;
	struct event *e;
	int err;

	if (!s || s->reuse_count != handle_use(handle))
		return 0;
	now = bpf_ktime_get_ns();
	process = child->tgid != parent->tgid;
	m.task = s->task;
	m.generation = s->generation;
	m.children = s->children;
	m.member = s->member;
	m.guest = s->guest || (process && s->lc && s->children == QUELL_BEST_EFFORT);
	m.lc = s->lc && !m.guest;
	m.parent_tid = parent->pid;
	if (!process || s->children != QUELL_LEAVE)
		watched = slot_attach(child, &m, QUELL_SLEEPING, now, &err) != 0;
	e = event_new(QUELL_EVENT_FORKED);
	if (!e)
		return 0;
	e->task = m.task;
	e->generation = m.generation;
	identify(&e->subject, child);
	identify(&e->parent, parent);
	e->flags = (process ? QUELL_FORKED_PROCESS : 0) | (watched ? QUELL_FORKED_WATCHED : 0) |
		   (m.lc ? QUELL_FORKED_LC : 0);
	event_send(e, WAKE_NOW, now);
	return 0;
}

/*
 * The thread becomes the leader of its process, with the leader's number and
 * start time; the other threads have exited.
 */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *p, int old_pid, struct linux_binprm *bprm)
{
	__u64 handle = handle_of(p), now;
	struct slot *s = slot_of(handle);
	struct event *e;
	__u32 seq;

	if (!s || !slot_lock(s, handle, &seq))
		return 0;
	now = bpf_ktime_get_ns();
	s->tid = p->pid;
	s->tgid = p->tgid;
	s->start_boottime = p->start_boottime;
	s->transitions++;
	slot_unlock(s, seq);
	mark_dirty(handle);
	e = event_new(QUELL_EVENT_EXECED);
	if (!e)
		return 0;
	e->task = s->task;
	e->generation = s->generation;
	identify(&e->subject, p);
	e->parent.tid = old_pid;
	event_send(e, WAKE_NOW, now);
	return 0;
}

#include "calls.h"
