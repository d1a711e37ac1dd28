//! Latency distributions as SVG, and the SVG as PNG.
//!
//! The horizontal axis is 1 - 10^-x of the requests (90 %, 99 %, 99.9 % ... at equal distances), so
//! that the tail takes the room that it deserves; the vertical one is logarithmic. Colours are those
//! of Okabe and Ito ("Color Universal Design", 2008), told apart by colour-blind readers too.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use resvg::tiny_skia;
use resvg::usvg;

use crate::report::{BenchReport, Curve};

const SIZE: (u32, u32) = (1_000, 600);
const LEGEND_WIDTH: u32 = 170;
/// The text of plots; its package is installed by `scripts/setup.sh`.
const FONT: &str = "DejaVu Sans";
const FONT_FILE: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";

/// How a system looks in every plot.
struct Look {
    system: &'static str,
    colour: RGBColor,
    dashed: bool,
    width: u32,
}

const LOOKS: [Look; 7] = [
    Look { system: "alone", colour: RGBColor(120, 120, 120), dashed: true, width: 2 },
    Look { system: "alone-warm", colour: RGBColor(0, 0, 0), dashed: false, width: 2 },
    Look { system: "linux-default", colour: RGBColor(213, 94, 0), dashed: false, width: 2 },
    Look { system: "sched-idle", colour: RGBColor(230, 159, 0), dashed: false, width: 2 },
    Look { system: "sched-rr", colour: RGBColor(204, 121, 167), dashed: false, width: 2 },
    Look { system: "static", colour: RGBColor(0, 158, 115), dashed: true, width: 2 },
    Look { system: "quell", colour: RGBColor(0, 114, 178), dashed: false, width: 4 },
];
const OTHER: Look = Look { system: "", colour: RGBColor(86, 180, 233), dashed: false, width: 2 };

fn look(system: &str) -> &'static Look {
    LOOKS.iter().find(|look| look.system == system).unwrap_or(&OTHER)
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
        let svg = latency_svg(case, &subtitle(report), &curves)?;
        let path = folder.join(format!("{}-{case}.svg", report.bench));
        fs::write(&path, &svg).with_context(|| format!("write {}", path.display()))?;
        let png = path.with_extension("png");
        fs::write(&png, to_png(&svg)?).with_context(|| format!("write {}", png.display()))?;
        drawn.push((case.to_owned(), path));
    }
    Ok(drawn)
}

fn subtitle(report: &BenchReport) -> String {
    let rounds = report.rows.iter().map(|row| row.raw.len()).max().unwrap_or(0);
    let rounds = if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
    format!("{}, {rounds}, requests during hypervisor stalls removed", report.machine.cpu)
}

/// One plot as SVG text.
fn latency_svg(case: &str, subtitle: &str, curves: &[&Curve]) -> Result<String> {
    let (low, high) = range(curves).context("a plot needs a latency above zero")?;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&root, case, subtitle, curves, (low, high))
            .map_err(|err| anyhow!("draw {case}: {err}"))?;
    }
    Ok(svg)
}

/// Whole decades around all latencies.
fn range(curves: &[&Curve]) -> Option<(f64, f64)> {
    let latencies = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
    let positive = || latencies().filter(|latency| *latency > 0.0);
    let low = positive().min_by(f64::total_cmp)?.log10().floor();
    let high = positive().max_by(f64::total_cmp)?.log10().ceil().max(low + 1.0);
    Some((10f64.powf(low), 10f64.powf(high)))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(
    root: &Area,
    case: &str,
    subtitle: &str,
    curves: &[&Curve],
    (low, high): (f64, f64),
) -> Drawn {
    root.fill(&WHITE)?;
    let title = format!("memcached beside {case}: latency from the intended send time");
    root.draw(&Text::new(title, (20, 16), (FONT, 20).into_font()))?;
    root.draw(&Text::new(subtitle.to_owned(), (20, 44), (FONT, 13).into_font().color(&GREY)))?;
    let (_, below) = root.split_vertically(64);
    let (left, right) = below.split_horizontally(SIZE.0 - LEGEND_WIDTH);
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
        .y_label_formatter(&|us| micros(*us))
        .x_desc("share of the requests that is not slower")
        .y_desc("latency")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .bold_line_style(RGBColor(205, 205, 205))
        .light_line_style(RGBColor(238, 238, 238))
        .draw()?;
    for curve in curves {
        let look = look(&curve.system);
        let points = curve
            .points
            .iter()
            .filter(|point| point.1 > 0.0)
            .map(|point| (position(point.0), point.1));
        let style = look.colour.stroke_width(look.width);
        if look.dashed {
            chart.draw_series(DashedLineSeries::new(points, 7, 5, style))?;
        } else {
            chart.draw_series(LineSeries::new(points, style))?;
        }
    }
    legend(&right, curves)
}

const GREY: RGBColor = RGBColor(90, 90, 90);

/// Beside the plot, where it covers no curve.
fn legend(area: &Area, curves: &[&Curve]) -> Drawn {
    let text = (FONT, 14).into_font().into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
    for (at, curve) in curves.iter().enumerate() {
        let (look, y) = (look(&curve.system), 32 + 26 * at as i32);
        let style = look.colour.stroke_width(look.width);
        let pieces: &[(i32, i32)] = if look.dashed { &[(6, 15), (21, 30)] } else { &[(6, 30)] };
        for &(from, to) in pieces {
            area.draw(&PathElement::new(vec![(from, y), (to, y)], style))?;
        }
        area.draw(&Text::new(curve.system.clone(), (38, y), text.clone()))?;
    }
    Ok(())
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

fn micros(us: f64) -> String {
    match us {
        us if us >= 999_999.0 => format!("{:.0} s", us / 1e6),
        us if us >= 999.0 => format!("{:.0} ms", us / 1e3),
        us if us >= 0.999 => format!("{us:.0} µs"),
        us => format!("{:.0} ns", us * 1e3),
    }
}

/// Renders SVG as PNG with the one font, so that the same SVG gives the same bytes everywhere.
///
/// # Errors
/// When the font is missing or the SVG does not parse.
pub fn to_png(svg: &str) -> Result<Vec<u8>> {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_file(FONT_FILE).with_context(|| {
        format!("{FONT_FILE} is missing; install the package fonts-dejavu-core")
    })?;
    let options = usvg::Options {
        fontdb: Arc::new(fonts),
        font_family: FONT.to_owned(),
        ..Default::default()
    };
    let tree = usvg::Tree::from_str(svg, &options).context("parse the plot")?;
    let size = tree.size().to_int_size();
    let Some(mut pixels) = tiny_skia::Pixmap::new(size.width() * 2, size.height() * 2) else {
        bail!("the plot has no size");
    };
    let double = tiny_skia::Transform::from_scale(2.0, 2.0);
    resvg::render(&tree, double, &mut pixels.as_mut());
    pixels.encode_png().context("encode the plot")
}

#[cfg(test)]
mod tests {
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
        for (at, look) in LOOKS.iter().enumerate() {
            report.push("stream", look.system, "lc_p999_us", vec![100.0]);
            let points = (0..50).map(|x| f64::from(x) / 10.0);
            let points = points.map(|x| (1.0 - 10f64.powf(-x), 10.0 + x.powi(3) * at as f64 * 8.0));
            report.curves.push(Curve {
                case: "stream".into(),
                system: look.system.into(),
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
