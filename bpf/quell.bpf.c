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
 * decides by the thread's own state: TASK_WAKING there means that it is woken.
 */
#include "maps.h"

char LICENSE[] SEC("license") = "GPL";

extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;

/* ---- sets: LC threads that wait while a core they may use is idle ---- */

static __always_inline bool is_wasteful(__u64 word)
{
	return QUELL_WAITING_OF(word) && QUELL_IDLE_OF(word);
}

static __always_inline void set_add(__u32 set, __u64 delta, __u64 now)
{
	struct core_set *s = bpf_map_lookup_elem(&sets, &set);
	struct totals *t = totals_page();
	__u64 old;

	if (!s || !t || !delta)
		return;
	old = atomic_fetch_add(&s->word, delta);
	if (is_wasteful(old) == is_wasteful(old + delta))
		return;
	if (is_wasteful(old)) {
		if (atomic_fetch_add(&t->active, -1ULL) == 1)
			atomic_add(&t->idle_while_waiting, now);
	} else if (atomic_fetch_add(&t->active, 1) == 0) {
		atomic_add(&t->idle_while_waiting, -now);
	}
}

/* Tells that an LC thread queues although LC runs on each core it may use. */
static __always_inline void tell_if_queued(__u32 set, __u32 task, __u32 generation, __u64 now)
{
	struct core_set *s = bpf_map_lookup_elem(&sets, &set);
	struct task *t = bpf_map_lookup_elem(&tasks, &task);
	struct control *c = control_page();
	struct event *e;

	if (!s || !t || !c || !READ_ONCE(c->wake_on_events))
		return;
	if (!s->cores || QUELL_LC_RUNNING_OF(READ_ONCE(s->word)) < s->cores)
		return;
	if (READ_ONCE(t->told_queued) || atomic_xchg(&t->told_queued, 1))
		return;
	e = event_new(QUELL_EVENT_LC_QUEUED);
	if (!e) {
		WRITE_ONCE(t->told_queued, 0);
		return;
	}
	e->task = task;
	e->generation = generation;
	event_send(e, WAKE_HINT, now);
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
static __always_inline __u32 wait_begin(struct slot *s, bool woken, __u64 now)
{
	s->state = QUELL_WAITING;
	s->since = now;
	s->woken = woken;
	s->transitions++;
	s->counted = set_of(s);
	return s->counted;
}

/* Returns 1 + the set that loses a waiting LC thread, or 0. */
static __always_inline __u32 wait_end(struct slot *s, __u64 now)
{
	__u32 task = s->task, counted = s->counted;
	struct task *t = bpf_map_lookup_elem(&tasks, &task);
	__u64 waited = now > s->since ? now - s->since : 0;

	s->waited += waited;
	s->counted = 0;
	if (t)
		atomic_add(&t->waited, waited);
	return counted;
}

static __always_inline void run_end(struct slot *s, __u64 now)
{
	__u32 task = s->task;
	struct task *t = bpf_map_lookup_elem(&tasks, &task);
	__u64 ran = now > s->since ? now - s->since : 0;

	s->ran += ran;
	if (t)
		atomic_add(&t->ran, ran);
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

struct membership {
	__u32 task;
	__u32 generation;
	__u32 lc;
	__u32 children;
	__u32 guest;
	__s32 parent_tid;
};

/* Gives the thread a slot. Returns its handle, or 0 with the reason counted and in `err`. */
static __always_inline __u64 slot_attach(struct task_struct *p, struct membership *m, __u32 state,
					 __u64 now, int *err)
{
	struct totals *t = totals_page();
	__u64 *stored, handle;
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
	if (!s)
		return 0;
	atomic_add(&t->watched, 1);
	handle = make_handle(at, s->use);
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
	s->woken = 0;
	s->counted = 0;
	s->pending = 0;
	s->start_boottime = p->start_boottime;
	s->generation = m->generation;
	s->tid = p->pid;
	s->tgid = p->tgid;
	s->parent_tid = m->parent_tid;
	slot_unlock(s, seq);
	atomic_xchg(stored, handle);
	mark_dirty(handle);
	return handle;
}

/* ---- cores ---- */

struct turn {
	__u32 kind;
	__u32 task;
	__u32 generation;
	/* 1 + the set that gains or loses a waiting LC thread, or 0. */
	__u32 gains;
	__u32 loses;
	__u64 handle;
};

static __always_inline __u64 weight(__u32 kind)
{
	if (kind == QUELL_IDLE)
		return QUELL_IDLE_ONE;
	return kind == QUELL_LC ? QUELL_LC_RUNNING_ONE : 0;
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

/*
 * A core turns to something else. Runs on that core with interrupts off: it
 * is the only writer, and the exchanges order its stores for readers.
 */
static __always_inline void core_turn(struct core *core, __u32 sets_now, struct turn *turn,
				      __u64 now)
{
	__u32 was = core->kind, sets_before = core->sets, seq = core->seq, mask, set;
	__u64 delta;

	if (!sets_now && turn->kind == QUELL_IDLE)
		turn->kind = QUELL_OTHER;
	atomic_xchg(&core->seq, seq + 1);
	if (was < QUELL_KINDS)
		core->total[was] += now - core->since;
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
	core->use = handle_use(turn->handle);
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
		set_add(set, delta, now);
	}
}

/*
 * The steal clock of this core's run queue, in ns: what the hypervisor took.
 * 0 where the kernel does not keep it. The per-CPU `runqueues` symbol is not
 * in every kallsyms; any task on this CPU leads to its run queue.
 */
static __always_inline __u64 steal_clock(struct task_struct *p)
{
	struct cfs_rq *cfs_rq;

	if (!bpf_core_field_exists(struct rq, prev_steal_time_rq) ||
	    !bpf_core_field_exists(struct sched_entity, cfs_rq) ||
	    !bpf_core_field_exists(struct cfs_rq, rq))
		return 0;
	cfs_rq = p->se.cfs_rq;
	return cfs_rq ? cfs_rq->rq->prev_steal_time_rq : 0;
}

static __always_inline void note_steal(struct core *core, struct task_struct *prev,
				       struct task_struct *next, __u32 cpu, __u64 now)
{
	struct control *c = control_page();
	__u64 steal = steal_clock(next), stolen = steal - core->steal;
	struct event *e;

	if (steal == core->steal)
		return;
	if (core->steal && c && stolen >= c->stall_min) {
		e = event_new(QUELL_EVENT_STALL);
		if (e) {
			e->core = cpu;
			e->from = core->since;
			e->to = now;
			e->stolen = stolen;
			e->subject.tid = prev->pid;
			e->subject.tgid = prev->tgid;
			event_send(e, WAKE_NOT, now);
		}
	}
	core->steal = steal;
}

static __always_inline void tell_idle(struct core_order *order, struct task_struct *prev,
				      __u32 cpu, __u64 now)
{
	struct control *c = control_page();
	struct event *e;

	if (!c || !READ_ONCE(c->wake_on_events) || !READ_ONCE(c->idle_wanted))
		return;
	/* The observer going to sleep must not wake the observer. */
	if ((__u32)prev->tgid == c->self_tgid || READ_ONCE(order->told_idle))
		return;
	WRITE_ONCE(order->told_idle, 1);
	e = event_new(QUELL_EVENT_CORE_IDLE);
	if (!e) {
		WRITE_ONCE(order->told_idle, 0);
		return;
	}
	e->core = cpu;
	event_send(e, WAKE_HINT, now);
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

/* ---- tracepoints ---- */

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	__u64 handle = handle_of(p), now;
	struct slot *s = slot_of(handle);
	__u32 seq, gains = 0, task, generation;

	if (!s)
		return 0;
	now = bpf_ktime_get_ns();
	if (!slot_lock(s, handle, &seq))
		return 0;
	if (s->state == QUELL_RUNNING) {
		s->pending = now;
		slot_unlock(s, seq);
		return 0;
	}
	if (s->state == QUELL_WAITING) {
		slot_unlock(s, seq);
		return 0;
	}
	s->awake_since = now;
	s->core = p->thread_info.cpu;
	gains = wait_begin(s, true, now);
	task = s->task;
	generation = s->generation;
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (gains) {
		set_add(gains - 1, QUELL_WAITING_ONE, now);
		tell_if_queued(gains - 1, task, generation, now);
	}
	return 0;
}

/* A new thread is queued for the first time; no sched_waking precedes. */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	__u64 handle = handle_of(p), now;
	struct slot *s = slot_of(handle);
	__u32 seq, gains;

	if (!s)
		return 0;
	now = bpf_ktime_get_ns();
	if (!slot_lock(s, handle, &seq))
		return 0;
	s->awake_since = now;
	s->core = p->thread_info.cpu;
	gains = wait_begin(s, true, now);
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (gains)
		set_add(gains - 1, QUELL_WAITING_ONE, now);
	return 0;
}

/* A waiting thread is moved to another core's queue. */
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int dest_cpu)
{
	__u64 handle = handle_of(p);
	struct slot *s = slot_of(handle);
	__u32 seq;

	if (!s || !slot_lock(s, handle, &seq))
		return 0;
	s->core = dest_cpu;
	slot_unlock(s, seq);
	mark_dirty(handle);
	return 0;
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
	unsigned int state = READ_ONCE(prev->__state);
	__u32 seq, gains = 0;

	if (!slot_lock(s, handle, &seq))
		return 0;
	if (s->state == QUELL_RUNNING)
		run_end(s, now);
	if (preempt || prev_state == TASK_RUNNING || state == TASK_RUNNING) {
		gains = wait_begin(s, false, now);
	} else if (state & TASK_WAKING) {
		s->awake_since = s->pending ? s->pending : now;
		gains = wait_begin(s, true, s->awake_since);
	} else {
		s->state = QUELL_SLEEPING;
		s->since = now;
		s->transitions++;
	}
	s->pending = 0;
	slot_unlock(s, seq);
	mark_dirty(handle);
	return gains;
}

/* The last switch of a thread: nothing refers to its slot after this. */
static __always_inline void switch_dead(struct slot *s, __u64 handle, struct task_struct *prev,
					__u64 now)
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
	s->state = QUELL_UNKNOWN;
	s->tid = 0;
	s->use++;
	slot_unlock(s, seq);
	mark_dirty(handle);
	slot_free(handle_slot(handle));
	if (e) {
		e->task = task;
		e->generation = generation;
		identify(&e->subject, prev);
		event_send(e, WAKE_NOW, now);
	}
}

/* The thread gets the core: fills in what the core turns to. */
static __always_inline void switch_in(struct slot *s, __u64 handle, struct core *core,
				      struct turn *turn, __u32 cpu, __u64 now)
{
	struct totals *t = totals_page();
	__u32 seq, state;
	__u64 since;
	bool woken;

	if (!slot_lock(s, handle, &seq))
		return;
	state = s->state;
	since = s->since;
	woken = state == QUELL_WAITING && s->woken;
	if (state == QUELL_WAITING) {
		turn->loses = wait_end(s, now);
	} else if (state == QUELL_SLEEPING) {
		s->awake_since = now;
		if (t)
			atomic_add(&t->missed_wakes, 1);
	} else if (state == QUELL_RUNNING) {
		run_end(s, now);
	}
	s->state = QUELL_RUNNING;
	s->since = now;
	s->core = cpu;
	s->woken = 0;
	s->transitions++;
	turn->handle = handle;
	turn->kind = s->lc ? QUELL_LC : QUELL_BE;
	turn->task = s->task;
	turn->generation = s->generation;
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (woken && turn->kind == QUELL_LC)
		count_wake_to_run(core, turn->task, since, now);
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
	struct slot *s;

	if (!core || !order)
		return 0;
	sets_now = READ_ONCE(order->sets);
	if (next->pid)
		handle_next = handle_of(next);
	else
		turn.kind = QUELL_IDLE;
	/* A thread that began to be watched as it died is known to its storage alone. */
	handle_prev = core->slot ? make_handle(core->slot - 1, core->use) : 0;
	if (!handle_prev && prev_state & TASK_DEAD)
		handle_prev = handle_of(prev);
	if (!handle_prev && !handle_next && !sets_now && !core->sets)
		return 0;

	now = bpf_ktime_get_ns();
	if (sets_now)
		note_steal(core, prev, next, cpu, now);
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
		switch_in(s, handle_next, core, &turn, cpu, now);
	core_turn(core, sets_now, &turn, now);
	if (turn.gains)
		tell_if_queued(turn.gains - 1, task, generation, now);
	if (turn.kind == QUELL_IDLE)
		tell_idle(order, prev, cpu, now);
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

	if (!s || s->use != handle_use(handle))
		return 0;
	now = bpf_ktime_get_ns();
	process = child->tgid != parent->tgid;
	m.task = s->task;
	m.generation = s->generation;
	m.children = s->children;
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

/* ---- called by user space ---- */

/* Moves a watched thread to another task or class; its core is settled after. */
static __always_inline void slot_retask(struct slot *s, __u64 handle, struct watch_args *args,
					__u64 now)
{
	__u32 seq, loses, gains = 0;

	if (!slot_lock(s, handle, &seq))
		return;
	loses = s->counted;
	s->task = args->task;
	s->generation = args->generation;
	s->lc = args->lc;
	s->children = args->children;
	s->guest = 0;
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
 * What the thread does, from its own fields, where no event has told yet. One
 * that is on a core stays UNKNOWN: only that core can tell (`settle`). One
 * that is not cannot get there unseen, for its handle is stored already.
 */
static __always_inline void slot_seed(struct slot *s, __u64 handle, struct task_struct *p,
				      __u64 now)
{
	unsigned int state = READ_ONCE(p->__state);
	bool queued = READ_ONCE(p->on_rq) == 1;
	__u32 seq, gains = 0;

	if (READ_ONCE(p->on_cpu))
		return;
	if (bpf_core_field_exists(p->se.sched_delayed) && p->se.sched_delayed)
		queued = false;
	if (!slot_lock(s, handle, &seq))
		return;
	if (s->state == QUELL_UNKNOWN) {
		if (state & TASK_WAKING || queued) {
			gains = wait_begin(s, false, now);
		} else {
			s->state = QUELL_SLEEPING;
			s->since = now;
		}
	}
	slot_unlock(s, seq);
	mark_dirty(handle);
	if (gains)
		set_add(gains - 1, QUELL_WAITING_ONE, now);
}

/* Ends a slot's use, whatever its state. */
static __always_inline void slot_release(struct slot *s, __u64 handle, __u64 now)
{
	__u32 seq, loses = 0;

	if (!slot_lock(s, handle, &seq))
		return;
	if (s->state == QUELL_WAITING)
		loses = wait_end(s, now);
	s->state = QUELL_UNKNOWN;
	s->tid = 0;
	s->use++;
	slot_unlock(s, seq);
	mark_dirty(handle);
	slot_free(handle_slot(handle));
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
	if (s && s->use == handle_use(handle)) {
		slot_retask(s, handle, args, now);
	} else {
		m.task = args->task;
		m.generation = args->generation;
		m.lc = args->lc;
		m.children = args->children;
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

/* Seeds the slot of a thread that `settle` did not find on its core. */
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
	__u64 now = bpf_ktime_get_ns(), handle = 0;
	struct turn turn = {};
	struct slot *s;

	if (!core || !order)
		return 0;
	if (p->pid)
		handle = handle_of(p);
	else
		turn.kind = QUELL_IDLE;
	s = slot_of(handle);
	if (s)
		switch_in(s, handle, core, &turn, cpu, now);
	core_turn(core, READ_ONCE(order->sets), &turn, now);
	return 0;
}
