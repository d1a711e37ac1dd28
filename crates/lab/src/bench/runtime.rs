//! `quell bench runtime`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_bench::runtime::{self, RuntimeSpec};
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line, split};
use quell_terminal::quantity::seconds;

/// What locks, switches, channels, timers, stealing and sockets of the runtime take, beside pthreads, Go, tokio and may
///
/// Each system is a program of its own, pinned to the same cores; each case has a floor, the sum of the primitives that
/// no runtime can avoid in it, measured in the same rounds. Those in C and Go are built first; what is missing is named.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Only cases whose names begin so [default: all]
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    only: Vec<String>,
    /// Interleaved rounds [default: 15, quick: 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// How long each program counts [default: 200ms, quick: 40ms]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    // Refused before anything is looked for.
    runtime::chosen_cases(&args.only)?;
    let (work, other) = split()?;
    let time = args.duration.unwrap_or(Duration::from_millis(if quick { 40 } else { 200 }));
    let spec = RuntimeSpec {
        command: command_line(),
        only: args.only,
        rounds: args.rounds.unwrap_or(if quick { 2 } else { 15 }),
        warm_up: (time / 4).max(Duration::from_millis(10)),
        time,
        work: work.first().context("this host shows no core")?,
        other,
        peers: beside("quell-bench-peers")?,
    };
    let stop = Stop::on_signals()?;
    let report = runtime::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
