//! Looking for work elsewhere, and sleeping when there is none.

use std::sync::atomic::Ordering;

use quell_model::Nanos;
use quell_shm::runtime::KthreadState;

use super::local::Local;
use super::queue::CAPACITY;
use super::{Kthread, TimerTask, count};
use crate::task::UthreadRef;

/// How late a timer of a kthread that runs must be before another takes it.
const LATE: Nanos = Nanos::from_micros(20);
/// Pauses of the processor between two looks at the other kthreads.
const PAUSES: u32 = 8;

impl Local {
    /// Looks for work everywhere; sleeps if there is none for a while. `None`: the runtime ends.
    #[cold]
    pub(super) fn search(&self) -> Option<UthreadRef> {
        self.idle();
        self.shared.idle.search();
        loop {
            let found = self.poll();
            if found.is_some() || self.shared.stopping() {
                self.end_search();
                return found;
            }
            self.sleep();
        }
    }

    fn poll(&self) -> Option<UthreadRef> {
        let mut now = self.time.now();
        let end = now + self.shared.config.poll_before_park;
        loop {
            self.look(now);
            let found = self.next_here().or_else(|| self.steal(now));
            if found.is_some() || self.shared.stopping() || self.kthread().is_revoked() {
                return found;
            }
            for _ in 0..PAUSES {
                std::hint::spin_loop();
            }
            now = self.time.now();
            if now >= end {
                return None;
            }
        }
    }

    /// Leaves the searchers. Who made more ready relied on this one to find it.
    pub(super) fn end_search(&self) {
        if self.shared.idle.found() && self.work_anywhere() {
            self.notify();
        }
    }

    /// Sleeps until it is woken, a timer is due or I/O is complete, and it has a core; searches from then on.
    pub(super) fn sleep(&self) {
        let (kthread, idle, cores) = (self.kthread(), &self.shared.idle, self.shared.cores());
        let mut ticks = true;
        let stop_ticks = |ticks: &mut bool| {
            if std::mem::take(ticks) {
                self.stop_ticks();
            }
        };
        loop {
            idle.sleep(self.at);
            // What is bound to it, only it can run: for that it asks.
            let idle_here = self.bound.borrow().is_empty() && !self.work_anywhere();
            if idle_here && !self.shared.stopping() {
                count(&kthread.lines().counters.parks, 1);
                kthread.lines().work.set_state(KthreadState::Parked);
                stop_ticks(&mut ticks);
                kthread.reactor.wait(kthread.next_timer());
            }
            let has_core = cores.take(kthread);
            idle.awake(self.at);
            if has_core || self.shared.stopping() {
                break;
            }
            // It cannot run what it was woken for: one that has a core does.
            self.end_search();
            stop_ticks(&mut ticks);
            self.publish_all();
            let has_core = cores.ask(kthread);
            idle.search();
            if has_core {
                break;
            }
        }
        if !ticks {
            self.start_ticks();
        }
        self.note_grant();
        kthread.lines().work.set_state(KthreadState::Running);
        self.note_core();
    }

    /// Tells what waits here, as this kthread runs nothing now: what is left of its queue, which others take from, and
    /// what is bound to it, which nobody else can take.
    fn publish_all(&self) {
        let bound = self.bound.borrow();
        let (oldest, queued) = self.kthread().queue.oldest();
        let oldest = oldest.into_iter().chain(bound.front().map(|&(_, since)| since)).min();
        self.kthread().lines().work.set_ready(oldest, (queued + bound.len()) as u64);
    }

    /// Whether there is work that this kthread could do.
    fn work_anywhere(&self) -> bool {
        !self.shared.inject.is_empty()
            || self.kthread().bound_len.load(Ordering::Relaxed) > 0
            || self.shared.kthreads.iter().any(|kthread| kthread.queue.len() > 0)
    }

    /// Takes work from another kthread: from the one on the sibling hyperthread first, then in turn from a random one on.
    fn steal(&self, now: Nanos) -> Option<UthreadRef> {
        let kthreads = &self.shared.kthreads;
        if kthreads.len() == 1 {
            return None;
        }
        let from = self.random() as usize % kthreads.len();
        let core = self.kthread().core.load(Ordering::Relaxed);
        let sibling = crate::siblings::of(core);
        let siblings = kthreads.iter().filter(|kthread| {
            sibling.is_some_and(|core| kthread.core.load(Ordering::Relaxed) == core)
        });
        let all = (0..kthreads.len()).map(|at| &kthreads[(from + at) % kthreads.len()]);
        siblings
            .chain(all)
            .filter(|victim| victim.at != self.at)
            .find_map(|victim| self.steal_from(victim, now))
    }

    fn steal_from(&self, victim: &Kthread, now: Nanos) -> Option<UthreadRef> {
        if !self.take_half(victim) {
            let has_core = victim.has_core(&victim.lines().work.read(now));
            self.serve(victim, has_core, now);
        }
        self.next_here()
    }

    /// Takes half of what is ready on another kthread. Whether there was any.
    pub(super) fn take_half(&self, victim: &Kthread) -> bool {
        let kthread = self.kthread();
        let mut taken = self.taken.borrow_mut();
        let any = victim.queue.steal(CAPACITY / 2, &mut taken);
        count(&kthread.lines().counters.steals, taken.len() as u64);
        for ready in taken.drain(..) {
            // In their order. Most of the time this one's own queue is empty or nearly so.
            if let Err(ready) = kthread.queue.push(ready) {
                self.shared.inject.push([ready]);
            }
        }
        any
    }

    /// Fires the timers of another kthread that it does not get to, and polls its I/O.
    pub(super) fn serve(&self, victim: &Kthread, has_core: bool, now: Nanos) {
        let due = if has_core { now - LATE } else { now };
        let mut late = self.due.borrow_mut();
        victim.take_due(due, true, &mut late);
        late.drain(..).for_each(TimerTask::fire);
        drop(late);
        self.poll_io(victim, now);
    }

    /// A random number (xorshift64).
    fn random(&self) -> u64 {
        let mut word = self.random.get();
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        self.random.set(word);
        word
    }
}
