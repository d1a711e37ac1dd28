// SPDX-License-Identifier: GPL-2.0
/*
 * Writes the scheduling domains of every core into a ring, when its iterator
 * is read. Any task of a core leads to its run queue (there is no symbol of
 * the run queues in every kallsyms), and that to the domains. The iterator
 * runs under RCU, as the kernel's own walk does.
 */
#include "domains.h"
#include "ring.h"

char LICENSE[] SEC("license") = "GPL";

/* Bounds for a walk that meets a domain being replaced. */
#define LEVELS_MAX 32
#define GROUPS_MAX 1024

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1);
} records SEC(".maps");

/* The reading in which each core was told last. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} told SEC(".maps");

static __always_inline struct domain_record *begin(__u32 kind, __u32 core)
{
	struct domain_record *r = reserve(&records, sizeof(*r));

	if (r) {
		r->kind = kind;
		r->core = core;
	}
	return r;
}

struct walk {
	__u32 core;
	struct sched_domain *sd;
	struct sched_group *first, *group;
};

static long put_group(__u64 turn, struct walk *w)
{
	struct sched_group *sg = w->group;
	struct domain_record *r = begin(QUELL_GROUP, w->core);

	if (!r)
		return 1;
	read_mask(r->mask, &sg->cpumask);
	read_mask(r->balance, &BPF_CORE_READ(sg, sgc)->cpumask);
	submit(r);
	w->group = BPF_CORE_READ(sg, next);
	return !w->group || w->group == w->first;
}

static long put_domain(__u64 turn, struct walk *w)
{
	struct sched_domain *sd = w->sd;
	struct domain_record *r = begin(QUELL_DOMAIN, w->core);

	if (!r)
		return 1;
	read_mask(r->mask, domain_span(sd));
	r->flags = BPF_CORE_READ(sd, flags);
	r->last = BPF_CORE_READ(sd, last_balance);
	r->interval = BPF_CORE_READ(sd, balance_interval);
	r->failed = BPF_CORE_READ(sd, nr_balance_failed);
	/* Only with CONFIG_SCHED_DEBUG, until Linux 6.15. */
	if (bpf_core_field_exists(struct sched_domain, name))
		bpf_probe_read_kernel_str(r->name, sizeof(r->name), BPF_CORE_READ(sd, name));
	submit(r);
	w->first = w->group = BPF_CORE_READ(sd, groups);
	if (w->group)
		bpf_loop(GROUPS_MAX, put_group, w, 0);
	w->sd = BPF_CORE_READ(sd, parent);
	return !w->sd;
}

SEC("iter/task")
int walk_cores(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	struct rq *rq = p ? queue_of(p) : NULL;
	struct walk w = {};
	struct domain_record *r;
	__u64 *last;

	if (!rq || !bpf_core_field_exists(rq->sd))
		return 0;
	w.core = rq->cpu;
	last = bpf_map_lookup_elem(&told, &w.core);
	if (!last || *last == ctx->meta->session_id)
		return 0;
	*last = ctx->meta->session_id;
	r = begin(QUELL_CORE, w.core);
	if (!r)
		return 0;
	read_mask(r->mask, root_online(BPF_CORE_READ(rq, rd)));
	submit(r);
	w.sd = BPF_CORE_READ(rq, sd);
	if (w.sd)
		bpf_loop(LEVELS_MAX, put_domain, &w, 0);
	return 0;
}
