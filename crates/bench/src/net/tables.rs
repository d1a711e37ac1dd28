//! The report as tables.

use quell_report::BenchReport;
use quell_report::table::{Section, Table, number};

/// What was measured, and the ratios to the rivals.
pub fn sections(report: &BenchReport) -> Vec<Section> {
    let mut medians = Table::new(["case", "metric", "system", "median", "95 % interval"]);
    for row in &report.rows {
        let interval = format!("{} to {}", number(row.low), number(row.high));
        medians.row([
            row.case.clone(),
            row.metric.clone(),
            row.system.clone(),
            number(row.median),
            interval,
        ]);
    }
    let mut ratios = Table::new(["case", "metric", "ratio", "median", "95 % interval"]);
    for ratio in &report.ratios {
        let interval = format!("{} to {}", number(ratio.low), number(ratio.high));
        let name = format!("{} ÷ {}", ratio.system, ratio.against);
        ratios.row([
            ratio.case.clone(),
            ratio.metric.clone(),
            name,
            number(ratio.median),
            interval,
        ]);
    }
    [("medians", medians), ("ratios", ratios)]
        .into_iter()
        .filter(|(_, table)| !table.is_empty())
        .map(|(title, table)| Section { title: title.to_owned(), table })
        .collect()
}
