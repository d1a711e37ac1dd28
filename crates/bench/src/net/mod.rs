//! `quell bench net`: virtual sockets beside kernel sockets, in two network namespaces and on one host.
//!
//! Both ends of a case are programs of their own (`quell-bench-peers sockets`), alike for all systems but for what carries
//! the bytes: the same buffers, cubic, NODELAY, no affinity. Every byte that arrives is compared. The rounds are interleaved
//! over the systems, and ratios are of pairs of one round.

mod cases;
mod ends;
mod namespaces;
mod tables;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

use crate::host::{self, Quiet};

pub use cases::{CASES, Case};
pub use tables::sections;

use cases::{Goal, Measured, Place};
use ends::Ends;
use namespaces::Namespaces;

/// The name of the benchmark in reports.
pub const BENCH: &str = "net";

/// A run.
#[derive(Clone, Debug)]
pub struct NetSpec {
    /// The command that makes the report again.
    pub command: String,
    /// Only cases whose names begin so; all if empty.
    pub only: Vec<String>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// The time that counts in each.
    pub time: Duration,
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
    ensure!(!cases.is_empty(), "no case begins with {}", only.join(" or "));
    Ok(cases)
}

/// Values by case, system and metric, one a round: `NaN` where a run failed.
type Seen = BTreeMap<(&'static str, &'static str, &'static str), Vec<f64>>;

/// Runs the benchmark. A system that fails in a case is left out of that round, and named.
///
/// # Errors
/// When the namespaces cannot be made, or a stop was asked for.
pub fn run(spec: &NetSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let _quiet = Quiet::keep()?;
    let cases = chosen_cases(&spec.only)?;
    let mut report = BenchReport::new(BENCH, &spec.command);
    let directory = host::directory()?;
    let namespaces = Namespaces::make()?;
    let is_slow = cases.iter().any(|case| case.place == Place::Bottleneck);
    let slow = is_slow.then(Namespaces::make_slow).transpose()?;
    let (peers, directory) = (spec.peers.as_path(), directory.path());
    let ends = Ends { peers, directory, namespaces: &namespaces, bottleneck: slow.as_ref() };
    let mut seen = Seen::new();
    for round in 0..spec.rounds {
        for (at, case) in cases.iter().enumerate() {
            let step = round * cases.len() + at;
            let text = format!("{}, round {}", case.name, round + 1);
            progress.step(step, spec.rounds * cases.len(), &text);
            for system in case.order(round) {
                let measured = ends.measure(case, system, spec.time, stop);
                stop.check()?;
                if let Err(error) = &measured {
                    let what = format!("{} in {}, round {}", system, case.name, round + 1);
                    report.notes.push(format!("left out: {what}: {error:#}"));
                }
                note(&mut seen, case, system, measured.as_ref().ok());
            }
        }
    }
    progress.step(1, 1, "done");
    for case in cases {
        conclude(case, &seen, &mut report);
    }
    Ok(report)
}

fn note(seen: &mut Seen, case: &'static Case, system: &'static str, measured: Option<&Measured>) {
    for metric in case.metrics {
        let value = measured.map_or(f64::NAN, |measured| measured.value(metric));
        seen.entry((case.name, system, metric)).or_default().push(value);
    }
}

/// Rows, ratios to the rivals, and whether the goals are met.
fn conclude(case: &'static Case, seen: &Seen, report: &mut BenchReport) {
    let values = |system, metric| seen.get(&(case.name, system, metric)).map(Vec::as_slice);
    for metric in case.metrics {
        for system in case.systems() {
            report.push(
                case.name,
                system,
                metric,
                values(system, metric).unwrap_or_default().to_vec(),
            );
        }
        for own in case.own {
            for rival in case.rivals {
                let (Some(ours), Some(theirs)) = (values(own, metric), values(rival, metric))
                else {
                    continue;
                };
                report.compare(case.name, (own, ours), (rival, theirs), metric);
            }
        }
    }
    for Goal { metric, against, floor, stretch, at_most } in case.goals {
        let Some(own) = case.own.first() else { continue };
        let is_meant = |found_case: &str, system: &str, found_metric: &str| {
            (found_case, system, found_metric) == (case.name, *own, *metric)
        };
        let found = match against {
            Some(rival) => report
                .ratios
                .iter()
                .find(|it| is_meant(&it.case, &it.system, &it.metric) && it.against == *rival)
                .map(|ratio| ratio.median),
            None => {
                let row = report.rows.iter().find(|it| is_meant(&it.case, &it.system, &it.metric));
                row.map(|row| row.median)
            }
        };
        let Some(median) = found else { continue };
        let meets = |goal: f64| if *at_most { median <= goal } else { median >= goal };
        let verdict = match (meets(*floor), meets(*stretch)) {
            (_, true) => "stretch met",
            (true, false) => "floor met",
            (false, false) => "MISSED",
        };
        let sign = if *at_most { "at most" } else { "at least" };
        report.notes.push(format!(
            "{verdict}: {}, {metric} of {own}{}: {median:.3}; floor {sign} {floor}, stretch {stretch}",
            case.name,
            against.map(|rival| format!(" ÷ {rival}")).unwrap_or_default()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_is_judged_by_the_median_of_its_first_system() {
        let case = CASES.iter().find(|case| case.name == "pingpong-alone").expect("a case");
        let mut seen = Seen::new();
        for (system, p50) in [("tcp", 20.0), ("quell", 24.0)] {
            for metric in case.metrics {
                seen.insert((case.name, system, metric), vec![p50; 3]);
            }
        }
        let mut report = BenchReport::new(BENCH, "test");
        conclude(case, &seen, &mut report);
        let ratio = report.ratios.iter().find(|it| it.metric == "p50_us").expect("a ratio");
        assert_eq!(ratio.median, 1.2);
        assert!(
            report.notes.iter().any(|note| note.starts_with("floor met: pingpong-alone, p50_us"))
        );
    }

    #[test]
    fn failed_round_is_left_out_of_its_pair_alone() {
        let case = CASES.iter().find(|case| case.name == "writes-4k").expect("a case");
        let mut seen = Seen::new();
        for metric in case.metrics {
            seen.insert((case.name, "tcp", metric), vec![10.0, f64::NAN, 10.0]);
            seen.insert((case.name, "quell", metric), vec![25.0, 1.0, 25.0]);
        }
        let mut report = BenchReport::new(BENCH, "test");
        conclude(case, &seen, &mut report);
        let ratio = report.ratios.iter().find(|it| it.metric == "gbit_per_s").expect("a ratio");
        assert_eq!(ratio.median, 2.5);
    }

    #[test]
    fn unknown_case_is_named() {
        let error = chosen_cases(&["nothing".to_owned()]).expect_err("there is none");
        assert!(error.to_string().contains("nothing"));
        assert_eq!(chosen_cases(&["same-host".to_owned()]).expect("some").len(), 3);
    }
}
