/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Bursts of LC threads: the CPU time of a thread between two sleeps. One that
 * receives from sockets meanwhile works off a backlog of many short requests:
 * to threads of its task, its burst is as long as the stretch since the last
 * input, or as a part of the whole. To others the whole counts.
 *
 * Two events only go to user space: a burst that goes on beyond the budget
 * of the thread's role while another LC thread waits, and the sleep after which a
 * demoted thread has proved itself. A timer for each core finds the first kind.
 * It is armed only while an LC thread waits in a set of a core that runs LC,
 * so a switch arms none where nothing queues.
 */
#ifndef QUELL_BURSTS_H
#define QUELL_BURSTS_H

#include "cores.h"

/* Least time between two events of one burst, which grows with its length. */
#define OVERRUN_GAP 1000000ULL
#define OVERRUN_GAP_MAX 10000000ULL
/*
 * Short bursts that a long one of a long event thread undoes: with less than a
 * fifth of long bursts it is an event thread again. In the background one long
 * burst undoes all.
 */
#define LONG_BURST_COSTS 4
/* For a kernel thread that waits for longer an event is sent, whatever the bursts: user space lets it run within 100 ms. */
#define KTHREAD_WAITS 70000000ULL
/* The whole of a burst with inputs counts for a part in so many: a backlog is let be for so many budgets. */
#define INPUT_WEIGHT 32
/* Shortest time of the timer, so that a mistaken look does not become a loop. */
#define CHECK_MIN 20000ULL

/* include/uapi/linux/time.h */
#define CLOCK_MONOTONIC 1

/* ---- the caller holds the slot ---- */

/* The thread is woken: its next burst begins. It does not run now. */
static __always_inline void burst_begin(struct slot *s, struct task_struct *p)
{
	if (without_roles)
		return;
	s->burst_exec = p->se.sum_exec_runtime;
	s->burst_ran = s->ran;
	s->input_ran = s->ran;
	s->stretch_max = 0;
	s->overrun_sent = 0;
}

/* The length of a burst of which one stretch was so long. */
static __always_inline __u64 burst_length(__u64 whole, __u64 stretch)
{
	__u64 weighed = whole / INPUT_WEIGHT;

	return stretch > weighed ? stretch : weighed;
}

/* What the running thread of this slot ran so far. */
static __always_inline __u64 ran_by(struct slot *s, __u64 now)
{
	__u64 ran = READ_ONCE(s->ran), since = READ_ONCE(s->since);

	return now > since ? ran + (now - since) : ran;
}

/* Without the slot held, `ran` may be of before the last input. */
static __always_inline __u64 since_input(struct slot *s, __u64 ran)
{
	__u64 input = READ_ONCE(s->input_ran);

	return ran > input ? ran - input : 0;
}

/*
 * The running thread has received something: what it does from here on is
 * about that. It alone writes these two while it runs, so the slot is not held.
 */
static __always_inline void note_input(struct slot *s, __u64 handle, __u64 now)
{
	__u64 ran = ran_by(s, now), stretch = since_input(s, ran);

	if (stretch > s->stretch_max)
		WRITE_ONCE(s->stretch_max, stretch);
	/* As the exchange that unlocks a slot does, this orders the write before the look at the dirty bit. */
	atomic_xchg(&s->input_ran, ran);
	mark_dirty(handle);
}

/* A demoted thread sleeps: see burst_proves(). */
static __noinline bool short_burst_proves(struct slot *s, struct task_struct *p)
{
	__u64 whole = p->se.sum_exec_runtime - s->burst_exec;
	__u64 stretch = s->ran - s->input_ran;
	struct control *c = control_page();
	__u32 above;

	if (s->proved_sent || !c)
		return false;
	if (stretch < s->stretch_max)
		stretch = s->stretch_max;
	/* `ran` counts what the hypervisor stole. */
	if (stretch > whole)
		stretch = whole;
	above = s->role == QUELL_LONG_EVENT ? QUELL_EVENT_THREAD : QUELL_LONG_EVENT;
	if (burst_length(whole, stretch) <= READ_ONCE(c->budgets[above]))
		s->proved++;
	else if (s->role == QUELL_LONG_EVENT && s->proved > LONG_BURST_COSTS)
		s->proved -= LONG_BURST_COSTS;
	else
		s->proved = 0;
	if (s->proved < s->needs)
		return false;
	s->proved_sent = 1;
	return true;
}

/* A thread sleeps. Whether it was demoted and has proved itself by that, once. */
static __always_inline bool burst_proves(struct slot *s, struct task_struct *p)
{
	return !without_roles && s->role != QUELL_EVENT_THREAD && short_burst_proves(s, p);
}

/* ---- events ---- */

static __noinline bool send_burst(__u32 kind, struct slot *s, __u64 handle, __u64 length, __u64 now)
{
	struct event *e = event_new(kind);

	if (!e)
		return false;
	e->core = s->core;
	e->task = s->task;
	e->generation = s->generation;
	e->slot = handle_slot(handle);
	e->reuse_count = handle_use(handle);
	e->length = length;
	event_send(e, WAKE_NOW, now);
	return true;
}

/* ---- the timer of a core ---- */

/* Whether a kernel thread waits for this core, or an LC thread in a set to which it belongs. */
static __always_inline bool is_crowded(struct core *core)
{
	__u32 mask = READ_ONCE(core->sets), set, key;
	struct core_set *s;

	if (READ_ONCE(core->kthread_since))
		return true;
	for (set = 0; set < QUELL_SETS && mask >> set; set++) {
		if (!(mask >> set & 1))
			continue;
		/* A copy: the verifier of 6.12 takes a counter in memory for an endless loop. */
		key = set;
		s = bpf_map_lookup_elem(&sets, &key);
		if (s && QUELL_WAITING_OF(READ_ONCE(s->word)))
			return true;
	}
	return false;
}

/*
 * Arms the timer, or brings it forward. Two CPUs that do so at once may leave
 * the later time: then the look comes late by one budget.
 */
static __always_inline void check_after(struct burst_check *check, __u64 delay, __u64 now)
{
	if (delay < CHECK_MIN)
		delay = CHECK_MIN;
	if (READ_ONCE(check->due) && READ_ONCE(check->due) <= now + delay)
		return;
	WRITE_ONCE(check->due, now + delay);
	if (bpf_timer_start(&check->timer, delay, 0))
		WRITE_ONCE(check->due, 0);
}

/*
 * Looks at the burst in progress on a core. Reads the core's entry and the slot
 * without holding them: user space decides by a coherent copy, so a torn look
 * costs one wake-up.
 */
static int check_burst(void *map, __u32 *cpu, struct burst_check *check)
{
	__u64 now = bpf_ktime_get_ns(), ran, whole, stretch, length, budget, handle, gap, waits, left;
	struct control *c = control_page();
	struct core *core;
	struct slot *s;
	__u32 role, at = *cpu;

	WRITE_ONCE(check->due, 0);
	core = bpf_map_lookup_elem(&cores, &at);
	if (!core || !c || READ_ONCE(core->kind) != QUELL_LC || !is_crowded(core))
		return 0;
	handle = core->slot ? make_handle(core->slot - 1, core->reuse_count) : 0;
	s = slot_of(handle);
	if (!s)
		return 0;
	role = READ_ONCE(s->role);
	budget = 0;
	if (role < QUELL_BACKGROUND)
		budget = READ_ONCE(c->budgets[role & 1]);
	else if (role == QUELL_BOOSTED)
		budget = READ_ONCE(c->budgets[QUELL_EVENT_THREAD]);
	if (!budget)
		return 0;
	ran = ran_by(s, now);
	whole = ran - s->burst_ran;
	stretch = since_input(s, ran);
	/* A boost is for one budget, whatever is received meanwhile. */
	length = role == QUELL_BOOSTED ? whole : burst_length(whole, stretch);
	waits = READ_ONCE(core->kthread_since);
	if (whole < budget && !(waits && now - waits > KTHREAD_WAITS)) {
		check_after(check, budget - whole, now);
		return 0;
	}
	/* User space may let a burst go on for long: fewer and fewer events. Those of its own task wait for the length. */
	gap = length < budget ? whole : length;
	if (gap < OVERRUN_GAP)
		gap = OVERRUN_GAP;
	if (gap > OVERRUN_GAP_MAX)
		gap = OVERRUN_GAP_MAX;
	if (now - s->overrun_sent >= gap) {
		WRITE_ONCE(s->overrun_sent, now);
		send_burst(QUELL_EVENT_OVERRAN, s, handle, length, now);
	}
	if (length < budget) {
		left = budget * INPUT_WEIGHT - whole;
		left = left < budget - stretch ? left : budget - stretch;
		gap = left < gap ? left : gap;
	}
	check_after(check, gap, now);
	return 0;
}

static __noinline int arm_check_of(__u32 cpu, __u64 now)
{
	struct burst_check *check = bpf_map_lookup_elem(&burst_checks, &cpu);
	struct core *core = bpf_map_lookup_elem(&cores, &cpu);
	struct control *c = control_page();
	__u64 budget, ran;

	if (!check || !core || !c || READ_ONCE(core->kind) != QUELL_LC)
		return 0;
	budget = READ_ONCE(c->budgets[QUELL_EVENT_THREAD]);
	ran = now > core->since ? now - core->since : 0;
	check_after(check, ran < budget ? budget - ran : 0, now);
	return 0;
}

/* An LC thread waits, perhaps for this core: looks at the core's burst when that reaches its budget. */
static __always_inline void arm_check(__u32 cpu, __u64 now)
{
	if (!without_roles)
		arm_check_of(cpu, now);
}

static __always_inline bool is_fair_kthread(struct task_struct *p)
{
	return p->flags & PF_KTHREAD && p->prio >= MAX_RT_PRIO;
}

/*
 * A thread that is not watched is woken: kernel threads of the fair class wait
 * behind LC. One that is bound to its core waits there until it runs, whatever
 * runs before. Where another one will be put is not known yet: it counts as
 * waiting for its last core until the fair class has that.
 */
static __always_inline void note_kthread(struct task_struct *p)
{
	__u32 cpu = p->thread_info.cpu, kind;
	bool bound = p->nr_cpus_allowed == 1;
	struct core *core;
	__u64 now;

	if (without_roles || !is_fair_kthread(p))
		return;
	core = bpf_map_lookup_elem(&cores, &cpu);
	/* On a core that is not managed no switch would end the wait. */
	if (!core || !core->sets || READ_ONCE(core->kthread_since) || core->running == p->pid)
		return;
	kind = READ_ONCE(core->kind);
	if (kind == QUELL_IDLE || (!bound && kind != QUELL_LC))
		return;
	now = bpf_ktime_get_ns();
	WRITE_ONCE(core->kthread_since, bound ? now | QUELL_BOUND : now & ~QUELL_BOUND);
	arm_check(cpu, now);
}

/* Whether the kernel thread that waited for this core waits no longer. */
static __always_inline bool ends_kthread_wait(__u64 since, __u32 kind, struct task_struct *next)
{
	return since & QUELL_BOUND ? kind == QUELL_IDLE || is_fair_kthread(next) : kind != QUELL_LC;
}

/* Run once for each possible core (`args->core`) before the programs are attached. */
SEC("syscall")
int init_check(struct watch_args *args)
{
	__u32 cpu = args->core;
	struct burst_check *check = bpf_map_lookup_elem(&burst_checks, &cpu);
	int err;

	if (!check)
		return -ESRCH;
	err = bpf_timer_init(&check->timer, &burst_checks, CLOCK_MONOTONIC);
	return err ? err : bpf_timer_set_callback(&check->timer, check_burst);
}

#endif
