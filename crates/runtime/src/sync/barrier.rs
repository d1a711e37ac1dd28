//! `Barrier`.

use super::Brief;
use crate::kthread::local;
use crate::park::{Waiter, block};

/// As `std::sync::Barrier`: so many wait for each other.
#[derive(Debug)]
pub struct Barrier {
    count: usize,
    waiting: Brief<Vec<Waiter>>,
}

/// Whether this one was the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// True for one of those that waited.
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

impl Barrier {
    /// For so many; zero is as one.
    pub const fn new(count: usize) -> Barrier {
        Barrier { count, waiting: Brief::new(Vec::new()) }
    }

    /// Waits until all have come; then it can be used again.
    pub fn wait(&self) -> BarrierWaitResult {
        local::checkpoint();
        let mut leads = false;
        let leader = &raw mut leads;
        block(move |waiter| {
            let mut waiting = self.waiting.lock();
            if waiting.len() + 1 < self.count {
                return waiting.push(waiter);
            }
            let others = std::mem::take(&mut *waiting);
            drop(waiting);
            // SAFETY: it lies on the stack of this waiter, who is woken next.
            unsafe { *leader = true };
            for other in others {
                other.wake();
            }
            waiter.wake();
        });
        BarrierWaitResult(leads)
    }
}
