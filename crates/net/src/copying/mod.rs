//! Large reads and writes that several threads copy: the calling one, and workers that each keep to a core.
//!
//! A policy divides a call between them. The call waits for its parts, and copies those itself that no worker has begun when
//! it comes to them: a worker that does not run costs little.

mod call;
mod progress;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;

use quell_model::CoreId;
use quell_net_engine::scheduler::{CopyPolicy, CopyWork, WorkerLoad};

use crate::error::Error;
use crate::memory::{LARGE, Pool, Segment, Span, spans_of};
use crate::placed::keep_to;
use crate::placing::{Cores, current_core};
use crate::stats::CopyWorkerStats;
use crate::threads;
use crate::waiter::Waiter;
use call::{Job, Pair};

/// Parts that wait for a worker at most, whatever the policy says.
const JOBS_MAX: usize = 64;
/// Looks at what workers have begun, before the calling thread sleeps: a part takes some microseconds.
const SPINS: usize = 200;

/// See the module.
pub(crate) struct Copying {
    policy: Box<dyn CopyPolicy>,
    cores: Cores,
    workers: Vec<Worker>,
}

struct Worker {
    core: CoreId,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

/// What waits for a worker, and what it has done.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Bytes that wait, or that it copies.
    queued: AtomicU64,
    parts: AtomicU64,
    bytes: AtomicU64,
    is_kept: AtomicBool,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // What is done under it does not panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more part, unless there are too many: then the calling thread copies it.
    fn push(&self, job: Job) {
        let bytes = job.bytes() as u64;
        let is_taken = threads::hold(|| {
            let mut waiting = self.waiting();
            let is_taken = !waiting.is_closed && waiting.jobs.len() < JOBS_MAX;
            if is_taken {
                // Relaxed: a hint for the policy. Under the lock, so that the worker subtracts it later.
                self.queued.fetch_add(bytes, Ordering::Relaxed);
                waiting.jobs.push_back(job);
            }
            is_taken
        });
        if is_taken {
            self.changed.notify_one();
        }
    }

    fn next(&self) -> Option<Job> {
        let is_idle = |waiting: &mut Waiting| waiting.jobs.is_empty() && !waiting.is_closed;
        let mut waiting = self
            .changed
            .wait_while(self.waiting(), is_idle)
            .unwrap_or_else(PoisonError::into_inner);
        waiting.jobs.pop_front()
    }

    /// Copies until the endpoint ends.
    fn serve(&self, core: CoreId) {
        // Relaxed, here and below: numbers of their own.
        self.is_kept.store(keep_to(core), Ordering::Relaxed);
        while let Some(job) = self.next() {
            let bytes = job.bytes() as u64;
            if job.run() {
                self.parts.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            let before = self.queued.fetch_sub(bytes, Ordering::Relaxed);
            debug_assert!(before >= bytes, "a part that was not counted");
        }
    }
}

impl Copying {
    /// Starts the workers that a policy wants.
    pub fn start(policy: Box<dyn CopyPolicy>, cores: &Cores) -> Result<Copying, Error> {
        let mut copying = Copying { policy, cores: cores.clone(), workers: Vec::new() };
        for core in copying.policy.workers(&cores.topology, &cores.allowed) {
            let queue = Arc::new(Queue::default());
            let served = Arc::clone(&queue);
            let thread = std::thread::Builder::new().name(format!("quell-copy-{core}"));
            let thread = thread
                .spawn(move || served.serve(core))
                .map_err(|source| Error::io("start a thread that copies", source))?;
            copying.workers.push(Worker { core, queue, thread: Some(thread) });
        }
        Ok(copying)
    }

    /// Copies bytes into segments of their own. `in_flight`: bytes of the stream that workers copy.
    pub fn spans_of(&self, in_flight: &AtomicU64, pool: &Arc<Pool>, bytes: &[u8]) -> Vec<Span> {
        if self.workers.is_empty() {
            return spans_of(pool, bytes);
        }
        let parts = || bytes.chunks(LARGE);
        let mut segments: Vec<Segment> = parts().map(|part| pool.segment(part.len())).collect();
        let pairs = segments
            .iter_mut()
            .zip(parts())
            .map(|(segment, from)| Pair { into: &mut segment.free_mut()[..from.len()], from });
        self.copy(in_flight, pairs.collect());
        let fill = |(mut segment, from): (Segment, &[u8])| {
            segment.fill(from.len());
            segment.into_span()
        };
        segments.into_iter().zip(parts()).map(fill).collect()
    }

    /// Copies what was read to where the application wants it, which has room for it. Returns how many bytes.
    pub fn copy_out(&self, in_flight: &AtomicU64, spans: &[Span], into: &mut [u8]) -> usize {
        let length = spans.iter().map(Span::len).sum();
        let mut rest = into;
        let pairs = spans.iter().map(|span| {
            let (into, behind) = std::mem::take(&mut rest).split_at_mut(span.len());
            rest = behind;
            Pair { into, from: span.bytes() }
        });
        match self.workers.is_empty() {
            true => pairs.for_each(Pair::copy),
            false => self.copy(in_flight, pairs.collect()),
        }
        length
    }

    fn copy(&self, in_flight: &AtomicU64, pairs: Vec<Pair<'_>>) {
        let parts = self.split(in_flight, pairs.iter().map(|pair| pair.from.len() as u64).sum());
        let others: u64 =
            parts.iter().filter(|(_, by)| by.is_some()).map(|(bytes, _)| *bytes).sum();
        let waiter = if others > 0 { Waiter::current().ok() } else { None };
        let Some(waiter) = waiter else { return pairs.into_iter().for_each(Pair::copy) };
        // Relaxed: a hint for the policy.
        in_flight.fetch_add(others, Ordering::Relaxed);
        let offer = |worker: usize, job| self.workers[worker].queue.push(job);
        let caller = Waker::from(Arc::clone(&waiter));
        call::run(cut(pairs, &parts), caller, offer, |is_done| wait(&waiter, is_done));
        in_flight.fetch_sub(others, Ordering::Relaxed);
    }

    /// What the policy says, without workers that there are not.
    fn split(&self, in_flight: &AtomicU64, bytes: u64) -> Vec<(u64, Option<usize>)> {
        let load = |worker: &Worker| WorkerLoad {
            core: worker.core,
            queued: worker.queue.queued.load(Ordering::Relaxed),
        };
        let loads: Vec<WorkerLoad> = self.workers.iter().map(load).collect();
        let in_flight = in_flight.load(Ordering::Relaxed);
        let work = CopyWork { bytes, core: current_core(), in_flight };
        let mut parts = Vec::new();
        self.policy.split(&self.cores.topology, &work, &loads, &mut parts);
        for (_, worker) in &mut parts {
            *worker = worker.filter(|index| *index < self.workers.len());
        }
        parts
    }

    /// What each worker has done.
    pub fn stats(&self) -> Vec<CopyWorkerStats> {
        let stats = |worker: &Worker| CopyWorkerStats {
            core: worker.core,
            is_kept: worker.queue.is_kept.load(Ordering::Relaxed),
            parts: worker.queue.parts.load(Ordering::Relaxed),
            bytes: worker.queue.bytes.load(Ordering::Relaxed),
        };
        self.workers.iter().map(stats).collect()
    }
}

/// Waits until workers have done what they have begun, or was woken.
fn wait(waiter: &Arc<Waiter>, is_done: &dyn Fn() -> bool) {
    for _ in 0..SPINS {
        if is_done() {
            return;
        }
        std::hint::spin_loop();
    }
    waiter.reset();
    // After the reset: a wake-up of before may have been for it.
    if !is_done() && waiter.sleep(&[], None).is_err() {
        std::thread::yield_now();
    }
}

/// Cuts pairs where the parts of a policy end. What those do not cover is the calling thread's.
fn cut<'a>(pairs: Vec<Pair<'a>>, parts: &[(u64, Option<usize>)]) -> Vec<(Pair<'a>, Option<usize>)> {
    let mut parts = parts.iter().copied().filter(|(bytes, _)| *bytes > 0);
    let mut part = parts.next().unwrap_or((u64::MAX, None));
    let mut cut = Vec::new();
    for Pair { mut into, mut from } in pairs {
        while !from.is_empty() {
            let length = from.len().min(usize::try_from(part.0).unwrap_or(usize::MAX));
            let ((first, rest), (own, behind)) = (from.split_at(length), into.split_at_mut(length));
            cut.push((Pair { into: own, from: first }, part.1));
            (from, into) = (rest, behind);
            part.0 -= length as u64;
            if part.0 == 0 {
                part = parts.next().unwrap_or((u64::MAX, None));
            }
        }
    }
    cut
}

impl Drop for Copying {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.queue.waiting().is_closed = true;
            worker.queue.changed.notify_all();
        }
        for worker in &mut self.workers {
            // A panic of its was reported by the panic hook already.
            let _ = worker.thread.take().map(JoinHandle::join);
        }
    }
}
