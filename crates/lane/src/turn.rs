//! When a turn ends: once, by its thread or by its expiry, whichever is first.
//!
//! To set a timer takes microseconds on a virtual machine, longer than many a turn. So a turn that ends in time leaves the
//! timer as it is, and one that begins sets it only if it would not go off in time: an expiry that finds a later deadline sets
//! it for that. Who begins a turn stores the turn and then looks whether the timer is set; who reads an expiry notes
//! that the timer is spent and then looks for a turn: with a fence between the two on both sides one sees the other.
//!
//! Written over a trait, so that the tests can check every interleaving that the memory model allows. The header
//! `quell_lane.h` has the same words and orders.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that threads share.
pub trait Word {
    fn new(value: u64) -> Self;
    fn get(&self, order: Ordering) -> u64;
    fn put(&self, value: u64, order: Ordering);
    /// Whether it was `old`, and is `new` now.
    fn exchange(&self, old: u64, new: u64) -> bool;
    /// Between a store and a load that must not pass each other.
    fn fence();
}

impl Word for AtomicU64 {
    fn new(value: u64) -> Self {
        AtomicU64::new(value)
    }

    fn get(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn put(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn exchange(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// The timer is not set.
const SPENT: u64 = 0;
const IDLE: u64 = 0;
const ARMED: u64 = 1;
const EXPIRED: u64 = 2;
const STATE_BITS: u32 = 2;
const STATE: u64 = (1 << STATE_BITS) - 1;

/// The turn of a lane.
#[derive(Debug)]
pub struct Turn<W = AtomicU64> {
    /// A generation, and below it the state.
    word: W,
    /// Of the armed turn, on CLOCK_MONOTONIC in nanoseconds.
    deadline: W,
    /// What the timer is set for, or `SPENT`.
    timer: W,
}

impl<W: Word> Turn<W> {
    pub fn new() -> Turn<W> {
        Turn { word: W::new(IDLE), deadline: W::new(0), timer: W::new(SPENT) }
    }

    /// A turn begins. By one thread at a time. `set` sets the timer.
    pub fn arm<E>(&self, deadline: u64, set: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        let generation = (self.word.get(Ordering::Relaxed) >> STATE_BITS).wrapping_add(1);
        // The deadline first: whoever sees the turn, sees its deadline or a later one.
        self.deadline.put(deadline, Ordering::Relaxed);
        self.word.put(generation << STATE_BITS | ARMED, Ordering::Release);
        // Pairs with that of `expired`.
        W::fence();
        loop {
            let timer = self.timer.get(Ordering::Relaxed);
            if timer != SPENT && timer <= deadline {
                return Ok(());
            }
            if self.timer.exchange(timer, deadline) {
                return self.set(deadline, set);
            }
        }
    }

    /// Sets the timer for what `timer` says. Two threads may set it at once: the last one looks what it should be.
    fn set<E>(&self, mut at: u64, mut set: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        loop {
            set(at)?;
            // Pairs with the exchanges, and with that of the other thread: it looks after it set the timer, too.
            W::fence();
            match self.timer.get(Ordering::Relaxed) {
                now if now == at || now == SPENT => return Ok(()),
                other => at = other,
            }
        }
    }

    /// An expiry of the timer was read: ends the armed turn, if it is over by now, and returns its generation; sets the timer
    /// for one that is not.
    pub fn expired<E>(
        &self,
        now: u64,
        set: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        self.timer.put(SPENT, Ordering::Relaxed);
        // Pairs with that of `arm`.
        W::fence();
        let word = self.word.get(Ordering::Acquire);
        if word & STATE != ARMED {
            return Ok(None);
        }
        let deadline = self.deadline.get(Ordering::Relaxed);
        if now >= deadline {
            let claimed = self.word.exchange(word, word & !STATE | EXPIRED);
            return Ok(claimed.then_some(word >> STATE_BITS));
        }
        if self.timer.exchange(SPENT, deadline) {
            self.set(deadline, set)?;
        }
        Ok(None)
    }

    /// The turn ends in time: `false` where its expiry came first, or none was armed.
    pub fn disarm(&self) -> bool {
        let word = self.word.get(Ordering::Relaxed);
        word & STATE == ARMED && self.word.exchange(word, word & !STATE)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use loom::sync::Arc;
    use loom::sync::atomic as model;

    use super::*;

    impl Word for model::AtomicU64 {
        fn new(value: u64) -> Self {
            model::AtomicU64::new(value)
        }

        fn get(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn put(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }

        fn exchange(&self, old: u64, new: u64) -> bool {
            self.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }

        fn fence() {
            model::fence(Ordering::SeqCst);
        }
    }

    /// A turn, and the kernel's timer: what it is set for.
    struct Scene {
        turn: Turn<model::AtomicU64>,
        timer: model::AtomicU64,
    }

    impl Scene {
        fn new() -> Arc<Scene> {
            Arc::new(Scene { turn: Turn::new(), timer: model::AtomicU64::new(0) })
        }

        fn set(&self) -> impl FnMut(u64) -> Result<(), Infallible> {
            |at| {
                // Calls of the kernel for one timer are in an order.
                self.timer.swap(at, Ordering::AcqRel);
                Ok(())
            }
        }

        fn arm(&self, deadline: u64) {
            let Ok(()) = self.turn.arm(deadline, self.set());
        }

        /// The timer went off, and that was read.
        fn expired(&self, now: u64) -> Option<u64> {
            let Ok(claimed) = self.turn.expired(now, self.set());
            claimed
        }

        /// What the timer is set for, once all threads have ended.
        fn timer(&self) -> u64 {
            self.timer.load(Ordering::Relaxed)
        }

        fn go_off(&self) {
            self.timer.store(0, Ordering::Relaxed);
        }
    }

    #[test]
    fn in_every_interleaving_a_turn_ends_once_and_the_next_is_left_alone() {
        loom::model(|| {
            let scene = Scene::new();
            scene.arm(10);
            scene.go_off();
            let worker = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || {
                    let in_time = scene.turn.disarm();
                    scene.arm(20);
                    in_time
                })
            };
            // An expiry of the first turn, looked at while the second may have begun.
            let claimed = scene.expired(15);
            let in_time = worker.join().unwrap();
            assert!(claimed.is_none_or(|generation| generation == 1));
            assert!(!(claimed.is_some() && in_time), "it ended twice");
            assert_eq!(scene.timer(), 20, "the timer goes off for the second");
            assert_eq!(scene.expired(25), Some(2), "the second is over when its own time has come");
            assert_eq!(scene.expired(25), None);
        });
    }

    #[test]
    fn in_every_interleaving_the_timer_goes_off_in_time_for_a_shorter_turn() {
        loom::model(|| {
            let scene = Scene::new();
            scene.arm(10);
            assert!(scene.turn.disarm());
            scene.arm(30);
            assert_eq!(scene.timer(), 10, "it goes off early enough");
            scene.go_off();
            let worker = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || {
                    assert!(scene.turn.disarm());
                    scene.arm(20);
                })
            };
            assert_eq!(scene.expired(12), None, "no turn is over");
            worker.join().unwrap();
            let timer = scene.timer();
            assert!((1..=20).contains(&timer), "the timer is set for {timer}");
        });
    }

    #[test]
    fn in_every_interleaving_a_turn_that_is_over_is_claimed_by_one_thread() {
        loom::model(|| {
            let scene = Scene::new();
            scene.arm(10);
            let other = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || scene.expired(10).is_some())
            };
            let own = scene.expired(11).is_some();
            assert!(own != other.join().unwrap());
            assert!(!scene.turn.disarm(), "its thread was too late");
        });
    }

    #[test]
    fn a_timer_that_goes_off_in_time_is_not_set_again() {
        let turn = Turn::<AtomicU64>::new();
        let mut set = Vec::new();
        let mut arm = |deadline| {
            let keep = |at| {
                set.push(at);
                Ok::<(), Infallible>(())
            };
            turn.arm(deadline, keep).unwrap()
        };
        arm(10);
        assert!(turn.disarm());
        arm(15);
        assert!(turn.disarm());
        arm(8);
        assert_eq!(set, [10, 8], "not for 15");
    }

    #[test]
    fn an_idle_turn_neither_ends_nor_expires() {
        let turn = Turn::<AtomicU64>::new();
        let expired = |now| turn.expired(now, |_| Ok::<(), Infallible>(())).unwrap();
        assert!(!turn.disarm());
        assert_eq!(expired(u64::MAX), None);
        turn.arm(5, |_| Ok::<(), Infallible>(())).unwrap();
        assert_eq!(expired(4), None);
        assert!(turn.disarm());
        assert_eq!(expired(u64::MAX), None);
    }
}
