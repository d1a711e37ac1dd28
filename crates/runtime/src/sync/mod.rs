//! Locks, conditions and channels, with the interface of `std::sync`. Uthreads and ordinary threads may share them: each waits in its
//! own way.

mod barrier;
mod condvar;
pub mod mpsc;
mod mutex;
mod poison;
mod raw;
mod rwlock;
mod semaphore;
mod wait_group;

pub use std::sync::{Arc, LockResult, PoisonError, TryLockError, TryLockResult};

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{Semaphore, SemaphoreGuard};
pub use wait_group::WaitGroup;

use std::ops::{Deref, DerefMut};

use crate::kthread::local::{self, Hold};
use crate::kthread::lock;

/// What a lock or channel keeps, for a few instructions at a time: who holds it is not preempted and must not block.
#[derive(Debug, Default)]
pub(crate) struct Brief<T>(std::sync::Mutex<T>);

/// The fields drop in this order.
pub(crate) struct BriefGuard<'a, T> {
    guard: std::sync::MutexGuard<'a, T>,
    _still: Hold,
}

impl<T> Brief<T> {
    pub(crate) const fn new(value: T) -> Brief<T> {
        Brief(std::sync::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> BriefGuard<'_, T> {
        let still = local::hold();
        BriefGuard { guard: lock(&self.0), _still: still }
    }
}

impl<T> Deref for BriefGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for BriefGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
