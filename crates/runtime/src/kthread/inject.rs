//! Ready uthreads that no kthread has: made ready from outside, or too many for one run queue.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_model::Nanos;

use super::lock;
use super::queue::Ready;

#[derive(Debug, Default)]
pub(crate) struct Inject {
    queue: Mutex<VecDeque<Ready>>,
    /// Its length and since when the oldest waits (0: none): looked at without the lock. Relaxed stores under the lock suffice: who
    /// relies on them has a fence on either side (see `idle`).
    len: AtomicU64,
    oldest: AtomicU64,
}

impl Inject {
    fn tell(&self, queue: &VecDeque<Ready>) {
        self.len.store(queue.len() as u64, Ordering::Relaxed);
        let oldest = queue.front().map_or(0, |(_, ready)| ready.0.max(1));
        self.oldest.store(oldest, Ordering::Relaxed);
    }

    pub(crate) fn push(&self, ready: impl IntoIterator<Item = Ready>) {
        let mut queue = lock(&self.queue);
        queue.extend(ready);
        self.tell(&queue);
    }

    /// Moves up to `most` to `taken`, but not more than a fair share of so many kthreads.
    pub(crate) fn take(&self, most: usize, kthreads: usize, taken: &mut Vec<Ready>) {
        if self.is_empty() {
            return;
        }
        let mut queue = lock(&self.queue);
        let share = queue.len().div_ceil(kthreads.max(1)).min(most);
        taken.extend(queue.drain(..share));
        self.tell(&queue);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Since when the oldest waits.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<Nanos> {
        Some(self.oldest.load(Ordering::Relaxed)).filter(|&at| at != 0).map(Nanos)
    }
}
