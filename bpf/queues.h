/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a run queue holds, and the sets of cores of threads and domains.
 */
#ifndef QUELL_QUEUES_H
#define QUELL_QUEUES_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* 1024 cores, as quell_model::CORES_MAX. */
#define QUELL_MASK_WORDS 16

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cpumask {
	unsigned long bits[1];
};

struct sched_domain {
	struct sched_domain *parent;
};

#pragma clang attribute pop

/* 64-bit words of this host's masks: set by the loader from its possible cores. */
const volatile __u32 mask_words = 1;

static __always_inline void read_mask(__u64 *to, const void *from)
{
	__u32 words = mask_words;

	if (words <= QUELL_MASK_WORDS)
		bpf_probe_read_kernel(to, words * sizeof(*to), from);
}

/* The queue of the core on which a thread runs, waits or ran last. */
static __always_inline struct rq *queue_of(struct task_struct *p)
{
	struct cfs_rq *cfs_rq;

	/* Kernels without CONFIG_FAIR_GROUP_SCHED have no such way. */
	if (!bpf_core_field_exists(struct sched_entity, cfs_rq) ||
	    !bpf_core_field_exists(struct cfs_rq, rq))
		return NULL;
	cfs_rq = p->se.cfs_rq;
	return cfs_rq ? cfs_rq->rq : NULL;
}

/* The server that guarantees other classes some time is queued as if it were a deadline thread. */
static __always_inline bool is_queued(struct sched_dl_entity *server)
{
	return server->rb_node.__rb_parent_color != (unsigned long)&server->rb_node;
}

/*
 * Threads that want the core. Not rq->nr_running: since Linux 6.12 it counts
 * sleepers whose dequeueing is delayed, from 6.8 to 6.17 the servers, and
 * always the stopper.
 */
static __always_inline __u32 rq_runnable(struct rq *rq)
{
	__u32 fair, deadline = rq->dl.dl_nr_running;

	if (bpf_core_field_exists(rq->cfs.h_nr_runnable)) {
		fair = rq->cfs.h_nr_runnable;
	} else {
		fair = bpf_core_field_exists(rq->cfs.h_nr_queued) ? rq->cfs.h_nr_queued :
								    rq->cfs.h_nr_running;
		if (bpf_core_field_exists(rq->cfs.h_nr_delayed))
			fair -= rq->cfs.h_nr_delayed;
	}
	if (bpf_core_field_exists(rq->fair_server) && deadline)
		deadline -= is_queued(&rq->fair_server);
	if (bpf_core_field_exists(rq->ext_server) && deadline)
		deadline -= is_queued(&rq->ext_server);
	return fair + rq->rt.rt_nr_running + deadline;
}

/* On 64 bits the kernel keeps weights 1024 times finer than users see them. */
static __always_inline __u64 rq_weight(struct rq *rq)
{
	return rq->cfs.load.weight >> 10;
}

static __always_inline __u64 rq_average(struct rq *rq)
{
	return rq->cfs.avg.load_avg;
}

#endif
