//! `quell bench overhead`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_bench::overhead::OverheadSpec;
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line, split};

/// What Quell itself costs: the daemon's CPU time, BPF per event, a tick at 2 to 1,000 tasks
///
/// A cost below the noise of an end-to-end ratio is accounted for instead, and the ratio printed with its
/// interval.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Interleaved rounds [default: 10, quick: 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// Requests a second to memcached, end to end
    #[arg(long, default_value_t = 30_000.0)]
    rate: f64,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (managed, client) = split()?;
    let spec = OverheadSpec {
        command: command_line(),
        rounds: args.rounds.unwrap_or(if quick { 2 } else { 10 }),
        duration: Duration::from_secs(if quick { 1 } else { 2 }),
        tasks: vec![2, 10, 100, 1_000],
        rate_rps: args.rate,
        managed,
        client,
        quell: super::quell_program()?,
        antagonist: beside("quell-antagonist")?,
    };
    let stop = Stop::on_signals()?;
    let report = quell_bench::overhead::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
