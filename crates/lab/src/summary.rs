//! A report as tables: the same ones on the terminal and in `docs/results.md`.

use quell_bench::{net, net_figures, runtime, services};
use quell_report::table::{Section, Table, number};
use quell_report::{BenchReport, Row};

/// The tables of a report: measured values first, ratios last.
pub fn sections(report: &BenchReport) -> Vec<Section> {
    if report.bench == net::BENCH {
        return net::sections(report);
    }
    if report.bench == net_figures::BENCH {
        return net_figures::sections(report);
    }
    if report.bench == runtime::BENCH {
        return runtime::sections(report);
    }
    if report.bench == services::BENCH {
        return services::sections(report);
    }
    let mut sections = pivots(report, &report.cases());
    if !report.ratios.is_empty() {
        let title = "Ratios: median of the rounds (bootstrap 95 % interval)".to_owned();
        sections.push(Section { title, table: ratios(report) });
    }
    sections
}

/// The report for a terminal.
pub fn text(report: &BenchReport) -> String {
    let mut out = String::new();
    for section in sections(report) {
        out += &format!("\n{}\n\n{}", section.title, section.table.text());
    }
    for note in &report.notes {
        out += &format!("\nnote: {note}");
    }
    out + "\n"
}

/// Cases with the same metrics share a table: a line for each case and system, a column a metric.
fn pivots(report: &BenchReport, cases: &[&str]) -> Vec<Section> {
    let mut groups: Vec<(Vec<&str>, Vec<&str>)> = Vec::new();
    for &case in cases {
        let mut metrics: Vec<&str> = Vec::new();
        for row in report.rows.iter().filter(|row| row.case == case) {
            if !metrics.contains(&row.metric.as_str()) {
                metrics.push(&row.metric);
            }
        }
        match groups.iter_mut().find(|(known, _)| *known == metrics) {
            Some((_, same)) => same.push(case),
            None => groups.push((metrics, vec![case])),
        }
    }
    groups.into_iter().map(|(metrics, cases)| pivot(report, &metrics, &cases)).collect()
}

fn pivot(report: &BenchReport, metrics: &[&str], cases: &[&str]) -> Section {
    let mut table = Table::new(["case"].into_iter().chain(metrics.iter().copied()));
    for case in cases {
        let systems = report.systems(case);
        for system in systems {
            let cells = metrics.iter().map(|metric| shown(report.row(case, system, metric)));
            table.row(std::iter::once(format!("{case}: {system}")).chain(cells));
        }
    }
    let title = match cases {
        [only] => (*only).to_owned(),
        _ => "Measured".to_owned(),
    };
    Section { title, table }
}

fn shown(row: Option<&Row>) -> String {
    row.map_or_else(|| "-".to_owned(), |row| number(row.median))
}

fn ratios(report: &BenchReport) -> Table {
    let mut table = Table::new(["case", "system", "against", "metric", "ratio", "95 % interval"]);
    for ratio in &report.ratios {
        table.row([
            ratio.case.clone(),
            ratio.system.clone(),
            ratio.against.clone(),
            ratio.metric.clone(),
            number(ratio.median),
            format!("{} to {}", number(ratio.low), number(ratio.high)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let mut report = BenchReport::new("mechanism", "quell bench mechanism");
        report.push("wake", "alone", "delay_ns_p50", vec![100.0]);
        report.push("wake", "alone", "delay_ns_p99", vec![110.0]);
        report.push("wake", "quell", "delay_ns_p50", vec![90.0]);
        let shown = text(&report);
        let quell = shown.lines().find(|line| line.starts_with("wake: quell")).unwrap();
        assert!(quell.trim_end().ends_with('-'), "{shown}");
    }

    #[test]
    fn cases_with_the_same_metrics_share_a_table() {
        let mut report = BenchReport::new("mechanism", "quell bench mechanism");
        for case in ["futex-wake", "setaffinity"] {
            report.push(case, "elevation", "delay_ns_p50", vec![4_000.0]);
        }
        assert_eq!(sections(&report).len(), 1);
    }
}
