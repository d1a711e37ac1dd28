//! Who ends a timed wait: a waker or the clock, once.
//!
//! The timer is set before the waiter is where a waker finds it, so it may go off before that is done. Then it must not let the
//! uthread go on: what puts the waiter there still uses what lies on the uthread's stack. It leaves a note, and who commits ends the wait.
//! A waker needs no such care, as it found the waiter.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::word::Word;

/// The timer runs, and the commit has not returned.
const ARMING: u64 = 0;
const WAITING: u64 = 1;
const WOKEN: u64 = 2;
const OVER: u64 = 3;
/// The timer went off before the commit returned.
const EARLY: u64 = 4;

#[derive(Debug)]
pub(crate) struct Race<W = AtomicU64>(W);

impl<W: Word> Race<W> {
    pub(crate) fn new() -> Race<W> {
        Race(W::new(ARMING))
    }

    /// AcqRel: who ends the wait sees the waiter, and who waited sees what led to the end.
    fn step(&self, from: u64, to: u64) -> Result<u64, u64> {
        self.0.exchange(from, to, Ordering::AcqRel)
    }

    /// A waker: whether it is to let the uthread go on.
    pub(crate) fn wake(&self) -> bool {
        let mut seen = self.0.get(Ordering::Relaxed);
        while !matches!(seen, WOKEN | OVER) {
            match self.step(seen, WOKEN) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// The timer: whether it is to let the uthread go on.
    pub(crate) fn time_over(&self) -> bool {
        match self.step(ARMING, EARLY) {
            Ok(_) => false,
            Err(_) => self.step(WAITING, OVER).is_ok(),
        }
    }

    /// Who commits has done so: whether it is to let the uthread go on.
    pub(crate) fn armed(&self) -> bool {
        self.step(ARMING, WAITING).is_err() && self.step(EARLY, OVER).is_ok()
    }

    /// An ordinary thread, whose time is over, gives up: `false`: somebody is about to wake it.
    pub(crate) fn give_up(&self) -> bool {
        self.step(ARMING, OVER).is_ok()
    }

    /// The wait was ended by a waker.
    pub(crate) fn is_woken(&self) -> bool {
        self.0.get(Ordering::Acquire) == WOKEN
    }

    /// The wait was ended by the clock.
    pub(crate) fn is_over(&self) -> bool {
        self.0.get(Ordering::Acquire) == OVER
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
        race: Race<model::AtomicU64>,
        /// Whether a waker can find the waiter.
        found: model::AtomicU64,
        ends: model::AtomicU64,
        /// What the commit uses, and who goes on reuses.
        stack: UnsafeCell<u32>,
    }

    impl Scene {
        fn end(&self) {
            assert_eq!(self.ends.add(1, Ordering::AcqRel), 0, "it ends twice");
            // SAFETY: what the model checks: loom fails it if the commit still uses it.
            self.stack.with_mut(|stack| unsafe { *stack += 1 });
        }
    }

    #[test]
    fn a_timed_wait_ends_once_and_never_while_the_commit_uses_the_stack() {
        loom::model(|| {
            let scene = Arc::new(Scene {
                race: Race::new(),
                found: model::AtomicU64::new(0),
                ends: model::AtomicU64::new(0),
                stack: UnsafeCell::new(0),
            });
            let timer = {
                let scene = Arc::clone(&scene);
                thread::spawn(move || {
                    if scene.race.time_over() {
                        scene.end();
                    }
                })
            };
            let waker = {
                let scene = Arc::clone(&scene);
                thread::spawn(move || {
                    if scene.found.get(Ordering::Acquire) == 1 && scene.race.wake() {
                        scene.end();
                    }
                })
            };
            // SAFETY: as above.
            scene.stack.with(|stack| assert_eq!(unsafe { *stack }, 0));
            // The last thing of a commit that is on the stack.
            scene.found.put(1, Ordering::Release);
            if scene.race.armed() {
                scene.end();
            }
            timer.join().unwrap();
            waker.join().unwrap();
            assert_eq!(scene.ends.get(Ordering::Acquire), 1, "the timer went off: it ends");
            assert!(scene.race.is_woken() != scene.race.is_over());
        });
    }
}
