// SPDX-License-Identifier: GPL-2.0
/*
 * Records what the scheduler does: each switch, wake-up, migration, fork and
 * exit, the size and load of each run queue, softirqs and interrupts. The
 * reader merges, orders and explains; user space loads only the programs of
 * the events that are wanted.
 */
#include "recorder.h"
#include <bpf/bpf_tracing.h>
#include "steal.h"

char LICENSE[] SEC("license") = "GPL";

/* What is wanted: QUELL_TELL_*. The second constant: the loader sets all three. */
const volatile __u32 tell;

/* Processes (tgids) whose wake-ups are wanted; the first is 0: those of all. */
const volatile __s32 processes[QUELL_PROCESSES];

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1);
} records SEC(".maps");

/* A max_entries of 1 stands for the possible cores. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct own);
} cores SEC(".maps");

/* What was told of a queue last. Whoever writes holds the queue's lock. */
struct last {
	__u32 queued;
	__u32 runnable;
	__u64 weight;
	__u64 average;
	__u64 reserved[5];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct last);
} queues SEC(".maps");

/* A digest of the cores that were told last for a thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} allowed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 8192);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, QUELL_STACK_DEPTH * sizeof(__u64));
} stacks SEC(".maps");

/*
 * The number is taken after the room: what interrupts in between gets a lower
 * number, but its record lies behind this one and is complete before it.
 */
static __always_inline void fill_own(struct record *r, __u16 kind, __u32 subject, struct own *own,
				     __u32 cpu)
{
	r->sequence = __sync_fetch_and_add(&own->sequence, 1);
	r->at = bpf_ktime_get_ns();
	r->core = cpu;
	r->kind = kind;
	r->subject = subject;
}

static __always_inline void fill(struct record *r, __u16 kind, __u32 subject)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct own *own = bpf_map_lookup_elem(&cores, &cpu);

	if (own)
		fill_own(r, kind, subject, own, cpu);
}

/* A number without a record: the reader sees the gap. */
static __always_inline void lose(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct own *own = bpf_map_lookup_elem(&cores, &cpu);

	if (own)
		__sync_fetch_and_add(&own->sequence, 1);
}

#define begin(type, kind, subject)                                                   \
	({                                                                           \
		type *__r = bpf_ringbuf_reserve(&records, sizeof(type), 0);          \
		if (__r)                                                             \
			fill(&__r->head, kind, subject);                             \
		else                                                                 \
			lose();                                                      \
		__r;                                                                 \
	})

/* The reader comes by itself: a wake-up would be an event of its own. */
static __always_inline void end(void *r)
{
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

static __always_inline void describe(struct record_thread *r, struct task_struct *p)
{
	const __u64 *comm = (const __u64 *)p->comm;

	r->thread = p->pid;
	r->process = p->tgid;
	r->priority = p->prio;
	r->policy = p->policy;
	r->state = 0;
	r->stolen = 0;
	r->target = 0;
	/* Two loads, where a helper takes some 20 ns. The reader ends the name at its zero. */
	((__u64 *)r->comm)[0] = comm[0];
	((__u64 *)r->comm)[1] = comm[1];
}

static __always_inline void tell_thread(__u16 kind, __u32 subject, struct task_struct *p)
{
	struct record_thread *r = begin(struct record_thread, kind, subject);

	if (!r)
		return;
	describe(r, p);
	end(r);
}

/*
 * Some hypervisors' guests have threads whose doings no tracepoint tells: the
 * switch away from them is missed. Who has the core instead is told as soon as
 * anything happens there. How the other one left is not known: it is not said
 * to wait.
 */
static __always_inline bool catch_up(void)
{
	struct task_struct *current = bpf_get_current_task_btf();
	__u32 cpu = bpf_get_smp_processor_id();
	struct own *own = bpf_map_lookup_elem(&cores, &cpu);
	__s32 told;

	if (!(tell & QUELL_TELL_UNSEEN) || !own)
		return false;
	told = own->running;
	if (!own->is_known || told == current->pid)
		return false;
	own->running = current->pid;
	tell_thread(QUELL_RECORD_UNSEEN, told, current);
	return true;
}

/* ---- queues; the caller holds the queue's lock ---- */

static __always_inline void tell_size(struct rq *rq, struct last *last)
{
	__u32 queued = rq->nr_running, runnable = rq_runnable(rq);
	struct record_short *r;

	/* Within a change the classes' own counts lag behind. */
	if (runnable > queued)
		runnable = queued;
	if (queued == last->queued && runnable == last->runnable)
		return;
	last->queued = queued;
	last->runnable = runnable;
	r = begin(struct record_short, QUELL_RECORD_QUEUE, rq->cpu);
	if (!r)
		return;
	r->queued = queued;
	r->runnable = runnable;
	end(r);
}

static __always_inline void tell_load(struct rq *rq, struct last *last)
{
	__u64 weight = rq_weight(rq), average = rq_average(rq);
	struct record_load *r;

	if (weight == last->weight && average == last->average)
		return;
	last->weight = weight;
	last->average = average;
	r = begin(struct record_load, QUELL_RECORD_LOAD, rq->cpu);
	if (!r)
		return;
	r->weight = weight;
	r->average = average;
	end(r);
}

static __always_inline void tell_queue(struct rq *rq)
{
	struct last *last;
	__u32 cpu;

	if (!rq)
		return;
	cpu = rq->cpu;
	last = bpf_map_lookup_elem(&queues, &cpu);
	if (!last)
		return;
	if (tell & QUELL_TELL_QUEUES)
		tell_size(rq, last);
	if (tell & QUELL_TELL_LOAD)
		tell_load(rq, last);
}

SEC("tp_btf/sched_update_nr_running_tp")
int BPF_PROG(on_size, struct rq *rq, int change)
{
	catch_up();
	tell_queue(rq);
	return 0;
}

SEC("tp_btf/pelt_cfs_tp")
int BPF_PROG(on_load, struct cfs_rq *cfs_rq)
{
	struct last *last;
	struct rq *rq;
	__u32 cpu;
	bool missed;

	missed = catch_up();
	if (!(tell & QUELL_TELL_LOAD) || !bpf_core_field_exists(struct cfs_rq, rq))
		return 0;
	rq = cfs_rq->rq;
	/* Who left unseen left the queue unseen as well. */
	if (missed)
		tell_queue(rq);
	/* Queues of cgroups are part of the root's load. */
	if (cfs_rq != &rq->cfs)
		return 0;
	cpu = rq->cpu;
	last = bpf_map_lookup_elem(&queues, &cpu);
	if (last)
		tell_load(rq, last);
	return 0;
}

/* ---- the cores that a thread may use ---- */

static __always_inline __u64 digest(const __u64 *mask)
{
	__u64 sum = 0;
	int i;

	for (i = 0; i < QUELL_MASK_WORDS; i++)
		sum = (sum ^ mask[i]) * 0x9e3779b97f4a7c15ULL;
	return sum;
}

/* No storage is made under a lock of the scheduler: the kernel may wake a thread to get memory. */
static __always_inline void tell_allowed(struct task_struct *p, bool is_new)
{
	__u64 mask[QUELL_MASK_WORDS] = {}, now, *told;
	struct record_allowed *r;

	if (!(tell & QUELL_TELL_ALLOWED))
		return;
	told = bpf_task_storage_get(&allowed, p, 0, is_new ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (!told)
		return;
	read_mask(mask, p->cpus_ptr);
	now = digest(mask);
	if (now == *told)
		return;
	*told = now;
	r = begin(struct record_allowed, QUELL_RECORD_ALLOWED, p->pid);
	if (!r)
		return;
	__builtin_memcpy(r->mask, mask, sizeof(mask));
	end(r);
}

/* Threads that live already: a keyframe tells where they may run. */
SEC("iter/task")
int know(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	__u64 mask[QUELL_MASK_WORDS] = {}, *told;

	if (!p)
		return 0;
	told = bpf_task_storage_get(&allowed, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!told)
		return 0;
	read_mask(mask, p->cpus_ptr);
	*told = digest(mask);
	return 0;
}

/* ---- threads ---- */

static __always_inline __u32 stolen(struct own *own, struct task_struct *next)
{
	__u64 steal = steal_clock(next), taken;

	taken = own->steal ? steal - own->steal : 0;
	own->steal = steal;
	return taken < 0xffffffff ? taken : 0xffffffff;
}

static __always_inline void tell_switch(struct task_struct *prev, struct task_struct *next,
					unsigned int state)
{
	__u32 cpu = bpf_get_smp_processor_id(), taken;
	struct own *own = bpf_map_lookup_elem(&cores, &cpu);
	struct record_thread *r;

	if (!own)
		return;
	taken = stolen(own, next);
	own->running = next->pid;
	own->is_known = 1;
	r = bpf_ringbuf_reserve(&records, sizeof(*r), 0);
	if (!r) {
		__sync_fetch_and_add(&own->sequence, 1);
		return;
	}
	fill_own(&r->head, QUELL_RECORD_SWITCH, prev->pid, own, cpu);
	describe(r, next);
	r->state = state;
	r->stolen = taken;
	end(r);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	catch_up();
	if (tell & QUELL_TELL_SWITCHES)
		tell_switch(prev, next, preempt ? 0 : prev_state);
	/* A thread that goes on waiting may be tied to its core just now (migrate_disable). */
	if ((tell & QUELL_TELL_ALLOWED) && prev->pid && (preempt || !prev_state))
		tell_allowed(prev, false);
	/* One that sleeps may be left in the queue, and count no more. */
	if (tell & (QUELL_TELL_QUEUES | QUELL_TELL_LOAD))
		tell_queue(queue_of(next));
	return 0;
}

static __always_inline bool is_wanted(struct task_struct *p)
{
	int i;

	if (!processes[0])
		return true;
	for (i = 0; i < QUELL_PROCESSES && processes[i]; i++)
		if (p->tgid == processes[i])
			return true;
	return false;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	struct task_struct *by = bpf_get_current_task_btf();
	struct record_thread *r;

	catch_up();
	tell_allowed(p, false);
	if (!(tell & QUELL_TELL_WAKES) || !is_wanted(p))
		return 0;
	r = begin(struct record_thread, QUELL_RECORD_WAKING, by->pid);
	if (!r)
		return 0;
	describe(r, p);
	r->target = p->thread_info.cpu;
	end(r);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	if ((tell & QUELL_TELL_WOKEN) && is_wanted(p))
		tell_thread(QUELL_RECORD_WOKEN, p->thread_info.cpu, p);
	/* One that was left in the queue counts again. Whoever wakes itself holds no lock. */
	if ((tell & (QUELL_TELL_QUEUES | QUELL_TELL_LOAD)) && p != bpf_get_current_task_btf())
		tell_queue(queue_of(p));
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	if (is_wanted(p))
		tell_thread(QUELL_RECORD_WOKEN_NEW, p->thread_info.cpu, p);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *moved, int to)
{
	struct record_short *r;
	__u16 kind = QUELL_RECORD_MIGRATE;

	tell_allowed(moved, false);
	if (bpf_core_field_exists(moved->in_execve) && BPF_CORE_READ_BITFIELD(moved, in_execve))
		kind = QUELL_RECORD_MIGRATE_EXEC;
	r = begin(struct record_short, kind, moved->pid);
	if (!r)
		return 0;
	r->from = moved->thread_info.cpu;
	r->to = to;
	r->stack = bpf_get_stackid(ctx, &stacks, 0);
	end(r);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	if (tell & QUELL_TELL_LIVES)
		tell_thread(QUELL_RECORD_FORK, parent->pid, child);
	tell_allowed(child, true);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *p)
{
	tell_thread(QUELL_RECORD_EXEC, 0, p);
	return 0;
}

static __always_inline int tell_short(__u16 kind, __u32 subject)
{
	struct record_short *r = begin(struct record_short, kind, subject);

	if (r)
		end(r);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *p)
{
	return tell_short(QUELL_RECORD_EXIT, p->pid);
}

/* ---- softirqs and interrupts ---- */

/* A record without a body. */
static __always_inline int tell_number(__u16 kind, __u32 subject)
{
	struct record *r = bpf_ringbuf_reserve(&records, sizeof(*r), 0);

	if (!r) {
		lose();
		return 0;
	}
	fill(r, kind, subject);
	end(r);
	return 0;
}

/* Without the flag passes of the load balancer only. */
static __always_inline bool is_wanted_vector(unsigned int vector)
{
	return (tell & QUELL_TELL_SOFTIRQS) || vector == SCHED_SOFTIRQ;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector)
{
	return is_wanted_vector(vector) ? tell_number(QUELL_RECORD_SOFTIRQ_ENTRY, vector) : 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int vector)
{
	return is_wanted_vector(vector) ? tell_number(QUELL_RECORD_SOFTIRQ_EXIT, vector) : 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry, int irq)
{
	return tell_number(QUELL_RECORD_IRQ_ENTRY, irq);
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit, int irq)
{
	return tell_number(QUELL_RECORD_IRQ_EXIT, irq);
}

/* ---- cores that come and go ---- */

/*
 * The step in which the scheduler gives a core up or takes it has ended.
 * `reached` is the step at which the core is now: on its way down the one below.
 */
SEC("tp_btf/cpuhp_exit")
int BPF_PROG(on_hotplug, unsigned int cpu, int reached, int step, int failed)
{
	int scheduled = bpf_core_enum_value(enum cpuhp_state, CPUHP_AP_ACTIVE);
	struct record_short *r;

	if (failed || step != scheduled)
		return 0;
	r = begin(struct record_short, QUELL_RECORD_ONLINE, cpu);
	if (!r)
		return 0;
	r->to = reached == step;
	end(r);
	return 0;
}
