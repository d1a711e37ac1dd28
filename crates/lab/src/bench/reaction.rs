//! `quell bench reaction`.

use std::process::ExitCode;

use anyhow::Result;
use quell_bench::reaction::ReactionSpec;
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line, split};

/// How soon a thread that waits gets to run: through Quell's loop, by a plain futex wake, by a 500 ms loop
///
/// An LC thread wakes in the fair class behind a batch thread on the lowest FIFO rung; only a scheduler can let
/// it run. Interleaved in one run.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Interleaved rounds [default: 5, quick: 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// Samples of Quell and of the futex wake in each round [default: 400, quick: 100]
    #[arg(long)]
    samples: Option<usize>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (managed, driver) = split()?;
    let spec = ReactionSpec {
        command: command_line(),
        rounds: args.rounds.unwrap_or(if quick { 2 } else { 5 }),
        samples: args.samples.unwrap_or(if quick { 100 } else { 400 }),
        slow_samples: if quick { 3 } else { 8 },
        managed,
        driver,
        quell: super::quell_program()?,
        antagonist: beside("quell-antagonist")?,
        sleeper: beside("quell-sleeper")?,
    };
    let stop = Stop::on_signals()?;
    let report = quell_bench::reaction::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
