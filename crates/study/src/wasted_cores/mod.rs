//! `quell bench wasted-cores`: the four bugs of "A Decade of Wasted Cores" (EuroSys'16) under the paper's workloads, with and
//! without each fix, what later kernels have left of them, and the two that kSTEP (OSDI'26) found in those.
//!
//! Each arm is a scenario of `examples/sim` with another program, kernel or fix. Nothing in an arm names its result: a bug
//! shows itself by how the model of that kernel balances. [`TARGETS`] has what the paper reports, the bounds, and the verdict.

mod arms;
mod checked;
mod kstep;
mod targets;

use std::collections::BTreeMap;

use anyhow::Result;
use quell_report::BenchReport;
use quell_report::table::{Table, number};
use quell_terminal::{Progress, Stop};

use crate::simulate::parallel;
use arms::{Arm, arms};
pub use targets::{TARGETS, Target, Verdict, verdicts};

/// The name of the report.
pub const BENCH: &str = "wasted-cores";

/// Seeds of a checked trace for each one of an arm.
const CHECKED_SEEDS: u64 = 2;

/// How the arms are run.
pub struct WastedCoresSpec {
    /// The command as typed.
    pub command: String,
    /// Seeds of each arm.
    pub seeds: u64,
    /// Simulations at one time.
    pub threads: usize,
    /// Arms whose case begins so; empty: all.
    pub only: String,
}

/// Runs all arms with all seeds.
///
/// # Errors
/// When a scenario does not build, or a stop was asked for.
pub fn run(
    spec: &WastedCoresSpec,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<BenchReport> {
    let chosen = |arm: &Arm| arm.case.starts_with(&spec.only);
    let arms: Vec<Arm> = arms()?.into_iter().filter(chosen).collect();
    let is_any = !arms.is_empty() || checked::is_chosen(&spec.only);
    anyhow::ensure!(is_any, "no case begins with `{}`", spec.only);
    let mut report = BenchReport::new(BENCH, &spec.command);
    // By case, system and metric: the values of the seeds.
    let mut values: BTreeMap<(usize, &'static str), Vec<f64>> = BTreeMap::new();
    for (at, arm) in arms.iter().enumerate() {
        progress.step(at, arms.len(), &format!("{}: {}", arm.case, arm.system));
        let seeds: Vec<u64> = (1..=spec.seeds).collect();
        let found = parallel::for_each(&seeds, spec.threads, |seed| {
            stop.check()?;
            arm.measure(*seed)
        })?;
        for (metric, value) in found.into_iter().flatten() {
            values.entry((at, metric)).or_default().push(value);
        }
    }
    progress.step(arms.len(), arms.len(), "done");
    for ((at, metric), raw) in &values {
        let Arm { case, system, against, .. } = &arms[*at];
        report.push(case, system, metric, raw.clone());
        let other = arms.iter().position(|arm| arm.case == *case && Some(arm.system) == *against);
        if let Some(other) = other.and_then(|other| values.get(&(other, metric))) {
            let against = against.unwrap_or_default();
            report.compare(case, (system, raw), (against, other), metric);
        }
    }
    let seeds = spec.seeds.saturating_mul(CHECKED_SEEDS);
    checked::measure(&mut report, (seeds, spec.threads, &spec.only), progress, stop)?;
    report.notes.extend(verdicts(&report).iter().map(Verdict::to_string));
    Ok(report)
}

/// The verdicts and the figures for a terminal.
pub fn text(report: &BenchReport) -> String {
    let mut table = Table::new(["target", "paper", "accepted", "here", "verdict"]);
    for verdict in verdicts(report) {
        let Verdict { target, here, is_met } = verdict;
        let accepted = format!("{} to {}", number(target.accepted.0), number(target.accepted.1));
        let word = if is_met { "met" } else { "missed" };
        table.row([target.name, target.paper, &accepted, &number(here), word]);
    }
    let mut rows = Table::new(["case", "kernel or fix", "metric", "median", "least", "greatest"]);
    for row in &report.rows {
        let least = row.raw.iter().copied().fold(f64::INFINITY, f64::min);
        let most = row.raw.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let [median, least, most] = [row.median, least, most].map(number);
        rows.row([row.case.as_str(), &row.system, &row.metric, &median, &least, &most]);
    }
    format!("{}\n{}", rows.text(), table.text())
}
