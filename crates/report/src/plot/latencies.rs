//! Latency distributions.
//!
//! The horizontal axis is 1 - 10^-x of the requests (90 %, 99 %, 99.9 % ... at equal distances), so
//! that the tail takes the room that it deserves; the vertical one is logarithmic.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use plotters::prelude::*;

use super::canvas::{self, Area, BOLD, Drawn, FONT, LEGEND_WIDTH, LIGHT, Look};
use crate::result::{BenchReport, Curve};

const SIZE: (u32, u32) = (1_000, 600);

/// How each system looks in every plot.
const LOOKS: [(&str, Look); 7] = [
    ("alone", Look { colour: RGBColor(120, 120, 120), dashed: true, width: 2 }),
    ("alone-idle-poll", Look { colour: RGBColor(0, 0, 0), dashed: false, width: 2 }),
    ("linux-default", Look { colour: RGBColor(213, 94, 0), dashed: false, width: 2 }),
    ("sched-idle", Look { colour: RGBColor(230, 159, 0), dashed: false, width: 2 }),
    ("sched-rr", Look { colour: RGBColor(204, 121, 167), dashed: false, width: 2 }),
    ("static", Look { colour: RGBColor(0, 158, 115), dashed: true, width: 2 }),
    ("quell", Look { colour: RGBColor(0, 114, 178), dashed: false, width: 4 }),
];
const OTHER: Look = Look { colour: RGBColor(86, 180, 233), dashed: false, width: 2 };

fn look(system: &str) -> Look {
    LOOKS.iter().find(|(name, _)| *name == system).map_or(OTHER, |(_, look)| *look)
}

/// Draws the latency distributions of each case that has some, as `BENCH-CASE.svg` and `.png` in
/// `folder`. Returns the pairs of a case and its SVG.
///
/// # Errors
/// When a file cannot be written or the font is missing.
pub fn latencies(report: &BenchReport, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let mut drawn = Vec::new();
    for case in report.cases() {
        let curves: Vec<&Curve> = report.curves.iter().filter(|curve| curve.case == case).collect();
        if curves.is_empty() {
            continue;
        }
        let service = report.service().unwrap_or("the service");
        let title = format!("{service} beside {case}: latency from the intended send time");
        let latencies = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
        let range = canvas::decades(latencies).context("a plot needs a latency above zero")?;
        let svg = canvas::svg(SIZE, |root| {
            draw(&canvas::titled(root, &title, &subtitle(report))?, &curves, range)
        })
        .with_context(|| case.to_owned())?;
        let path = folder.join(format!("{}-{case}.svg", report.bench));
        canvas::write(&svg, &path)?;
        drawn.push((case.to_owned(), path));
    }
    Ok(drawn)
}

fn subtitle(report: &BenchReport) -> String {
    let rounds = report.rows.iter().map(|row| row.raw.len()).max().unwrap_or(0);
    let rounds = if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
    format!("{}, {rounds}, requests during hypervisor stalls removed", report.machine.cpu)
}

fn draw(area: &Area, curves: &[&Curve], (low, high): (f64, f64)) -> Drawn {
    let (left, right) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let last = curves.iter().flat_map(|curve| &curve.points).map(|point| position(point.0));
    let last = last.max_by(f64::total_cmp).unwrap_or(4.0).ceil();
    let mut chart = ChartBuilder::on(&left)
        .margin(14)
        .x_label_area_size(48)
        .y_label_area_size(86)
        .build_cartesian_2d(0.0..last, (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_labels(last as usize + 1)
        .x_max_light_lines(1)
        .x_label_formatter(&|x| share(*x))
        .y_label_formatter(&|us| canvas::micros(*us))
        .x_desc("share of the requests that is not slower")
        .y_desc("latency")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .bold_line_style(BOLD)
        .light_line_style(LIGHT)
        .draw()?;
    for curve in curves {
        let visible = curve.points.iter().filter(|point| point.1 > 0.0);
        let points = visible.map(|point| (position(point.0), point.1));
        canvas::line(&mut chart, points, &look(&curve.system))?;
    }
    canvas::legend(&right, curves.iter().map(|curve| (curve.system.as_str(), look(&curve.system))))
}

/// Where a quantile stands on the axis.
fn position(quantile: f64) -> f64 {
    -(1.0 - quantile.min(1.0 - 1e-7)).log10()
}

fn share(position: f64) -> String {
    match position.round() as u32 {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        nines => format!("99.{} %", "9".repeat(nines as usize - 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::canvas::micros;
    use super::*;

    #[test]
    fn equal_factors_of_rarity_stand_at_equal_distances() {
        let positions = [0.0, 0.9, 0.99, 0.999].map(position);
        for (at, position) in positions.into_iter().enumerate() {
            assert!((position - at as f64).abs() < 1e-6, "{position}");
        }
        assert_eq!([0.0, 1.0, 3.0, 4.0].map(share), ["0 %", "90 %", "99.9 %", "99.99 %"]);
        assert_eq!([10.0, 1_000.0].map(micros), ["10 µs", "1 ms"]);
    }

    #[test]
    fn plots_are_the_same_to_the_byte() {
        let mut report = BenchReport::new("sample", "quell bench sample");
        for (at, (system, _)) in LOOKS.iter().enumerate() {
            report.push("stream", system, "lc_p999_us", vec![100.0]);
            let points = (0..50).map(|x| f64::from(x) / 10.0);
            let points = points.map(|x| (1.0 - 10f64.powf(-x), 10.0 + x.powi(3) * at as f64 * 8.0));
            report.curves.push(Curve {
                case: "stream".into(),
                system: (*system).into(),
                points: points.collect(),
            });
        }
        let folder = tempfile::tempdir().unwrap();
        let drawn = latencies(&report, folder.path()).unwrap();
        let bytes = |extension| fs::read(drawn[0].1.with_extension(extension)).unwrap();
        let (svg, png) = (bytes("svg"), bytes("png"));
        if let Some(kept) = std::env::var_os("QUELL_KEEP_PLOT") {
            fs::write(kept, &png).unwrap();
        }
        latencies(&report, folder.path()).unwrap();
        assert_eq!((svg, png), (bytes("svg"), bytes("png")));
    }
}
