/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The scheduling domains as the kernel keeps them (kernel/sched/topology.c),
 * and the sets of cores in them.
 */
#ifndef QUELL_DOMAINS_H
#define QUELL_DOMAINS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* 1024 cores, as quell_model::CORES_MAX. */
#define QUELL_MASK_WORDS 16

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cpumask {
	unsigned long bits[1];
};

/* include/linux/cpumask.h: cpumask_var_t is one or the other. */
struct root_domain {
	struct cpumask online[1];
};

struct root_domain___offstack {
	struct cpumask *online;
};

struct sched_group_capacity {
	unsigned long cpumask[0];
};

struct sched_group {
	struct sched_group *next;
	struct sched_group_capacity *sgc;
	unsigned long cpumask[0];
};

struct sched_domain {
	struct sched_domain *parent;
	struct sched_group *groups;
	int flags;
	unsigned long last_balance;
	unsigned int balance_interval;
	unsigned int nr_balance_failed;
	char *name;
};

#pragma clang attribute pop

/* crates/observe/src/domains.rs mirrors this. */
enum record_kind {
	/* A core; what follows is about it. `mask`: its root domain's cores on line. */
	QUELL_CORE = 1,
	/* The next higher domain. `mask`: its span. */
	QUELL_DOMAIN,
	/* The next group of the domain. `mask`: its cores; `balance`: who balances for it. */
	QUELL_GROUP,
};

struct domain_record {
	__u32 kind;
	__u32 core;
	__u32 flags;
	__u32 interval;
	__u32 failed;
	__u32 reserved;
	__u64 last;
	char name[16];
	__u64 mask[QUELL_MASK_WORDS];
	__u64 balance[QUELL_MASK_WORDS];
};

/* 64-bit words of this host's masks: set by the loader from its possible cores. */
const volatile __u32 mask_words = 1;

static __always_inline void read_mask(__u64 *to, const void *from)
{
	__u32 words = mask_words;

	if (words <= QUELL_MASK_WORDS)
		bpf_probe_read_kernel(to, words * sizeof(*to), from);
}

/* The array at the end, which some kernels' BTF leaves out. */
static __always_inline const void *domain_span(struct sched_domain *sd)
{
	return (void *)sd + bpf_core_type_size(struct sched_domain);
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

static __always_inline const void *root_online(struct root_domain *rd)
{
	struct root_domain___offstack *offstack = (void *)rd;

	if (bpf_core_field_exists(struct root_domain___offstack, online))
		return BPF_CORE_READ(offstack, online);
	return &rd->online;
}

#endif
