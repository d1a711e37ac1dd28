//! `quell bench overload`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_bench::overload::OverloadSpec;
use quell_terminal::{Live, Stop};

use super::{Common, command_line};

/// A service at 1.3 times its peak load beside a guaranteed neighbour: what batch work gets, and when all is normal again
///
/// Both services are synthetic servers; the overloaded one has one worker, then four. Half of the peak load, five seconds
/// at 1.3 times the peak, half of it again: alone, with SCHED_FIFO by hand, and under Quell, both beside busy loops. Then
/// 95 % of the peak under Quell: how often threads change their role. Needs root and two cores. Ctrl-C ends it after the
/// measurement under way.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Interleaved rounds of each case [default: 10, quick: 1]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seed of arrivals and orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let seconds = |full, short| Duration::from_secs(if quick { short } else { full });
    let spec = OverloadSpec {
        command: command_line(),
        rounds: args.rounds.unwrap_or(if quick { 1 } else { 10 }),
        before: seconds(10, 2),
        after: seconds(15, 5),
        sustained: seconds(60, 5),
        seed: args.seed,
        place: super::place()?,
    };
    let stop = Stop::on_signals()?;
    let report = quell_bench::overload::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
