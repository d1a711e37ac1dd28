//! The report as tables: a line for each case and metric, a column for each system.

use super::floor;
use super::programs::System;
use super::{CALADAN, CASES};
use quell_report::BenchReport;
use quell_report::table::{Section, Table, number};

/// The medians, ours against each other system, and the primitives.
pub fn sections(report: &BenchReport) -> Vec<Section> {
    let tables =
        [("medians", medians(report)), ("ratios", ratios(report)), ("floors", floors(report))];
    let sections =
        tables.into_iter().map(|(title, table)| Section { title: title.to_owned(), table });
    sections.filter(|section| !section.table.is_empty()).collect()
}

/// The systems that have a row.
fn systems(report: &BenchReport) -> Vec<&'static str> {
    let names = System::ALL.into_iter().map(System::name).chain([CALADAN]);
    names.filter(|name| report.rows.iter().any(|row| row.system == *name)).collect()
}

/// Each case with each of its metrics.
fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
    CASES.iter().flat_map(|case| case.metrics.iter().map(|metric| (case.name, *metric)))
}

fn medians(report: &BenchReport) -> Table {
    let systems = systems(report);
    let mut table = Table::new(["case, metric"].into_iter().chain(systems.iter().copied()));
    for (case, metric) in lines() {
        let rows = systems.iter().map(|system| report.row(case, system, metric));
        let cells: Vec<String> =
            rows.map(|row| row.map_or("-".to_owned(), |row| number(row.median))).collect();
        if cells.iter().any(|cell| cell != "-") {
            table.row([format!("{case}, {metric}")].into_iter().chain(cells));
        }
    }
    table
}

fn ratios(report: &BenchReport) -> Table {
    let ours = System::Quell.name();
    let against: Vec<&str> = systems(report)
        .into_iter()
        .filter(|name| report.ratios.iter().any(|ratio| ratio.against == **name))
        .collect();
    let heads = against.iter().map(|name| format!("{ours} ÷ {name}"));
    let mut table = Table::new(["case, metric".to_owned()].into_iter().chain(heads));
    for (case, metric) in lines() {
        let of = |name: &&str| {
            let mut all = report.ratios.iter();
            all.find(|ratio| {
                ratio.case == case && ratio.metric == metric && ratio.against == **name
            })
        };
        let cells = against.iter().map(|name| {
            of(name).map_or("-".to_owned(), |ratio| {
                let (low, high) = (number(ratio.low), number(ratio.high));
                format!("{} ({low} to {high})", number(ratio.median))
            })
        });
        let cells: Vec<String> = cells.collect();
        if cells.iter().any(|cell| cell != "-") {
            table.row([format!("{case}, {metric}")].into_iter().chain(cells));
        }
    }
    table
}

fn floors(report: &BenchReport) -> Table {
    let mut table = Table::new(["primitive", "metric", "median", "95 % interval"]);
    for row in report.rows.iter().filter(|row| floor::is_primitive(&row.case)) {
        table.row([
            row.case.clone(),
            row.metric.clone(),
            number(row.median),
            format!("{} to {}", number(row.low), number(row.high)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::BENCH;

    #[test]
    fn a_case_is_a_line_and_a_system_a_column() {
        let mut report = BenchReport::new(BENCH, "test");
        report.push("yield", "quell", "ns_per_op", vec![40.0]);
        report.push("yield", "go", "ns_per_op", vec![80.0]);
        report.push("yield", CALADAN, "ns_per_op", vec![46.0]);
        report.push("floor: switch-pair", "floor", "ns_per_op", vec![5.0]);
        report.compare("yield", ("quell", &[40.0]), ("go", &[80.0]), "ns_per_op");
        let sections = sections(&report);
        let titles: Vec<&str> = sections.iter().map(|section| section.title.as_str()).collect();
        assert_eq!(titles, ["medians", "ratios", "floors"]);
        let medians = sections[0].table.text();
        assert!(medians.contains("caladan-published") && medians.contains("46.0"), "{medians}");
        assert!(sections[1].table.text().contains("0.50 (0.50 to 0.50)"));
        assert!(sections[2].table.text().contains("switch-pair"));
    }

    #[test]
    fn what_was_not_measured_has_no_line() {
        assert!(sections(&BenchReport::new(BENCH, "test")).is_empty());
    }
}
