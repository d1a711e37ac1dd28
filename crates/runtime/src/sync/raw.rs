//! A mutual exclusion without data.
//!
//! Free or locked in one word; who has to wait stands in a queue. Who unlocks wakes the first, which then competes with whoever
//! comes along: handing the lock over instead would make each locking a switch. One that has waited long is handed it, so nobody
//! starves (parking_lot and Go do the same).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_model::Nanos;

use super::Brief;
use crate::kthread::local;
use crate::park::{self, Waiter};
use crate::word::Word;

const FREE: u64 = 0;
const LOCKED: u64 = 1;
/// Somebody is in the queue. Written under its lock alone, but for the exchanges that keep it.
const WAITED_FOR: u64 = 2;

/// What the lock is made of: the library's own parts, or loom's in the models.
pub(super) trait Parts: Sized {
    type Word: Word;
    type Queue: Queue<Queued<Self>>;
    /// Somebody who waits.
    type Waiter;
    /// Who has waited so long is handed the lock.
    const LONG: Nanos;
    /// Looks at the lock before waiting: the holder may run on another core.
    const SPINS: u32;

    fn now() -> Nanos;
    /// As [`park::block`].
    fn block(commit: impl FnOnce(Self::Waiter));
    fn wake(waiter: Self::Waiter);
}

/// A queue with a lock of its own.
pub(super) trait Queue<T> {
    fn with<R>(&self, f: impl FnOnce(&mut VecDeque<T>) -> R) -> R;
}

/// The library's own.
#[derive(Debug)]
pub(super) struct System;

impl Parts for System {
    type Word = AtomicU64;
    type Queue = Brief<VecDeque<Queued<System>>>;
    type Waiter = Waiter;
    const LONG: Nanos = Nanos::from_millis(1);
    const SPINS: u32 = 20;

    fn now() -> Nanos {
        crate::clock::now()
    }

    fn block(commit: impl FnOnce(Waiter)) {
        park::block(commit);
    }

    fn wake(waiter: Waiter) {
        waiter.wake();
    }
}

impl<T> Queue<T> for Brief<VecDeque<T>> {
    fn with<R>(&self, f: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        f(&mut self.lock())
    }
}

#[derive(Debug)]
pub(super) struct Queued<P: Parts> {
    waiter: P::Waiter,
    since: Nanos,
    /// Set if it was handed the lock. It lies on the stack of who waits.
    handed: *const P::Word,
}

// SAFETY: the flag is atomic, and who waits keeps it until it is woken.
unsafe impl<P: Parts<Waiter: Send, Word: Sync>> Send for Queued<P> {}

#[derive(Debug)]
pub(super) struct RawMutex<P: Parts = System> {
    state: P::Word,
    queue: P::Queue,
}

impl RawMutex {
    pub(super) const fn new() -> RawMutex {
        RawMutex { state: AtomicU64::new(FREE), queue: Brief::new(VecDeque::new()) }
    }
}

impl<P: Parts> RawMutex<P> {
    #[inline]
    pub(super) fn try_lock(&self) -> bool {
        let state = self.state.get(Ordering::Relaxed);
        state & LOCKED == 0 && self.take(state)
    }

    /// Acquire: pairs with the release of `unlock`.
    #[inline]
    fn take(&self, from: u64) -> bool {
        self.state.exchange(from, from | LOCKED, Ordering::Acquire).is_ok()
    }

    #[inline]
    pub(super) fn lock(&self) {
        local::checkpoint();
        if !self.take(FREE) {
            self.lock_slow();
        }
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..P::SPINS {
            if self.try_lock() {
                return;
            }
            std::hint::spin_loop();
        }
        let since = P::now();
        let mut first = true;
        while !self.try_lock() {
            let handed = P::Word::new(0);
            let flag = &raw const handed;
            P::block(move |waiter| self.enqueue(Queued { waiter, since, handed: flag }, first));
            // Relaxed: as where it is set.
            if handed.get(Ordering::Relaxed) != 0 {
                return;
            }
            first = false;
        }
    }

    /// Who has waited before goes to the front.
    fn enqueue(&self, queued: Queued<P>, at_the_end: bool) {
        let free = self.queue.with(|queue| {
            loop {
                let state = self.state.get(Ordering::Relaxed);
                if state & LOCKED == 0 {
                    return Some(queued);
                }
                // Relaxed: who unlocks takes the lock of the queue to look.
                if self.state.exchange(state, state | WAITED_FOR, Ordering::Relaxed).is_ok() {
                    break;
                }
            }
            if at_the_end {
                queue.push_back(queued)
            } else {
                queue.push_front(queued)
            }
            None
        });
        if let Some(queued) = free {
            P::wake(queued.waiter);
        }
    }

    /// By who locked it.
    #[inline]
    pub(super) fn unlock(&self) {
        // Release: pairs with the acquire of `take`.
        if self.state.exchange(LOCKED, FREE, Ordering::Release).is_err() {
            self.unlock_slow();
        }
    }

    #[cold]
    fn unlock_slow(&self) {
        let next = self.queue.with(|queue| {
            let next = queue.pop_front();
            let left = if queue.is_empty() { FREE } else { WAITED_FOR };
            let handed = next.as_ref().filter(|next| P::now() - next.since >= P::LONG);
            if let Some(next) = handed {
                // Relaxed: the wake-up orders it, and what the lock guards.
                // SAFETY: it waits until it is woken.
                unsafe { (*next.handed).put(1, Ordering::Relaxed) };
            }
            let locked = if handed.is_some() { LOCKED } else { FREE };
            // Release: as in `unlock`.
            self.state.put(locked | left, Ordering::Release);
            next
        });
        if let Some(next) = next {
            P::wake(next.waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic as model;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    impl<T> Queue<T> for Mutex<VecDeque<T>> {
        fn with<R>(&self, f: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
            f(&mut self.lock().unwrap())
        }
    }

    /// Where somebody waits. loom fails a model in which nobody ever wakes it.
    #[derive(Debug)]
    struct Place {
        woken: model::AtomicU64,
        bell: loom::sync::Notify,
    }

    impl Place {
        fn new() -> Arc<Place> {
            let (woken, bell) = (model::AtomicU64::new(0), loom::sync::Notify::new());
            Arc::new(Place { woken, bell })
        }

        fn wait(&self) {
            // loom's bells ring without cause; no waiter of the library is woken so.
            while self.woken.get(Ordering::Acquire) == 0 {
                self.bell.wait();
            }
        }

        fn wake(&self) {
            assert_eq!(self.woken.swap(1, Ordering::Release), 0, "woken twice");
            self.bell.notify();
        }
    }

    /// An ordinary thread waits where it is: it commits itself.
    fn block_thread(commit: impl FnOnce(Arc<Place>)) {
        let place = Place::new();
        commit(Arc::clone(&place));
        place.wait();
    }

    /// A uthread has left its stack: its kthread commits, and another one may run it before that is done.
    fn block_uthread(commit: impl FnOnce(Arc<Place>)) {
        /// Moved to the kthread.
        struct Moved<T>(T);
        // SAFETY: as a uthread's stack moves.
        unsafe impl<T> Send for Moved<T> {}
        let place = Place::new();
        let commit: Box<dyn FnOnce(Arc<Place>)> = Box::new(commit);
        // SAFETY: what it borrows of the mutex lives on, and of the stack until it is woken, after which it must not be touched: what
        // the model checks.
        let commit: Box<dyn FnOnce(Arc<Place>) + 'static> = unsafe { std::mem::transmute(commit) };
        let moved = Moved((commit, Arc::clone(&place)));
        let kthread = thread::spawn(move || {
            let moved = moved;
            let Moved((commit, place)) = moved;
            commit(place);
        });
        place.wait();
        drop(kthread);
    }

    macro_rules! parts {
        ($name:ident, $block:path, $long:expr) => {
            #[derive(Debug)]
            struct $name;

            impl Parts for $name {
                type Word = model::AtomicU64;
                type Queue = Mutex<VecDeque<Queued<$name>>>;
                type Waiter = Arc<Place>;
                const LONG: Nanos = Nanos($long);
                const SPINS: u32 = 0;

                fn now() -> Nanos {
                    Nanos(0)
                }

                fn block(commit: impl FnOnce(Arc<Place>)) {
                    $block(commit);
                }

                fn wake(waiter: Arc<Place>) {
                    waiter.wake();
                }
            }
        };
    }

    parts!(Threads, block_thread, 1);
    parts!(ThreadsHanded, block_thread, 0);
    parts!(Uthreads, block_uthread, 1);
    parts!(UthreadsHanded, block_uthread, 0);

    struct Guarded<P: Parts> {
        mutex: RawMutex<P>,
        value: UnsafeCell<u32>,
    }

    // SAFETY: what the models check: loom fails them if two have the value at once.
    unsafe impl<P: Parts> Send for Guarded<P> {}
    // SAFETY: as above.
    unsafe impl<P: Parts> Sync for Guarded<P> {}

    impl<P: Parts> Guarded<P> {
        fn add(&self) {
            self.mutex.lock();
            // SAFETY: as above.
            self.value.with_mut(|value| unsafe { *value += 1 });
            self.mutex.unlock();
        }
    }

    /// So many lock it at once, each so often; all of them get it, one at a time.
    fn each_gets_it<P>(lockers: u32, times: u32, preemptions: Option<usize>)
    where
        P: Parts<Word = model::AtomicU64, Queue = Mutex<VecDeque<Queued<P>>>> + 'static,
    {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || {
            let queue = Mutex::new(VecDeque::new());
            let mutex = RawMutex { state: model::AtomicU64::new(FREE), queue };
            let guarded = Arc::new(Guarded::<P> { mutex, value: UnsafeCell::new(0) });
            let others: Vec<_> = (1..lockers)
                .map(|_| {
                    let guarded = Arc::clone(&guarded);
                    thread::spawn(move || (0..times).for_each(|_| guarded.add()))
                })
                .collect();
            (0..times).for_each(|_| guarded.add());
            others.into_iter().for_each(|other| other.join().unwrap());
            // SAFETY: as above.
            guarded.value.with(|value| assert_eq!(unsafe { *value }, lockers * times));
            assert_eq!(guarded.mutex.state.get(Ordering::Relaxed), FREE);
        });
    }

    #[test]
    fn two_threads_lock_and_wait_and_none_is_left_waiting() {
        each_gets_it::<Threads>(2, 1, None);
        each_gets_it::<ThreadsHanded>(2, 1, None);
        each_gets_it::<Threads>(2, 2, Some(3));
        each_gets_it::<ThreadsHanded>(2, 2, Some(3));
    }

    #[test]
    fn three_threads_lock_and_wait_and_none_is_left_waiting() {
        each_gets_it::<Threads>(3, 1, Some(2));
        each_gets_it::<ThreadsHanded>(3, 1, Some(2));
    }

    #[test]
    fn a_uthread_that_waits_goes_on_while_its_kthread_still_commits() {
        each_gets_it::<Uthreads>(2, 1, Some(4));
        each_gets_it::<UthreadsHanded>(2, 1, Some(4));
    }
}
