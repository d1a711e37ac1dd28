// SPDX-License-Identifier: GPL-2.0
/*
 * Records who has each core, whom the service's threads wake up, and when
 * softirqs and interrupts run, for one who asks why something was slow.
 * Everything is decided by the reader; a full ring counts what it lost.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "ring.h"
#include "steal.h"
#include "transitions.h"

char LICENSE[] SEC("license") = "GPL";

/* The processes whose wake-ups are recorded. */
const volatile __s32 processes[QUELL_PROCESSES];

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1);
} transitions SEC(".maps");

/* The steal clock of each core at its last switch. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} steals SEC(".maps");

static __always_inline struct transition *begin(__u16 kind)
{
	struct transition *t = reserve(&transitions, sizeof(*t));

	if (!t)
		return NULL;
	t->at = bpf_ktime_get_ns();
	t->kind = kind;
	t->core = bpf_get_smp_processor_id();
	return t;
}

static __always_inline void describe(struct transition *t, struct task_struct *p)
{
	t->thread = p->pid;
	t->process = p->tgid;
	t->priority = p->prio;
	t->policy = p->policy;
	bpf_probe_read_kernel_str(t->comm, sizeof(t->comm), p->comm);
}

static __always_inline __u32 stolen(struct task_struct *next)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u64 *before = bpf_map_lookup_elem(&steals, &cpu);
	__u64 steal = steal_clock(next), taken;

	if (!before)
		return 0;
	taken = *before ? steal - *before : 0;
	*before = steal;
	return taken < 0xffffffff ? taken : 0xffffffff;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	struct transition *t = begin(QUELL_SWITCHED);
	__u32 taken = stolen(next);

	if (!t)
		return 0;
	describe(t, next);
	t->left = prev->pid;
	t->left_state = preempt ? 0 : prev_state;
	t->stolen = taken;
	submit(t);
	return 0;
}

static __always_inline bool is_wanted(struct task_struct *p)
{
	int i;

	for (i = 0; i < QUELL_PROCESSES && processes[i]; i++)
		if (p->tgid == processes[i])
			return true;
	return false;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	struct transition *t;

	if (!is_wanted(p))
		return 0;
	t = begin(QUELL_WOKEN);
	if (!t)
		return 0;
	describe(t, p);
	/* Where it waits, unless it is moved: a switch tells. */
	t->core = p->thread_info.cpu;
	submit(t);
	return 0;
}

static __always_inline int numbered(__u16 kind, __s32 number)
{
	struct transition *t = begin(kind);

	if (!t)
		return 0;
	t->thread = number;
	submit(t);
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector)
{
	return numbered(QUELL_SOFTIRQ_ENTRY, vector);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int vector)
{
	return numbered(QUELL_SOFTIRQ_EXIT, vector);
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry, int irq)
{
	return numbered(QUELL_IRQ_ENTRY, irq);
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit, int irq)
{
	return numbered(QUELL_IRQ_EXIT, irq);
}
