/* SPDX-License-Identifier: GPL-2.0 */
#ifndef QUELL_STEAL_H
#define QUELL_STEAL_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>

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

#endif
