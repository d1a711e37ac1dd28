//! A report as tables: the same ones on the terminal and in `docs/results.md`.

use quell_bench::why::CAUSES;
use quell_bench::{runtime, services};
use quell_report::table::{Section, Table, number};
use quell_report::{BenchReport, Row};

/// The system that the others are compared with.
const BASE: &str = "alone-idle-poll";

/// The columns that the table of a co-location shows: metric, heading, and how to print it.
const COLOCATION: [(&str, &str, Show); 10] = [
    ("lc_rps", "LC req/s", Show::Number),
    ("lc_p50_us", "p50 µs", Show::Number),
    ("lc_p99_us", "p99 µs", Show::Number),
    ("lc_p999_us", "p99.9 µs", Show::Number),
    ("lc_p999_us_raw", "p99.9 raw", Show::Number),
    ("lc_max_us", "max µs", Show::Number),
    ("be_share_of_alone", "BE of alone", Show::Percent),
    ("be_share_of_leftover", "BE of leftover", Show::Percent),
    ("cpu_utilisation", "CPU", Show::Percent),
    ("idle_while_lc_waits_us", "idle while LC waits µs/s", Show::Number),
];

#[derive(Clone, Copy)]
enum Show {
    Number,
    /// A share of 1 as a percentage.
    Percent,
}

impl Show {
    fn text(self, row: Option<&Row>) -> String {
        match (self, row) {
            (_, None) => "-".to_owned(),
            (Show::Number, Some(row)) => number(row.median),
            (Show::Percent, Some(row)) => format!("{:.0} %", row.median * 100.0),
        }
    }
}

/// The tables of a report: measured values first, ratios last.
pub fn sections(report: &BenchReport) -> Vec<Section> {
    if report.bench == runtime::BENCH {
        return runtime::sections(report);
    }
    if report.bench == services::BENCH {
        return services::sections(report);
    }
    let mut sections = Vec::new();
    let mut rest = Vec::new();
    for case in report.cases() {
        let systems = report.systems(case);
        if systems.iter().any(|system| report.row(case, system, "lc_p999_us").is_some()) {
            sections.push(Section { title: case.to_owned(), table: colocation(report, case) });
            sections.extend(slowest(report, case));
        } else {
            rest.push(case);
        }
    }
    sections.extend(pivots(report, &rest));
    if !report.ratios.is_empty() {
        let title = "Ratios: median of the rounds (bootstrap 95 % interval)".to_owned();
        sections.push(Section { title, table: ratios(report) });
    }
    sections
}

/// What a co-location comes to: for each system and mix the ratio of the tail to the yardstick with
/// its interval, and what batch work gets of the leftover.
pub fn headline(report: &BenchReport) -> Table {
    if report.bench == services::BENCH {
        return services::headline(report);
    }
    let compared = |case: &&str| {
        report.ratios.iter().any(|ratio| ratio.case == **case && ratio.against == BASE)
    };
    let cases: Vec<&str> = report.cases().into_iter().filter(compared).collect();
    let heads =
        cases.iter().flat_map(|case| [format!("{case}: p99.9 ÷ {BASE}"), "batch work".to_owned()]);
    let mut table = Table::new(std::iter::once("system".to_owned()).chain(heads));
    for system in cases.first().map(|case| served(report, case)).unwrap_or_default() {
        let cells = cases.iter().flat_map(|case| {
            let ratio = report.ratios.iter().find(|ratio| {
                ratio.case == *case
                    && ratio.system == system
                    && ratio.against == BASE
                    && ratio.metric == "lc_p999_us"
            });
            let tail = match ratio {
                Some(ratio) => format!(
                    "{} ({} to {})",
                    number(ratio.median),
                    number(ratio.low),
                    number(ratio.high)
                ),
                None if system == BASE => "1".to_owned(),
                None => "-".to_owned(),
            };
            [tail, Show::Percent.text(report.row(case, system, "be_share_of_leftover"))]
        });
        table.row(std::iter::once(system.to_owned()).chain(cells));
    }
    table
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

/// The systems in which a service answered requests: batch work alone is none.
fn served<'a>(report: &'a BenchReport, case: &str) -> Vec<&'a str> {
    let answered = |system: &&str| report.row(case, system, "lc_p999_us").is_some();
    report.systems(case).into_iter().filter(answered).collect()
}

fn colocation(report: &BenchReport, case: &str) -> Table {
    let mut table =
        Table::new(["system"].into_iter().chain(COLOCATION.iter().map(|(_, heading, _)| *heading)));
    for system in served(report, case) {
        let cells =
            COLOCATION.iter().map(|(metric, _, show)| show.text(report.row(case, system, metric)));
        table.row(std::iter::once(system.to_owned()).chain(cells));
    }
    table
}

/// Why the slowest requests were slow: a column for each cause that occurs. Means of the rounds: causes
/// that take turns have medians of nothing.
fn slowest(report: &BenchReport, case: &str) -> Option<Section> {
    let systems = served(report, case);
    let occurs = |metric: &str| {
        let mut rows = systems.iter().filter_map(|system| report.row(case, system, metric));
        rows.any(|row| mean(&row.raw) >= 0.005)
    };
    let columns: Vec<_> = CAUSES.into_iter().filter(|(_, metric, _)| occurs(metric)).collect();
    if columns.is_empty() {
        return None;
    }
    let headings = columns.iter().map(|(.., heading)| *heading);
    let mut table = Table::new(["system"].into_iter().chain(headings));
    for system in systems {
        let share = |metric| report.row(case, system, metric).map(|row| mean(&row.raw) * 100.0);
        let cells = columns.iter().map(|(_, metric, _)| {
            share(metric).map_or_else(|| "-".to_owned(), |share| format!("{share:.0} %"))
        });
        table.row(std::iter::once(system.to_owned()).chain(cells));
    }
    let title = format!("{case}: what the slowest 0.1 % of the requests waited for most");
    Some(Section { title, table })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
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
            let cells =
                metrics.iter().map(|metric| Show::Number.text(report.row(case, system, metric)));
            table.row(std::iter::once(format!("{case}: {system}")).chain(cells));
        }
    }
    let title = match cases {
        [only] => (*only).to_owned(),
        _ => "Measured".to_owned(),
    };
    Section { title, table }
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
    fn a_colocation_shows_every_system_and_what_is_missing() {
        let mut report = BenchReport::new("demo", "make demo");
        report.push("stream", "alone", "lc_p999_us", vec![100.0]);
        report.push("stream", "quell", "lc_p999_us", vec![110.0]);
        report.push("stream", "quell", "be_share_of_leftover", vec![0.93]);
        report.compare("stream", ("quell", &[110.0]), ("alone", &[100.0]), "lc_p999_us");
        let shown = text(&report);
        assert!(shown.contains("93 %") && shown.contains("1.10"), "{shown}");
        let alone = shown.lines().find(|line| line.starts_with("alone")).unwrap();
        assert!(alone.contains('-'), "{alone}");
    }

    #[test]
    fn the_headline_has_a_line_for_each_system() {
        let mut report = BenchReport::new("colocate", "quell bench colocate");
        for (case, quell) in [("stream", 110.0), ("hog", 120.0)] {
            report.push(case, BASE, "lc_p999_us", vec![100.0]);
            report.push(case, "quell", "lc_p999_us", vec![quell]);
            report.compare(case, ("quell", &[quell]), (BASE, &[100.0]), "lc_p999_us");
        }
        let shown = headline(&report).text();
        assert!(shown.contains("1.10 (1.10 to 1.10)") && shown.contains("1.20"), "{shown}");
        assert!(shown.lines().any(|line| line.starts_with(BASE)), "{shown}");
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
