//! The picture as SVG, for papers and reports.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use quell_model::Nanos;

use crate::grid::Cell;
use crate::overlay::{Marks, boxes};
use crate::palette::{Colours, Palette, Rgb, Theme};
use crate::picture::Picture;
use crate::raster::Raster;

/// The text of images; its package is installed by `scripts/setup.sh`.
const FONT: &str = "DejaVu Sans";
const LEFT: u32 = 96;
const RIGHT: u32 = 24;
const TOP: u32 = 76;
const TITLE: u32 = 26;
const BETWEEN: u32 = 30;
/// The height that a heat map takes where its rows can be that high.
const MAP_HEIGHT: u32 = 384;
/// The frame of a wake-up onto a busy core.
const BOX: Rgb = [0; 3];

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image has no size or too large a one.
    #[error("an image of this size cannot be made; choose another --width or a shorter --range")]
    Size,
    /// Too many strips.
    #[error(
        "the recording is too long for one image in the classic layout; choose a shorter --range"
    )]
    TooLong,
    /// PNG could not be written.
    #[error("the image could not be encoded")]
    Encode,
    /// Not an image of the classic layout.
    #[error("this is no image of run-queue sizes in the classic layout")]
    NotClassic,
    /// The palettes could not be read.
    #[error("the colours could not be read: {0}")]
    Colours(#[from] serde_json::Error),
}

/// How an image looks.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Its width in units of SVG; a PNG has twice as many pixels.
    pub width: u32,
    /// The colours.
    pub palette: Palette,
    /// What they stand on.
    pub theme: Theme,
    /// The heat maps.
    pub panels: Panels,
}

impl Default for Style {
    fn default() -> Style {
        let (palette, theme) = (Palette::default(), Theme::default());
        Style { width: 1_200, palette, theme, panels: Panels::default() }
    }
}

/// Which heat maps an image has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panels {
    /// Run queues, and their load below.
    #[default]
    Both,
    /// Sizes of run queues.
    Queue,
    /// Their load.
    Load,
}

impl Panels {
    fn shown(self) -> &'static [What] {
        match self {
            Panels::Both => &[What::Size, What::Load],
            Panels::Queue => &[What::Size],
            Panels::Load => &[What::Load],
        }
    }
}

/// Text and background.
struct Ink {
    paper: &'static str,
    text: &'static str,
    faint: &'static str,
}

impl Ink {
    fn of(theme: Theme) -> Ink {
        match theme {
            Theme::Light => Ink { paper: "#ffffff", text: "#1c2128", faint: "#656d76" },
            Theme::Dark => Ink { paper: "#0d1117", text: "#e6edf3", faint: "#8b949e" },
        }
    }
}

/// The picture as SVG.
///
/// # Errors
/// When the size is none that an image can have.
pub fn svg(picture: &Picture, style: &Style) -> Result<String, ImageError> {
    let colours = Colours::new(style.palette, style.theme)?;
    let (ink, plot) = (Ink::of(style.theme), Plot::new(picture, style)?);
    let map = plot.height() + TITLE + BETWEEN;
    let panels = style.panels.shown();
    let height = TOP + panels.len() as u32 * map + 30;
    let Style { width, .. } = style;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"{FONT}\" font-size=\"12\" fill=\"{}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"{}\"/>\n",
        ink.text, ink.paper,
    );
    title(&mut out, picture, &ink);
    for (at, what) in panels.iter().enumerate() {
        let top = TOP + at as u32 * map;
        legend(&mut out, (*what, picture.marks), &colours, style, top, &ink);
        plot.map(&mut out, *what, &colours, top + TITLE, &ink)?;
    }
    plot.axis(&mut out, TOP + panels.len() as u32 * map - BETWEEN, &ink);
    out.push_str("</svg>\n");
    Ok(out)
}

/// What a heat map shows.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Size,
    Load,
}

fn title(out: &mut String, picture: &Picture, ink: &Ink) {
    let index = &picture.index;
    let host = escape(&index.meta.host);
    let left_out = match picture.instants.left_out {
        0 => String::new(),
        count => format!(" · {count} marks left out"),
    };
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"30\" font-size=\"18\">{host}</text>\n\
         <text x=\"{LEFT}\" y=\"52\" fill=\"{}\">{} · {} cores · {} · {} of core time idle while overloaded{left_out}</text>",
        ink.faint,
        escape(&index.meta.kernel),
        index.meta.topology.len(),
        Nanos(index.span_ns),
        Nanos(index.wasted_ns),
    );
}

/// The name of a map and what its colours mean, right-aligned.
fn legend(
    out: &mut String,
    (what, shown): (What, Marks),
    colours: &Colours,
    style: &Style,
    top: u32,
    ink: &Ink,
) {
    let (name, colours_of, labels): (_, &[Rgb], Vec<String>) = match what {
        What::Size => {
            let labels = (0..colours.queue.len() - 1).map(|size| size.to_string());
            (
                "threads that want the core (mean)",
                &colours.queue,
                labels.chain(["5+".to_owned()]).collect(),
            )
        }
        What::Load => {
            let labels = colours.load_edges.iter().map(|edge| thousands(*edge));
            ("load (mean), up to", &colours.load, labels.chain(["more".to_owned()]).collect())
        }
    };
    let mut marks = vec![(colours.lost, "lost".to_owned())];
    if shown.wasted {
        marks.insert(0, (colours.wasted, "idle while overloaded".to_owned()));
    }
    if what == What::Size {
        let by = shown.considered_by;
        marks.extend(by.map(|core| (colours.considered, format!("considered by core {core}"))));
        let woken = shown.bad_wakeups.then(|| (BOX, "woken beside an idle core".to_owned()));
        marks.extend(woken);
    }
    let mut x = style.width - RIGHT;
    let sizes = colours_of.iter().copied().zip(labels);
    for (colour, label) in sizes.chain(marks).collect::<Vec<_>>().into_iter().rev() {
        x = x.saturating_sub(6 * label.chars().count() as u32 + 26);
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\" stroke=\"{}\" \
             stroke-width=\"0.5\"/><text x=\"{}\" y=\"{}\" font-size=\"11\" fill=\"{}\">{label}</text>",
            top + 6,
            hex(colour),
            ink.faint,
            x + 16,
            top + 16,
            ink.faint,
        );
        if colour == BOX {
            boxes(out, &[(x + 6, top + 12)]);
        }
    }
    // Above the colours where both do not fit beside each other.
    let is_beside = LEFT + 8 * name.len() as u32 <= x;
    let y = if is_beside { top + 16 } else { top };
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{y}\" font-size=\"13\">{name}</text>");
}

/// Where things are.
struct Plot<'a> {
    picture: &'a Picture,
    width: u32,
    row: u32,
    /// Positions in the topology, by node.
    order: Vec<(usize, u16)>,
    /// Where the row of each core begins, by position in the topology.
    tops: Vec<u32>,
}

impl<'a> Plot<'a> {
    fn new(picture: &'a Picture, style: &Style) -> Result<Plot<'a>, ImageError> {
        let width =
            style.width.checked_sub(LEFT + RIGHT).filter(|width| (100..=8_000).contains(width));
        let cores = picture.index.meta.topology.cores().iter().enumerate();
        let mut order: Vec<(usize, u16)> = cores.map(|(at, core)| (at, core.node)).collect();
        order.sort_by_key(|(at, node)| (*node, *at));
        let row = (MAP_HEIGHT / order.len() as u32).clamp(3, 24);
        let (mut tops, mut top) = (vec![0; order.len()], 0);
        for (at, &(core, node)) in order.iter().enumerate() {
            top += u32::from(at > 0 && order[at - 1].1 != node);
            tops[core] = top;
            top += row;
        }
        Ok(Plot { picture, width: width.ok_or(ImageError::Size)?, row, order, tops })
    }

    /// Whether a node begins at this row.
    fn begins(&self, row: usize) -> bool {
        row > 0 && self.order[row].1 != self.order[row - 1].1
    }

    fn height(&self) -> u32 {
        let lines = (0..self.order.len()).filter(|row| self.begins(*row)).count() as u32;
        self.order.len() as u32 * self.row + lines
    }

    /// A heat map: a raster image with labels.
    fn map(
        &self,
        out: &mut String,
        what: What,
        colours: &Colours,
        top: u32,
        ink: &Ink,
    ) -> Result<(), ImageError> {
        let mut image = Raster::new(self.width, self.height())?;
        let mut node_top = top;
        for (row, &(core, node)) in self.order.iter().enumerate() {
            let y = self.tops[core];
            if self.begins(row) {
                self.line(&mut image, y - 1);
            }
            self.row(&mut image, y, core, what, colours);
            let y = y + self.row;
            if row + 1 == self.order.len() || self.begins(row + 1) {
                let middle = (node_top + top + y) / 2 + 4;
                let x = LEFT - 12;
                let fill = ink.faint;
                let _ = writeln!(
                    out,
                    "<text x=\"{x}\" y=\"{middle}\" text-anchor=\"end\" fill=\"{fill}\">node {node}</text>"
                );
                node_top = top + y + 1;
            }
        }
        if what == What::Size {
            self.considered(&mut image, colours);
        }
        let data = BASE64_STANDARD.encode(image.to_png()?);
        let (width, height) = (self.width, self.height());
        let _ = writeln!(
            out,
            "<image x=\"{LEFT}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" \
             image-rendering=\"optimizeSpeed\" href=\"data:image/png;base64,{data}\"/>\n\
             <rect x=\"{LEFT}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"{}\" stroke-width=\"0.5\"/>",
            ink.faint,
        );
        if what == What::Size {
            self.instants(out, colours, top);
        }
        Ok(())
    }

    /// A line over the cores that each search looked at.
    fn considered(&self, image: &mut Raster, colours: &Colours) {
        let topology = &self.picture.index.meta.topology;
        for (at, cores) in &self.picture.instants.considered {
            let x = self.x(*at);
            for core in cores.iter().filter_map(|core| topology.position(core)) {
                for y in self.tops[core]..self.tops[core] + self.row {
                    image.pixels_mut()[(y * self.width + x) as usize] = colours.considered;
                }
            }
        }
    }

    /// An arrow at the core that searched, and a box for each pixel with wake-ups onto a busy core.
    fn instants(&self, out: &mut String, colours: &Colours, top: u32) {
        let Picture { index, marks, instants, .. } = self.picture;
        let middle = |core: usize| top + self.tops[core] + self.row / 2;
        if let Some(core) = marks.considered_by.and_then(|core| index.meta.topology.position(core))
        {
            let (x, y, fill) = (LEFT - 1, middle(core), hex(colours.considered));
            let _ = writeln!(out, "<path fill=\"{fill}\" d=\"M{x} {y}l-8 -5v10z\"/>");
        }
        let points =
            instants.bad_wakeups.iter().map(|(at, core)| (LEFT + self.x(*at), middle(*core)));
        let points: BTreeSet<(u32, u32)> = points.collect();
        if !points.is_empty() {
            boxes(out, &points.into_iter().collect::<Vec<_>>());
        }
    }

    /// The pixel of a time.
    fn x(&self, at: u64) -> u32 {
        let part = at as f64 / self.picture.index.span_ns as f64;
        ((part * f64::from(self.width)) as u32).min(self.width - 1)
    }

    fn line(&self, image: &mut Raster, y: u32) {
        let from = (y * self.width) as usize;
        image.pixels_mut()[from..from + self.width as usize].fill([64; 3]);
    }

    fn row(&self, image: &mut Raster, y: u32, core: usize, what: What, colours: &Colours) {
        for x in 0..self.width {
            let (cell, ns) = self.cell(core, x);
            let value = match what {
                What::Size => colours.size(cell.size_sum / ns),
                What::Load => colours.load(cell.load_sum / ns),
            };
            let part = if self.picture.marks.wasted { cell.wasted / ns } else { 0.0 };
            let wasted = (self.row as f32 * part).ceil() as u32;
            for dy in 0..self.row {
                let colour = match () {
                    // Every other diagonal: hatched.
                    () if cell.lost > 0.0 && (x + dy) % 4 < 2 => colours.lost,
                    () if dy + wasted.min(self.row / 2 + 1) >= self.row => colours.wasted,
                    () => value,
                };
                image.pixels_mut()[((y + dy) * self.width + x) as usize] = colour;
            }
        }
    }

    /// What lies under a pixel, and the time that it spans; each bucket belongs to the pixel of its begin.
    fn cell(&self, core: usize, x: u32) -> (Cell, f32) {
        let (grid, span) = (&self.picture.grid, self.picture.index.span_ns);
        let per_pixel = span as f64 / f64::from(self.width);
        let bucket = |x: u32| (f64::from(x) * per_pixel / grid.width() as f64) as usize;
        let (first, last) = (bucket(x), bucket(x + 1).max(bucket(x) + 1));
        let cells = grid.core(core);
        let cells = &cells[first.min(cells.len())..last.min(cells.len())];
        let ends = (last as u64 * grid.width()).min(span);
        let ns = ends.saturating_sub(first as u64 * grid.width()).max(1) as f32;
        (cells.iter().fold(Cell::default(), |sum, one| sum.merge(*one)), ns)
    }

    /// Times at round distances.
    fn axis(&self, out: &mut String, top: u32, ink: &Ink) {
        let span = self.picture.index.span_ns as f64;
        let rough = span / f64::from(self.width) * 120.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * decade);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough).max(1.0);
        let mut at = 0.0;
        while at <= span {
            let x = f64::from(LEFT) + at / span * f64::from(self.width);
            let label = if at == 0.0 { "0".to_owned() } else { Nanos(at as u64).to_string() };
            // The last one would not fit beside the edge.
            let right = f64::from(LEFT + self.width);
            let anchor = if x + f64::from(RIGHT) > right { "end" } else { "middle" };
            let end = if anchor == "end" { right + f64::from(RIGHT) - 2.0 } else { x };
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {top}v5\" stroke=\"{}\"/><text x=\"{end:.1}\" y=\"{}\" \
                 text-anchor=\"{anchor}\" fill=\"{}\">{label}</text>",
                ink.faint,
                top + 19,
                ink.faint,
            );
            at += step;
        }
    }
}

/// Weights are multiples of 1024 mostly.
fn thousands(edge: u64) -> String {
    match edge {
        1024.. if edge.is_multiple_of(1024) => format!("{}k", edge / 1024),
        _ => edge.to_string(),
    }
}

fn hex([r, g, b]: Rgb) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use quell_model::{CoreId, CoreSet, Event, What as Kind};

    use super::*;
    use crate::picture::{Builder, Range};
    use crate::synthetic::Synthetic;

    const SPEC: Synthetic =
        Synthetic { nodes: 2, cores_per_node: 4, threads: 40, events: 20_000, seed: 7 };

    fn drawn(marks: Marks, panels: Panels) -> String {
        let builder = Builder::new(SPEC.meta().unwrap(), Range::ALL).unwrap();
        let mut builder = builder.with_marks(marks);
        for event in SPEC.events() {
            builder.push(&event).unwrap();
        }
        let style = Style { palette: Palette::Paper, panels, ..Style::default() };
        svg(&builder.finish().unwrap(), &style).unwrap()
    }

    /// Pixels of this colour in the rows of each core, in the first map.
    fn pixels(svg: &str, colour: Rgb) -> Vec<usize> {
        let (_, data) = svg.split_once("base64,").unwrap();
        let png = BASE64_STANDARD.decode(data.split_once('"').unwrap().0).unwrap();
        let image = Raster::from_png(&png).unwrap();
        let width = image.width() as usize;
        // A row is 24 pixels high, and a line stands between the nodes.
        let row = |core: usize| (core * 24 + core / 4) * width..(core * 24 + core / 4 + 24) * width;
        let count = |core| image.pixels()[row(core)].iter().filter(|it| **it == colour).count();
        (0..8).map(count).collect()
    }

    const NONE: Marks = Marks { wasted: false, bad_wakeups: false, considered_by: None };
    const BLUE: Rgb = [0, 0, 255];
    const BLACK: Rgb = [17; 3];

    #[test]
    fn considered_cores_are_those_of_the_searches_of_the_core() {
        let seen = |event: &Event| match &event.what {
            Kind::Considered { by, cores, .. } => Some((*by, **cores)),
            _ => None,
        };
        let searches: Vec<(CoreId, CoreSet)> = SPEC.events().filter_map(|it| seen(&it)).collect();
        let (core, _) = *searches.first().unwrap();
        let own = searches.iter().filter(|(by, _)| *by == core);
        let union = own.fold(CoreSet::EMPTY, |union, (_, cores)| union.union(cores));
        let marks = Marks { considered_by: Some(core), ..NONE };
        let image = drawn(marks, Panels::Both);
        let expected: Vec<bool> = (0..8).map(|at| union.contains(CoreId(at))).collect();
        let found: Vec<bool> = pixels(&image, BLUE).into_iter().map(|count| count > 0).collect();
        assert_eq!(found, expected);
        assert!(image.contains(&format!("considered by core {core}")));
        assert_eq!(pixels(&drawn(NONE, Panels::Both), BLUE), [0; 8]);
        assert_eq!(pixels(&drawn(marks, Panels::Load), BLUE), [0; 8]);
    }

    #[test]
    fn wasted_cores_are_marked_unless_they_are_not_to_be() {
        let marked = |marks| pixels(&drawn(marks, Panels::Queue), BLACK).iter().sum::<usize>();
        assert!(marked(Marks::default()) > 0);
        assert_eq!(marked(NONE), 0);
    }

    #[test]
    fn bad_wakeups_are_boxes_and_panels_are_those_chosen() {
        let boxes = |marks| drawn(marks, Panels::Queue).matches("h6v6h-6z").count();
        // One of them in the legend.
        assert!(boxes(Marks { bad_wakeups: true, ..NONE }) > 1);
        assert_eq!(boxes(NONE), 0);
        let maps = |panels| drawn(NONE, panels).matches("<image").count();
        assert_eq!([Panels::Both, Panels::Queue, Panels::Load].map(maps), [2, 1, 1]);
    }
}
