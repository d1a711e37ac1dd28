//! Why the slowest requests of a measurement were slow, and whether planted causes are found.

mod plants;
mod requests;
mod validate;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use quell_load::LoadReport;
use quell_model::{CoreId, CoreSet, Nanos};
use quell_observe::procs;
use quell_os::Tid;
use quell_record::Recording;
use quell_trace::why::Bound;

pub use requests::{csv, inquire, report};
pub use validate::run;

/// The share of the requests that is looked at: beyond p99.9.
const SLOWEST: f64 = 0.001;

/// Kinds of causes, as [`quell_trace::why::Cause::kind`] names them, the metric of each, and its heading.
pub const CAUSES: [(&str, &str, &str); 10] = [
    ("behind", "slow_behind_share", "behind a thread"),
    ("kernel section", "slow_kernel_section_share", "kernel section"),
    ("softirq", "slow_softirq_share", "softirq"),
    ("interrupt", "slow_interrupt_share", "interrupt"),
    ("hypervisor", "slow_hypervisor_share", "hypervisor"),
    ("idle core", "slow_idle_core_share", "idle core"),
    ("stopped", "slow_stopped_share", "stopped"),
    ("load generator", "slow_generator_share", "load generator"),
    ("service", "slow_service_share", "service"),
    ("unexplained", "slow_unexplained_share", "unexplained"),
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

/// The share of each kind among the main causes of the slowest requests, by metric.
pub fn shares(
    load: &LoadReport,
    recording: Recording,
) -> impl Iterator<Item = (&'static str, f64)> {
    let why = report(load, recording.end(), Bound::Slowest(SLOWEST), 0);
    CAUSES.into_iter().map(move |(kind, metric, _)| (metric, why.share_of(kind)))
}
