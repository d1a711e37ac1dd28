//! Who wakes a uthread from outside its runtime, and who frees the runtime.
//!
//! A waker hands the uthread on, and then looks for a kthread to wake. By then the uthread may have run to its end, and whoever waited
//! for that may have ended the kthreads and be about to free what they share. Kthreads have a reference to it; ordinary threads, and
//! kthreads of other runtimes, have none. So they are counted: from before they hand the uthread on, as it keeps its runtime until
//! then, until they touch nothing of the runtime any more. Who frees it waits for them, once nobody is left who could be woken.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::word::Word;

/// Looks at the count before whoever waits sleeps between two: a waker is done in less than a microsecond if it runs.
const LOOKS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(50);

/// How many are on their way.
#[derive(Debug)]
pub(crate) struct Wakers<W = AtomicU64>(W);

impl<W: Word> Wakers<W> {
    pub(crate) fn new() -> Wakers<W> {
        Wakers(W::new(0))
    }

    /// Calls `wake`, which hands a uthread on; it must not panic.
    ///
    /// # Safety
    /// The uthread's runtime, of which this is a part, stays until the uthread was handed on; who frees it then waits by
    /// [`Wakers::wait`] first.
    #[inline]
    pub(crate) unsafe fn count(wakers: *const Wakers<W>, wake: impl FnOnce()) {
        // Relaxed: what hands the uthread on orders this before its end, and so before who waits for that.
        // SAFETY: the uthread keeps it.
        unsafe { (*wakers).0.add(1, Ordering::Relaxed) };
        wake();
        // Release: who frees the runtime does so after all that `wake` did with it. Pairs with `none`.
        // SAFETY: the count keeps it. By a pointer, and the last touch: as it is done the memory may be gone, so there must be no
        // reference to the runtime meanwhile, not even one that is not used any more.
        unsafe { (*wakers).0.sub(1, Ordering::Release) };
    }

    /// Whether nobody is on the way. It stays so where nobody is left who could be woken.
    pub(crate) fn none(&self) -> bool {
        // Acquire: pairs with `count`.
        self.0.get(Ordering::Acquire) == 0
    }

    /// Waits until nobody is on the way.
    pub(crate) fn wait(&self) {
        let mut looks = 0;
        while !self.none() {
            looks += 1;
            if looks < LOOKS {
                std::thread::yield_now();
            } else {
                // A waker of lower priority may need this very core.
                std::thread::sleep(PAUSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic as model;
    use loom::thread;

    use super::*;

    struct Scene {
        wakers: Wakers<model::AtomicU64>,
        /// Uthreads that are ready: none has run yet.
        ready: model::AtomicU64,
        /// What a waker uses after it has handed the uthread on, and goes with the runtime.
        idle: UnsafeCell<bool>,
    }

    impl Scene {
        fn wake(&self) {
            // SAFETY: what the model checks: loom fails it if it is freed meanwhile.
            let look = || self.idle.with(|idle| assert!(unsafe { *idle }, "it was freed"));
            let wake = || {
                look();
                self.ready.add(1, Ordering::Release);
                look();
            };
            // SAFETY: as above.
            unsafe { Wakers::count(&raw const self.wakers, wake) };
        }

        /// Who ends the runtime after so many uthreads have ended, the last that there were.
        fn end(&self, uthreads: u64) {
            while self.ready.get(Ordering::Acquire) < uthreads {
                thread::yield_now();
            }
            while !self.wakers.none() {
                thread::yield_now();
            }
            // SAFETY: as above.
            self.idle.with_mut(|idle| unsafe { *idle = false });
        }
    }

    fn each_is_waited_for(wakers: u64, preemptions: Option<usize>) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || {
            let scene = Arc::new(Scene {
                wakers: Wakers::new(),
                ready: model::AtomicU64::new(0),
                idle: UnsafeCell::new(true),
            });
            let all: Vec<_> = (0..wakers)
                .map(|_| {
                    let scene = Arc::clone(&scene);
                    thread::spawn(move || scene.wake())
                })
                .collect();
            scene.end(wakers);
            all.into_iter().for_each(|waker| waker.join().unwrap());
        });
    }

    #[test]
    fn a_runtime_is_not_freed_while_who_woke_its_last_uthread_still_uses_it() {
        each_is_waited_for(1, None);
    }

    #[test]
    fn a_runtime_is_not_freed_while_one_of_two_wakers_still_uses_it() {
        each_is_waited_for(2, Some(2));
    }
}
