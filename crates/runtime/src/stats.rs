//! What kthreads have done.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_model::Nanos;
use quell_shm::runtime::Counters;

use crate::kthread::Shared;

/// What one kthread has done since the runtime began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KthreadStats {
    /// Switches to a uthread.
    pub switches: u64,
    /// Uthreads taken from another kthread.
    pub steals: u64,
    /// Times that it parked for want of work.
    pub parks: u64,
    /// Times that it parked because its core was revoked.
    pub revokes: u64,
    /// Uthreads that were made to yield at the end of their quantum.
    pub preemptions: u64,
    /// Time that it ran uthreads.
    pub busy: Nanos,
    /// Times that it woke without a core, for a timer or for I/O.
    pub asks: u64,
}

/// What the kthreads of a runtime have done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// One for each kthread.
    pub kthreads: Vec<KthreadStats>,
}

impl Stats {
    pub(crate) fn of(shared: &Shared) -> Stats {
        let kthreads = shared.kthreads.iter();
        Stats { kthreads: kthreads.map(|kthread| copy(&kthread.lines().counters)).collect() }
    }

    /// Of all kthreads together.
    pub fn total(&self) -> KthreadStats {
        self.kthreads.iter().fold(KthreadStats::default(), |sum, one| KthreadStats {
            switches: sum.switches + one.switches,
            steals: sum.steals + one.steals,
            parks: sum.parks + one.parks,
            revokes: sum.revokes + one.revokes,
            preemptions: sum.preemptions + one.preemptions,
            busy: sum.busy + one.busy,
            asks: sum.asks + one.asks,
        })
    }
}

fn copy(counters: &Counters) -> KthreadStats {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    KthreadStats {
        switches: read(&counters.switches),
        steals: read(&counters.steals),
        parks: read(&counters.parks),
        revokes: read(&counters.revokes),
        preemptions: read(&counters.preemptions),
        busy: Nanos(read(&counters.busy_ns)),
        asks: read(&counters.asks),
    }
}
