/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Background threads that end the sleeps of event threads of their process: a collector at the end of a pause, a thread
 * that releases a lock.
 *
 * sched_waking runs in the waker, so each sleep in futex that a background thread ends shows which thread depends on
 * it. While that one sleeps again and the background thread waits behind LC, an event is sent: user space may let it
 * go first. Sleeps in other system calls (epoll, read, nanosleep) are for requests and times, not for other threads.
 */
#ifndef QUELL_WAKERS_H
#define QUELL_WAKERS_H

#include "bursts.h"

/* Least time between two events of one thread: user space goes on for twice as long by itself (REPEAT_TIME). */
#define ENDS_SLEEP_GAP 50000000ULL
/* A thread that has ended no sleep for so long does so no more: collections are seconds apart. */
#define WAKER_FORGOTTEN 10000000000ULL

/* arch/x86/entry/syscalls/syscall_64.tbl */
#define X86_FUTEX 202
#define X86_FUTEX_WAITV 449
#define X86_FUTEX_WAKE 454
#define X86_FUTEX_WAIT 455
#define X86_FUTEX_REQUEUE 456

/*
 * Whether the thread is in futex or a system call of its family. That depends on the architecture: where it is not
 * known, no thread is, and there are no wakers.
 */
static __always_inline bool is_in_futex(struct task_struct *p)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(p);
	unsigned long call;

	if (!bpf_core_field_exists(regs->orig_ax))
		return false;
	/* -1 in an interrupt or exception that came while the thread ran its program. */
	call = regs->orig_ax;
	return call == X86_FUTEX || call == X86_FUTEX_WAITV ||
	       (call >= X86_FUTEX_WAKE && call <= X86_FUTEX_REQUEUE);
}

/* ---- wakers and sleepers ---- */

static __always_inline struct waker *waker_of(__u64 handle)
{
	__u32 at = handle_slot(handle);

	return bpf_map_lookup_elem(&wakers, &at);
}

/*
 * The current thread, in the background, ends this sleep in futex of another thread of its process. An event thread
 * depends on it then, or a thread on which an event thread depends: a collector's worker ends the sleep of the thread
 * that ends the pause.
 *
 * A global function, as set_add().
 */
__noinline int note_waker(__u64 handle, __u64 sleeper, __u64 now)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct slot *s = slot_of(handle), *other = slot_of(sleeper);
	struct waker *own = waker_of(handle), *theirs = waker_of(sleeper);
	__u64 depends;

	if (!s || !other || !own || !theirs || !s->lc)
		return 0;
	if (READ_ONCE(other->role) >= QUELL_BACKGROUND) {
		depends = READ_ONCE(theirs->ends_sleep_of);
		/* Two background threads that wake each other are for nothing but themselves. */
		if (!depends || depends == handle || now - READ_ONCE(theirs->ended) > WAKER_FORGOTTEN)
			return 0;
	}
	/* The core's entry is an old one where a switch was missed. */
	if (current->pid != s->tid)
		return 0;
	/*
	 * Else a signal ended the sleep, or an interrupt that came while the thread ran: a timer. The preempt count, which
	 * would tell as well, is a symbol that kernels without CONFIG_KALLSYMS_ALL do not resolve.
	 */
	if (!is_in_futex(current))
		return 0;
	WRITE_ONCE(own->ends_sleep_of, sleeper);
	WRITE_ONCE(own->ended, now);
	WRITE_ONCE(theirs->sleep_ended_by, handle);
	return 0;
}

/* Also one that leaves a full core to others for a while: the roles of both end sleeps. */
static __always_inline bool is_in_background(__u32 role)
{
	return role == QUELL_BACKGROUND || role == QUELL_FAIR;
}

/* An LC thread is woken that slept in futex. */
static __noinline void note_futex_wake(struct slot *sleeper, __u64 handle, __u64 now)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct core *core = bpf_map_lookup_elem(&cores, &cpu);
	/* Cheaper than the storage of the current thread. */
	__u64 waker = core ? handle_on(core) : 0;
	struct slot *s = slot_of(waker);

	if (s && is_in_background(READ_ONCE(s->role)) && s->tgid == sleeper->tgid)
		note_waker(waker, handle, now);
}

/* A thread has a role again in which none has to wait for it. */
static __always_inline void forget_sleeper(__u64 handle)
{
	struct waker *w = waker_of(handle);

	if (w)
		WRITE_ONCE(w->ends_sleep_of, 0);
}

/* Whether an LC thread has the core where this one waits. */
static __always_inline bool is_behind_lc(struct slot *s)
{
	__u32 cpu = s->core;
	struct core *core = bpf_map_lookup_elem(&cores, &cpu);

	return core && READ_ONCE(core->kind) == QUELL_LC;
}

/*
 * This background thread waits: sends an event if that is behind LC and the thread whose sleeps it ends sleeps in
 * futex. What is read of that one's slot without holding it may be old, which costs an event more or less.
 *
 * A global function, as set_add().
 */
__noinline int send_ends_sleep(__u64 handle, __u64 now)
{
	struct waker *w = waker_of(handle);
	struct slot *s = slot_of(handle), *other;
	__u64 sleeper;

	if (!s || !w)
		return 0;
	sleeper = READ_ONCE(w->ends_sleep_of);
	other = slot_of(sleeper);
	if (!other || other->reuse_count != handle_use(sleeper) ||
	    READ_ONCE(other->state) != QUELL_SLEEPING ||
	    !(READ_ONCE(other->flags) & QUELL_IN_FUTEX) ||
	    now - READ_ONCE(w->ended) > WAKER_FORGOTTEN ||
	    now - READ_ONCE(w->sent) < ENDS_SLEEP_GAP || !is_behind_lc(s))
		return 0;
	WRITE_ONCE(w->sent, now);
	if (!send_burst(QUELL_EVENT_ENDS_SLEEP, s, handle, 0, now))
		WRITE_ONCE(w->sent, 0);
	return 0;
}

/* A thread begins to wait. */
static __always_inline void note_wait(struct slot *s, __u64 handle, __u64 now)
{
	if (!without_roles && is_in_background(s->role))
		send_ends_sleep(handle, now);
}

/*
 * A thread begins to sleep in futex: the one that ended its last such sleep may wait already. A collector wakes its
 * workers before it sleeps.
 */
static __noinline void note_futex_sleep(__u64 handle, __u64 now)
{
	struct waker *w = waker_of(handle);
	__u64 waker = w ? READ_ONCE(w->sleep_ended_by) : 0;
	struct slot *s = slot_of(waker);

	if (s && s->reuse_count == handle_use(waker) && READ_ONCE(s->state) == QUELL_WAITING)
		note_wait(s, waker, now);
}

#endif
