//! The one clock of the contracts: CLOCK_MONOTONIC, read through the vDSO.

pub use quell_os::clock::{now, thread_cpu as thread_cpu_time};
