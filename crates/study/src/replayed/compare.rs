//! A recording replayed on its own kernel and topology, beside its own figures.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use quell_model::{MoveCause, Nanos, Topology};
use quell_report::table::{Table, number};
use quell_sim::file::{FileError, Files, Simulation};
use quell_sim::{KernelModel, Recording, Report, Window};
use serde::Serialize;

/// A recorded host and its replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What was recorded.
    pub name: String,
    /// Its cores.
    pub cores: u32,
    /// The kernel that recorded it, and the model that replays it.
    pub kernel: String,
    /// See [`model_of`].
    pub model: String,
    /// Seconds until the last thread had done all.
    pub recorded_s: f64,
    /// The same in the replay.
    pub replayed_s: f64,
    /// Core-seconds that idled beside threads that waited.
    pub recorded_wasted_core_s: f64,
    /// The same in the replay.
    pub replayed_wasted_core_s: f64,
    /// CPU time of all threads.
    pub recorded_cpu_s: f64,
    /// The same in the replay.
    pub replayed_cpu_s: f64,
    /// Threads that were moved from queue to queue, but for new ones: a host does not report these.
    pub recorded_migrations: u64,
    /// The same in the replay.
    pub replayed_migrations: u64,
}

/// How far completion and wasted time may be apart: parts of the recorded figure.
const NEAR: f64 = 0.2;
/// Wasted time below this part of all core time is none: what one missed tick costs is chance.
const NO_WASTE: f64 = 0.005;

impl Row {
    /// Whether completion is within a fifth of the recorded one.
    pub fn completes_alike(&self) -> bool {
        (self.replayed_s - self.recorded_s).abs() <= NEAR * self.recorded_s
    }

    /// Whether the wasted time is within a fifth of the recorded one, or both are next to nothing.
    pub fn wastes_alike(&self) -> bool {
        let (recorded, replayed) = (self.recorded_wasted_core_s, self.replayed_wasted_core_s);
        let nothing = NO_WASTE * self.recorded_s * f64::from(self.cores);
        (replayed - recorded).abs() <= (NEAR * recorded).max(nothing)
    }

    /// Both.
    pub fn is_alike(&self) -> bool {
        self.completes_alike() && self.wastes_alike()
    }
}

/// The model of the newest kernel that is no newer than this release: `6.18.44` is `linux-6.18`, `5.10` is `linux-5.4`. Releases
/// that are older than all models have the oldest one.
///
/// `None` for what is no release: texts do not tell their kernel, and simulators have none.
pub fn kernel_of(release: &str) -> Option<&'static str> {
    const MODELS: [((u32, u32), &str); 6] = [
        ((6, 18), "linux-6.18"),
        ((6, 12), "linux-6.12"),
        ((6, 1), "linux-6.1"),
        ((5, 4), "linux-5.4"),
        ((4, 3), "linux-4.3"),
        ((0, 0), "linux-4.1"),
    ];
    let mut numbers = release.split(|other: char| !other.is_ascii_digit()).map(str::parse);
    let mut next = || numbers.next().and_then(Result::ok);
    let version = (next()?, next()?);
    MODELS.iter().find(|(first, _)| version >= *first).map(|(_, model)| *model)
}

/// The name of the kernel model with one queue for all cores.
const GLOBAL: &str = "global";

/// Whether there is a kernel model of this name.
///
/// # Errors
/// When there is none: with the names of all.
pub fn check_model(name: &str) -> Result<()> {
    let names = KernelModel::PRESETS.map(|(name, _)| name);
    ensure!(
        name == GLOBAL || names.contains(&name),
        "there is no kernel model `{name}`; choose one of: {GLOBAL}, {}",
        names.join(", ")
    );
    Ok(())
}

/// The model that replays the recording of this file: the chosen one, or that of its kernel.
///
/// # Errors
/// When none is chosen and the file does not tell its kernel.
pub fn model_of<'a>(
    file: &Path,
    recording: &Recording,
    chosen: Option<&'a str>,
) -> Result<&'a str, FileError> {
    let kernel = &recording.figures.kernel;
    chosen.or_else(|| kernel_of(kernel)).ok_or_else(|| FileError {
        file: file.display().to_string(),
        line: None,
        what: format!(
            "the trace does not tell its kernel: it has `{kernel}` in place of a release"
        ),
        remedy: "name a model with `--model`, such as `--model linux-6.18`".to_owned(),
    })
}

/// What is replayed, in memory.
struct Replayed<'a> {
    topology: String,
    recording: &'a Recording,
}

impl Files for Replayed<'_> {
    fn text(&self, _: &str) -> Result<String, FileError> {
        Ok(self.topology.clone())
    }

    fn recording(&self, _: &str, _: Window) -> Result<Recording, FileError> {
        Ok(self.recording.clone())
    }
}

/// Replays a recording under a kernel model on a topology.
///
/// # Errors
/// When there is no such model, or the recording is none.
pub fn replay(recording: &Recording, topology: &Topology, model: &str) -> Result<Report> {
    check_model(model)?;
    replay_with(recording, topology, &format!("model = \"{model}\""))
}

/// As [`replay`], with these keys of `[kernel]`.
pub(super) fn replay_with(
    recording: &Recording,
    topology: &Topology,
    kernel: &str,
) -> Result<Report> {
    // Work that is delayed may take several times as long.
    let length = recording.figures.length.0.max(recording.figures.ran.0).saturating_mul(10);
    let length_ms = (length / 1_000_000).clamp(1_000, 3_600_000);
    let text = format!(
        "version = 1\nlength_ms = {length_ms}\nwarm_up_ms = 0\n[machine]\nlike = \"trace\"\n\
         managed = \"{}\"\n[host]\npolicy = \"linux-default\"\ncores = \"shared\"\n\
         tick_us = 1000000\nbursts = false\ncosts = {{ switch_ns = 0 }}\n[kernel]\n{kernel}\n\
         [[task]]\nname = \"recorded\"\nmodel = \"trace\"\ntrace = \"trace\"\n",
        topology.all(),
    );
    let files = Replayed { topology: serde_json::to_string(topology)?, recording };
    let simulation = Simulation::parse_with(&text, "replay.toml", "replay", &files)?;
    let mut policy = simulation.driver()?;
    Ok(quell_sim::run(&simulation.scenario, policy.as_mut()))
}

/// Replays a recording on its own topology under a kernel model, see [`model_of`].
///
/// # Errors
/// As [`replay`], and when the replay does not end.
pub fn compare(name: &str, recording: &Recording, topology: &Topology, model: &str) -> Result<Row> {
    let figures = &recording.figures;
    let report = replay(recording, topology, model)?;
    let task = &report.tasks[0];
    let completed = task.completed.with_context(|| format!("{name}: the replay does not end"))?;
    let moved = report.migrations.iter().filter(|(cause, _)| **cause != MoveCause::Fork);
    let seconds = |time: Nanos| time.0 as f64 / 1e9;
    Ok(Row {
        name: name.to_owned(),
        cores: figures.cores,
        kernel: figures.kernel.clone(),
        model: model.to_owned(),
        recorded_s: seconds(figures.completed),
        replayed_s: seconds(completed),
        recorded_wasted_core_s: seconds(figures.wasted),
        replayed_wasted_core_s: seconds(report.waste.cores),
        recorded_cpu_s: seconds(figures.ran),
        replayed_cpu_s: seconds(task.ran),
        recorded_migrations: figures.migrations.values().sum(),
        replayed_migrations: moved.map(|(_, count)| count).sum(),
    })
}

/// The rows for a terminal.
pub fn text(rows: &[Row]) -> String {
    let mut table = Table::new([
        "recording",
        "model",
        "completed, s",
        "replayed, s",
        "wasted, core s",
        "replayed, core s",
        "migrations",
        "replayed",
    ]);
    for row in rows {
        let figures = [
            row.recorded_s,
            row.replayed_s,
            row.recorded_wasted_core_s,
            row.replayed_wasted_core_s,
            row.recorded_migrations as f64,
            row.replayed_migrations as f64,
        ];
        table.row([row.name.clone(), row.model.clone()].into_iter().chain(figures.map(number)));
    }
    table.text()
}
