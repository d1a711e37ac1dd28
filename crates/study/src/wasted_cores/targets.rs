//! What the paper reports, and what counts as the same.

use std::fmt;

use quell_report::BenchReport;

/// A figure of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is.
    pub name: &'static str,
    /// What the paper has.
    pub paper: &'static str,
    /// From here to there the model's figure is accepted.
    pub accepted: (f64, f64),
    value: fn(&BenchReport) -> Option<f64>,
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
pub const TARGETS: [Target; 15] = [
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
    TARGETS.iter().filter_map(verdict).collect()
}

/// By how much the time of a case changes, in percent.
fn change(report: &BenchReport, case: &str, system: &str) -> Option<f64> {
    Some((report.ratio(case, system, "completed_s")?.median - 1.0) * 100.0)
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
