//! What the paper reports, and what counts as the same.

use std::fmt;

use quell_report::{BenchReport, Row};

use super::{checked, kstep};

/// A figure of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is.
    pub name: &'static str,
    /// What the paper has.
    pub paper: &'static str,
    /// From here to there the model's figure is accepted.
    pub accepted: (f64, f64),
    pub(super) value: fn(&BenchReport) -> Option<f64>,
}

/// A target, and the figure of the model.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// The target.
    pub target: &'static Target,
    /// The median over seeds.
    pub here: f64,
    /// Whether that is accepted.
    pub is_met: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { target: Target { name, paper, accepted, .. }, here, is_met } = self;
        let word = if *is_met { "met" } else { "MISSED" };
        write!(
            f,
            "{word}: {name}: {here:.2}, paper {paper}, accepted {} to {}",
            accepted.0, accepted.1
        )
    }
}

/// All targets. Bounds were set before the first run.
pub const TARGETS: [Target; 31] = [
    Target {
        name: "make beside two R, change by fix 1, percent",
        paper: "-13",
        accepted: (-18.0, -8.0),
        value: |report| change(report, "make-r", "linux-4.1+fix"),
    },
    Target {
        name: "the same with the load metric of 4.3, percent",
        paper: "present",
        accepted: (-18.0, -8.0),
        value: |report| change(report, "make-r", "linux-4.3+fix"),
    },
    Target {
        name: "R beside make, change by fix 1, percent",
        paper: "unchanged",
        accepted: (-1.0, 1.0),
        value: |report| {
            let ratio = report.ratio("make-r", "linux-4.1+fix", "heavy_cores")?.median;
            Some((ratio - 1.0) * 100.0)
        },
    },
    Target {
        name: "idle cores while make waits",
        paper: "14",
        accepted: (13.0, 15.0),
        value: |report| median(report, "make-r", "linux-4.1", "idle_cores_in_violation"),
    },
    Target {
        name: "migrations of make between nodes with fix 1, times as many",
        paper: "no more",
        accepted: (0.0, 1.05),
        value: |report| Some(report.ratio("make-r", "linux-4.1+fix", "node_migrations")?.median),
    },
    Target {
        name: "lu with 60 threads beside four R, times as long",
        paper: "13",
        accepted: (5.0, f64::INFINITY),
        value: |report| Some(report.ratio("lu-r", "none", "completed_s")?.median),
    },
    Target {
        name: "lu on two distant nodes, times as long",
        paper: "27",
        accepted: (10.0, f64::INFINITY),
        value: |report| slower(report, "two-nodes", "lu"),
    },
    Target {
        name: "lu is the slowest on two distant nodes (greatest of the others over lu)",
        paper: "below 1",
        accepted: (0.0, 1.0),
        value: |report| greatest_over_lu(report, "two-nodes"),
    },
    Target {
        name: "compute-only on two distant nodes, times as long",
        paper: "2",
        accepted: (1.95, 2.05),
        value: |report| slower(report, "two-nodes", "ep"),
    },
    Target {
        name: "rank correlation with table 1",
        paper: "1",
        accepted: (0.7, 1.0),
        value: |report| rank_correlation(report, "two-nodes", &TABLE_1),
    },
    Target {
        name: "others within 1.5 times of table 1, of eight",
        paper: "8",
        accepted: (8.0, 8.0),
        value: |report| within(report, "two-nodes", &TABLE_1),
    },
    Target {
        name: "database, change by fix 1, percent",
        paper: "-13.1",
        accepted: (-22.2, -5.0),
        value: |report| change(report, "tpch", "group-imbalance"),
    },
    Target {
        name: "database, change by fix 3, percent",
        paper: "-22.2",
        accepted: (-35.0, -10.0),
        value: |report| change(report, "tpch", "overload-on-wakeup"),
    },
    Target {
        name: "database, change by both, percent",
        paper: "-22.6",
        accepted: (-35.0, -10.0),
        value: |report| change(report, "tpch", "both"),
    },
    Target {
        name: "database, order of the fixes (1: kept)",
        paper: "1",
        accepted: (1.0, 1.0),
        value: |report| is_ordered(report, "tpch"),
    },
    Target {
        name: "database, changes of queue sizes a second",
        paper: "60,200",
        accepted: (30_100.0, 120_400.0),
        value: |report| median(report, "tpch", "none", "sizes_per_s"),
    },
    Target {
        name: "database, changes of loads a second",
        paper: "58,000",
        accepted: (29_000.0, 116_000.0),
        value: |report| median(report, "tpch", "none", "loads_per_s"),
    },
    Target {
        name: "database, searches a second",
        paper: "68,000",
        accepted: (34_000.0, 136_000.0),
        value: |report| median(report, "tpch", "none", "searches_per_s"),
    },
    Target {
        name: "all queries, change by fix 1, percent",
        paper: "-5.4",
        accepted: (-14.2, -1.0),
        value: |report| change(report, "tpch-all", "group-imbalance"),
    },
    Target {
        name: "all queries, change by fix 3, percent",
        paper: "-13.2",
        accepted: (-25.0, -6.0),
        value: |report| change(report, "tpch-all", "overload-on-wakeup"),
    },
    Target {
        name: "all queries, change by both, percent",
        paper: "-14.2",
        accepted: (-25.0, -6.0),
        value: |report| change(report, "tpch-all", "both"),
    },
    Target {
        name: "all queries, order of the fixes (1: kept)",
        paper: "1",
        accepted: (1.0, 1.0),
        value: |report| is_ordered(report, "tpch-all"),
    },
    Target {
        name: "database without autogroup, change by fix 3, percent",
        paper: "a gain",
        accepted: (-35.0, -10.0),
        value: |report| change(report, "tpch-no-autogroup", "overload-on-wakeup"),
    },
    Target {
        name: "database with fix 3, share of what bug 1 adds that is between siblings",
        paper: "1",
        accepted: (0.9, 1.1),
        value: |report| added_between_siblings(report),
    },
    Target {
        name: "database of 32 workers, change by fix 3, percent",
        paper: "0",
        accepted: (-1.0, 1.0),
        value: |report| change(report, "tpch-32-workers", "overload-on-wakeup"),
    },
    Target {
        name: "database with deep idle, change by fix 3, percent",
        paper: "0",
        accepted: (0.0, 0.0),
        value: |report| change(report, "tpch-deep-idle", "overload-on-wakeup"),
    },
    Target {
        name: "lu after hotplug, times as long",
        paper: "138",
        accepted: (50.0, f64::INFINITY),
        value: |report| slower(report, "hotplug", "lu"),
    },
    Target {
        name: "the least after hotplug, times as long",
        paper: "4",
        accepted: (3.0, f64::INFINITY),
        value: |report| {
            let all = all(report, "hotplug")?;
            all.into_iter().map(|(_, it)| it).min_by(f64::total_cmp)
        },
    },
    Target {
        name: "lu is the slowest after hotplug (greatest of the others over lu)",
        paper: "below 1",
        accepted: (0.0, 1.0),
        value: |report| greatest_over_lu(report, "hotplug"),
    },
    Target {
        name: "compute-only on whole cores after hotplug, times as long",
        paper: "8",
        accepted: (7.95, 8.05),
        value: |report| Some(report.ratio("hotplug-whole-cores", "none", "completed_s")?.median),
    },
    Target {
        name: "rank correlation with table 3",
        paper: "1",
        accepted: (0.8, 1.0),
        value: |report| rank_correlation(report, "hotplug", &TABLE_3),
    },
];

/// Times as long with the bug, quoted from memory.
const TABLE_1: [(&str, f64); 9] = [
    ("bt", 99.0 / 56.0),
    ("cg", 42.0 / 15.0),
    ("ep", 73.0 / 36.0),
    ("ft", 96.0 / 50.0),
    ("is", 271.0 / 202.0),
    ("lu", 1_040.0 / 38.0),
    ("mg", 49.0 / 24.0),
    ("sp", 31.0 / 14.0),
    ("ua", 206.0 / 56.0),
];
const TABLE_3: [(&str, f64); 9] = [
    ("bt", 122.0 / 23.0),
    ("cg", 134.0 / 5.4),
    ("ep", 72.0 / 18.0),
    ("ft", 110.0 / 14.0),
    ("is", 283.0 / 53.0),
    ("lu", 2_196.0 / 16.0),
    ("mg", 81.0 / 9.0),
    ("sp", 109.0 / 12.0),
    ("ua", 906.0 / 14.0),
];

/// The verdict on every target that the report has figures for.
pub fn verdicts(report: &BenchReport) -> Vec<Verdict> {
    let verdict = |target: &'static Target| {
        let here = (target.value)(report)?;
        let is_met = here >= target.accepted.0 && here <= target.accepted.1;
        Some(Verdict { target, here, is_met })
    };
    let all = TARGETS.iter().chain(&checked::TARGETS).chain(&kstep::TARGETS);
    all.filter_map(verdict).collect()
}

/// By how much the time of a case changes, in percent.
fn change(report: &BenchReport, case: &str, system: &str) -> Option<f64> {
    Some((report.ratio(case, system, "completed_s")?.median - 1.0) * 100.0)
}

/// The median of a metric.
pub(super) fn median(report: &BenchReport, case: &str, system: &str, metric: &str) -> Option<f64> {
    let is_it = |row: &&Row| row.case == case && row.system == system && row.metric == metric;
    report.rows.iter().find(is_it).map(|row| row.median)
}

/// 1 if the third fix gains more than the first, and both more than the third alone.
fn is_ordered(report: &BenchReport, case: &str) -> Option<f64> {
    let first = change(report, case, "group-imbalance")?;
    let third = change(report, case, "overload-on-wakeup")?;
    let both = change(report, case, "both")?;
    Some(if both < third && third < first { 1.0 } else { 0.0 })
}

/// Of the waits that the first fix still removes beside the third, the share beside an idle sibling.
fn added_between_siblings(report: &BenchReport) -> Option<f64> {
    let removed = |metric: &str| {
        let with_bug = median(report, "tpch", "overload-on-wakeup", metric)?;
        Some(with_bug - median(report, "tpch", "both", metric)?)
    };
    let pair = removed("wait_beside_sibling_s")?;
    let all = pair + removed("wait_beside_node_s")? + removed("wait_beside_other_node_s")?;
    Some(if all == 0.0 { 0.0 } else { pair / all })
}

/// How many times as long a program takes with the bug.
fn slower(report: &BenchReport, part: &str, program: &str) -> Option<f64> {
    let case = format!("{part}: {program}");
    Some(report.ratio(&case, "none", "completed_s")?.median)
}

/// All programs of a part, in the order of the tables.
fn all(report: &BenchReport, part: &str) -> Option<Vec<(&'static str, f64)>> {
    TABLE_1.iter().map(|(name, _)| Some((*name, slower(report, part, name)?))).collect()
}

fn greatest_over_lu(report: &BenchReport, part: &str) -> Option<f64> {
    let all = all(report, part)?;
    let lu = all.iter().find(|(name, _)| *name == "lu")?.1;
    let others = all.iter().filter(|(name, _)| *name != "lu").map(|(_, it)| *it);
    others.max_by(f64::total_cmp).map(|most| most / lu)
}

fn within(report: &BenchReport, part: &str, table: &[(&str, f64)]) -> Option<f64> {
    let all = all(report, part)?;
    let near = all.iter().zip(table).filter(|((name, here), (_, paper))| {
        *name != "lu" && here / paper <= 1.5 && paper / here <= 1.5
    });
    Some(near.count() as f64)
}

/// Spearman's rank correlation.
fn rank_correlation(report: &BenchReport, part: &str, table: &[(&str, f64)]) -> Option<f64> {
    let all = all(report, part)?;
    let here: Vec<f64> = all.iter().map(|(_, it)| *it).collect();
    let paper: Vec<f64> = table.iter().map(|(_, it)| *it).collect();
    Some(spearman(&here, &paper))
}

fn spearman(one: &[f64], other: &[f64]) -> f64 {
    let (one, other) = (ranks(one), ranks(other));
    let mean = (one.len() as f64 + 1.0) / 2.0;
    let product =
        |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    let spread = (product(&one, &one) * product(&other, &other)).sqrt();
    if spread == 0.0 { 0.0 } else { product(&one, &other) / spread }
}

/// The rank of each value, the mean of their ranks where values are equal.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let less = values.iter().filter(|other| *other < value).count() as f64;
        let equal = values.iter().filter(|other| *other == value).count() as f64;
        less + (equal + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_correlate() {
        assert!((spearman(&[1.0, 2.0, 3.0], &[10.0, 40.0, 90.0]) - 1.0).abs() < 1e-9);
        assert!((spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]) + 1.0).abs() < 1e-9);
        // A flat figure orders nothing.
        assert_eq!(spearman(&[2.0, 2.0, 2.0], &[1.0, 2.0, 3.0]), 0.0);
    }
}
