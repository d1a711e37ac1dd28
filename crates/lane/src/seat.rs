//! A thread's place in a lane: others may change its level until it leaves, and it leaves once nobody is about to.
//!
//! Otherwise a thread that has just got back what it had could be raised once more, by one that had looked before, and keep a
//! real-time priority for good; or that one could raise whoever has its number next. The header `quell_lane.h` has the same
//! word and orders.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::turn::Word;

/// Above the thread's number: how many threads are about to change its level.
const HELD: u64 = 1 << 32;
const TID: u64 = HELD - 1;

/// A place, by the thread's number; without that it has left.
#[derive(Debug)]
pub struct MemberRef<W = AtomicU64>(W);

/// The thread does not leave while this is there.
struct Held<'a, W: Word>(&'a MemberRef<W>);

impl<W: Word> MemberRef<W> {
    /// That of the thread with this number.
    pub fn of(tid: u32) -> MemberRef<W> {
        MemberRef(W::new(u64::from(tid)))
    }

    /// Does something with the thread's number, before it leaves; `None` if it has.
    pub fn with<T>(&self, does: impl FnOnce(i32) -> T) -> Option<T> {
        let seat = self.change(|seat| (seat & TID != 0).then_some(seat + HELD))?;
        let _held = Held(self);
        Some(does((seat & TID) as i32))
    }

    /// The thread leaves: `false` if it had left before. `pause` is for threads that are at it to go on.
    pub fn leave(&self, mut pause: impl FnMut()) -> bool {
        if self.change(|seat| (seat & TID != 0).then_some(seat & !TID)).is_none() {
            return false;
        }
        // Acquire: pairs with the exchange of `Held`'s drop: what it asked of the kernel is done.
        while self.0.get(Ordering::Acquire) != 0 {
            pause();
        }
        true
    }

    /// What it was; `None` where it is not to be changed.
    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        loop {
            // Relaxed: what counts is that the exchange finds the same.
            let seat = self.0.get(Ordering::Relaxed);
            if self.0.exchange(seat, to(seat)?) {
                return Some(seat);
            }
        }
    }
}

impl<W: Word> Drop for Held<'_, W> {
    fn drop(&mut self) {
        self.0.change(|seat| Some(seat - HELD));
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic as model;

    use super::*;

    const HAD: u64 = 0;
    const RAISED: u64 = 1;

    #[test]
    fn in_every_interleaving_who_leaves_keeps_what_it_had() {
        loom::model(|| {
            let seat = Arc::new(MemberRef::<model::AtomicU64>::of(7));
            let level = Arc::new(model::AtomicU64::new(RAISED));
            let other = {
                let (seat, level) = (Arc::clone(&seat), Arc::clone(&level));
                loom::thread::spawn(move || {
                    // The kernel's calls for one thread are in an order, but nothing else is by them.
                    seat.with(|tid| {
                        assert_eq!(tid, 7);
                        level.store(RAISED, Ordering::Relaxed);
                    });
                })
            };
            assert!(seat.leave(loom::thread::yield_now));
            level.store(HAD, Ordering::Relaxed);
            other.join().unwrap();
            assert_eq!(level.load(Ordering::Relaxed), HAD);
            assert!(!seat.leave(|| unreachable!("nobody is at it")), "it has left");
            assert!(seat.with(|_| ()).is_none());
        });
    }

    #[test]
    fn one_that_panics_holds_nobody() {
        let seat = MemberRef::<AtomicU64>::of(7);
        let panics = std::panic::AssertUnwindSafe(|| seat.with(|_| panic!("as it does")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(seat.leave(|| unreachable!("nobody is at it")));
    }
}
