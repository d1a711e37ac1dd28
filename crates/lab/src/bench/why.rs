//! `quell bench why`.

use std::process::ExitCode;

use anyhow::Result;
use quell_bench::why::WhySpec;
use quell_model::Nanos;
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line, split};

/// Whether causes of delay that are planted on purpose are found
///
/// Beside a memcached under load: a SCHED_FIFO hog, batch work that faults pages in, a softirq of milliseconds, a
/// stopped service, and stalls of the hypervisor as the generator's spinning loop sees them. Of the slow requests
/// that were in flight meanwhile, and that no long stop of the hypervisor met as well: the share whose main cause is
/// the planted one, asked of what was recorded live and of a file with the same.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Rounds of all causes [default: 5, quick: 1]
    #[arg(long)]
    rounds: Option<usize>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (managed, client) = split()?;
    let spec = WhySpec {
        command: command_line(),
        rounds: args.rounds.unwrap_or(if quick { 1 } else { 5 }),
        duration: Nanos::from_secs(if quick { 2 } else { 5 }),
        managed,
        client,
        antagonist: beside("quell-antagonist")?,
    };
    let stop = Stop::on_signals()?;
    let report = quell_bench::why::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
