//! `quell bench view`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use quell_bench::view::ViewSpec;
use quell_terminal::{Live, Stop};

use super::{Common, command_line};

/// How soon the page of `quell view` paints, and how smoothly it pans and zooms
///
/// Opens pages of made-up traces of 64 cores in a headless Chromium and measures first paint and the distances of
/// frames while a script zooms in, pans and zooms out again. Needs no root.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Events of a trace; may be repeated [default: 1000000 and 10000000, quick: 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    events: Vec<u64>,
    /// How often each page is opened [default: 5, quick: 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// Keep the page here; with several sizes the last
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let events = match (args.events.is_empty(), quick) {
        (false, _) => args.events,
        (true, true) => vec![1_000_000],
        (true, false) => vec![1_000_000, 10_000_000],
    };
    let spec = ViewSpec {
        command: command_line(),
        events,
        rounds: args.rounds.unwrap_or(if quick { 2 } else { 5 }),
        keep: args.keep,
    };
    let stop = Stop::on_signals()?;
    let report = quell_bench::view::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
