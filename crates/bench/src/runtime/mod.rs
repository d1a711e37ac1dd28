//! `quell bench runtime`: what the primitives of the runtime take, beside those of pthreads, Go, tokio and `may`.
//!
//! Each system is a program of its own that runs one case at a time, pinned to the same cores; the rounds are
//! interleaved over the systems. The [`floor`] of a case is the sum of what no runtime can avoid in it, measured in
//! the same rounds. Sources of the programs in C and Go are part of this crate; the others are in `quell-bench-peers`.

mod cases;
mod echo;
mod floor;
mod goal;
pub(crate) mod plots;
mod programs;
mod tables;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_model::{CoreId, CoreSet};

pub(crate) use self::cases::Measured;
pub use self::cases::{CASES, Case};
pub use self::programs::System;
pub use self::tables::sections;

use self::cases::Seen;
use self::programs::Programs;
use crate::host::{self, Quiet};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// The name of the benchmark in reports.
pub const BENCH: &str = "runtime";
/// Figures that Caladan's authors publish (OSDI'20), ns.
const PUBLISHED: [(&str, f64); 4] =
    [("mutex", 28.0), ("yield", 46.0), ("condvar", 95.0), ("spawn-join", 150.0)];
/// The system that stands for them: another machine.
const CALADAN: &str = "caladan-published";

/// A run of the runtime benchmark.
#[derive(Clone, Debug)]
pub struct RuntimeSpec {
    /// The command that makes the report again.
    pub command: String,
    /// Only cases whose names begin so; all if empty.
    pub only: Vec<String>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// How long a program warms up.
    pub warm_up: Duration,
    /// How long it counts.
    pub time: Duration,
    /// The core of cases with one worker.
    pub work: CoreId,
    /// The second worker's core, and the client's.
    pub other: CoreId,
    /// The `quell-bench-peers` program.
    pub peers: PathBuf,
}

/// The cases whose names begin with one of these; all if there is none.
///
/// # Errors
/// When no case is left.
pub fn chosen_cases(only: &[String]) -> Result<Vec<&'static Case>> {
    let has = |case: &&Case| {
        only.is_empty() || only.iter().any(|only| case.name.starts_with(only.as_str()))
    };
    let cases: Vec<&Case> = CASES.iter().filter(has).collect();
    anyhow::ensure!(!cases.is_empty(), "no case begins with {}", only.join(" or "));
    Ok(cases)
}

impl RuntimeSpec {
    /// The cores of a case's workers.
    fn cores(&self, case: &Case) -> CoreSet {
        let mut cores = CoreSet::of(self.work);
        if case.workers > 1 {
            cores.insert(self.other);
        }
        cores
    }
}

/// Runs the benchmark. A system that is missing, or fails in a case, is left out and named.
///
/// # Errors
/// When nothing can be measured, or a stop was asked for.
pub fn run(spec: &RuntimeSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let _quiet = Quiet::keep()?;
    let own = host::affinity(0).context("read the own affinity")?;
    let report = measure(spec, progress, stop);
    host::pin(0, &own).context("take back the own affinity")?;
    report
}

fn measure(spec: &RuntimeSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let mut report = BenchReport::new(BENCH, &spec.command);
    let directory = host::directory()?;
    let cases = chosen_cases(&spec.only)?;
    let mut programs = Programs::build(&spec.peers, directory.path(), stop)?;
    let mut seen = Seen::default();
    for round in 0..spec.rounds {
        for (at, case) in cases.iter().enumerate() {
            progress.step(
                round * cases.len() + at,
                spec.rounds * cases.len(),
                &format!("{}, round {}", case.name, round + 1),
            );
            programs.round(spec, case, round, &mut seen, stop)?;
        }
        floor::measure(&mut programs, spec, &cases, round, &mut seen, stop)?;
    }
    progress.step(1, 1, "done");
    for case in &cases {
        cases::report(case, &seen, &mut report);
        if let Some((_, ns)) = PUBLISHED.iter().find(|(name, _)| *name == case.name) {
            report.push(case.name, CALADAN, cases::NS_PER_OP, vec![*ns]);
        }
    }
    floor::report(&seen, &mut report);
    report.notes.extend(programs.missing());
    report.notes.extend(goal::verdicts(&report, &cases));
    report.notes.push(format!(
        "rows of `{CALADAN}` are figures of the article (another machine), not measured here"
    ));
    plots::draw(&mut report);
    Ok(report)
}
