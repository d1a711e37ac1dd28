//! The run queue of a kthread: a ring of uthreads in the order in which they became ready, with when they did.
//!
//! The owner adds at the tail; owner and thieves take from the head, by one exchange of it. Head and tail only grow, so an
//! exchange that succeeds means that nothing was taken since the head was read; and the owner reuses a place only once
//! the head has passed it, so what was read before the exchange was not overwritten. (Go's run queue is like this.)

use std::sync::atomic::{AtomicU64, Ordering};

use quell_model::Nanos;

use crate::word::Word;

/// Places of a ring: a kthread that has more uthreads ready puts some where all kthreads find them.
pub(crate) const CAPACITY: usize = 256;

#[derive(Debug)]
struct Place<W> {
    item: W,
    ready: W,
}

/// An item is a number that is not zero: the address of a task.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Ring<W = AtomicU64, const N: usize = CAPACITY> {
    head: W,
    /// Written by the owner alone.
    tail: Apart<W>,
    places: Box<[Place<W>; N]>,
}

/// Not in the cache line of its neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<W>(W);

/// An item, and since when it is ready.
pub(crate) type Ready = (u64, Nanos);

impl<W: Word, const N: usize> Ring<W, N> {
    pub(crate) fn new() -> Ring<W, N> {
        let place = |_| Place { item: W::new(0), ready: W::new(0) };
        let places = Box::new(std::array::from_fn(place));
        Ring { head: W::new(0), tail: Apart(W::new(0)), places }
    }

    fn place(&self, at: u64) -> &Place<W> {
        &self.places[at as usize % N]
    }

    /// Adds at the tail; the owner alone calls it. An error if the ring is full.
    #[inline]
    pub(crate) fn push(&self, (item, ready): Ready) -> Result<(), Ready> {
        let tail = self.tail.0.get(Ordering::Relaxed);
        // Acquire: pairs with the release of the exchange by which a place was left, whose reads were before it.
        if tail - self.head.get(Ordering::Acquire) >= N as u64 {
            return Err((item, ready));
        }
        let place = self.place(tail);
        place.item.put(item, Ordering::Relaxed);
        place.ready.put(ready.0, Ordering::Relaxed);
        // Release: who sees the tail sees the place and the uthread. Pairs with `steal` and `oldest`.
        self.tail.0.put(tail + 1, Ordering::Release);
        Ok(())
    }

    /// Takes the oldest; the owner alone calls it.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Ready> {
        let tail = self.tail.0.get(Ordering::Relaxed);
        let mut head = self.head.get(Ordering::Relaxed);
        loop {
            if head == tail {
                return None;
            }
            // The owner wrote the place itself.
            let place = self.place(head);
            let taken =
                (place.item.get(Ordering::Relaxed), Nanos(place.ready.get(Ordering::Relaxed)));
            // Release: keeps the reads before it. Pairs with `push`, which is by this thread, and with no one else's.
            match self.head.exchange(head, head + 1, Ordering::Release) {
                Ok(_) => return Some(taken),
                Err(now) => head = now,
            }
        }
    }

    /// Takes the older half, at most `most`, for another kthread; appends it to `taken`. Whether there was any.
    pub(crate) fn steal(&self, most: usize, taken: &mut Vec<Ready>) -> bool {
        let before = taken.len();
        loop {
            let head = self.head.get(Ordering::Acquire);
            // Acquire: pairs with `push`.
            let tail = self.tail.0.get(Ordering::Acquire);
            // The tail may be read long after the head: then the exchange fails.
            let count = tail.saturating_sub(head).div_ceil(2).min(N as u64).min(most as u64);
            if count == 0 {
                return false;
            }
            taken.extend((head..head + count).map(|at| {
                let place = self.place(at);
                (place.item.get(Ordering::Relaxed), Nanos(place.ready.get(Ordering::Relaxed)))
            }));
            // Release: the reads are before it; pairs with the acquire in `push`.
            if self.head.exchange(head, head + count, Ordering::AcqRel).is_ok() {
                return true;
            }
            taken.truncate(before);
        }
    }

    /// How many there are; by any thread, so perhaps not any more.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let head = self.head.get(Ordering::Acquire);
        self.tail.0.get(Ordering::Acquire).saturating_sub(head) as usize
    }

    /// Since when the oldest waits, and how many do; the owner alone calls it.
    #[inline]
    pub(crate) fn oldest(&self) -> (Option<Nanos>, usize) {
        let tail = self.tail.0.get(Ordering::Relaxed);
        let head = self.head.get(Ordering::Relaxed);
        let oldest = (head != tail).then(|| Nanos(self.place(head).ready.get(Ordering::Relaxed)));
        (oldest, (tail - head) as usize)
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic as model;

    use super::*;

    type Small = Ring<model::AtomicU64, 2>;

    #[test]
    fn a_ring_gives_back_in_order_and_says_when_it_is_full() {
        let ring: Ring<AtomicU64, 4> = Ring::new();
        for round in 0..10 {
            for item in 1..=4 {
                ring.push((item, Nanos(round * 10 + item))).unwrap();
            }
            assert_eq!(ring.push((5, Nanos(1))), Err((5, Nanos(1))));
            assert_eq!(ring.oldest(), (Some(Nanos(round * 10 + 1)), 4));
            for item in 1..=4 {
                assert_eq!(ring.pop(), Some((item, Nanos(round * 10 + item))));
            }
            assert_eq!(ring.pop(), None);
        }
    }

    #[test]
    fn a_thief_takes_the_older_half_rounded_up() {
        let ring: Ring<AtomicU64, 8> = Ring::new();
        for item in 1..=5 {
            ring.push((item, Nanos(item))).unwrap();
        }
        let mut taken = Vec::new();
        assert!(ring.steal(8, &mut taken));
        assert_eq!(taken, [(1, Nanos(1)), (2, Nanos(2)), (3, Nanos(3))]);
        assert!(ring.steal(8, &mut taken) && ring.steal(8, &mut taken));
        assert!(!ring.steal(8, &mut taken));
        assert_eq!(taken.len(), 5);
    }

    /// What the owner of the ring does in the models: fills it, takes one, and reuses the places.
    fn own(ring: &Small) -> Vec<u64> {
        let mut got = Vec::new();
        for item in 1..=3 {
            while let Err(_full) = ring.push((item, Nanos(item))) {
                got.extend(ring.pop().map(|(item, _)| item));
            }
        }
        got.extend(ring.pop().map(|(item, _)| item));
        got
    }

    #[test]
    fn each_item_is_taken_once_by_its_owner_or_by_a_thief() {
        let mut builder = loom::model::Builder::new();
        // Complete, it takes a minute, and finds no more.
        builder.preemption_bound = Some(4);
        builder.check(|| {
            let ring = Arc::new(Small::new());
            let thief = {
                let ring = Arc::clone(&ring);
                loom::thread::spawn(move || {
                    let mut taken = Vec::new();
                    ring.steal(2, &mut taken);
                    taken
                })
            };
            let mut got = own(&ring);
            for (item, ready) in thief.join().unwrap() {
                assert_eq!(item, ready.0, "an item and its time are of one place");
                got.push(item);
            }
            while let Some((item, _)) = ring.pop() {
                got.push(item);
            }
            got.sort_unstable();
            assert_eq!(got, [1, 2, 3]);
        });
    }

    #[test]
    fn two_thieves_never_take_the_same() {
        loom::model(|| {
            let ring = Arc::new(Small::new());
            ring.push((1, Nanos(1))).unwrap();
            ring.push((2, Nanos(2))).unwrap();
            let thieves: Vec<_> = (0..2)
                .map(|_| {
                    let ring = Arc::clone(&ring);
                    loom::thread::spawn(move || {
                        let mut taken = Vec::new();
                        ring.steal(1, &mut taken);
                        taken
                    })
                })
                .collect();
            let mut got: Vec<u64> = Vec::new();
            for thief in thieves {
                got.extend(thief.join().unwrap().into_iter().map(|(item, _)| item));
            }
            while let Some((item, _)) = ring.pop() {
                got.push(item);
            }
            got.sort_unstable();
            assert_eq!(got, [1, 2]);
        });
    }
}
