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

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, val) (*(volatile typeof(x) *)&(x) = (val))

/* include/uapi/linux/bpf.h */
enum {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
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
#define EAGAIN 11
#define ENOMEM 12
#define ENOSPC 28

/* include/linux/socket.h */
#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000

/* include/linux/sched.h: values of task_struct.__state */
#define TASK_RUNNING 0x0000
#define TASK_UNINTERRUPTIBLE 0x0002
#define TASK_DEAD 0x0080
#define TASK_WAKING 0x0200

/* include/linux/interrupt.h: the load balancer's */
#define SCHED_SOFTIRQ 7

/* include/linux/cpuhotplug.h: its number differs between kernels and is looked up. */
enum cpuhp_state {
	CPUHP_AP_ACTIVE = 1,
};

/* include/linux/sched.h: a flag of task_struct.flags */
#define PF_KTHREAD 0x00200000

/* include/linux/sched/prio.h: priorities from here on are of the fair class */
#define MAX_RT_PRIO 100

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct load_weight {
	unsigned long weight;
};

struct sched_avg {
	unsigned long load_avg;
};

struct rq;
struct root_domain;
struct sched_domain;
struct cpumask;

/* Which of the h_nr_* there are: see rq_runnable(). */
struct cfs_rq {
	struct load_weight load;
	unsigned int h_nr_running;
	unsigned int h_nr_queued;
	unsigned int h_nr_delayed;
	unsigned int h_nr_runnable;
	struct sched_avg avg;
	struct rq *rq;
	int throttle_count;
};

struct rt_rq {
	unsigned int rt_nr_running;
};

struct dl_rq {
	unsigned int dl_nr_running;
};

struct rb_node {
	unsigned long __rb_parent_color;
};

struct sched_dl_entity {
	struct rb_node rb_node;
};

struct rq {
	unsigned int nr_running;
	unsigned int ttwu_pending;
	struct cfs_rq cfs;
	struct rt_rq rt;
	struct dl_rq dl;
	struct sched_dl_entity fair_server;
	struct sched_dl_entity ext_server;
	struct task_struct *curr;
	struct root_domain *rd;
	struct sched_domain *sd;
	int cpu;
	int online;
	__u64 prev_steal_time_rq;
};

struct sched_entity {
	__u64 sum_exec_runtime;
	unsigned char sched_delayed;
	struct cfs_rq *cfs_rq;
};

struct thread_info {
	__u32 cpu;
};

/* include/asm-generic/qspinlock_types.h, which architectures with a BPF JIT and many cores use */
struct quell_atomic {
	int counter;
};

struct qspinlock {
	struct quell_atomic val;
};

struct raw_spinlock {
	struct qspinlock raw_lock;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	int on_cpu;
	int on_rq;
	struct sched_entity se;
	int prio;
	unsigned int policy;
	unsigned int flags;
	bool throttled;
	struct raw_spinlock pi_lock;
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	unsigned short migration_disabled;
	unsigned int in_execve : 1;
	int pid;
	int tgid;
	__u64 start_boottime;
	char comm[16];
	/* The transaction of a file system in which it is. */
	void *journal_info;
};

/* Of x86. */
struct pt_regs {
	unsigned long orig_ax;
};

struct quell_atomic_long {
	long counter;
};

struct mutex {
	struct quell_atomic_long owner;
};

struct rw_semaphore {
	struct quell_atomic_long owner;
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
