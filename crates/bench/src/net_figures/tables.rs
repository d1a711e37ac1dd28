//! The report as tables: one a figure, with the paper's figures.

use quell_report::BenchReport;
use quell_report::table::{Section, Table, number};

use super::{Arm, FIGURES, Figure};

/// The beginning of a note about an arm that cannot be run here.
fn unavailable_mark(figure: &str, arm: &str) -> String {
    format!("n/a: {figure}: {arm}: ")
}

/// The note about an arm that cannot be run here.
pub fn unavailable(figure: &str, arm: &str, error: &anyhow::Error) -> String {
    format!("{}{error:#}", unavailable_mark(figure, arm))
}

/// A table for each figure of the report.
pub fn sections(report: &BenchReport) -> Vec<Section> {
    let is_there =
        |figure: &&Figure| figure.arms.iter().any(|arm| has_row(report, figure, arm).is_some());
    FIGURES.iter().filter(is_there).map(|figure| section(report, figure)).collect()
}

/// Whether an arm was measured; `None` where it was not tried.
fn has_row(report: &BenchReport, figure: &Figure, arm: &Arm) -> Option<bool> {
    let is_measured = report.row(figure.name, arm.name, figure.metrics[0]).is_some();
    let mark = unavailable_mark(figure.name, arm.name);
    let is_unavailable = report.notes.iter().any(|note| note.starts_with(&mark));
    (is_measured || is_unavailable).then_some(is_measured)
}

fn section(report: &BenchReport, figure: &Figure) -> Section {
    let has_paper = figure.arms.iter().any(|arm| !arm.paper.is_empty());
    let shown = |metric: &&&str| {
        figure.arms.iter().any(|arm| report.row(figure.name, arm.name, metric).is_some())
    };
    let metrics: Vec<&str> = figure.metrics.iter().filter(shown).copied().collect();
    let ratio = format!("{} ÷ {}", figure.metrics[0], figure.base);
    let paper = has_paper.then(|| "paper".to_owned());
    let head = std::iter::once("system".to_owned()).chain(paper);
    let head = head.chain(metrics.iter().map(|metric| (*metric).to_owned()));
    let mut table = Table::new(head.chain(std::iter::once(ratio)));
    for arm in figure.arms {
        let Some(is_measured) = has_row(report, figure, arm) else { continue };
        let paper = has_paper.then(|| arm.paper.to_owned());
        let cell = |metric: &&str| match report.row(figure.name, arm.name, metric) {
            Some(row) => number(row.median),
            None if is_measured => "-".to_owned(),
            None => "n/a".to_owned(),
        };
        let ratio = report.ratio(figure.name, arm.name, figure.metrics[0]);
        let ratio = ratio
            .map(|it| format!("{} ({} to {})", number(it.median), number(it.low), number(it.high)));
        let cells = std::iter::once(arm.name.to_owned()).chain(paper);
        let cells = cells.chain(metrics.iter().map(cell));
        table.row(cells.chain(std::iter::once(ratio.unwrap_or_default())));
    }
    Section { title: figure.title.to_owned(), table }
}

#[cfg(test)]
mod tests {
    use super::super::BENCH;
    use super::*;

    #[test]
    fn arm_that_cannot_be_run_is_a_row() {
        let mut report = BenchReport::new(BENCH, "test");
        report.push("figure-6a", "tcp", "gbit_per_s", vec![40.0]);
        report.push("figure-6a", "quell, copies inline", "gbit_per_s", vec![20.0]);
        report.compare(
            "figure-6a",
            ("quell, copies inline", &[20.0]),
            ("tcp", &[40.0]),
            "gbit_per_s",
        );
        let error = anyhow::anyhow!("no system is called quell-workers");
        report.notes.push(unavailable("figure-6a", "quell, copy workers", &error));
        let sections = sections(&report);
        assert_eq!(sections.len(), 1, "no other figure was tried");
        let text = sections[0].table.text();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let cells = lines[0].split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        assert_eq!(cells.collect::<Vec<_>>(), ["system", "gbit_per_s", "gbit_per_s ÷ tcp"]);
        assert!(lines[3].ends_with("0.50 (0.50 to 0.50)"), "{text}");
        assert!(lines[4].starts_with("quell, copy workers") && lines[4].ends_with("n/a"), "{text}");
    }
}
