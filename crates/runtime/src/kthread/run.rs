//! The scheduler loop of a kthread (Caladan's is the model, `facts` of its runtime: what is due, own queue, thieving, parking).

use std::ptr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use corosensei::CoroutineResult;
use quell_model::Nanos;
use quell_shm::runtime::KthreadState;

use super::local::{self, CALLS_PER_CHECK, Local};
use super::{Shared, count, lock};
use crate::preempt::tick::Ticker;
use crate::task::{Leave, Left, Task, UthreadRef, tell_end};

/// Switches after which, and time after which, timers, I/O and what others left are looked at.
pub(super) const LOOK_TICKS: u32 = 64;
pub(super) const LOOK_AFTER: Nanos = Nanos::from_micros(50);

/// The thread of a kthread.
pub(super) fn kthread(shared: Arc<Shared>, at: usize) {
    let mut local = Local::new(shared, at);
    local.ticker = local.shared.config.preempt_every.and_then(|period| Ticker::new(period).ok());
    local::set(&raw const local);
    crate::overflow::watch_this_thread();
    let kthread = local.kthread();
    kthread.lines().work.begin(rustix::thread::gettid().as_raw_nonzero().get());
    // Without one it waits for one at its first step, like a kthread whose core was revoked.
    local.shared.cores().take(kthread);
    local.note_grant();
    local.note_core();
    local.start_ticks();
    let mut now = local.time.now();
    while !local.shared.stopping() {
        if let Some(uthread) = local.next(now) {
            now = local.run(uthread, now);
        } else if let Some(uthread) = local.search() {
            now = local.run(uthread, local.time.now());
        } else {
            now = local.time.now();
        }
    }
    local.idle();
    kthread.reactor.close();
    kthread.lines().work.set_state(KthreadState::Absent);
    local::set(ptr::null());
}

impl Local {
    /// The core that this thread is on, for who steals.
    pub(super) fn note_core(&self) {
        self.kthread().core.store(rustix::thread::sched_getcpu() as i32, Ordering::Relaxed);
    }

    /// The next uthread to run of what is here.
    fn next(&self, now: Nanos) -> Option<UthreadRef> {
        let tick = self.tick.get().wrapping_add(1);
        self.tick.set(tick);
        let kthread = self.kthread();
        if self.is_revoked() {
            self.give_up_core();
        }
        if tick.is_multiple_of(LOOK_TICKS) || now - self.looked.get() > LOOK_AFTER {
            let now = self.time.now();
            self.look(now);
            self.look_after_others(now);
            if let Some(uthread) = self.first_from_outside() {
                return Some(uthread);
            }
        } else if kthread.next_timer().is_some_and(|next| next <= now) {
            self.fire_due(now);
        }
        self.next_here()
    }

    /// The first of what came from outside, where the own queue has no room for it: else it would wait for as long as
    /// uthreads here make each other ready.
    fn first_from_outside(&self) -> Option<UthreadRef> {
        if self.kthread().queue.len() < super::queue::CAPACITY {
            return None;
        }
        let mut taken = self.taken.borrow_mut();
        self.shared.inject.take(1, 1, &mut taken);
        let (item, _) = taken.pop()?;
        self.publish();
        // SAFETY: an item of a queue is the one reference to a uthread.
        Some(unsafe { UthreadRef::from_item(item) })
    }

    /// The oldest of what is ready here.
    pub(super) fn next_here(&self) -> Option<UthreadRef> {
        let kthread = self.kthread();
        let bound = self.next_bound();
        let ready = bound.or_else(|| kthread.queue.pop().map(|(item, _)| item));
        self.publish();
        // SAFETY: an item of a queue is the one reference to a uthread.
        ready.map(|item| unsafe { UthreadRef::from_item(item) })
    }

    /// The oldest of those bound to this kthread, if it is older than the oldest of the others.
    #[inline]
    fn next_bound(&self) -> Option<u64> {
        if self.bound_ready.get() == 0 {
            return None;
        }
        let mut bound = self.bound.borrow_mut();
        let &(_, since) = bound.front()?;
        // Of those that are equally old the others: who is preempted gives way to what was found then.
        let older = self.kthread().queue.oldest().0.is_none_or(|other| since < other);
        let (item, _) = older.then(|| bound.pop_front()).flatten()?;
        self.bound_ready.set(bound.len());
        // SAFETY: the item is the one reference to a uthread; it stays so, as this one is not used further.
        let uthread = std::mem::ManuallyDrop::new(unsafe { UthreadRef::from_item(item) });
        if uthread.task().unwinds.get() {
            self.unwinding.set(self.unwinding.get() - 1);
        }
        Some(item)
    }

    /// Looks at what makes uthreads ready but is not in the run queue.
    pub(super) fn look(&self, now: Nanos) {
        self.looked.set(now);
        let kthread = self.kthread();
        if kthread.bound_len.load(Ordering::Relaxed) > 0 {
            let mut bound = lock(&kthread.bound);
            self.bound.borrow_mut().extend(bound.drain(..));
            self.bound_ready.set(self.bound.borrow().len());
            kthread.bound_len.store(0, Ordering::Relaxed);
        }
        self.fire_due(now);
        self.poll_io(kthread, now);
        // No more than fits: what is put back goes behind all others.
        let free = super::queue::CAPACITY.saturating_sub(kthread.queue.len());
        let room = free.min(super::queue::CAPACITY / 2);
        let mut taken = self.taken.borrow_mut();
        self.shared.inject.take(room, self.shared.kthreads.len(), &mut taken);
        for ready in taken.drain(..) {
            if let Err(ready) = kthread.queue.push(ready) {
                self.shared.inject.push([ready]);
            }
        }
    }

    fn fire_due(&self, now: Nanos) {
        let mut due = self.due.borrow_mut();
        self.kthread().take_due(now, false, &mut due);
        due.drain(..).for_each(super::TimerTask::fire);
    }

    /// Polls the I/O of a kthread; if somebody else does, that is enough.
    pub(super) fn poll_io(&self, kthread: &super::Kthread, now: Nanos) {
        let mut completed = self.completed.borrow_mut();
        let reactor = &kthread.reactor;
        if !reactor.is_idle() {
            let own = std::ptr::eq(kthread, self.kthread());
            reactor.poll(own, now, &mut completed);
            kthread.lines().work.set_io(reactor.oldest(now));
        }
        completed.drain(..).for_each(UthreadRef::ready);
    }

    /// Tells that no uthread runs.
    pub(super) fn idle(&self) {
        self.lines().work.set_uthread(None);
    }

    /// The daemon has taken the core back: waits for another one.
    #[cold]
    fn give_up_core(&self) {
        self.idle();
        count(&self.lines().counters.revokes, 1);
        // What is left here is for the others.
        self.notify();
        self.shared.idle.search();
        self.sleep();
        self.end_search();
    }

    /// Runs a uthread until it leaves its stack; returns when that was.
    fn run(&self, uthread: UthreadRef, begin: Nanos) -> Nanos {
        let lines = self.lines();
        self.started.set(begin);
        self.give_calls(CALLS_PER_CHECK);
        lines.work.set_uthread(Some(begin));
        count(&lines.counters.switches, 1);
        let at = uthread.0;
        let task = uthread.task();
        self.tell_request(task.request.get());
        self.current.set(at.as_ptr());
        // SAFETY: who has the one reference to a uthread alone touches its routine.
        let result = match unsafe { &mut *task.routine.get() } {
            Some(routine) => routine.resume(()),
            // It has ended: then there is no reference to it.
            None => unreachable!("a uthread that has ended is ready"),
        };
        self.current.set(ptr::null());
        let end = self.time.step();
        // The lines go on telling of this uthread until the next one begins, or `idle`: a few instructions.
        count(&lines.counters.busy_ns, (end - begin).0);
        match result {
            CoroutineResult::Yield(Leave::Yield) => self.enqueue(uthread, end),
            // SAFETY: it is on the stack that the uthread just left, and this is its one call.
            CoroutineResult::Yield(Leave::Park(commit)) => unsafe {
                ((*commit).call)(commit, uthread);
            },
            CoroutineResult::Yield(Leave::Preempted) => {
                count(&lines.counters.preemptions, 1);
                // Before it goes to the end of the queue: I/O that was completed, and timers that were due, meanwhile
                // have waited for it.
                let now = self.time.now();
                self.look(now);
                self.enqueue(uthread, now);
            }
            CoroutineResult::Return(()) => self.end(at),
        }
        end
    }

    /// A uthread has ended.
    fn end(&self, at: NonNull<Task>) {
        // SAFETY: it is shared with its handle until `join.end`.
        let task = unsafe { at.as_ref() };
        // SAFETY: as in `run`.
        if let Some(routine) = unsafe { (*task.routine.get()).take() } {
            self.give_stack(routine.into_stack());
        }
        count(&self.kthread().ended, 1);
        let scope = task.scope.clone();
        let emptied = task.emptied.get();
        match task.join.end() {
            Left::ToHandle => {}
            // SAFETY: just now, from `end`.
            Left::ToWaiter(waiter) => unsafe { tell_end(waiter) },
            // SAFETY: nobody else is left, and nothing of the application is in it.
            Left::Alone if emptied => unsafe { Task::free(at) },
            Left::Alone => return crate::thread::free_in_uthread(&self.shared, at, scope),
        }
        if let Some(scope) = scope {
            scope.ended();
        }
    }
}
