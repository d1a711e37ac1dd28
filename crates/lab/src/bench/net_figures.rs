//! `quell bench net-figures`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_bench::net_figures::{self, Spec};
use quell_terminal::quantity::seconds;
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line};

/// The experiments of the NetChannel paper (SIGCOMM'22) on this host, with the paper's figures beside them
///
/// Each arm runs between two network namespaces of its own, which hold all that it changes (offloads, frames, queueing
/// disciplines) and are gone with it. An arm that cannot be run here is a row `n/a`, with the reason in the notes. Takes root.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Only figures whose names begin so [default: all]
    #[arg(long, value_name = "FIGURE", value_delimiter = ',')]
    only: Vec<String>,
    /// Interleaved rounds [default: 10, quick: 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// The time that counts in each round of each arm [default: 1s, quick: 200ms]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    // Refused before anything is looked for.
    net_figures::chosen(&args.only)?;
    let spec = Spec {
        command: command_line(),
        only: args.only,
        rounds: args.rounds.unwrap_or(if quick { 2 } else { 10 }),
        time: args.duration.unwrap_or(Duration::from_millis(if quick { 200 } else { 1_000 })),
        peers: beside("quell-bench-peers")?,
    };
    let stop = Stop::on_signals()?;
    let report = net_figures::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
