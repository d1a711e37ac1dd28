//! `quell bench overhead`: what Quell itself takes.
//!
//! * `switch`: how long two threads on one core take to hand a word to and fro, without the BPF programs, with those that
//!   know no roles, and with all of them. `added_ns` is what roles and lock relief add to each wake-up with its switch.
//! * `bpf`: time of each program for an event meanwhile, by the kernel's own run-time statistics, and what roles add to it.
//! * `decide N tasks`: one decision of the policy over a synthetic Snapshot of so many tasks.
//! * `tick N tasks`: a whole tick of a real daemon (read, decide, compare, act) that manages so many
//!   real programs, by its own account.
//! * `end to end`: batch work beside a loaded memcached with the same priorities, set by hand and kept
//!   by a daemon; a cost under half a percent is below the noise of that ratio, and the rows above
//!   account for it.

mod bpf;
mod end_to_end;
mod ticks;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_model::{CoreId, CoreSet};

use crate::host;
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// A run of the overhead benchmark.
#[derive(Clone, Debug)]
pub struct OverheadSpec {
    /// The command that makes the report again.
    pub command: String,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Each end-to-end measurement.
    pub duration: Duration,
    /// Numbers of tasks.
    pub tasks: Vec<u32>,
    /// Requests a second to memcached, end to end.
    pub rate_rps: f64,
    /// Cores that service and batch work share.
    pub managed: CoreSet,
    /// The client's core.
    pub client: CoreId,
    /// The `quell` program.
    pub quell: PathBuf,
    /// The `quell-antagonist` program.
    pub antagonist: PathBuf,
}

/// Runs the benchmark.
///
/// # Errors
/// When a program cannot be started, the daemon does not restore the host, or a stop was asked for.
pub fn run(spec: &OverheadSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, &CoreSet::of(spec.client)).context("leave the managed cores")?;
    let report = parts(spec, progress, stop);
    host::pin(0, &own).context("take back the own affinity")?;
    report
}

fn parts(spec: &OverheadSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let mut report = BenchReport::new("overhead", &spec.command);
    let total = 1 + 2 * spec.tasks.len() + spec.rounds;
    progress.step(0, total, "BPF programs");
    let core = spec.managed.first().context("no core is managed")?;
    if let Err(error) = bpf::run(&mut report, spec.rounds, core, stop) {
        report.notes.push(format!("not measured: cost of the BPF programs: {error:#}"));
    }
    for (at, &tasks) in spec.tasks.iter().enumerate() {
        stop.check()?;
        progress.step(1 + 2 * at, total, &format!("decisions over {tasks} tasks"));
        ticks::decisions(&mut report, tasks, spec.rounds)?;
        progress.step(2 + 2 * at, total, &format!("ticks over {tasks} tasks"));
        ticks::daemon(&mut report, spec, tasks, stop)?;
    }
    let done = 1 + 2 * spec.tasks.len();
    end_to_end::run(&mut report, spec, stop, &mut |round| {
        progress.step(done + round, total, &format!("end to end, round {}", round + 1));
    })?;
    progress.step(total, total, "done");
    Ok(report)
}
