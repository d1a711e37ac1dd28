//! `quell bench wake-cost`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_bench::wake_cost::{self, WakeCostSpec};
use quell_terminal::{Live, Stop};

use super::{Common, command_line, split};

/// What each wake-up of a service takes from batch work on the same core, part by part
///
/// Each arm has one thing more than the one before: an interrupt, switches, another address space, a packet, cache misses, the
/// BPF observer, a timer. Differences are taken within each round. memcached at half of its peak stands beside the sum.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Rounds [default: 20, quick: 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds that each arm counts in each round [default: 1, quick: 0.5]
    #[arg(long)]
    duration: Option<f64>,
    /// Wake-ups a second
    #[arg(long, default_value_t = 20_000.0)]
    rate: f64,
    /// Seed of the times of wake-ups and of the order of the arms
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Peak of memcached in requests a second, which is asked for half of it [default: searched for]
    #[arg(long, value_name = "REQUESTS")]
    peak: Option<f64>,
    /// Leave memcached out
    #[arg(long, conflicts_with = "peak")]
    no_memcached: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (managed, client) = split()?;
    let seconds = args.duration.unwrap_or(if quick { 0.5 } else { 1.0 }).clamp(0.01, 600.0);
    let spec = WakeCostSpec {
        command: command_line(),
        rounds: args.rounds.unwrap_or(if quick { 3 } else { 20 }),
        time: Duration::from_secs_f64(seconds),
        rate: args.rate.clamp(1.0, 1e6),
        seed: args.seed,
        managed: managed.iter().next().context("no managed core")?,
        client,
        memcached: !args.no_memcached,
        peak_rps: args.peak,
    };
    let stop = Stop::on_signals()?;
    let report = wake_cost::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
