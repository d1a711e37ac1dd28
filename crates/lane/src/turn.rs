//! When a turn ends: once, by its thread or by its expiry, whichever is first.
//!
//! Written over a trait, so that the tests can check every interleaving that the memory model allows. The header
//! `quell_lane.h` has the same words and orders.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word that threads share.
pub trait Word {
    fn new(value: u64) -> Self;
    fn get(&self, order: Ordering) -> u64;
    fn put(&self, value: u64, order: Ordering);
    /// Whether it was `old`, and is `new` now.
    fn exchange(&self, old: u64, new: u64) -> bool;
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
}

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
}

impl<W: Word> Turn<W> {
    pub fn new() -> Turn<W> {
        Turn { word: W::new(IDLE), deadline: W::new(0) }
    }

    /// A turn begins. By one thread at a time.
    pub fn arm(&self, deadline: u64) {
        let generation = (self.word.get(Ordering::Relaxed) >> STATE_BITS).wrapping_add(1);
        // The deadline first: whoever sees the turn, sees its deadline or a later one.
        self.deadline.put(deadline, Ordering::Relaxed);
        self.word.put(generation << STATE_BITS | ARMED, Ordering::Release);
    }

    /// The turn ends in time: `false` where its expiry came first, or none was armed.
    pub fn disarm(&self) -> bool {
        let word = self.word.get(Ordering::Relaxed);
        word & STATE == ARMED && self.word.exchange(word, word & !STATE)
    }

    /// Ends the armed turn, if it is over by now: its generation.
    pub fn claim(&self, now: u64) -> Option<u64> {
        let word = self.word.get(Ordering::Acquire);
        let over = word & STATE == ARMED && now >= self.deadline.get(Ordering::Relaxed);
        let claimed = over && self.word.exchange(word, word & !STATE | EXPIRED);
        claimed.then_some(word >> STATE_BITS)
    }
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn in_every_interleaving_a_turn_ends_once_and_the_next_is_left_alone() {
        loom::model(|| {
            let turn = Arc::new(Turn::<model::AtomicU64>::new());
            turn.arm(10);
            let worker = {
                let turn = Arc::clone(&turn);
                loom::thread::spawn(move || {
                    let in_time = turn.disarm();
                    turn.arm(20);
                    in_time
                })
            };
            // An expiry of the first turn, looked at while the second may have begun.
            let claimed = turn.claim(15);
            let in_time = worker.join().unwrap();
            assert!(claimed.is_none_or(|generation| generation == 1));
            assert!(!(claimed.is_some() && in_time), "it ended twice");
            assert_eq!(turn.claim(25), Some(2), "the second is over when its own time has come");
            assert_eq!(turn.claim(25), None);
        });
    }

    #[test]
    fn in_every_interleaving_a_turn_that_is_over_is_claimed_by_one_thread() {
        loom::model(|| {
            let turn = Arc::new(Turn::<model::AtomicU64>::new());
            turn.arm(10);
            let other = {
                let turn = Arc::clone(&turn);
                loom::thread::spawn(move || turn.claim(10).is_some())
            };
            let own = turn.claim(11).is_some();
            assert!(own != other.join().unwrap());
            assert!(!turn.disarm(), "its thread was too late");
        });
    }

    #[test]
    fn an_idle_turn_neither_ends_nor_expires() {
        let turn = Turn::<AtomicU64>::new();
        assert!(!turn.disarm());
        assert_eq!(turn.claim(u64::MAX), None);
        turn.arm(5);
        assert_eq!(turn.claim(4), None);
        assert!(turn.disarm());
        assert_eq!(turn.claim(u64::MAX), None);
    }
}
