//! The right to switch one thread between two values, as one word: lent to a lane's scheduler, taken back by the executor.
//!
//! The borrower marks the word busy around each switch, the owner revokes it only while it is not. So after
//! [`Lease::revoke`] returned no switch is under way and none begins: what the host shows is the value that the word
//! names, and a restore that follows is the last write. Written over a trait, so that the tests can check every
//! interleaving that the memory model allows.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Index of the value that the host shows.
const SHOWN: u32 = 1;
/// A switch is under way.
const BUSY: u32 = 2;
/// No switch begins any more.
const REVOKED: u32 = 4;

/// Rounds that [`Lease::revoke`] spins before it sleeps between two looks.
const SPINS: u32 = 64;
/// Between two looks: the borrower may need the very core that the owner spins on.
const PAUSE: Duration = Duration::from_micros(20);

/// The word of a lease.
pub(super) trait Word {
    fn load(&self) -> u32;
    /// Replaces `before`, if it is still there. Acquire and release.
    fn replace(&self, before: u32, after: u32) -> bool;
    /// Release: what the borrower did on the host comes before it.
    fn publish(&self, value: u32);
    /// Lets the borrower go on; `round` counts the calls.
    fn pause(round: u32);
}

impl Word for AtomicU32 {
    fn load(&self) -> u32 {
        // Relaxed: every decision is confirmed by `replace`.
        self.load(Ordering::Relaxed)
    }

    fn replace(&self, before: u32, after: u32) -> bool {
        self.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn publish(&self, value: u32) {
        self.store(value, Ordering::Release);
    }

    fn pause(round: u32) {
        match round < SPINS {
            true => std::hint::spin_loop(),
            false => std::thread::sleep(PAUSE),
        }
    }
}

/// Why no switch may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Revoked;

/// See the module.
#[derive(Debug)]
pub(super) struct Lease<W>(W);

impl Lease<AtomicU32> {
    /// A lease on a thread that shows value `shown` of the two.
    pub fn new(shown: usize) -> Self {
        debug_assert!(shown < 2);
        Lease(AtomicU32::new(shown as u32 & SHOWN))
    }
}

impl<W: Word> Lease<W> {
    /// Index of the value that the host shows, as far as the borrower knows.
    pub fn shown(&self) -> usize {
        (self.0.load() & SHOWN) as usize
    }

    /// Begins a switch; one borrower, so that there is never a second. Returns the value shown.
    pub fn begin(&self) -> Result<usize, Revoked> {
        let word = self.0.load();
        debug_assert_eq!(word & BUSY, 0, "one borrower begins one switch at a time");
        match word & REVOKED == 0 && self.0.replace(word, word | BUSY) {
            true => Ok((word & SHOWN) as usize),
            false => Err(Revoked),
        }
    }

    /// Ends a switch, after which the host shows this value.
    pub fn end(&self, shown: usize) {
        debug_assert_eq!(self.0.load() & (BUSY | REVOKED), BUSY, "only a switch that began ends");
        self.0.publish(shown as u32 & SHOWN);
    }

    /// Takes the right back, once no switch is under way; returns the value that the host shows. A borrower that hangs in a
    /// switch holds this up: the caller's heartbeat stops, and the guardians end both.
    pub fn revoke(&self) -> usize {
        let mut round = 0;
        loop {
            let word = self.0.load();
            if word & BUSY == 0 && self.0.replace(word, word | REVOKED) {
                return (word & SHOWN) as usize;
            }
            W::pause(round);
            round = round.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic as model;

    use super::*;

    impl Word for model::AtomicU32 {
        fn load(&self) -> u32 {
            self.load(Ordering::Relaxed)
        }

        fn replace(&self, before: u32, after: u32) -> bool {
            self.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }

        fn publish(&self, value: u32) {
            self.store(value, Ordering::Release);
        }

        fn pause(_: u32) {
            loom::thread::yield_now();
        }
    }

    /// The value before Quell changed it.
    const ORIGINAL: u32 = 9;

    #[test]
    fn loom_restore_after_revoke_is_the_last_write() {
        loom::model(|| {
            let lease = Arc::new(Lease(model::AtomicU32::new(0)));
            // Relaxed throughout: the lease alone orders the writes to the host.
            let host = Arc::new(model::AtomicU32::new(0));
            let borrower = {
                let (lease, host) = (Arc::clone(&lease), Arc::clone(&host));
                loom::thread::spawn(move || {
                    for to in [1, 0] {
                        let Ok(shown) = lease.begin() else { return };
                        assert_eq!(shown as u32, host.load(Ordering::Relaxed));
                        host.store(to, Ordering::Relaxed);
                        lease.end(to as usize);
                    }
                })
            };
            let shown = lease.revoke() as u32;
            assert_eq!(host.load(Ordering::Relaxed), shown);
            host.store(ORIGINAL, Ordering::Relaxed);
            borrower.join().unwrap();
            assert_eq!(host.load(Ordering::Relaxed), ORIGINAL);
            assert_eq!(lease.begin(), Err(Revoked));
        });
    }

    #[test]
    fn lease_names_the_value_of_the_last_switch() {
        let lease = Lease::new(0);
        assert_eq!(lease.begin(), Ok(0));
        lease.end(1);
        assert_eq!((lease.shown(), lease.revoke(), lease.begin()), (1, 1, Err(Revoked)));
    }
}
