//! Stacks of uthreads: pooled, lazily backed, each with a guard page beneath.
//!
//! Stacks of a size come in slabs of [`SLAB`], one mapping each. A kthread keeps some at hand; the rest are in the pool, of which
//! a few stay backed and the others give their pages back.

mod map;

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Mutex;

use corosensei::stack::StackPointer;

use crate::kthread::lock;
use map::Slab;

/// The smallest stack.
pub(crate) const MIN_BYTES: usize = 16 << 10;
/// Stacks of a slab.
const SLAB: usize = 64;
/// Stacks of a size that the pool keeps backed.
const WARM: usize = 1_024;

/// A stack that is in use: it is in nobody else's hands.
#[derive(Debug)]
pub(crate) struct Stack {
    /// Its highest address.
    base: NonZeroUsize,
    /// Bytes beneath the base, without the guard.
    bytes: usize,
}

// SAFETY: the base is aligned to a page, and the memory between it and the limit is mapped for as long as the pool lives, which
// outlives its stacks; beneath the limit there is a guard page.
unsafe impl corosensei::stack::Stack for Stack {
    #[inline]
    fn base(&self) -> StackPointer {
        self.base
    }

    #[inline]
    fn limit(&self) -> StackPointer {
        self.bottom()
    }
}

impl Stack {
    /// Its lowest address.
    #[inline]
    pub(crate) fn bottom(&self) -> NonZeroUsize {
        // A slab never begins at address zero.
        NonZeroUsize::new(self.base.get() - self.bytes).unwrap_or(NonZeroUsize::MIN)
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The stacks of one size.
#[derive(Debug, Default)]
struct Shelf {
    /// With pages that were used before.
    warm: Vec<Stack>,
    /// Without pages.
    cold: Vec<Stack>,
    slabs: Vec<Slab>,
}

/// All stacks of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    shelves: Mutex<HashMap<usize, Shelf>>,
}

/// Bytes of stacks for which so many are wanted: whole pages.
pub(crate) fn whole_pages(bytes: usize) -> usize {
    bytes.max(MIN_BYTES).next_multiple_of(map::page())
}

/// Bytes of the guard beneath a stack.
pub(crate) fn guard_bytes() -> usize {
    map::page()
}

impl Pool {
    /// Moves up to `count` stacks, one at least, of a size in whole pages to `taken`.
    ///
    /// # Errors
    /// When there is no memory for more.
    pub(crate) fn take(
        &self,
        bytes: usize,
        count: usize,
        taken: &mut Vec<Stack>,
    ) -> io::Result<()> {
        let mut shelves = lock(&self.shelves);
        let shelf = shelves.entry(bytes).or_default();
        if shelf.warm.is_empty() && shelf.cold.is_empty() {
            let slab = Slab::new(bytes, SLAB)?;
            // The last is used first: the lowest address.
            shelf.cold.extend(slab.bases().rev().map(|base| Stack { base, bytes }));
            shelf.slabs.push(slab);
        }
        for from in [&mut shelf.warm, &mut shelf.cold] {
            let keep = from.len().saturating_sub(count - taken.len().min(count));
            taken.extend(from.drain(keep..));
        }
        Ok(())
    }

    /// Gives stacks of one size back.
    pub(crate) fn give(&self, stacks: impl Iterator<Item = Stack>) {
        let mut cold = Vec::new();
        let mut shelves = lock(&self.shelves);
        for stack in stacks {
            let shelf = shelves.entry(stack.bytes).or_default();
            if shelf.warm.len() < WARM {
                shelf.warm.push(stack);
            } else {
                cold.push(stack);
            }
        }
        drop(shelves);
        // System calls: without the lock.
        for stack in &cold {
            map::give_pages_back(stack.base, stack.bytes);
        }
        let mut shelves = lock(&self.shelves);
        for stack in cold {
            shelves.entry(stack.bytes).or_default().cold.push(stack);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_apart_and_come_back() {
        let pool = Pool::default();
        let mut stacks = Vec::new();
        while stacks.len() < 3 * SLAB {
            let most = stacks.len() + 10;
            pool.take(whole_pages(MIN_BYTES), most, &mut stacks).unwrap();
        }
        let mut bases: Vec<usize> = stacks.iter().map(|stack| stack.base.get()).collect();
        bases.sort_unstable();
        assert!(bases.windows(2).all(|pair| pair[1] - pair[0] >= MIN_BYTES + map::page()));
        let count = stacks.len();
        pool.give(stacks.into_iter());
        let mut again = Vec::new();
        while again.len() < count {
            let most = again.len() + 10;
            pool.take(whole_pages(MIN_BYTES), most.min(count), &mut again).unwrap();
        }
        let mut same: Vec<usize> = again.iter().map(|stack| stack.base.get()).collect();
        same.sort_unstable();
        assert_eq!(same, bases);
    }
}
