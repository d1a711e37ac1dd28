//! The word that lock-free protocols are written over, so that the tests can check every interleaving that the memory model
//! allows: `AtomicU64` in the library, loom's in its tests.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word that threads share.
pub(crate) trait Word {
    fn new(value: u64) -> Self;
    fn get(&self, order: Ordering) -> u64;
    fn put(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn add(&self, value: u64, order: Ordering) -> u64;
    fn sub(&self, value: u64, order: Ordering) -> u64;
    /// What it was, as an error if that is not `old`; else it is `new` now. Relaxed where it fails.
    fn exchange(&self, old: u64, new: u64, order: Ordering) -> Result<u64, u64>;
    fn fence();
}

impl Word for AtomicU64 {
    #[inline]
    fn new(value: u64) -> Self {
        AtomicU64::new(value)
    }

    #[inline]
    fn get(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn put(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::swap(self, value, order)
    }

    #[inline]
    fn add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }

    #[inline]
    fn sub(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_sub(value, order)
    }

    #[inline]
    fn exchange(&self, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        self.compare_exchange(old, new, order, Ordering::Relaxed)
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod model {
    use loom::sync::atomic::{AtomicU64, fence};

    use super::{Ordering, Word};

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

        fn swap(&self, value: u64, order: Ordering) -> u64 {
            AtomicU64::swap(self, value, order)
        }

        fn add(&self, value: u64, order: Ordering) -> u64 {
            self.fetch_add(value, order)
        }

        fn sub(&self, value: u64, order: Ordering) -> u64 {
            self.fetch_sub(value, order)
        }

        fn exchange(&self, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
            self.compare_exchange(old, new, order, Ordering::Relaxed)
        }

        fn fence() {
            fence(Ordering::SeqCst);
        }
    }
}
