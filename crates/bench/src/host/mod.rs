//! What a benchmark does to the host by hand, as an administrator without Quell would: start
//! programs, set their policies and affinities, read their accounting, and put everything back.

mod busy;
mod canary;
mod changes;
mod cpuset;
mod directory;
mod group;
mod perf;
mod process;
mod quiet;
mod sched;
mod snapshot;
mod spinner;

pub use busy::busiest;
pub use canary::{Canary, Standstill};
pub use cpuset::Cpuset;
pub use directory::{directory, directory_on_disk, recover};
pub use group::{Group, Weight};
pub use process::{Program, Usage};
pub use quiet::Quiet;
pub use sched::{
    Inherit, Policy, affinity, comm, lc_priority, nice, pin, policy, set_budget, set_deadline,
    set_nice, set_own_nice, set_policy, set_policy_with, set_slice, this_thread,
};
pub use snapshot::{Difference, HostSnapshot};
pub use spinner::PauseLoop;

use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_testkit::{HostLock, try_host_lock};

use quell_terminal::{Progress, Stop};

/// Waits until no other benchmark or test changes this host, and keeps others out while the value
/// lives: two at once would measure, and restore, each other. Then restores what a killed benchmark left.
///
/// # Errors
/// When the lock cannot be taken, what was left cannot be given back, or a stop was asked for.
pub fn alone(progress: &mut dyn Progress, stop: &Stop) -> Result<HostLock> {
    let mut told = false;
    loop {
        if let Some(lock) = try_host_lock().context("keep other tests and benchmarks out")? {
            recover()?.iter().for_each(|line| progress.note(line));
            return Ok(lock);
        }
        if !told {
            progress.note("waiting for other tests and benchmarks of this host to end");
            told = true;
        }
        stop.sleep(Duration::from_millis(100))?;
    }
}
