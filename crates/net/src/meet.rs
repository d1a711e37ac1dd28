//! Going to sleep without missing what ends the sleep.
//!
//! Each of two sides stores a word of its own, then looks at the other's: the sleeper that it sleeps, then whether there is
//! something; the other that there is something, then whether the first one sleeps. At least one of the two sees the other's
//! store, whatever the order of their steps.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word: std's, or loom's in the models.
pub(crate) trait Word {
    fn of(value: u64) -> Self;
    fn relaxed(&self) -> u64;
    fn release(&self, value: u64);
    fn swap_with(&self, value: u64, order: Ordering) -> u64;
    fn subtract(&self, value: u64, order: Ordering) -> u64;
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    fn of(value: u64) -> AtomicU64 {
        AtomicU64::new(value)
    }

    fn swap_with(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    fn subtract(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_sub(value, order)
    }

    fn relaxed(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn release(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    fn fence(order: Ordering) {
        std::sync::atomic::fence(order);
    }
}

/// Loads a word, and sees what was done before it was stored by [`store_and_look`]. The load itself is relaxed: of a mapping
/// for reading alone, only relaxed loads are certain to be loads.
pub(crate) fn acquire<W: Word>(word: &W) -> u64 {
    let value = word.relaxed();
    // Pairs with the release in `store_and_look`.
    W::fence(Ordering::Acquire);
    value
}

/// Stores an own word, then looks at the other's. See the module.
pub(crate) fn store_and_look<W: Word>(own: &W, value: u64, theirs: &W) -> u64 {
    // Release: pairs with `acquire`.
    own.release(value);
    // Pairs with that of the other side.
    W::fence(Ordering::SeqCst);
    acquire(theirs)
}

/// Whether a thread was woken, and whether it sleeps: all of a sleep but the event that ends it.
#[derive(Debug)]
pub(crate) struct WakeState<W = AtomicU64> {
    /// 1 once it was woken.
    woken: W,
    /// 1 while it sleeps, or is about to.
    asleep: W,
}

impl<W: Word> WakeState<W> {
    pub fn new() -> WakeState<W> {
        WakeState { woken: W::of(0), asleep: W::of(0) }
    }

    /// Wakes from before count no more. What they were for is looked at after this.
    pub fn reset(&self) {
        // Acquire: pairs with the release in `wake`, so that what the waking thread did is seen.
        self.woken.swap_with(0, Ordering::AcqRel);
    }

    /// Whether it was woken since the last [`WakeState::reset`].
    pub fn is_woken(&self) -> bool {
        // Relaxed: what the waking thread did is looked at after `reset`.
        self.woken.relaxed() != 0
    }

    /// It was woken. Whether the event has to be signalled, for it sleeps.
    pub fn wake(&self) -> bool {
        !self.is_woken() && store_and_look(&self.woken, 1, &self.asleep) != 0
    }

    /// It is about to sleep; false if it was woken already.
    pub fn begin_sleep(&self) -> bool {
        store_and_look(&self.asleep, 1, &self.woken) == 0
    }

    /// It sleeps no more.
    pub fn end_sleep(&self) {
        // As a wake that comes too late for it is read at the next sleep, any order will do.
        self.asleep.release(0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use loom::sync::atomic as model;
    use loom::sync::{Arc, Condvar, Mutex};

    use super::*;

    impl Word for model::AtomicU64 {
        fn of(value: u64) -> Self {
            model::AtomicU64::new(value)
        }

        fn swap_with(&self, value: u64, order: Ordering) -> u64 {
            self.swap(value, order)
        }

        fn subtract(&self, value: u64, order: Ordering) -> u64 {
            self.fetch_sub(value, order)
        }

        fn relaxed(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }

        fn release(&self, value: u64) {
            self.store(value, Ordering::Release);
        }

        fn fence(order: Ordering) {
            model::fence(order);
        }
    }

    /// Bytes in a ring, and a consumer that sleeps on a bell which remembers, as a socket does.
    struct Scene {
        produced: model::AtomicU64,
        asleep: model::AtomicU64,
        /// What the bytes are, written before they are announced.
        bytes: model::AtomicU64,
        bell: (Mutex<bool>, Condvar),
    }

    impl Scene {
        fn new() -> Arc<Scene> {
            let word = || model::AtomicU64::new(0);
            let bell = (Mutex::new(false), Condvar::new());
            Arc::new(Scene { produced: word(), asleep: word(), bytes: word(), bell })
        }

        fn push(&self, produced: u64) {
            self.bytes.store(produced, Ordering::Relaxed);
            if store_and_look(&self.produced, produced, &self.asleep) != 0 {
                *self.bell.0.lock().unwrap() = true;
                self.bell.1.notify_one();
            }
        }

        /// Waits until more is there than was. Loom fails where the bell never rings.
        fn pull(&self, consumed: u64, sleep: u64) -> u64 {
            loop {
                let produced = acquire(&self.produced);
                if produced != consumed {
                    self.asleep.release(0);
                    return produced;
                }
                if store_and_look(&self.asleep, sleep, &self.produced) != consumed {
                    continue;
                }
                let mut rung = self.bell.0.lock().unwrap();
                while !*rung {
                    rung = self.bell.1.wait(rung).unwrap();
                }
                *rung = false;
            }
        }
    }

    #[test]
    fn in_every_interleaving_a_sleeper_learns_of_what_came() {
        // Of all schedules, those with at most three preemptions: some thousands.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let scene = Scene::new();
            let consumer = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || {
                    let first = scene.pull(0, 1);
                    assert!(scene.bytes.load(Ordering::Relaxed) >= first);
                    if first < 2 { scene.pull(first, 2) } else { first }
                })
            };
            scene.push(1);
            scene.push(2);
            assert_eq!(consumer.join().unwrap(), 2);
        });
    }
}
