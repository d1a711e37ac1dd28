//! `quell bench check`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_bench::check::{self, CheckSpec};
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line};

/// What `quell check` and `quell record` cost beside 10,000 threads, and what perf, ftrace and bpftrace cost
///
/// Each tool's CPU time and the time in its BPF programs, as a share of the host; what work is left to get done beside
/// it; the rate of events at which it begins to lose some; and how long a look at all threads takes.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Interleaved rounds [default: 5, quick: 1]
    #[arg(long)]
    rounds: Option<usize>,
    /// Threads that sleep and wake
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    threads: u32,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let spec = CheckSpec {
        command: command_line(),
        threads: args.threads as usize,
        rates: if quick { vec![10e3] } else { vec![1e3, 10e3, 50e3] },
        ladder: if quick { vec![20e3] } else { vec![20e3, 40e3, 80e3, 160e3] },
        rounds: args.rounds.unwrap_or(if quick { 1 } else { 5 }),
        settle: Duration::from_secs(1),
        account: Duration::from_millis(if quick { 500 } else { 1_500 }),
        work: Duration::from_millis(800),
        quell: super::quell_program()?,
        antagonist: beside("quell-antagonist")?,
    };
    let stop = Stop::on_signals()?;
    let report = check::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
