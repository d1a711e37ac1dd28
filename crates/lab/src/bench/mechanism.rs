//! `quell bench mechanism`.

use std::process::ExitCode;

use anyhow::Result;
use quell_bench::mechanism::MechanismSpec;
use quell_terminal::{Live, Stop};

use super::{Common, command_line, split};

/// What each way to wake, preempt, move or stop a thread costs the scheduler, and when it takes effect
///
/// One act and batches of them; the floor that the hypervisor sets is measured in the same run.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Interleaved rounds [default: 10, quick: 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// Samples of each case in each round [default: 300, quick: 50]
    #[arg(long)]
    samples: Option<usize>,
    /// Largest batch
    #[arg(long, default_value_t = 16)]
    batch_max: usize,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (targets, driver) = split()?;
    let spec = MechanismSpec {
        command: command_line(),
        rounds: args.rounds.unwrap_or(if quick { 2 } else { 10 }),
        samples: args.samples.unwrap_or(if quick { 50 } else { 300 }),
        batch_max: args.batch_max,
        driver,
        targets,
    };
    let stop = Stop::on_signals()?;
    let report = quell_bench::mechanism::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
