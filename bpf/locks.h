/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Locks of the kernel that LC threads wait for.
 *
 * The owner of a mutex, or a writer that owns a semaphore, is in the lock's own word, as `perf lock
 * contention` reads it. An event is sent where that owner is watched and has a lower rung than the
 * waiting thread: then only user space can let it run.
 */
#ifndef QUELL_LOCKS_H
#define QUELL_LOCKS_H

#include "slots.h"

/* include/trace/events/lock.h: what is contended */
#define LCB_F_SPIN (1U << 0)
#define LCB_F_READ (1U << 1)
#define LCB_F_WRITE (1U << 2)
#define LCB_F_RT (1U << 3)
#define LCB_F_PERCPU (1U << 4)
#define LCB_F_MUTEX (1U << 5)
/* Locks with an owner in their word */
#define LCB_F_OWNED (LCB_F_READ | LCB_F_WRITE | LCB_F_MUTEX)

/* kernel/locking/{mutex,rwsem}.c: flags in the low bits of the owner */
#define OWNER_FLAGS 7UL
#define RWSEM_READER_OWNED 1UL

/* The task_struct of the lock's owner; 0: none, or readers. */
static __always_inline unsigned long owner_of(void *lock, unsigned int flags)
{
	struct rw_semaphore *semaphore = lock;
	struct mutex *mutex = lock;
	long owner = 0;

	/* With PREEMPT_RT these locks are others, whose owners inherit priorities by themselves. */
	if (!bpf_core_field_exists(mutex->owner) || !bpf_core_field_exists(semaphore->owner))
		return 0;
	if (flags & LCB_F_MUTEX) {
		bpf_core_read(&owner, sizeof(owner), &mutex->owner.counter);
	} else {
		bpf_core_read(&owner, sizeof(owner), &semaphore->owner.counter);
		if (owner & RWSEM_READER_OWNED)
			return 0;
	}
	return owner & ~OWNER_FLAGS;
}

/* The owner as a task to look at. It may have exited meanwhile, and its number have gone to another. */
static __always_inline struct task_struct *owner_task(unsigned long owner)
{
	struct task_struct *p;
	int pid = 0;

	if (!owner || bpf_core_read(&pid, sizeof(pid), &((struct task_struct *)owner)->pid))
		return NULL;
	p = bpf_task_from_pid(pid);
	if (p && (unsigned long)p != owner) {
		bpf_task_release(p);
		return NULL;
	}
	return p;
}

static __noinline void send_lock(__u32 kind, struct slot *s, __u64 handle, __u64 owner,
				      __u64 now)
{
	struct event *e = event_new(kind);

	if (!e)
		return;
	e->core = s->core;
	e->task = s->task;
	e->generation = s->generation;
	e->slot = handle_slot(handle);
	e->reuse_count = handle_use(handle);
	if (owner) {
		e->owner_slot = handle_slot(owner);
		e->owner_reuse_count = handle_use(owner);
	}
	event_send(e, WAKE_NOW, now);
}

/*
 * The thread has this lock, or gave it up, or (`lock` is 0) is woken to take one: sends an event if one was sent when it
 * began to wait.
 *
 * For any other lock nothing may be sent: contention_end comes with spinlocks held, that of the event ring among them.
 */
static __always_inline void lock_ends(struct slot *s, __u64 handle, __u64 lock, __u64 now)
{
	__u64 told;

	if (without_roles)
		return;
	told = READ_ONCE(s->told_lock);
	if (!told || (lock && told != lock))
		return;
	WRITE_ONCE(s->told_lock, 0);
	send_lock(QUELL_EVENT_RELEASED, s, handle, 0, now ? now : bpf_ktime_get_ns());
}

/* A BE thread that was stopped inside the kernel so lately may still hold what an LC thread needs. */
#define STOPPED_LATELY 100000000ULL
/* Least time between two events of LC threads that sleep uninterruptibly. */
#define STOPPED_GAP 5000000ULL

/*
 * A thread is stopped inside the kernel. For locks without an owner user space looks after a while whether an
 * LC thread still sleeps there and a BE thread waits: this makes it look at all. Stale or lost sums of
 * several CPUs cost an event more or less.
 */
static __always_inline void note_stopped(struct slot *s, __u64 handle, bool sleeps, __u64 now)
{
	struct totals *t = totals_page();

	if (without_roles || !t)
		return;
	if (!s->lc) {
		WRITE_ONCE(t->be_in_kernel, now);
	} else if (sleeps && s->role < QUELL_BACKGROUND &&
		   now - READ_ONCE(t->be_in_kernel) < STOPPED_LATELY &&
		   now - READ_ONCE(t->told_stopped) > STOPPED_GAP) {
		WRITE_ONCE(t->told_stopped, now);
		send_lock(QUELL_EVENT_STOPPED, s, handle, 0, now);
	}
}

/* An LC thread goes to sleep for a lock, after it has spun for it where the kernel does that. */
SEC("tp_btf/contention_begin")
int BPF_PROG(on_contention_begin, void *lock, unsigned int flags)
{
	struct task_struct *owner;
	struct slot *s, *other;
	__u64 handle, held_by;

	if (flags & (LCB_F_SPIN | LCB_F_RT | LCB_F_PERCPU) || !(flags & LCB_F_OWNED))
		return 0;
	handle = handle_of(bpf_get_current_task_btf());
	s = slot_of(handle);
	if (!s || !s->lc || s->role >= QUELL_BACKGROUND)
		return 0;
	owner = owner_task(owner_of(lock, flags));
	if (!owner)
		return 0;
	held_by = handle_of(owner);
	bpf_task_release(owner);
	other = slot_of(held_by);
	/* Threads of one task differ by their roles alone; user space knows the rungs of two. */
	if (!other || (other->lc && other->task == s->task && other->role <= s->role))
		return 0;
	WRITE_ONCE(s->told_lock, (__u64)lock);
	send_lock(QUELL_EVENT_CONTENDED, s, handle, held_by, bpf_ktime_get_ns());
	return 0;
}

/* It got the lock without a sleep, or gave up. */
SEC("tp_btf/contention_end")
int BPF_PROG(on_contention_end, void *lock, int ret)
{
	__u64 handle = handle_of(bpf_get_current_task_btf());
	struct slot *s = slot_of(handle);

	if (s && s->lc)
		lock_ends(s, handle, (__u64)lock, 0);
	return 0;
}

#endif
