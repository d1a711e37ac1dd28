//! Best-effort work that disturbs a latency-critical neighbour, each mode in its own way.
//!
//! Every mode runs until SIGTERM, SIGINT or `--seconds`, publishes its work in the file given by
//! `--progress` (see `quell_load::be`), and prints one line about it at the end.

mod faults;
mod gc;
mod hog;
mod pause;
mod stream;
mod work;
mod writes;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use work::Work;

/// Best-effort antagonists that publish how much work they get done.
#[derive(Parser)]
#[command(name = "quell-antagonist", version)]
struct Args {
    /// Publish ops and CPU time in this file; put it into a tmpfs
    #[arg(long, global = true, value_name = "FILE")]
    progress: Option<PathBuf>,
    /// Stop so long after the start; without it, on SIGTERM or SIGINT
    #[arg(long, global = true)]
    seconds: Option<f64>,
    /// Rest for 5 ms in each 300 ms, at random times that all programs with the same number agree on
    #[arg(long, global = true, value_name = "SEED")]
    rests: Option<u64>,
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Stream through memory (STREAM's triad); an op is one MiB moved
    Stream(stream::Options),
    /// Compute in registers; an op is 1,024 steps of a random generator
    Hog(hog::Options),
    /// Monte-Carlo simulation on a Boehm-collected heap, with long pauses; an op is one trial
    Gc(gc::Options),
    /// Map, touch and unmap memory; an op is one page fault
    Faults(faults::Options),
    /// Write blocks to a file and fsync it; an op is one synced block
    Writes(writes::Options),
    /// Execute PAUSE and record the own gaps: a neighbour that disturbs nothing; an op is 1,000 PAUSEs
    Pause(pause::Options),
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let work =
        Work::new(args.progress, args.seconds, args.rests).context("set up the antagonist")?;
    match args.mode {
        Mode::Stream(options) => stream::run(&work, &options),
        Mode::Hog(options) => hog::run(&work, &options),
        Mode::Gc(options) => gc::run(&work, &options),
        Mode::Faults(options) => faults::run(&work, &options),
        Mode::Writes(options) => writes::run(&work, &options),
        Mode::Pause(options) => pause::run(&work, &options),
    }
}
