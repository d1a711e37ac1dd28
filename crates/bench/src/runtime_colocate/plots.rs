//! The pictures of a run: one for each part.

use super::{bimodal, grant, service};
use crate::runtime::plots::side_by_side;
use quell_report::BenchReport;
use quell_report::plot::{Line, Panel, Plot};

/// Adds the pictures of what was measured.
pub fn draw(report: &mut BenchReport) {
    let all = [service_plot(report), grant_plot(report), bimodal_plot(report)];
    report.plots.extend(all.into_iter().filter(Plot::has_points));
}

/// Metrics of one case side by side, systems as dots.
fn compared(
    report: &BenchReport,
    case: &str,
    systems: &[&str],
    metrics: &[(&str, &str)],
    y: &str,
) -> Panel {
    let lines = side_by_side(systems, metrics.len(), |at, system| {
        report.row(case, system, metrics[at].0).map(|row| row.median)
    });
    let names = metrics.iter().map(|(_, name)| (*name).to_owned()).collect();
    Panel { names, ..Panel::of("", y, true, lines) }
}

fn service_plot(report: &BenchReport) -> Plot {
    let metrics = [("p50_us", "median"), ("p99_us", "99 %"), ("p999_us", "99.9 %")];
    let systems = service::systems();
    Plot {
        name: "runtime-colocate-service".to_owned(),
        title: "A key-value server on the runtime, beside batch work on its core".to_owned(),
        subtitle: "latency at an open-loop client; medians of the rounds".to_owned(),
        panels: vec![compared(report, service::CASE, &systems, &metrics, "latency, us")],
    }
}

fn grant_plot(report: &BenchReport) -> Plot {
    let metrics = [(grant::METRICS[0], "median"), (grant::METRICS[1], "99 %")];
    let systems = grant::SYSTEMS.map(|(name, _)| name);
    Plot {
        name: "runtime-colocate-grant".to_owned(),
        title: "From making a uthread ready in a runtime that sleeps until it runs".to_owned(),
        subtitle: "medians of the rounds".to_owned(),
        panels: vec![compared(report, grant::CASE, &systems, &metrics, "latency, ns")],
    }
}

fn bimodal_plot(report: &BenchReport) -> Plot {
    let panel = |metric: &str, y: &str| {
        let lines = bimodal::SYSTEMS.iter().map(|(system, ..)| Line {
            name: (*system).to_owned(),
            points: bimodal::RATES
                .iter()
                .map(|&rate| {
                    let row = report.row(&bimodal::case(rate), system, metric);
                    (rate / 1e3, row.map(|row| row.median))
                })
                .collect(),
            reference: false,
        });
        Panel::of("thousand requests a second", y, true, lines.collect())
    };
    Plot {
        name: "runtime-colocate-bimodal".to_owned(),
        title: "Short requests behind long ones on one core, by the kind of quantum".to_owned(),
        subtitle:
            "1 us each; one in 200 takes 1 ms; latency of the short ones, medians of the rounds"
                .into(),
        panels: vec![
            panel("p99_us", "99th percentile, us"),
            panel("p90_us", "90th percentile, us"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_measured_is_drawn() {
        let mut report = BenchReport::new("runtime-colocate", "test");
        draw(&mut report);
        assert!(report.plots.is_empty());
        let (system, ..) = bimodal::SYSTEMS[2];
        report.push(&bimodal::case(bimodal::RATES[1]), system, "p99_us", vec![120.0]);
        report.push(service::CASE, "quell", "p50_us", vec![30.0]);
        draw(&mut report);
        let names: Vec<&str> = report.plots.iter().map(|plot| plot.name.as_str()).collect();
        assert_eq!(names, ["runtime-colocate-service", "runtime-colocate-bimodal"]);
        let line = &report.plots[1].panels[0].lines[2];
        assert_eq!(line.points[1], (bimodal::RATES[1] / 1e3, Some(120.0)));
    }
}
