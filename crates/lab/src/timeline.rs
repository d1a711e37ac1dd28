//! Latencies and rates over the time of a load.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use plotters::prelude::*;
use quell_load::{Latency, LoadReport, TimePoint};

use quell_report::plot::canvas::{self, Area, BOLD, Drawn, FONT, LEGEND_WIDTH, LIGHT, Look};

const SIZE: (u32, u32) = (1_100, 720);
/// What the latencies take of the height; the rates have the rest.
const LATENCY_HEIGHT: u32 = 430;
/// Room for the labels beneath a chart and beside it.
const LABELS: (u32, u32) = (48, 86);

/// A line: its name, its look, and its value at a point.
type Line<T> = (&'static str, Look, fn(&T) -> f64);

/// Drawn in this order: where lines meet, the broader ones stay visible beneath the others.
const LATENCIES: [Line<Latency>; 4] = [
    ("max", solid(RGBColor(213, 94, 0), 6), |latency| latency.max_us),
    ("p99.9", solid(RGBColor(230, 159, 0), 4), |latency| latency.p999_us),
    ("p99", solid(RGBColor(0, 158, 115), 2), |latency| latency.p99_us),
    ("p50", solid(RGBColor(0, 114, 178), 2), |latency| latency.p50_us),
];
const RATES: [Line<TimePoint>; 2] = [
    ("served", solid(RGBColor(0, 114, 178), 4), |point| point.served_rps),
    ("offered", Look { dashed: true, ..solid(RGBColor(0, 0, 0), 2) }, |point| point.offered_rps),
];

const fn solid(colour: RGBColor, width: u32) -> Look {
    Look { colour, dashed: false, width }
}

/// Draws latencies (median, 99 %, 99.9 %, longest) and rates (offered, served) of a load over its time,
/// as SVG and PNG. The extension of `path` does not matter. Returns the two files.
///
/// # Errors
/// When nothing was measured, a file cannot be written, or the font is missing.
pub fn timeline(report: &LoadReport, title: &str, path: &Path) -> Result<[PathBuf; 2]> {
    let title = format!("{title}: latency from the intended send time");
    let svg = draw(&report.timeline, &title, &subtitle(report))?;
    let path = path.with_extension("svg");
    canvas::write(&svg, &path)?;
    Ok([path.with_extension("png"), path])
}

fn draw(points: &[TimePoint], title: &str, subtitle: &str) -> Result<String> {
    let all = points.iter().flat_map(|point| [point.latency.min_us, point.latency.max_us]);
    let range =
        canvas::decades(all).context("nothing was measured, so there is nothing to plot")?;
    canvas::svg(SIZE, |root| {
        let (upper, lower) =
            canvas::titled(root, title, subtitle)?.split_vertically(LATENCY_HEIGHT);
        latencies(&upper, points, range)?;
        rates(&lower, points)
    })
}

fn subtitle(report: &LoadReport) -> String {
    let interval = report.timeline.first().map_or(0, |point| point.end_ns.since(point.start_ns).0);
    let mut text = format!(
        "{} requests in intervals of {} ms, each where it was due",
        report.overall.totals.scheduled,
        interval as f64 / 1e6
    );
    if report.samples_missing > 0 {
        text += &format!("; {} more are not shown", report.samples_missing);
    }
    text
}

/// Seconds from the start of the first point to its middle.
fn at(points: &[TimePoint], point: &TimePoint) -> f64 {
    let start = points.first().map_or(point.start_ns, |first| first.start_ns);
    (point.start_ns.since(start).0 + point.end_ns.since(start).0) as f64 / 2e9
}

fn seconds(points: &[TimePoint]) -> f64 {
    match points {
        [first, .., last] => last.end_ns.since(first.start_ns).0 as f64 / 1e9,
        [only] => only.end_ns.since(only.start_ns).0 as f64 / 1e9,
        [] => 1.0,
    }
}

fn latencies(area: &Area, points: &[TimePoint], (low, high): (f64, f64)) -> Drawn {
    let (left, right) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let mut chart = ChartBuilder::on(&left)
        .margin(14)
        .x_label_area_size(LABELS.0)
        .y_label_area_size(LABELS.1)
        .build_cartesian_2d(0.0..seconds(points), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_max_light_lines(1)
        .y_label_formatter(&|us| canvas::micros(*us))
        .x_desc("seconds")
        .y_desc("latency")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .bold_line_style(BOLD)
        .light_line_style(LIGHT)
        .draw()?;
    for (_, look, value) in &LATENCIES {
        // Where nothing was due there is no latency: the line ends and begins anew.
        for run in points.split(|point| point.latency.count == 0) {
            let line = run.iter().map(|point| (at(points, point), value(&point.latency)));
            canvas::line(&mut chart, line, look)?;
        }
    }
    canvas::legend(&right, LATENCIES.iter().map(|(name, look, _)| (*name, *look)))
}

fn rates(area: &Area, points: &[TimePoint]) -> Drawn {
    let (left, right) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let all = points.iter().flat_map(|point| [point.offered_rps, point.served_rps]);
    let highest = all.max_by(f64::total_cmp).unwrap_or_default().max(1.0);
    let mut chart = ChartBuilder::on(&left)
        .margin(14)
        .x_label_area_size(LABELS.0)
        .y_label_area_size(LABELS.1)
        .build_cartesian_2d(0.0..seconds(points), 0.0..highest * 1.05)?;
    chart
        .configure_mesh()
        .x_max_light_lines(1)
        .y_max_light_lines(1)
        .y_labels(5)
        .y_label_formatter(&|rate| thousands(*rate))
        .x_desc("seconds")
        .y_desc("requests/s")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .bold_line_style(BOLD)
        .light_line_style(LIGHT)
        .draw()?;
    for (_, look, value) in &RATES {
        let line = points.iter().map(|point| (at(points, point), value(point)));
        canvas::line(&mut chart, line, look)?;
    }
    canvas::legend(&right, RATES.iter().map(|(name, look, _)| (*name, *look)))
}

fn thousands(rate: f64) -> String {
    if rate >= 10_000.0 { format!("{:.0}k", rate / 1e3) } else { format!("{rate:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::Nanos;

    fn points(counts: &[u64]) -> Vec<TimePoint> {
        let point = |(at, &count): (usize, &u64)| {
            let us = if count == 0 { 0.0 } else { 20.0 + at as f64 };
            TimePoint {
                start_ns: Nanos::from_millis(50 * at as u64),
                end_ns: Nanos::from_millis(50 * (at as u64 + 1)),
                offered_rps: count as f64 * 20.0,
                served_rps: count as f64 * 19.0,
                latency: Latency {
                    count,
                    min_us: us / 2.0,
                    p50_us: us,
                    p99_us: us * 3.0,
                    p999_us: us * 9.0,
                    max_us: us * 30.0,
                    ..Latency::default()
                },
            }
        };
        counts.iter().enumerate().map(point).collect()
    }

    /// How often a colour is used: once in the legend, and for each piece of its line.
    fn strokes(svg: &str, colour: RGBColor) -> usize {
        let RGBColor(red, green, blue) = colour;
        svg.matches(&format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"")).count()
    }

    #[test]
    fn every_line_is_drawn_and_named_the_same_to_the_byte() {
        let svg = draw(&points(&[100, 200, 300, 400]), "title", "subtitle").unwrap();
        for text in ["title", "subtitle", "max", "p99.9", "p99", "p50", "served", "offered"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text}");
        }
        assert_eq!(svg, draw(&points(&[100, 200, 300, 400]), "title", "subtitle").unwrap());
        quell_report::plot::to_png(&svg).unwrap();
    }

    #[test]
    fn latency_lines_are_broken_where_nothing_was_due() {
        let whole = draw(&points(&[9; 7]), "", "").unwrap();
        let broken = draw(&points(&[9, 9, 9, 0, 9, 9, 9]), "", "").unwrap();
        for (name, look, _) in LATENCIES {
            let pieces = |svg| strokes(svg, look.colour);
            assert_eq!(pieces(&broken), pieces(&whole) + 1, "{name}");
        }
        draw(&points(&[9]), "", "").unwrap();
    }

    #[test]
    fn a_run_without_any_request_is_no_plot() {
        assert!(draw(&points(&[0, 0]), "", "").is_err() && draw(&[], "", "").is_err());
    }
}
