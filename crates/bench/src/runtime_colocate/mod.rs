//! `quell bench runtime-colocate`: services on the runtime, under the daemon, beside batch work.
//!
//! - [`service`]: the key-value server of `examples/runtime` beside batch work on the runtime and adopted batch work, against alone.
//! - [`grant`]: from making a uthread ready in a runtime that sleeps until it runs, with and without the daemon, against a futex.
//! - [`bimodal`]: short requests behind long ones on one core, with a quantum of each kind and without; and [`tick`]: what
//!   a uthread that computes loses to it.

mod bimodal;
mod grant;
mod plots;
mod programs;
mod service;
mod tick;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_model::{CoreId, CoreSet};

use crate::host::{self, Quiet};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// The name of the benchmark in reports.
pub const BENCH: &str = "runtime-colocate";

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The key-value server.
    Service,
    /// Core-grant latency.
    Grant,
    /// Quantum.
    Bimodal,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 3] = [Part::Service, Part::Grant, Part::Bimodal];
}

/// A run of it.
#[derive(Clone, Debug)]
pub struct RuntimeColocateSpec {
    /// The command that makes the report again.
    pub command: String,
    /// What is measured.
    pub parts: Vec<Part>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Each measurement.
    pub time: Duration,
    /// Requests a second to the key-value server.
    pub rate_rps: f64,
    /// Cores that the service and batch work share.
    pub managed: CoreSet,
    /// The client's core.
    pub client: CoreId,
    /// The `quell` program.
    pub quell: PathBuf,
    /// The `quell-antagonist` program.
    pub antagonist: PathBuf,
    /// The `quell-bench-peers` program.
    pub peers: PathBuf,
    /// The `quell-bench-quantum` program.
    pub quantum: PathBuf,
    /// The key-value server; without it that part is left out.
    pub server: Option<PathBuf>,
}

/// Runs the benchmark.
///
/// # Errors
/// When a program cannot be started, the daemon does not end in order, or a stop was asked for.
pub fn run(
    spec: &RuntimeColocateSpec,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let _quiet = Quiet::keep()?;
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, &CoreSet::of(spec.client)).context("leave the managed cores")?;
    let report = parts(spec, progress, stop);
    host::pin(0, &own).context("take back the own affinity")?;
    report
}

fn parts(
    spec: &RuntimeColocateSpec,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<BenchReport> {
    let mut report = BenchReport::new(BENCH, &spec.command);
    for part in Part::ALL.into_iter().filter(|part| spec.parts.contains(part)) {
        match part {
            Part::Service => service::measure(spec, &mut report, progress, stop)?,
            Part::Grant => grant::measure(spec, &mut report, progress, stop)?,
            Part::Bimodal => {
                bimodal::measure(spec, &mut report, progress, stop)?;
                tick::measure(spec, &mut report, progress, stop)?;
            }
        }
    }
    plots::draw(&mut report);
    progress.step(1, 1, "done");
    Ok(report)
}
