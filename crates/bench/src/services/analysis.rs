//! From the measurements of a run to its report: pure.

use std::collections::BTreeMap;

use quell_report::stats::{self, PairedRatio};
use quell_report::{BenchReport, Ratio};

use super::log::{Cell, Line, Phase, Run};
use super::plan::{self, WITHIN_ELSEWHERE};
use super::system::System;

/// What is compared with the base.
const COMPARED: [&str; 9] = [
    "tail_us",
    "tail_us_raw",
    "second_tail_us",
    "second_tail_us_raw",
    "second_p999_us",
    "second_p999_us_raw",
    "p50_us",
    "wakeup_p999_us",
    "service_cpu",
];
/// Of the requests of a measurement fewer were answered in time: the tail grows with its length.
pub const SERVED_MIN: f64 = 0.98;
/// Above this share of time in which a core was stopped, a table says what leaving such rounds out would change.
const STOPPED_MAX: f64 = 0.02;
/// Limits of that table.
const LIMITS: [f64; 4] = [0.0, 0.01, 0.02, 0.05];
/// What is added to each answer of the planted arm, as a part of its tail.
const PLANTED: f64 = 0.2;

/// How often the labels of base and null arm are exchanged to see what the intervals are worth, in a report.
pub const RELABELLINGS: usize = 1_000;

/// Fills the report with the rows, ratios and notes of a log, and with how many intervals of the null arm hold 1 after so
/// many random exchanges of labels.
pub fn fill(report: &mut BenchReport, lines: &[Line], relabellings: usize) {
    let runs: Vec<&Run> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Run(run) if run.phase == Phase::Measured => Some(&**run),
            _ => None,
        })
        .collect();
    for line in lines {
        match line {
            Line::Peak { service, peak_rps } => {
                report.push(quell_report::LOAD_CASE, service, "peak_rps", vec![*peak_rps]);
            }
            Line::Note { text } => report.notes.push(text.clone()),
            Line::Header(_) | Line::Run(_) => {}
        }
    }
    for cell in cells(&runs) {
        let own: Vec<&Run> = runs.iter().copied().filter(|run| run.cell == *cell).collect();
        rows(report, cell, &own);
        compare(report, cell, &own);
        coverage(report, cell, &own, relabellings);
    }
    stops(report, &runs);
}

fn cells<'a>(runs: &[&'a Run]) -> Vec<&'a Cell> {
    let mut cells = Vec::new();
    for run in runs {
        if !cells.contains(&&run.cell) {
            cells.push(&run.cell);
        }
    }
    cells
}

/// The systems of a cell in their usual order.
fn systems(runs: &[&Run]) -> Vec<System> {
    let has = |system: &System| runs.iter().any(|run| run.system == system.name());
    System::ALL.into_iter().filter(has).collect()
}

fn rows(report: &mut BenchReport, cell: &Cell, runs: &[&Run]) {
    for system in systems(runs) {
        let mut columns: BTreeMap<&str, Vec<(usize, f64)>> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.system == system.name()) {
            for (metric, value) in &run.values {
                columns.entry(metric).or_default().push((run.round, *value));
            }
        }
        for (metric, mut column) in columns {
            column.sort_by_key(|(round, _)| *round);
            let raw = column.into_iter().map(|(_, value)| value).collect();
            report.push(&cell.name(), system.name(), metric, raw);
        }
    }
}

fn compare(report: &mut BenchReport, cell: &Cell, runs: &[&Run]) {
    for system in systems(runs) {
        let own = || runs.iter().filter(|run| run.system == system.name());
        let served = own().filter_map(|run| run.values.get("served_share").copied());
        let served = stats::median(&served.collect::<Vec<_>>()).unwrap_or(1.0);
        if served < SERVED_MIN {
            report.notes.push(format!(
                "overloaded: {} under {}: {:.1} % of the requests were served, so its tail has no ratio",
                cell.name(),
                system.name(),
                served * 100.0
            ));
            continue;
        }
        if system == System::AloneIdlePoll {
            continue;
        }
        for metric in COMPARED {
            let ratios = plan::ratios(cell, system.name(), metric, runs);
            push_ratio(report, cell, system.name(), metric, &ratios);
        }
        if system == System::Null {
            let planted = plan::ratios(cell, system.name(), "tail_us", runs);
            let planted: Vec<f64> = planted.iter().map(|ratio| ratio * (1.0 + PLANTED)).collect();
            push_ratio(report, cell, "planted", "tail_us", &planted);
        }
    }
}

/// What the intervals are worth where nothing differs.
fn coverage(report: &mut BenchReport, cell: &Cell, runs: &[&Run], relabellings: usize) {
    let null = System::Null.name();
    let ratios = plan::ratios(cell, null, "tail_us", runs);
    if let Some(share) = stats::null_coverage(&ratios, relabellings) {
        report.push(&cell.name(), null, "coverage_share", vec![share]);
    }
}

fn push_ratio(report: &mut BenchReport, cell: &Cell, system: &str, metric: &str, ratios: &[f64]) {
    let Some(found) = stats::paired_ratio(ratios) else { return };
    if metric.starts_with("tail") && !is_resolved(&found) {
        report.notes.push(format!(
            "unresolved: {}, {metric} of {system}: {} ({} to {}) after {} rounds",
            cell.name(),
            found.ratio,
            found.low,
            found.high,
            found.pairs
        ));
    }
    report.ratios.push(Ratio {
        case: cell.name(),
        system: system.to_owned(),
        against: System::AloneIdlePoll.name().to_owned(),
        metric: metric.to_owned(),
        median: found.ratio,
        low: found.low,
        high: found.high,
    });
}

/// Whether a sentence may be built on an interval.
fn is_resolved(found: &PairedRatio) -> bool {
    let reach = 1.0 + WITHIN_ELSEWHERE;
    found.high <= found.ratio * reach && found.low >= found.ratio / reach
}

/// What the hypervisor did to each system, and what other limits would change.
fn stops(report: &mut BenchReport, runs: &[&Run]) {
    let share = |run: &Run| run.values.get("stopped_share").copied().unwrap_or_default();
    let mut by_system: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    runs.iter().for_each(|run| by_system.entry(&run.system).or_default().push(share(run)));
    let mean = |shares: &[f64]| shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    let stated: Vec<String> = by_system
        .iter()
        .map(|(system, shares)| format!("{system} {:.2} %", mean(shares) * 100.0))
        .collect();
    if stated.is_empty() {
        return;
    }
    report.notes.push(format!("time in which a core was stopped: {}", stated.join(", ")));
    if by_system.values().all(|shares| mean(shares) < STOPPED_MAX) {
        return;
    }
    for cell in cells(runs) {
        let own: Vec<&Run> = runs.iter().copied().filter(|run| run.cell == *cell).collect();
        for system in systems(&own).into_iter().filter(|system| *system != System::AloneIdlePoll) {
            let limited = |limit: f64| {
                let kept: Vec<&Run> =
                    own.iter().copied().filter(|run| share(run) <= limit).collect();
                let ratios = plan::ratios(cell, system.name(), "tail_us_raw", &kept);
                match stats::paired_ratio(&ratios) {
                    Some(found) => format!("{:.2} of {} pairs", found.ratio, found.pairs),
                    None => format!("{} pairs", ratios.len()),
                }
            };
            let stated = LIMITS.map(|limit| format!("{:.0} %: {}", limit * 100.0, limited(limit)));
            report.notes.push(format!(
                "tail_us_raw of {} in {}, rounds with stops up to {}",
                system.name(),
                cell.name(),
                stated.join("; ")
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(system: System, round: usize, values: &[(&str, f64)]) -> Line {
        Line::Run(Box::new(Run {
            phase: Phase::Measured,
            cell: Cell { service: "go".into(), load: 50, batch: "hog".into() },
            round,
            place: 0,
            system: system.name().into(),
            values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }))
    }

    /// Ten rounds on a machine whose speed drifts: the quell is 1.5 times as slow as the base throughout.
    fn recorded(served: f64) -> Vec<Line> {
        let mut lines = Vec::new();
        for round in 0..10 {
            let speed = 1.0 + round as f64 / 3.0;
            let noise = 1.0 + (round % 3) as f64 / 100.0;
            let of =
                |tail: f64| [("tail_us", tail), ("tail_us_raw", tail), ("served_share", served)];
            lines.push(line(System::Quell, round, &of(150.0 * speed * noise)));
            lines.push(line(System::AloneIdlePoll, round, &of(100.0 * speed)));
            lines.push(line(System::Null, round, &of(100.0 * speed / noise)));
        }
        lines
    }

    fn report(lines: &[Line]) -> BenchReport {
        let mut report = BenchReport::new("services", "quell bench services");
        fill(&mut report, lines, 20);
        report
    }

    #[test]
    fn ratios_are_of_rounds_and_the_planted_arm_is_a_fifth_slower() {
        let report = report(&recorded(1.0));
        let ratio = |system| report.ratio("go-50-hog", system, "tail_us").unwrap();
        assert!((1.5..1.53).contains(&ratio("quell").median), "{:?}", ratio("quell"));
        assert!(ratio("null").low < 1.0 && ratio("null").high > 0.98);
        let planted = ratio("planted");
        assert!(planted.low > 1.1 && planted.low <= 1.2 && planted.high >= 1.18, "{planted:?}");
    }

    #[test]
    fn pilots_are_in_no_figure_and_lost_rounds_break_no_pairs() {
        let mut lines = recorded(1.0);
        for line in &mut lines {
            let Line::Run(run) = line else { continue };
            if run.round == 3 && run.system == "quell" {
                run.phase = Phase::Pilot;
            }
        }
        let report = report(&lines);
        let quell = report.row("go-50-hog", "quell", "tail_us").unwrap();
        assert_eq!(quell.raw.len(), 9);
        let ratio = report.ratio("go-50-hog", "quell", "tail_us").unwrap();
        assert!((1.5..1.53).contains(&ratio.median));
    }

    #[test]
    fn an_overloaded_system_has_no_ratio() {
        let report = report(&recorded(0.97));
        assert!(report.ratios.is_empty());
        assert!(report.notes.iter().any(|note| note.starts_with("overloaded: go-50-hog")));
    }

    #[test]
    fn wide_intervals_are_called_unresolved() {
        let mut lines = Vec::new();
        for round in 0..10 {
            let tail = if round % 2 == 0 { 100.0 } else { 900.0 };
            lines.push(line(System::Quell, round, &[("tail_us", tail)]));
            lines.push(line(System::AloneIdlePoll, round, &[("tail_us", 100.0)]));
        }
        let report = report(&lines);
        assert!(report.notes.iter().any(|note| note.starts_with("unresolved: go-50-hog")));
    }

    #[test]
    fn many_stops_get_a_table() {
        let mut lines = recorded(1.0);
        assert!(!report(&lines).notes.iter().any(|note| note.contains("rounds with stops up to")));
        for line in &mut lines {
            let Line::Run(run) = line else { continue };
            let stopped = if run.round < 4 { 0.08 } else { 0.0 };
            run.values.insert("stopped_share".into(), stopped);
        }
        let notes = report(&lines).notes.join("\n");
        assert!(notes.contains("up to 0 %: 1.51 of 6 pairs"), "{notes}");
    }
}
