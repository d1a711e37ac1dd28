//! `quell bench validation`: Caladan's published figures, made again in the simulator.
//!
//! [`TARGETS`] says what was published and what counts as met, [`figures`] runs the scenarios, [`page`](mod@page) puts both
//! beside each other. A target that is missed is shown as missed; [`misses`] says why as far as it is known, and a test holds
//! that list to what comes out.

mod case;
mod client;
mod figures;
pub mod misses;
mod page;
mod parameters;
mod targets;

use anyhow::{Context as _, Result};

use case::Runner;
pub use figures::FIGURES;
pub use misses::why;
pub use page::page;
use quell_report::BenchReport;
use quell_report::plot::{Line, Mark, Panel, Plot};
use quell_terminal::{Progress, Stop};
pub use targets::{TARGETS, Target, Use};

/// The name of the report.
pub const BENCH: &str = "validation";
/// The system of rows that hold the value of a target.
const TARGET: &str = "target";

/// How the figures are run.
pub struct ValidationSpec {
    /// The command as typed.
    pub command: String,
    /// Figures by name; empty: all.
    pub figures: Vec<String>,
    /// Shorter simulations and fewer points; what takes long is left out.
    pub short: bool,
    /// How many seeds.
    pub seeds: u64,
    /// Simulations at one time.
    pub threads: usize,
}

/// A figure of the evaluation.
pub struct Figure {
    /// As in `--figure`.
    pub name: &'static str,
    /// One line.
    pub title: &'static str,
    /// What is simulated, for the page.
    pub about: &'static str,
    run: fn(&Runner) -> Result<Outcome>,
}

/// What a figure came to with one seed.
#[derive(Default)]
struct Outcome {
    /// Case, system, metric and value of each point.
    points: Vec<(String, String, &'static str, f64)>,
    /// Targets and their values.
    values: Vec<(&'static str, f64)>,
    panels: Vec<Panel>,
}

impl Outcome {
    fn point(&mut self, case: impl Into<String>, system: &str, metric: &'static str, value: f64) {
        self.points.push((case.into(), system.to_owned(), metric, value));
    }

    fn value(&mut self, target: &'static str, value: f64) {
        self.values.push((target, value));
    }
}

/// Runs the figures.
///
/// # Errors
/// When there is no such figure, a simulation fails, or a stop was asked for.
pub fn run(spec: &ValidationSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let named = |figure: &&Figure| {
        spec.figures.is_empty() || spec.figures.iter().any(|name| name == figure.name)
    };
    let chosen: Vec<&Figure> = FIGURES.iter().filter(named).collect();
    let known = |name: &&String| FIGURES.iter().all(|figure| figure.name != **name);
    if let Some(unknown) = spec.figures.iter().find(known) {
        let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        anyhow::bail!("there is no figure `{unknown}`; choose among {}", names.join(", "));
    }
    let mut report = BenchReport::new(BENCH, &spec.command);
    let steps = chosen.len() * spec.seeds as usize;
    for (at, figure) in chosen.iter().enumerate() {
        let mut outcomes = Vec::new();
        for seed in 1..=spec.seeds {
            progress.step(at * spec.seeds as usize + seed as usize - 1, steps, figure.name);
            let runner = Runner { short: spec.short, seed, threads: spec.threads, stop };
            outcomes.push((figure.run)(&runner).with_context(|| figure.name)?);
        }
        put(&mut report, figure, outcomes);
    }
    progress.step(steps, steps, "done");
    Ok(report)
}

/// Adds a figure's outcomes, one a seed. What can be counted is the same for every seed; the picture is that of the first.
fn put(report: &mut BenchReport, figure: &Figure, outcomes: Vec<Outcome>) {
    let Some(first) = outcomes.first() else { return };
    for (at, (target, _)) in first.values.iter().enumerate() {
        let values = outcomes.iter().map(|outcome| outcome.values[at].1).collect();
        report.push(figure.name, TARGET, target, values);
    }
    for (at, (case, system, metric, _)) in first.points.iter().enumerate() {
        let values = outcomes.iter().map(|outcome| outcome.points[at].3).collect();
        report.push(&format!("{}: {case}", figure.name), system, metric, values);
    }
    let panels = outcomes.into_iter().next().map(|outcome| outcome.panels).unwrap_or_default();
    report.plots.push(Plot {
        name: format!("{BENCH}-{}", figure.name),
        title: figure.title.to_owned(),
        subtitle: "simulated; seed 1".to_owned(),
        panels: panels.into_iter().map(rounded).collect(),
    });
}

/// As many digits as a picture shows.
fn rounded(mut panel: Panel) -> Panel {
    for line in &mut panel.lines {
        for (x, y) in &mut line.points {
            *x = quell_report::stats::rounded(*x);
            *y = y.filter(|y| y.is_finite()).map(quell_report::stats::rounded);
        }
    }
    panel
}

/// What became of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Which.
    pub target: &'static Target,
    /// The median over seeds, and the least and the greatest.
    pub here: (f64, f64, f64),
    /// Whether the median is within its bounds.
    pub within: bool,
}

/// The verdict on every target that the report has a value for.
pub fn verdicts(report: &BenchReport) -> Vec<Verdict> {
    let verdict = |target: &'static Target| {
        let row = report.row(target.figure, TARGET, target.name)?;
        let least = row.raw.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = row.raw.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = target.within;
        let within = (low..=high).contains(&row.median);
        Some(Verdict { target, here: (row.median, least, greatest), within })
    };
    TARGETS.iter().filter_map(verdict).collect()
}

/// The verdicts for a terminal.
pub fn text(report: &BenchReport) -> String {
    let mut text = String::new();
    for figure in &FIGURES {
        let table = page::verdict_table(report, figure.name);
        if !table.is_empty() {
            text += &format!("{}\n\n{}\n", figure.title, table.text());
        }
    }
    text
}

/// A chart with a scale along.
fn scale(x: &str, y: &str, lines: Vec<Line>) -> Panel {
    Panel {
        x: x.to_owned(),
        y: y.to_owned(),
        log: false,
        names: Vec::new(),
        lines,
        marks: Vec::new(),
    }
}

/// A curve through points that all have a value.
fn line(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Line {
    let points = points.into_iter().map(|(x, y)| (x, Some(y))).collect();
    Line { name: name.to_owned(), points, reference: false }
}

/// Marks published numbers in a panel.
trait MarkTarget {
    /// With the published number of a target as a level, or at a place along.
    fn mark(self, target: &str, factor: f64, x: Option<f64>) -> Self;
}

impl MarkTarget for Panel {
    fn mark(mut self, target: &str, factor: f64, x: Option<f64>) -> Panel {
        let target = TARGETS.iter().find(|it| it.name == target && it.published.is_some());
        if let Some((target, published)) = target.and_then(|it| Some((it, it.published?))) {
            self.marks.push(Mark { text: target.paper.to_owned(), y: published * factor, x });
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_terminal::Silent;

    #[test]
    fn targets_belong_to_figures_and_a_third_is_held_out() {
        for (at, target) in TARGETS.iter().enumerate() {
            assert!(FIGURES.iter().any(|figure| figure.name == target.figure), "{target:?}");
            assert!(
                TARGETS[..at]
                    .iter()
                    .all(|other| { (other.figure, other.name) != (target.figure, target.name) })
            );
        }
        let held_out = TARGETS.iter().filter(|target| target.mark == Use::HeldOut).count();
        assert!(3 * held_out >= TARGETS.len(), "{held_out}");
        assert!(FIGURES.iter().all(|figure| TARGETS.iter().any(|it| it.figure == figure.name)));
    }

    #[test]
    fn an_unknown_figure_is_refused_with_the_names() {
        let spec = ValidationSpec {
            command: String::new(),
            figures: vec!["gd".to_owned()],
            short: true,
            seeds: 1,
            threads: 1,
        };
        let error = run(&spec, &mut Silent, &Stop::default()).unwrap_err().to_string();
        assert!(error.contains("`gd`") && error.contains("gc, "), "{error}");
    }
}
