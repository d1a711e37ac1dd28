//! Memory of a call that other threads copy while it waits.
//!
//! Workers live longer than a call, so the compiler cannot see that they are done with its memory: this module sees to that.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::task::Waker;

use super::progress::Progress;

/// Bytes and where they go: as many.
pub(super) struct Pair<'a> {
    pub into: &'a mut [u8],
    pub from: &'a [u8],
}

impl Pair<'_> {
    /// Copies it here and now.
    pub fn copy(self) {
        self.into.copy_from_slice(self.from);
    }
}

/// The same without its lifetime.
struct RawPair {
    into: *mut u8,
    from: *const u8,
    bytes: usize,
}

/// The parts of a call.
struct Call {
    pairs: Box<[RawPair]>,
    progress: Progress,
    caller: Waker,
}

// SAFETY: the pointers are used by `Call::copy` alone, by one thread each, while `run` has the borrows that they stand for.
unsafe impl Send for Call {}
// SAFETY: as above: what is shared is only read, but for `progress`, which is atomic.
unsafe impl Sync for Call {}

impl Call {
    /// Copies a part, unless it is claimed. Whether all are done now; `None` if it was another thread's.
    fn copy(&self, part: usize) -> Option<bool> {
        if !self.progress.claim(part) {
            return None;
        }
        let pair = &self.pairs[part];
        // SAFETY: both point to `bytes` bytes that `run` has borrowed, the first for itself alone, so that they do not overlap.
        // `run` does not return before this part is done, because it was claimed; and no other thread has claimed it.
        unsafe { std::ptr::copy_nonoverlapping(pair.from, pair.into, pair.bytes) };
        Some(self.progress.done())
    }
}

/// A part of a call, for a worker. One that is dropped is copied by the calling thread.
pub(super) struct Job {
    call: Arc<Call>,
    part: usize,
}

impl Job {
    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.call.pairs[self.part].bytes
    }

    /// Copies it, unless the calling thread has. Whether it did.
    pub fn run(self) -> bool {
        let done = self.call.copy(self.part);
        if done == Some(true) {
            self.call.caller.wake_by_ref();
        }
        done.is_some()
    }
}

/// Waits for parts that workers have begun, whatever ends the call: a panic, too.
struct Unfinished<'a, W: FnMut(&dyn Fn() -> bool)> {
    call: &'a Call,
    wait: W,
}

impl<W: FnMut(&dyn Fn() -> bool)> Drop for Unfinished<'_, W> {
    fn drop(&mut self) {
        let progress = &self.call.progress;
        // After a panic some are not claimed: no worker begins them any more.
        (0..self.call.pairs.len()).filter(|part| progress.claim(*part)).for_each(|_| {
            progress.done();
        });
        while !progress.is_done() {
            (self.wait)(&|| progress.is_done());
        }
    }
}

/// Copies all pairs, and returns when all are copied. Each that has a worker is offered to it by `offer`. The calling thread
/// copies the others, then those that no worker has begun. `wait` may return when its argument says so, or when `caller` was
/// woken.
pub(super) fn run(
    pairs: Vec<(Pair<'_>, Option<usize>)>,
    caller: Waker,
    mut offer: impl FnMut(usize, Job),
    wait: impl FnMut(&dyn Fn() -> bool),
) {
    let workers: Vec<Option<usize>> = pairs.iter().map(|(_, worker)| *worker).collect();
    let raw = pairs.into_iter().map(|(Pair { into, from }, _)| {
        assert_eq!(into.len(), from.len(), "a pair of different lengths");
        RawPair { bytes: into.len(), into: into.as_mut_ptr(), from: from.as_ptr() }
    });
    let pairs: Box<[RawPair]> = raw.collect();
    let progress = Progress::new(pairs.len());
    let call = Arc::new(Call { pairs, progress, caller });
    let unfinished = Unfinished { call: &call, wait };
    for (part, worker) in workers.iter().enumerate() {
        if let Some(worker) = worker {
            offer(*worker, Job { call: Arc::clone(&call), part });
        }
    }
    let inline = (0..workers.len()).filter(|part| workers[*part].is_none());
    // Workers begin with the first that they were given.
    let offered = (0..workers.len()).rev().filter(|part| workers[*part].is_some());
    inline.chain(offered).for_each(|part| _ = unfinished.call.copy(part));
    drop(unfinished);
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Sender, channel};
    use std::task::Wake;
    use std::thread::{self, Thread};

    use proptest::prelude::*;

    use super::*;

    struct Parked(Thread);

    impl Wake for Parked {
        fn wake(self: Arc<Parked>) {
            self.0.unpark();
        }
    }

    fn caller() -> Waker {
        Waker::from(Arc::new(Parked(thread::current())))
    }

    fn park(is_done: &dyn Fn() -> bool) {
        while !is_done() {
            thread::park();
        }
    }

    /// The pairs of a copy that is cut at some places.
    fn cut<'a>(
        mut from: &'a [u8],
        mut into: &'a mut [u8],
        parts: &[(usize, Option<usize>)],
    ) -> Vec<(Pair<'a>, Option<usize>)> {
        let mut pairs = Vec::new();
        for (bytes, worker) in parts {
            let bytes = (*bytes).min(from.len());
            let ((first, rest), own) = (from.split_at(bytes), into);
            let (place, behind) = own.split_at_mut(bytes);
            pairs.push((Pair { into: place, from: first }, *worker));
            (from, into) = (rest, behind);
        }
        pairs.push((Pair { into, from }, None));
        pairs
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|index| (index.wrapping_mul(0x9e37_79b9) >> 20) as u8).collect()
    }

    /// A worker that runs jobs when it is let, in an order of its own: `None` for one that drops them.
    fn worker(order: Option<u64>) -> (Sender<Job>, thread::JoinHandle<usize>) {
        let (jobs, waiting) = channel::<Job>();
        let run = move || {
            let mut copied = 0;
            while let Ok(first) = waiting.recv() {
                let mut all = vec![first];
                all.extend(waiting.try_iter());
                let Some(order) = order else { continue };
                let count = all.len();
                all.rotate_left(order as usize % count);
                copied += all.into_iter().map(Job::run).filter(|copied| *copied).count();
            }
            copied
        };
        (jobs, thread::spawn(run))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 64 }))]
        #[test]
        fn all_bytes_arrive_in_order_however_they_are_split(
            count in 0usize..5_000,
            parts in proptest::collection::vec((0usize..900, proptest::option::of(0usize..3)), 0..12),
            orders in proptest::collection::vec(proptest::option::of(any::<u64>()), 3),
        ) {
            let from = bytes(count);
            let mut into = vec![0; count];
            let workers: Vec<_> = orders.into_iter().map(worker).collect();
            let pairs = cut(&from, &mut into, &parts);
            run(pairs, caller(), |worker, job| workers[worker].0.send(job).expect("it lives"), park);
            // Before the workers have ended: they may still hold jobs of the call.
            prop_assert!(into == from);
            into.fill(1);
            for (jobs, thread) in workers {
                drop(jobs);
                thread.join().expect("no panic");
            }
            prop_assert!(into.iter().all(|byte| *byte == 1), "a worker wrote after the call");
        }
    }

    #[test]
    fn call_that_panics_leaves_no_worker_with_its_memory() {
        let from = bytes(3_000);
        let (jobs, thread) = worker(Some(1));
        let mut kept = Vec::new();
        {
            let mut into = vec![0; from.len()];
            let parts = [(1_000, Some(0)), (1_000, Some(0)), (1_000, Some(0))];
            let pairs = cut(&from, &mut into, &parts);
            let mut offers = 0..;
            let offer = |_, job: Job| match offers.next() {
                Some(0) => jobs.send(job).expect("it lives"),
                Some(1) => kept.push(job),
                _ => panic!("an offer that fails"),
            };
            let result = catch_unwind(AssertUnwindSafe(|| run(pairs, caller(), offer, park)));
            assert!(result.is_err());
        }
        // Its memory is gone: a worker that comes late does not touch it.
        assert!(kept.into_iter().all(|job| !job.run()));
        drop(jobs);
        thread.join().expect("no panic");
    }
}
