// SPDX-License-Identifier: GPL-2.0
/*
 * Writes who runs and who waits on this host, and the state of each core, when
 * an iterator is read. Any thread of a core leads to its run queue (there is
 * no symbol of the run queues in every kallsyms), so a core is told with the
 * first of its threads; each core on line has kernel threads of its own.
 *
 * The walk holds no lock of the scheduler: a thread may change its state while
 * it is looked at, and each is seen at a slightly different time.
 */
#include "queues.h"
#include "keyframe.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

/* More than any host has. */
#define LEVELS_MAX 16

/* task_struct.on_rq */
#define ON_RQ_QUEUED 1
#define ON_RQ_MIGRATING 2

struct record {
	union {
		struct keyframe_core core;
		struct keyframe_thread thread;
	};
	__u64 mask[QUELL_MASK_WORDS];
};

/* The reading in which each core was told last. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} told SEC(".maps");

/* Fails when the buffer is full: the kernel drops what this run wrote, and runs it again. */
static __always_inline long write(struct bpf_iter__task *ctx, struct record *r)
{
	__u32 words = mask_words;

	if (words > QUELL_MASK_WORDS)
		return -ENOSPC;
	return bpf_seq_write(ctx->meta->seq, r, sizeof(r->core) + words * sizeof(r->mask[0]));
}

static __always_inline void read_top_span(__u64 *to, struct rq *rq)
{
	struct sched_domain *sd, *parent;
	int level;

	if (!bpf_core_field_exists(rq->sd))
		return;
	sd = rq->sd;
	if (!sd)
		return;
	for (level = 0; level < LEVELS_MAX; level++) {
		parent = sd->parent;
		if (!parent)
			break;
		sd = parent;
	}
	read_mask(to, domain_span(sd));
}

static __always_inline long write_core(struct bpf_iter__task *ctx, struct rq *rq)
{
	struct record r = {};

	r.core.kind = QUELL_KEYFRAME_CORE;
	r.core.core = rq->cpu;
	r.core.running = rq->curr->pid;
	r.core.queued = rq->nr_running;
	r.core.runnable = rq_runnable(rq);
	r.core.weight = rq_weight(rq);
	r.core.average = rq_average(rq);
	r.core.online = rq->online;
	r.core.wake_pending = rq->ttwu_pending;
	read_top_span(r.mask, rq);
	return write(ctx, &r);
}

/* The flag that a thread has since Linux 6.18; before, its whole group is taken off the queue. */
static __always_inline bool is_throttled(struct task_struct *p)
{
	if (bpf_core_field_exists(p->throttled))
		return p->throttled;
	if (bpf_core_field_exists(struct cfs_rq, throttle_count))
		return p->se.cfs_rq->throttle_count > 0;
	return false;
}

static __always_inline enum quell_activity activity(struct task_struct *p, struct rq *rq)
{
	int on_rq = READ_ONCE(p->on_rq);

	/* A thread that just left the core still counts as on it for a moment. */
	if (READ_ONCE(p->on_cpu) && rq->curr == p)
		return QUELL_THREAD_RUNNING;
	if (on_rq == ON_RQ_MIGRATING)
		return QUELL_THREAD_MOVING;
	if (on_rq != ON_RQ_QUEUED) {
		/* On its way into a queue: it waits since it is being woken. */
		return READ_ONCE(p->__state) == TASK_WAKING ? QUELL_THREAD_WAITING :
							      QUELL_THREAD_SLEEPING;
	}
	if (bpf_core_field_exists(p->se.sched_delayed) && p->se.sched_delayed)
		return QUELL_THREAD_DELAYED;
	return is_throttled(p) ? QUELL_THREAD_THROTTLED : QUELL_THREAD_WAITING;
}

static __always_inline bool is_bound(struct task_struct *p)
{
	if (bpf_core_field_exists(p->migration_disabled) && p->migration_disabled)
		return true;
	return p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1;
}

static __always_inline long write_thread(struct bpf_iter__task *ctx, struct task_struct *p,
					 enum quell_activity does)
{
	struct record r = {};

	r.thread.kind = QUELL_KEYFRAME_THREAD;
	r.thread.core = p->thread_info.cpu;
	r.thread.thread = p->pid;
	r.thread.process = p->tgid;
	r.thread.priority = p->prio;
	r.thread.policy = p->policy;
	r.thread.activity = does;
	r.thread.bound = is_bound(p);
	bpf_probe_read_kernel_str(r.thread.comm, sizeof(r.thread.comm), p->comm);
	read_mask(r.mask, p->cpus_ptr);
	return write(ctx, &r);
}

static __always_inline int tell(struct bpf_iter__task *ctx, bool sleepers)
{
	struct task_struct *p = ctx->task;
	enum quell_activity does;
	struct rq *rq;
	__u64 *last;
	__u32 cpu;

	if (!p)
		return 0;
	rq = queue_of(p);
	if (!rq)
		return 0;
	does = activity(p, rq);
	if ((does != QUELL_THREAD_SLEEPING || sleepers) && write_thread(ctx, p, does))
		return 0;
	cpu = rq->cpu;
	last = bpf_map_lookup_elem(&told, &cpu);
	if (last && *last != ctx->meta->session_id && !write_core(ctx, rq))
		*last = ctx->meta->session_id;
	return 0;
}

SEC("iter/task")
int awake(struct bpf_iter__task *ctx)
{
	return tell(ctx, false);
}

SEC("iter/task")
int all(struct bpf_iter__task *ctx)
{
	return tell(ctx, true);
}
