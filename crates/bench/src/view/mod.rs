//! `quell bench view`: how soon the viewer's page paints, and how smoothly it moves.
//!
//! A made-up trace of 64 cores is written as a page and opened in a headless Chromium, a new one each round. Painting
//! is measured by the page's own clock from the start of its loading; frames are the distances of animation frames
//! while a script zooms from the whole trace to a few hundred microseconds and back, and pans on the way.

mod browser;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use quell_view::synthetic::Synthetic;
use quell_view::{Builder, Range, page};

pub use browser::Browser;

use quell_report::BenchReport;
use quell_report::stats;
use quell_terminal::{Progress, Stop};

/// The size of the window.
const WINDOW: (u32, u32) = (1_600, 1_000);

/// Zooms and pans, a step a frame, and resolves to the distances of frames and the times that drawing took, in
/// milliseconds.
const RIDE: &str = include_str!("ride.js");

/// How `quell bench view` runs.
pub struct ViewSpec {
    /// The command as typed.
    pub command: String,
    /// Traces of so many events.
    pub events: Vec<u64>,
    /// How often each page is opened.
    pub rounds: usize,
    /// Keeps the largest page here.
    pub keep: Option<PathBuf>,
}

/// Measures.
///
/// # Errors
/// When Chromium is missing, a page does not paint, or a stop was asked for.
pub fn run(spec: &ViewSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let mut report = BenchReport::new("view", &spec.command);
    let directory = tempfile::tempdir()?;
    let total = spec.events.len() * (1 + spec.rounds);
    for (at, &events) in spec.events.iter().enumerate() {
        let case = format!("{events} events");
        progress.step(at * (1 + spec.rounds), total, &format!("a page of {case}"));
        let path = match &spec.keep {
            Some(path) => path.clone(),
            None => directory.path().join("trace.html"),
        };
        let begun = Instant::now();
        let bytes = write(events, &path)?;
        let built = begun.elapsed().as_secs_f64();
        report.push(&case, "page", "page_bytes", vec![bytes as f64]);
        report.push(&case, "page", "build_s", vec![built]);
        let mut rounds = Vec::new();
        for round in 0..spec.rounds {
            stop.check()?;
            let done = at * (1 + spec.rounds) + 1 + round;
            progress.step(done, total, &format!("{case}: round {}", round + 1));
            rounds.push(round_of(&path)?);
        }
        let metric = |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
        report.push(&case, "page", "first_paint_ms", metric(|round| round.first_paint));
        report.push(&case, "page", "frame_p50_ms", metric(|round| round.frame.0));
        report.push(&case, "page", "frame_p95_ms", metric(|round| round.frame.1));
        report.push(&case, "page", "draw_p95_ms", metric(|round| round.draw.1));
    }
    report.notes.push(format!(
        "Chromium without a GPU draws in software, on a window of {} by {} pixels",
        WINDOW.0, WINDOW.1
    ));
    Ok(report)
}

fn write(events: u64, path: &Path) -> Result<u64> {
    let trace = Synthetic::paper(events);
    let mut builder = Builder::new(trace.meta()?, Range::ALL)?;
    for event in trace.events() {
        builder.push(&event)?;
    }
    let mut out = BufWriter::new(File::create(path)?);
    page::write(&builder.finish()?, &mut out)?;
    out.flush()?;
    Ok(std::fs::metadata(path)?.len())
}

/// What one visit of a page showed, in milliseconds; of frames the median and the 95th percentile.
struct Round {
    first_paint: f64,
    frame: (f64, f64),
    draw: (f64, f64),
}

fn round_of(path: &Path) -> Result<Round> {
    let mut browser = Browser::start(WINDOW.0, WINDOW.1)?;
    browser.open(&format!("file://{}", path.display()))?;
    let painted = "performance.getEntriesByName('quell-painted')";
    browser.wait_for(&format!("{painted}.length > 0"))?;
    let first_paint = browser.evaluate(&format!("{painted}[0].startTime"))?;
    browser.wait_for("document.readyState === 'complete' && quellView.model.people.length > 0")?;
    let ride = browser.evaluate(RIDE)?;
    let times = |name: &str| -> Result<(f64, f64)> {
        let times = ride[name].as_array().context("the page told no frames")?;
        let mut times: Vec<f64> = times.iter().filter_map(serde_json::Value::as_f64).collect();
        times.sort_unstable_by(f64::total_cmp);
        let at = |quantile| stats::quantile(&times, quantile).context("the page drew no frame");
        Ok((at(0.5)?, at(0.95)?))
    };
    anyhow::ensure!(browser.complaints().is_empty(), "the page: {:?}", browser.complaints());
    Ok(Round {
        first_paint: first_paint.as_f64().context("no time of painting")?,
        frame: times("frames")?,
        draw: times("draws")?,
    })
}
