//! The pictures of a run: what the article draws, with its numbers as marks.

use quell_model::Nanos;

use super::bimodal::{self, RATES_KRPS};
use super::sharing::Pattern;
use super::{requests, turns};
use crate::runtime::plots::side_by_side;
use quell_report::BenchReport;
use quell_report::plot::{Line, Panel, Plot};

/// Adds the pictures of what was measured.
pub fn draw(report: &mut BenchReport, slices: &[Nanos]) {
    let all = [
        turns_plot(report, slices),
        slices_plot(report, slices),
        table_plot(report),
        bimodal_plot(report),
    ];
    report.plots.extend(all.into_iter().filter(Plot::has_points));
}

/// A curve through the medians of rows.
fn line(
    report: &BenchReport,
    name: String,
    metric: &str,
    reference: bool,
    rows: impl Iterator<Item = (f64, String, String)>,
) -> Line {
    let point = |(x, case, system): (f64, String, String)| {
        (x, report.row(&case, &system, metric).map(|row| row.median))
    };
    Line { name, points: rows.map(point).collect(), reference }
}

fn micros(slice: &Nanos) -> f64 {
    slice.0 as f64 / 1e3
}

/// Section 3.1.
fn turns_plot(report: &BenchReport, slices: &[Nanos]) -> Plot {
    let panel = |metric: &str, y: &str, log: bool, paper: bool| {
        let mut lines = Vec::new();
        for target in turns::Target::ALL {
            for pattern in Pattern::ALL {
                let rows = |system: &'static str| {
                    slices.iter().map(move |slice| {
                        (micros(slice), turns::case(target, pattern, *slice), system.to_owned())
                    })
                };
                let name = format!("{} {}", target.name(), pattern.name());
                lines.push(line(report, name, metric, false, rows("quell")));
                if paper && target == turns::Target::Process {
                    let name = format!("paper, {}", pattern.name());
                    lines.push(line(report, name, metric, true, rows("paper")));
                }
            }
        }
        Panel::of("slice, us", y, log, lines)
    };
    Plot {
        name: "lanes-turns".to_owned(),
        title: "Two busy loops on a lane: turns, gaps between them, and what is left of the core"
            .into(),
        subtitle: "medians of the rounds; grey: the article (bare metal)".to_owned(),
        panels: vec![
            panel("slice_us_mean", "length of a slice, us", true, true),
            panel("gap_us_mean", "gap until the next slice, us", true, true),
            panel("share", "work of each loop, of a whole core's", false, false),
        ],
    }
}

/// Section 3.2.
fn slices_plot(report: &BenchReport, slices: &[Nanos]) -> Plot {
    let panel = |metric: &str, y: &str, log: bool| {
        let mut lines = Vec::new();
        for (target, waits, pattern) in requests::kinds() {
            let rows = slices.iter().map(|slice| {
                let system = requests::system("quell", *slice);
                (micros(slice), requests::case(target, waits, pattern), system)
            });
            let name = format!("{} server, {}", requests::server(target, waits), pattern.name());
            lines.push(line(report, name, metric, false, rows));
        }
        Panel::of("slice, us", y, log, lines)
    };
    Plot {
        name: "lanes-slices".to_owned(),
        title: "A server beside a busy loop on one core, by the length of the slice".to_owned(),
        subtitle:
            "10,000 requests of 2 us a second, and as many as it can do; medians of the rounds"
                .into(),
        panels: vec![
            panel("p99_us", "99th percentile, us", true),
            panel("peak_rps", "requests a second at most", false),
        ],
    }
}

/// Section 3.3.
fn table_plot(report: &BenchReport) -> Plot {
    let cells = requests::cells_of_tables();
    let kinds: Vec<_> = requests::kinds().collect();
    let tables = requests::TABLES.map(|(name, _)| name);
    // Programs and guests apart: all names would not fit beside each other.
    let panels = [0..kinds.len() / 2, kinds.len() / 2..kinds.len()].map(|places| {
        let lines = side_by_side(&tables, places.len(), |at, table| {
            let case = &cells[(places.start + at) * tables.len()].case;
            report.row(case, table, "p99_us").map(|row| row.median)
        });
        let name = |(target, waits, pattern): &(turns::Target, _, Pattern)| {
            let server = requests::server(*target, *waits).replace(" (TCG)", "");
            format!("{server}, {}", pattern.name())
        };
        let names = kinds[places].iter().map(name).collect();
        Panel { names, ..Panel::of("", "99th percentile, us", true, lines) }
    });
    Plot {
        name: "lanes-table".to_owned(),
        title: "A server with half of a core beside two busy loops, by the order of turns".into(),
        subtitle: "turns of 50 us, 10,000 requests of 2 us a second; medians of the rounds".into(),
        panels: panels.into(),
    }
}

/// Section 3.4.
fn bimodal_plot(report: &BenchReport) -> Plot {
    let panel = |load: &str, y: &str| {
        let lines = bimodal::SYSTEMS.iter().map(|(system, _)| {
            let rows = RATES_KRPS
                .iter()
                .map(|krps| (*krps as f64, bimodal::case(load, *krps), (*system).to_owned()));
            line(report, (*system).to_owned(), "p99_us", false, rows)
        });
        Panel::of("thousand requests a second", y, true, lines.collect())
    };
    Plot {
        name: "lanes-bimodal".to_owned(),
        title: "Short requests behind long ones, on plain pthreads: 99th percentile".to_owned(),
        subtitle: "0.5 us each; above, one in 200 takes 500 us".to_owned(),
        panels: vec![panel("bimodal", "with long ones, us"), panel("fixed", "without, us")],
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::Waits;
    use super::*;

    #[test]
    fn only_what_was_measured_is_drawn() {
        let mut report = BenchReport::new("lanes", "test");
        let slices = [Nanos::from_micros(10), Nanos::from_micros(100)];
        draw(&mut report, &slices);
        assert!(report.plots.is_empty());
        report.push("bimodal", "preemptive", "p99_us", vec![100.0]);
        let case = requests::case(turns::Target::Process, Waits::Epoll, Pattern::Shared);
        report.push(&case, &requests::system("quell", slices[1]), "p99_us", vec![9.0]);
        report.push("table", "A-B-A-C", "p99_us", vec![7.0]);
        draw(&mut report, &slices);
        let names: Vec<&str> = report.plots.iter().map(|plot| plot.name.as_str()).collect();
        assert_eq!(names, ["lanes-slices", "lanes-table", "lanes-bimodal"]);
        let points: Vec<f64> = report.plots[0].panels[0]
            .lines
            .iter()
            .flat_map(|line| line.points.iter().filter_map(|(_, value)| *value))
            .collect();
        assert_eq!(points, [9.0]);
    }
}
