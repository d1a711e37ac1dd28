/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The parts of the kernel that the observer reads.
 *
 * Only members in use are declared. Each is found by name in the running
 * kernel's BTF when the programs are loaded (CO-RE), so neither order nor
 * offsets matter, and no vmlinux.h has to be generated or shipped.
 */
#ifndef QUELL_KERNEL_H
#define QUELL_KERNEL_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

/* include/uapi/linux/bpf.h */
enum {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_F_NO_PREALLOC = 1U << 0,
	BPF_F_MMAPABLE = 1U << 10,
};

enum {
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1U << 0,
};

enum {
	BPF_RB_NO_WAKEUP = 1U << 0,
	BPF_RB_FORCE_WAKEUP = 1U << 1,
};

/* include/uapi/asm-generic/errno-base.h */
#define ESRCH 3
#define ENOMEM 12
#define ENOSPC 28

/* include/linux/sched.h: values of task_struct.__state */
#define TASK_RUNNING 0x0000
#define TASK_DEAD 0x0080
#define TASK_WAKING 0x0200

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sched_domain;
struct root_domain;

struct rq {
	__u64 prev_steal_time_rq;
	struct root_domain *rd;
	struct sched_domain *sd;
	int cpu;
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	unsigned char sched_delayed;
	struct cfs_rq *cfs_rq;
};

struct thread_info {
	__u32 cpu;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	int on_cpu;
	int on_rq;
	struct sched_entity se;
	int prio;
	unsigned int policy;
	int pid;
	int tgid;
	__u64 start_boottime;
	char comm[16];
};

struct linux_binprm {
	int argc;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

#endif
