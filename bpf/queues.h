/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a run queue holds.
 */
#ifndef QUELL_QUEUES_H
#define QUELL_QUEUES_H

#include "domains.h"

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
