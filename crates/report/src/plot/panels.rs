//! Charts above each other: curves over any axis, with published numbers as marks.

use std::path::Path;

use anyhow::Result;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::{Deserialize, Serialize};

use super::canvas::{self, Area, BOLD, COLOURS, Chart, Drawn, FONT, GREY, LIGHT, Look};

/// A picture: charts one above the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// The file's name without extension.
    pub name: String,
    /// The first line.
    pub title: String,
    /// The second line.
    pub subtitle: String,
    /// From top to bottom.
    pub panels: Vec<Panel>,
}

/// One chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// What is along, with its unit.
    pub x: String,
    /// What is up, with its unit.
    pub y: String,
    /// Whether the vertical axis is logarithmic.
    pub log: bool,
    /// Names of the places 0, 1, 2 … along; empty: a scale.
    pub names: Vec<String>,
    /// The curves.
    pub lines: Vec<Line>,
    /// Published numbers.
    pub marks: Vec<Mark>,
}

/// A curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// Where it goes through; a break where the vertical value is not a number or, on a logarithmic axis, not positive.
    pub points: Vec<(f64, Option<f64>)>,
    /// Drawn in grey dashes: what the others are compared with.
    pub reference: bool,
}

/// A published number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// What it is.
    pub text: String,
    /// How high.
    pub y: f64,
    /// Where along: a diamond; `None`: a level.
    pub x: Option<f64>,
}

const WIDTH: u32 = 1_000;
const LEGEND: u32 = 250;
const PANEL: u32 = 320;
const HEAD: u32 = 64;
const LABELS: (u32, u32) = (48, 90);
/// The colour of what is published.
const PUBLISHED: RGBColor = RGBColor(0, 0, 0);

/// Writes a picture as SVG and PNG into `folder`.
///
/// # Errors
/// When a file cannot be written or the font is missing.
pub fn panels(plot: &Plot, folder: &Path) -> Result<()> {
    canvas::write(&draw(plot)?, &folder.join(format!("{}.svg", plot.name)))
}

fn draw(plot: &Plot) -> Result<String> {
    let height = HEAD + PANEL * plot.panels.len() as u32;
    canvas::svg((WIDTH, height), |root| {
        let mut rest = canvas::titled(root, &plot.title, &plot.subtitle)?;
        for panel in &plot.panels {
            let (area, below) = rest.split_vertically(PANEL);
            draw_panel(&area, panel)?;
            rest = below;
        }
        Ok(())
    })
}

impl Plot {
    /// Whether there is anything to be seen.
    pub fn has_points(&self) -> bool {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        lines.flat_map(|line| &line.points).any(|(_, value)| value.is_some())
    }
}

impl Line {
    /// Drawn as what others are compared with.
    pub fn into_reference(mut self) -> Line {
        self.reference = true;
        self
    }
}

impl Panel {
    /// Curves over a scale, without marks.
    pub fn of(x: &str, y: &str, log: bool, lines: Vec<Line>) -> Panel {
        let (x, y) = (x.to_owned(), y.to_owned());
        Panel { x, y, log, names: Vec::new(), lines, marks: Vec::new() }
    }

    /// With a logarithmic scale of values.
    pub fn logarithmic(mut self) -> Panel {
        self.log = true;
        self
    }

    /// With names instead of numbers along the other scale.
    pub fn named(mut self, names: impl IntoIterator<Item = String>) -> Panel {
        self.names = names.into_iter().collect();
        self
    }

    /// What can be shown of a curve's value.
    fn visible(&self, value: Option<f64>) -> Option<f64> {
        value.filter(|value| value.is_finite() && (!self.log || *value > 0.0))
    }

    fn values(&self) -> impl Iterator<Item = f64> + Clone {
        let curves = self.lines.iter().flat_map(|line| &line.points);
        let curves = curves.filter_map(|(_, value)| self.visible(*value));
        curves.chain(self.marks.iter().map(|mark| mark.y))
    }

    fn along(&self) -> std::ops::Range<f64> {
        if !self.names.is_empty() {
            return -0.5..self.names.len() as f64 - 0.5;
        }
        let all = self.lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
        let last = all.fold(0.0, f64::max);
        0.0..if last > 0.0 { last } else { 1.0 }
    }

    fn look(&self, at: usize) -> Look {
        let line = &self.lines[at];
        let before = self.lines[..at].iter().filter(|line| !line.reference).count();
        match line.reference {
            true => Look { colour: GREY, dashed: true, width: 3 },
            false => Look {
                colour: COLOURS[before % COLOURS.len()],
                dashed: before >= COLOURS.len(),
                width: 2,
            },
        }
    }
}

fn draw_panel(area: &Area, panel: &Panel) -> Drawn {
    let (left, right) = area.split_horizontally(WIDTH - LEGEND);
    let mut builder = ChartBuilder::on(&left);
    builder.margin(12).x_label_area_size(LABELS.0).y_label_area_size(LABELS.1);
    let along = panel.along();
    if panel.log {
        let (low, high) = canvas::decades(panel.values()).unwrap_or((1.0, 10.0));
        let mut chart = builder.build_cartesian_2d(along, (low..high).log_scale())?;
        fill(&mut chart, panel)?;
    } else {
        let low = panel.values().fold(0.0, f64::min);
        let high = panel.values().fold(0.0, f64::max);
        let room = if high > low { (high - low) * 0.06 } else { 1.0 };
        let low = if low < 0.0 { low - room } else { 0.0 };
        let mut chart = builder.build_cartesian_2d(along, low..high + room)?;
        fill(&mut chart, panel)?;
    }
    let looks = (0..panel.lines.len()).map(|at| (panel.lines[at].name.as_str(), panel.look(at)));
    canvas::legend(&right, looks)
}

fn fill<Y>(chart: &mut Chart<plotters::coord::types::RangedCoordf64, Y>, panel: &Panel) -> Drawn
where
    Y: Ranged<ValueType = f64> + plotters::coord::ranged1d::ValueFormatter<f64>,
{
    let name = |x: &f64| match x.round() {
        at if panel.names.is_empty() => short(*x, at),
        at if (x - at).abs() < 0.01 && at >= 0.0 => {
            panel.names.get(at as usize).cloned().unwrap_or_default()
        }
        _ => String::new(),
    };
    let labels = if panel.names.is_empty() { 9 } else { 2 * panel.names.len() + 1 };
    chart
        .configure_mesh()
        .x_max_light_lines(1)
        .y_max_light_lines(if panel.log { 9 } else { 1 })
        .x_labels(labels)
        .x_label_formatter(&name)
        .y_label_formatter(&|value| crate::table::number(*value))
        .x_desc(panel.x.as_str())
        .y_desc(panel.y.as_str())
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .bold_line_style(BOLD)
        .light_line_style(LIGHT)
        .draw()?;
    for (at, line) in panel.lines.iter().enumerate() {
        let look = panel.look(at);
        for run in line.points.split(|(_, value)| panel.visible(*value).is_none()) {
            let points = run.iter().filter_map(|(x, value)| Some((*x, (*value)?)));
            canvas::line(chart, points.clone(), &look)?;
            // Few points are measurements; many are a timeline.
            if line.points.len() <= 24 && !line.reference {
                let dots = points.map(|point| Circle::new(point, 4, look.colour.filled()));
                chart.draw_series(dots)?;
            }
        }
    }
    panel.marks.iter().try_for_each(|mark| draw_mark(chart, panel, mark))
}

fn draw_mark<X, Y>(chart: &mut Chart<X, Y>, panel: &Panel, mark: &Mark) -> Drawn
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let along = panel.along();
    let text = |horizontal, vertical| {
        let style = (FONT, 13).into_font().color(&PUBLISHED);
        style.pos(Pos::new(horizontal, vertical))
    };
    let label = format!("paper: {}", mark.text);
    match mark.x {
        Some(x) => {
            let diamond = [(0, -7), (7, 0), (0, 7), (-7, 0)];
            chart.draw_series([EmptyElement::at((x, mark.y))
                + Polygon::new(diamond.to_vec(), PUBLISHED.filled())
                + Text::new(label, (11, 0), text(HPos::Left, VPos::Center))])?;
        }
        None => {
            let level = [(along.start, mark.y), (along.end, mark.y)];
            let look = Look { colour: PUBLISHED, dashed: true, width: 1 };
            canvas::line(chart, level.into_iter(), &look)?;
            chart.draw_series([EmptyElement::at((along.end, mark.y))
                + Text::new(label, (-6, -3), text(HPos::Right, VPos::Bottom))])?;
        }
    }
    Ok(())
}

/// A number on a scale.
fn short(x: f64, rounded: f64) -> String {
    if (x - rounded).abs() < 1e-9 { format!("{rounded:.0}") } else { crate::table::number(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, reference: bool) -> Line {
        let points = vec![(0.0, Some(1.0)), (1.0, Some(30.0)), (2.0, None), (3.0, Some(4.0))];
        Line { name: name.to_owned(), points, reference }
    }

    fn plot(log: bool, names: &[&str]) -> Plot {
        Plot {
            name: "x".to_owned(),
            title: "title".to_owned(),
            subtitle: "subtitle".to_owned(),
            panels: vec![Panel {
                x: "load, M/s".to_owned(),
                y: "tail, us".to_owned(),
                log,
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                lines: vec![line("alone", true), line("caladan", false)],
                marks: vec![
                    Mark { text: "6 times".to_owned(), y: 6.0, x: None },
                    Mark { text: "235 times".to_owned(), y: 235.0, x: Some(1.0) },
                ],
            }],
        }
    }

    #[test]
    fn curves_axes_and_published_numbers_are_drawn_the_same_to_the_byte() {
        for log in [true, false] {
            let plot = plot(log, &["a", "b", "c", "d"]);
            let svg = draw(&plot).unwrap();
            for text in [
                "title",
                "load, M/s",
                "tail, us",
                "caladan",
                "paper: 6 times",
                "paper: 235 times",
                "b",
            ] {
                assert!(svg.contains(&format!("\n{text}\n")), "{text}");
            }
            assert_eq!(svg, draw(&plot).unwrap());
            super::super::to_png(&svg).unwrap();
        }
    }

    #[test]
    fn nothing_to_show_is_an_empty_chart() {
        let mut plot = plot(true, &[]);
        plot.panels[0].marks.clear();
        plot.panels[0].lines.iter_mut().for_each(|line| line.points.clear());
        draw(&plot).unwrap();
    }
}
