//! `quell bench replay`.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use quell_sim::Window;
use quell_study::replayed::{self, Row};
use quell_trace::import::Options;

/// Recorded hosts beside their replays: completion, wasted time and migrations under a model of their own kernel
///
/// Each trace of `quell record` is replayed on its own topology. Exit status 1 if fewer than four in five are within a fifth of
/// the recorded completion and wasted time.
#[derive(clap::Args)]
pub struct Args {
    /// The traces
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Use this kernel model [default: the newest that is no newer than the recorded kernel]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Write the rows as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let mut rows: Vec<Row> = Vec::new();
    let mut alike = 0;
    for path in &args.traces {
        let recording = replayed::load(path, Window::default())?;
        let input = BufReader::new(File::open(path)?);
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
        let topology = quell_trace::open(input, Options::default())?.meta().topology.clone();
        let row = replayed::compare(&name, &recording, &topology, args.model.as_deref())?;
        alike += usize::from(row.is_alike());
        rows.push(row);
    }
    println!("{}", replayed::text(&rows));
    println!("{alike} of {} within a fifth of the recorded host", rows.len());
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&rows)? + "\n";
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(ExitCode::from(u8::from(5 * alike < 4 * rows.len())))
}
