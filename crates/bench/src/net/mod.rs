//! `quell bench net`: virtual sockets beside kernel sockets, in two network namespaces and on one host.
//!
//! Both ends of a case are programs of their own (`quell-bench-peers sockets`), alike for all systems but for what carries
//! the bytes: the same buffers, cubic, NODELAY, no affinity. Every byte that arrives is compared. The rounds are interleaved
//! over the systems, and ratios are of pairs of one round.

mod cases;
mod ends;
pub(crate) mod namespaces;
pub(crate) mod pair;
mod tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use quell_report::{BenchReport, Ratio, Row};
use quell_terminal::{Progress, Stop};

use crate::host::{self, Quiet};

pub use cases::{CASES, Case};
pub use tables::sections;

pub(crate) use cases::{Measured, SlowRequest};

use cases::{Goal, Place};
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
    /// The program of [`cases::MULTIPLEXERS`], where it would be.
    pub multiplexers: PathBuf,
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
    let ends = Ends {
        peers: &spec.peers,
        multiplexers: &spec.multiplexers,
        directory: directory.path(),
        namespaces: &namespaces,
        bottleneck: slow.as_ref(),
    };
    let missing = missing_systems(&spec.multiplexers, &cases);
    report.notes.extend(missing.iter().map(|system| {
        format!("n/a: {system}: its program is not built; `make {MULTIPLEXERS_TARGET}` builds it")
    }));
    let mut seen = Seen::new();
    for round in 0..spec.rounds {
        for (at, case) in cases.iter().enumerate() {
            let step = round * cases.len() + at;
            let text = format!("{}, round {}", case.name, round + 1);
            progress.step(step, spec.rounds * cases.len(), &text);
            for system in case.order(round).into_iter().filter(|it| !missing.contains(it)) {
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

/// What builds the program of [`cases::MULTIPLEXERS`].
const MULTIPLEXERS_TARGET: &str = "target/peers/release/quell-peer-net";

/// Systems of these cases whose program is not there.
fn missing_systems(program: &Path, cases: &[&'static Case]) -> Vec<&'static str> {
    let is_used = |system: &&str| cases.iter().any(|case| case.rivals.contains(system));
    match program.is_file() {
        true => Vec::new(),
        false => cases::MULTIPLEXERS.iter().copied().filter(is_used).collect(),
    }
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
    if let Some(own) = case.own.first() {
        let mut notes = Vec::new();
        for goal in case.goals {
            notes.extend(verdict(case, own, goal, report));
        }
        for lost in case.goals.iter().flat_map(|goal| losses(case, own, goal, report)) {
            if !notes.contains(&lost) {
                notes.push(lost);
            }
        }
        report.notes.extend(notes);
    }
}

/// Whether a goal is met; `None` where nothing was measured.
fn verdict(case: &Case, own: &str, goal: &Goal, report: &BenchReport) -> Option<String> {
    let Goal { metric, against, floor, stretch, at_most } = *goal;
    let median = match against {
        Some(rival) => ratio(case, own, metric, rival, report)?,
        None => {
            let of =
                |row: &&Row| (&*row.case, &*row.system, &*row.metric) == (case.name, own, metric);
            report.rows.iter().find(of)?.median
        }
    };
    let meets = |goal: f64| if at_most { median <= goal } else { median >= goal };
    let verdict = match (meets(floor), meets(stretch)) {
        (_, true) => "stretch met",
        (true, false) => "floor met",
        (false, false) => "MISSED",
    };
    let sign = if at_most { "at most" } else { "at least" };
    let against = against.map(|rival| format!(" ÷ {rival}")).unwrap_or_default();
    Some(format!(
        "{verdict}: {}, {metric} of {own}{against}: {median:.3}; floor {sign} {floor}, stretch {stretch}",
        case.name
    ))
}

/// Rivals without a goal that are better than ours in what a goal is about.
fn losses<'a>(
    case: &'a Case,
    own: &'a str,
    goal: &'a Goal,
    report: &'a BenchReport,
) -> impl Iterator<Item = String> + 'a {
    let metric = goal.metric;
    let has_goal = move |rival: &str| {
        case.goals.iter().any(|goal| (goal.metric, goal.against) == (metric, Some(rival)))
    };
    case.rivals.iter().filter(move |rival| !has_goal(rival)).filter_map(move |rival| {
        let median = ratio(case, own, metric, rival, report)?;
        let is_worse = if goal.at_most { median > 1.0 } else { median < 1.0 };
        let name = case.name;
        is_worse
            .then(|| format!("LOST to {rival}: {name}, {metric} of {own} ÷ {rival}: {median:.3}"))
    })
}

/// The median ratio of one of our systems to a rival.
fn ratio(case: &Case, own: &str, metric: &str, rival: &str, report: &BenchReport) -> Option<f64> {
    let wanted = (case.name, own, rival, metric);
    let of = |it: &&Ratio| (&*it.case, &*it.system, &*it.against, &*it.metric) == wanted;
    report.ratios.iter().find(of).map(|ratio| ratio.median)
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
    fn rival_without_a_goal_that_is_better_is_named() {
        let case = CASES.iter().find(|case| case.name == "writes-4k").expect("a case");
        let mut seen = Seen::new();
        for (system, rate) in [("tcp", 5.0), ("tcp-buffered", 25.0), ("quell", 20.0)] {
            for metric in case.metrics {
                seen.insert((case.name, system, metric), vec![rate; 3]);
            }
        }
        let mut report = BenchReport::new(BENCH, "test");
        conclude(case, &seen, &mut report);
        let lost: Vec<_> = report.notes.iter().filter(|note| note.starts_with("LOST")).collect();
        assert_eq!(
            lost,
            ["LOST to tcp-buffered: writes-4k, gbit_per_s of quell ÷ tcp-buffered: 0.800"]
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
    fn systems_without_their_program_are_left_out() {
        let cases = chosen_cases(&["pingpong".to_owned()]).expect("a case");
        assert_eq!(missing_systems(Path::new("/nonexistent"), &cases), ["quinn", "yamux"]);
        let others = chosen_cases(&["same-host".to_owned()]).expect("some");
        assert!(missing_systems(Path::new("/nonexistent"), &others).is_empty());
        let own = std::env::current_exe().expect("a path");
        assert!(missing_systems(&own, &cases).is_empty());
    }

    #[test]
    fn unknown_case_is_named() {
        let error = chosen_cases(&["nothing".to_owned()]).expect_err("there is none");
        assert!(error.to_string().contains("nothing"));
        assert_eq!(chosen_cases(&["same-host".to_owned()]).expect("some").len(), 3);
    }
}
