//! The picture of a run: each system's dots over the cases, the floor beneath, published figures as marks.

use super::programs::System;
use super::{CALADAN, CASES, cases};
use quell_report::BenchReport;
use quell_report::plot::{Line, Mark, Panel, Plot};

/// Half of the width that the dots of a case take; the next case is 1 away.
const SPREAD: f64 = 0.3;

/// Adds the picture of what was measured.
pub fn draw(report: &mut BenchReport) {
    let panels = [
        (cases::NS_PER_OP, "time of an operation, ns"),
        (cases::P50, "latency, median, ns"),
        (cases::P99, "latency, 99th percentile, ns"),
        (cases::CPU_PER_OP, "processor time of an operation, ns"),
    ];
    let panels = panels.into_iter().map(|(metric, y)| panel(report, metric, y));
    let plot = Plot {
        name: "runtime".to_owned(),
        title: "Primitives of runtimes, on the same cores".to_owned(),
        subtitle: "medians of the rounds; grey: the primitives that none can avoid".to_owned(),
        panels: panels.filter(|panel| !panel.names.is_empty()).collect(),
    };
    report.plots.extend([plot].into_iter().filter(Plot::has_points));
}

/// One metric, over the cases that have it.
fn panel(report: &BenchReport, metric: &str, y: &str) -> Panel {
    let ours = System::Quell.name();
    let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
    let names: Vec<&str> =
        names.into_iter().filter(|case| report.row(case, ours, metric).is_some()).collect();
    let floor = System::Floor.name();
    let systems: Vec<&str> =
        System::ALL.into_iter().map(System::name).filter(|name| *name != floor).collect();
    let mut lines = dots(report, &names, &systems, metric);
    let levels = names.iter().enumerate().flat_map(|(at, case)| {
        let value = report.row(case, floor, metric).map(|row| row.median);
        let at = at as f64;
        // A level below the dots, and a break.
        [(at - SPREAD, value), (at + SPREAD, value), (at + SPREAD, None)]
    });
    lines.push(Line { name: floor.to_owned(), points: levels.collect(), reference: true });
    let marks = names.iter().enumerate().filter_map(|(at, case)| {
        let row = report.row(case, CALADAN, metric)?;
        let text = format!("{:.0} (Caladan)", row.median);
        Some(Mark { text, y: row.median, x: Some(at as f64) })
    });
    let marks = marks.collect();
    // The longest names would touch each other.
    let names = names.iter().map(|name| name.trim_start_matches("channel-").to_owned()).collect();
    Panel { names, marks, ..Panel::of("", y, true, lines) }
}

/// A line of single dots for each system, side by side over each case: there is nothing between two cases.
pub(crate) fn dots(
    report: &BenchReport,
    names: &[&str],
    systems: &[&str],
    metric: &str,
) -> Vec<Line> {
    side_by_side(systems, names.len(), |at, system| {
        report.row(names[at], system, metric).map(|row| row.median)
    })
}

/// As [`dots`], for any value of a place and a system.
pub(crate) fn side_by_side(
    systems: &[&str],
    places: usize,
    value: impl Fn(usize, &str) -> Option<f64>,
) -> Vec<Line> {
    let step = 2.0 * SPREAD / systems.len().saturating_sub(1).max(1) as f64;
    let line = |(of, system): (usize, &&str)| {
        let points = (0..places).flat_map(|at| {
            let x = at as f64 - SPREAD + of as f64 * step;
            [(x, value(at, system)), (x, None)]
        });
        Line { name: (*system).to_owned(), points: points.collect(), reference: false }
    };
    systems.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cases_that_were_measured_have_a_place_and_no_dot_is_joined_to_another() {
        let mut report = BenchReport::new("runtime", "test");
        draw(&mut report);
        assert!(report.plots.is_empty());
        for (case, value) in [("yield", 40.0), ("mutex", 5.0)] {
            report.push(case, "quell", cases::NS_PER_OP, vec![value]);
            report.push(case, "floor", cases::NS_PER_OP, vec![2.0]);
        }
        report.push("yield", CALADAN, cases::NS_PER_OP, vec![46.0]);
        draw(&mut report);
        let [plot] = &report.plots[..] else { panic!("{:?}", report.plots) };
        let [panel] = &plot.panels[..] else { panic!("{:?}", plot.panels) };
        assert_eq!(panel.names, ["mutex", "yield"]);
        let ours = &panel.lines[0];
        let seen: Vec<Option<f64>> = ours.points.iter().map(|(_, value)| *value).collect();
        assert_eq!(seen, [Some(5.0), None, Some(40.0), None]);
        assert_eq!(panel.marks.len(), 1);
        assert_eq!(panel.marks[0].x, Some(1.0));
    }
}
