//! The one clock of every contract: CLOCK_MONOTONIC, which equals BPF's `bpf_ktime_get_ns`.

use quell_model::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// The time on CLOCK_MONOTONIC.
pub fn now() -> Nanos {
    read(ClockId::Monotonic)
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Nanos {
    read(ClockId::ThreadCPUTime)
}

/// CPU time of the calling process.
pub fn process_cpu() -> Nanos {
    read(ClockId::ProcessCPUTime)
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds.
pub fn wall_offset_ns() -> i64 {
    read(ClockId::Realtime).0 as i64 - now().0 as i64
}

fn read(clock: ClockId) -> Nanos {
    let now = clock_gettime(clock);
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}
