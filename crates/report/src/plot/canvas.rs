//! What all plots share: colours, fonts, titles, legends, lines, and the two files of each plot.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::to_png;

/// The width of a legend, in units of the SVG.
pub const LEGEND_WIDTH: u32 = 170;
/// Above the first entry of a legend, and from entry to entry: at least, where there are many, and at most.
pub const LEGEND_HEAD: u32 = 32;
/// From entry to entry of a legend: at least, where there are many, and at most.
pub const LEGEND_PITCH: (u32, u32) = (16, 26);
/// The text of plots; its package is installed by `scripts/setup.sh`.
pub const FONT: &str = "DejaVu Sans";
/// Text of second rank.
pub const GREY: RGBColor = RGBColor(90, 90, 90);
/// Lines of the mesh.
pub const BOLD: RGBColor = RGBColor(205, 205, 205);
/// Fine lines of the mesh.
pub const LIGHT: RGBColor = RGBColor(238, 238, 238);

/// Okabe and Ito's, without the yellow that is hard to see on white.
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];

/// How a line looks.
#[derive(Clone, Copy)]
pub struct Look {
    /// Its colour.
    pub colour: RGBColor,
    /// Dashed rather than solid.
    pub dashed: bool,
    /// Its width in pixels.
    pub width: u32,
}

/// A part of a plot.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A chart in a plot.
pub type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;
/// The result of drawing.
pub type Drawn = Result<(), Box<dyn std::error::Error>>;

/// What `draw` draws, as SVG text.
pub fn svg(size: (u32, u32), draw: impl FnOnce(&Area) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(|error| anyhow!("draw: {error}"))?;
        draw(&root).map_err(|error| anyhow!("draw: {error}"))?;
    }
    Ok(without_dots(&svg))
}

/// Without polylines whose points all are the same pixel: there is nothing to stroke, and renderers complain.
fn without_dots(svg: &str) -> String {
    let is_dot = |line: &str| {
        let points = line.strip_prefix("<polyline ").and_then(|line| line.split_once("points=\""));
        points.and_then(|(_, rest)| rest.split_once('"')).is_some_and(|(points, _)| {
            let mut points = points.split_whitespace();
            let first = points.next();
            points.all(|point| Some(point) == first)
        })
    };
    svg.split_inclusive('\n').filter(|line| !is_dot(line)).collect()
}

/// Writes a plot to `path`, whose extension is to be `svg`, and as PNG beside it.
pub fn write(svg: &str, path: &Path) -> Result<()> {
    fs::write(path, svg).with_context(|| format!("write {}", path.display()))?;
    let png = path.with_extension("png");
    fs::write(&png, to_png(svg)?).with_context(|| format!("write {}", png.display()))
}

/// Writes title and subtitle, and returns the area below them.
pub fn titled<'a>(
    root: &Area<'a>,
    title: &str,
    subtitle: &str,
) -> Result<Area<'a>, Box<dyn std::error::Error>> {
    root.draw(&Text::new(title.to_owned(), (20, 16), (FONT, 20).into_font()))?;
    root.draw(&Text::new(subtitle.to_owned(), (20, 44), (FONT, 13).into_font().color(&GREY)))?;
    Ok(root.split_vertically(64).1)
}

/// Whole decades around all positive latencies, `None` without any.
pub fn decades(latencies: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let positive = || latencies.clone().filter(|latency| *latency > 0.0);
    let low = positive().min_by(f64::total_cmp)?.log10().floor();
    let high = positive().max_by(f64::total_cmp)?.log10().ceil().max(low + 1.0);
    Some((10f64.powf(low), 10f64.powf(high)))
}

/// Draws a line, or a dot where it has one point.
///
/// # Errors
/// Those of the drawing library.
pub fn line<X, Y>(
    chart: &mut Chart<X, Y>,
    points: impl Iterator<Item = (f64, f64)> + Clone,
    look: &Look,
) -> Drawn
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let style = look.colour.stroke_width(look.width);
    if points.clone().nth(1).is_none() {
        // A line of one point would not be seen.
        chart.draw_series(points.map(|point| Circle::new(point, 2, look.colour.filled())))?;
    } else if look.dashed {
        chart.draw_series(DashedLineSeries::new(points, 7, 5, style))?;
    } else {
        chart.draw_series(LineSeries::new(points, style))?;
    }
    Ok(())
}

/// Beside the plot, where it covers no line.
pub fn legend<'a>(area: &Area, entries: impl Iterator<Item = (&'a str, Look)>) -> Drawn {
    let entries: Vec<_> = entries.collect();
    let room = area.dim_in_pixel().1.saturating_sub(LEGEND_HEAD) / entries.len().max(1) as u32;
    let pitch = room.clamp(LEGEND_PITCH.0, LEGEND_PITCH.1);
    let text = (FONT, 14.min(pitch - 3)).into_font();
    let text = text.into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
    for (at, (name, look)) in entries.into_iter().enumerate() {
        let y = (LEGEND_HEAD + pitch * at as u32) as i32;
        let style = look.colour.stroke_width(look.width);
        let pieces: &[(i32, i32)] = if look.dashed { &[(6, 15), (21, 30)] } else { &[(6, 30)] };
        for &(from, to) in pieces {
            area.draw(&PathElement::new(vec![(from, y), (to, y)], style))?;
        }
        area.draw(&Text::new(name.to_owned(), (38, y), text.clone()))?;
    }
    Ok(())
}

/// A time in microseconds as the label of an axis.
pub fn micros(us: f64) -> String {
    match us {
        us if us >= 999_999.0 => format!("{:.0} s", us / 1e6),
        us if us >= 999.0 => format!("{:.0} ms", us / 1e3),
        us if us >= 0.999 => format!("{us:.0} µs"),
        us => format!("{:.0} ns", us * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polyline_without_extent_is_left_out() {
        let dot = "<polyline fill=\"none\" points=\"5,6 5,6 \"/>\n";
        let lone = "<polyline fill=\"none\" points=\"5,6 \"/>\n";
        let line = "<polyline fill=\"none\" points=\"5,6 5,7 \"/>\n";
        assert_eq!(
            without_dots(&format!("<svg>\n{dot}{line}{lone}</svg>\n")),
            format!("<svg>\n{line}</svg>\n")
        );
    }
}
