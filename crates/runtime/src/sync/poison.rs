//! Poisoning, as std's: who panics with a lock held leaves a mark.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LockResult, PoisonError};

use crate::kthread::local::unwinds;

#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

/// Whether who locked was unwinding already: then its panic is not about this lock.
#[derive(Debug)]
pub(super) struct Locked(bool);

impl Flag {
    pub(super) const fn new() -> Flag {
        Flag(AtomicBool::new(false))
    }

    #[inline]
    pub(super) fn locked(&self) -> Locked {
        Locked(unwinds())
    }

    #[inline]
    pub(super) fn unlocking(&self, locked: &Locked) {
        if !locked.0 && unwinds() {
            // Relaxed: the lock orders it.
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn result<T>(&self, guard: T) -> LockResult<T> {
        if self.get() { Err(PoisonError::new(guard)) } else { Ok(guard) }
    }
}
