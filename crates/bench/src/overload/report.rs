//! The report: values, ratios within rounds, and a verdict for each goal. Pure.

use std::collections::BTreeMap;

use quell_report::{BenchReport, LOAD_CASE};

use super::SYSTEMS;
use super::measure::Values;
use crate::services::System;

/// Goals: at most so much.
const BATCH_PERCENT_MAX: f64 = 2.0;
const RATIO_MAX: f64 = 1.2;
const ROLE_CHANGES_MAX: f64 = 10.0;
/// What the neighbour has with neither batch work nor an overload.
const UNDISTURBED: &str = "alone-idle-poll before the overload";

/// All rounds with one number of workers.
pub struct Case {
    /// Workers of the overloaded service.
    pub workers: usize,
    /// Its peak.
    pub peak_rps: f64,
    rounds: Vec<BTreeMap<&'static str, Values>>,
    sustained: Vec<Values>,
}

impl Case {
    /// No round yet.
    pub fn new(workers: usize, peak_rps: f64) -> Case {
        Case { workers, peak_rps, rounds: Vec::new(), sustained: Vec::new() }
    }

    /// What a round showed under a system.
    pub fn add(&mut self, round: usize, system: System, values: Values) {
        self.rounds.resize_with(self.rounds.len().max(round + 1), BTreeMap::new);
        self.rounds[round].insert(system.name(), values);
    }

    /// What the load below the peak showed.
    pub fn add_sustained(&mut self, values: Values) {
        self.sustained.push(values);
    }

    fn name(&self) -> String {
        format!("workers-{}", self.workers)
    }

    /// One value a round, NaN where there is none.
    fn values(&self, system: System, metric: &str) -> Vec<f64> {
        let value = |round: &BTreeMap<&str, Values>| round.get(system.name())?.get(metric).copied();
        self.rounds.iter().map(|round| value(round).unwrap_or(f64::NAN)).collect()
    }

    fn metrics(&self) -> Vec<String> {
        let all = self.rounds.iter().flat_map(BTreeMap::values).flat_map(Values::keys);
        let names: std::collections::BTreeSet<&String> = all.collect();
        names.into_iter().cloned().collect()
    }
}

/// Adds everything to a report.
pub fn fill(report: &mut BenchReport, cases: &[Case]) {
    for case in cases {
        let name = case.name();
        report.push(LOAD_CASE, &name, "peak_rps", vec![case.peak_rps]);
        for system in SYSTEMS {
            for metric in case.metrics() {
                report.push(&name, system.name(), &metric, case.values(system, &metric));
            }
        }
        ratios(report, case);
        let sustained = format!("{name}-sustained");
        let metrics: Vec<&String> = case.sustained.iter().flat_map(Values::keys).collect();
        for metric in metrics.into_iter().collect::<std::collections::BTreeSet<_>>() {
            let values = case.sustained.iter().filter_map(|round| round.get(metric).copied());
            report.push(&sustained, System::Quell.name(), metric, values.collect());
        }
        verdicts(report, &name);
    }
    report.notes.push(
        "recovery_ms is the length of the load after the overload where the tail was not normal by then (recovered_share)"
            .to_owned(),
    );
}

fn ratios(report: &mut BenchReport, case: &Case) {
    let base = System::AloneIdlePoll;
    for system in SYSTEMS {
        let of = |system, metric: &str| case.values(system, metric);
        if system != base {
            let (own, alone) = (of(system, "recovery_ms"), of(base, "recovery_ms"));
            let (own, alone) = ((system.name(), &own[..]), (base.name(), &alone[..]));
            report.compare(&case.name(), own, alone, "recovery_ms");
        }
        for suffix in ["", "_raw"] {
            let undisturbed = of(base, &format!("neighbour_p999_us_before{suffix}"));
            for part in ["overload", "after"] {
                let metric = format!("neighbour_p999_us_{part}{suffix}");
                let own = of(system, &metric);
                let own = (system.name(), &own[..]);
                report.compare(&case.name(), own, (UNDISTURBED, &undisturbed), &metric);
            }
        }
    }
}

/// A sentence for each goal.
fn verdicts(report: &mut BenchReport, case: &str) {
    let quell = System::Quell.name();
    let row = |case: &str, metric| report.row(case, quell, metric).map(|row| row.median);
    let ratio = |metric| report.ratio(case, quell, metric).map(|ratio| ratio.median);
    // A tail that was not normal again within the time that was watched is a miss, however late the other's was.
    let recovered = row(case, "recovered_share").is_none_or(|share| share >= 1.0);
    let recovery = if recovered { ratio("recovery_ms") } else { Some(f64::INFINITY) };
    let goals = [
        (
            "batch work's share of the core during the overload, percent",
            row(case, "batch_overload_percent"),
            BATCH_PERCENT_MAX,
        ),
        ("recovery as a multiple of that alone", recovery, RATIO_MAX),
        (
            "the neighbour's raw p99.9 during the overload as a multiple of its own undisturbed",
            ratio("neighbour_p999_us_overload_raw"),
            RATIO_MAX,
        ),
        (
            "the neighbour's raw p99.9 after the overload as a multiple of its own undisturbed",
            ratio("neighbour_p999_us_after_raw"),
            RATIO_MAX,
        ),
        (
            "role changes a second just below the peak",
            row(&format!("{case}-sustained"), "role_changes_per_s"),
            ROLE_CHANGES_MAX,
        ),
    ];
    let sentence = |(what, value, most)| format!("{case}: {what}: {}", verdict(value, most));
    let sentences: Vec<String> = goals.into_iter().map(sentence).collect();
    report.notes.extend(sentences);
}

fn verdict(median: Option<f64>, most: f64) -> String {
    match median {
        None => "not measured".to_owned(),
        Some(median) if median <= most => format!("{median:.2}, goal at most {most}: met"),
        Some(median) => format!("{median:.2}, goal at most {most}: missed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_names_value_and_goal() {
        assert_eq!(verdict(Some(1.2), 1.2), "1.20, goal at most 1.2: met");
        assert_eq!(verdict(Some(1.21), 1.2), "1.21, goal at most 1.2: missed");
        assert_eq!(verdict(None, 1.2), "not measured");
    }

    #[test]
    fn ratios_are_within_rounds() {
        let mut case = Case::new(4, 1_600.0);
        let values = |ms: f64| Values::from([("recovery_ms".to_owned(), ms)]);
        for (round, alone) in [3_000.0, 2_000.0].into_iter().enumerate() {
            case.add(round, System::AloneIdlePoll, values(alone));
            case.add(round, System::Quell, values(alone * 1.5));
        }
        let mut report = BenchReport::new("overload", "test");
        fill(&mut report, &[case]);
        let ratio = report.ratio("workers-4", "quell", "recovery_ms").unwrap();
        assert!((ratio.median - 1.5).abs() < 1e-9);
        assert!(
            report.notes.iter().any(|note| note.contains("recovery") && note.ends_with("missed"))
        );
    }
}
