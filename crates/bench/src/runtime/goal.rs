//! Whether the goal of a case is met: ours ahead of each rival, or their intervals overlap and both are within 1.2 x of the floor.

use super::cases::Case;
use super::programs::System;
use quell_report::table::number;
use quell_report::{BenchReport, Ratio, Row};

/// Within this of the floor both are as good as it gets.
const NEAR: f64 = 1.2;

/// How ours compares with a rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The interval of the ratio is below 1.
    Ahead,
    /// The interval has 1 in it, and both are near the floor.
    Even,
    /// The interval has 1 in it.
    Undecided,
    /// The interval is above 1.
    Behind,
}

/// A line for each case in which ours is not ahead of all rivals, and one for all the others.
pub fn verdicts(report: &BenchReport, cases: &[&Case]) -> Vec<String> {
    let (mut met, mut notes) = (Vec::new(), Vec::new());
    for case in cases {
        let metric = case.metrics[0];
        let ratios: Vec<&Ratio> = System::RIVALS
            .iter()
            .filter_map(|rival| {
                report.ratios.iter().find(|ratio| {
                    (ratio.case.as_str(), ratio.metric.as_str()) == (case.name, metric)
                        && ratio.against == rival.name()
                })
            })
            .collect();
        let open: Vec<String> = ratios
            .iter()
            .filter_map(|ratio| {
                let verdict = verdict(report, ratio);
                let how = match verdict {
                    Verdict::Ahead | Verdict::Even => return None,
                    Verdict::Undecided => "undecided against",
                    Verdict::Behind => "behind",
                };
                let (low, high) = (number(ratio.low), number(ratio.high));
                Some(format!(
                    "{how} {} (ratio {}, {low} to {high})",
                    ratio.against,
                    number(ratio.median)
                ))
            })
            .collect();
        match (ratios.is_empty(), open.is_empty()) {
            (true, _) => {}
            (false, true) => met.push(case.name),
            (false, false) => {
                notes.push(format!("goal of {}, {metric}: {}", case.name, open.join("; ")));
            }
        }
    }
    if !met.is_empty() {
        let text = format!(
            "goal met (ahead of every rival, or as near the floor as it): {}",
            met.join(", ")
        );
        notes.insert(0, text);
    }
    notes
}

fn verdict(report: &BenchReport, ratio: &Ratio) -> Verdict {
    let row = |system: &str| report.row(&ratio.case, system, &ratio.metric);
    let near =
        |row: Option<&Row>, floor: &Row| row.is_some_and(|row| row.median <= NEAR * floor.median);
    let near_floor = row(System::Floor.name())
        .is_some_and(|floor| near(row(&ratio.system), floor) && near(row(&ratio.against), floor));
    match (ratio.high < 1.0, ratio.low > 1.0) {
        (true, _) => Verdict::Ahead,
        (_, true) => Verdict::Behind,
        _ if near_floor => Verdict::Even,
        _ => Verdict::Undecided,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{BENCH, CASES};

    fn report(ours: [f64; 3], theirs: [f64; 3], floor: f64) -> Vec<String> {
        let mut report = BenchReport::new(BENCH, "test");
        let case = CASES.iter().find(|case| case.name == "yield").unwrap();
        let metric = case.metrics[0];
        report.push(case.name, "quell", metric, ours.to_vec());
        report.push(case.name, "go", metric, theirs.to_vec());
        report.push(case.name, "floor", metric, vec![floor]);
        report.compare(case.name, ("quell", &ours), ("go", &theirs), metric);
        verdicts(&report, &[case])
    }

    #[test]
    fn a_case_is_won_lost_or_open() {
        let first = |notes: Vec<String>| notes.into_iter().next().unwrap();
        assert!(first(report([9.0; 3], [10.0; 3], 1.0)).starts_with("goal met"));
        assert!(first(report([11.0; 3], [10.0; 3], 1.0)).contains("behind go"));
        let overlap = [9.0, 11.0, 10.0];
        assert!(first(report(overlap, [10.0; 3], 9.5)).starts_with("goal met"));
        assert!(first(report(overlap, [10.0; 3], 5.0)).contains("undecided against go"));
    }

    #[test]
    fn a_case_without_a_rival_has_no_verdict() {
        let report = BenchReport::new(BENCH, "test");
        assert!(verdicts(&report, &CASES.iter().collect::<Vec<_>>()).is_empty());
    }
}
