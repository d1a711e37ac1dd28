//! The one clock of the contracts: CLOCK_MONOTONIC, read through the vDSO.

use quell_model::Nanos;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The present on CLOCK_MONOTONIC.
pub fn now() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// CPU time that the calling thread has used so far (CLOCK_THREAD_CPUTIME_ID; a system call).
pub fn thread_cpu_time() -> Nanos {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

fn nanos(time: Timespec) -> Nanos {
    // Neither clock starts below zero.
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
