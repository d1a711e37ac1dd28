//! Why the slowest requests of a measurement were slow, and whether planted causes are found.

mod plants;
mod requests;
mod validate;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use quell_model::{CoreId, CoreSet, Nanos};
use quell_observe::procs;
use quell_os::Tid;
use quell_record::Recording;

pub use requests::{csv, inquire, report};
pub use validate::run;

/// Kinds of causes, as [`quell_trace::why::Cause::kind`] names them, and the metric of each.
const CAUSES: [(&str, &str); 10] = [
    ("behind", "slow_behind_share"),
    ("kernel section", "slow_kernel_section_share"),
    ("softirq", "slow_softirq_share"),
    ("interrupt", "slow_interrupt_share"),
    ("hypervisor", "slow_hypervisor_share"),
    ("idle core", "slow_idle_core_share"),
    ("stopped", "slow_stopped_share"),
    ("load generator", "slow_generator_share"),
    ("service", "slow_service_share"),
    ("unexplained", "slow_unexplained_share"),
];

/// How `quell bench why` runs.
pub struct WhySpec {
    /// The command as typed.
    pub command: String,
    /// Rounds of all plants.
    pub rounds: usize,
    /// How long each is measured.
    pub duration: Nanos,
    /// The service's cores.
    pub managed: CoreSet,
    /// The load generator's.
    pub client: CoreId,
    /// The program `quell-antagonist`.
    pub antagonist: PathBuf,
}

/// Begins to record what happens to the threads of a service.
///
/// # Errors
/// Without the right to use BPF.
pub fn record(service: i32) -> Result<Recording> {
    let processes = std::iter::once(service).chain(procs::descendants(service)).map(Tid);
    let processes: Vec<Tid> = processes.collect();
    Recording::start(&processes).context("record the scheduler's events")
}
