//! `quell bench three-services`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_bench::three_services::{ThreeServicesSpec, goals_missed};
use quell_terminal::{Live, Stop};

use super::{Common, command_line, place};

/// Longest measurement, in seconds: the daemon is started anew for each.
const LENGTH_MAX_S: u64 = 120;

/// memcached, Redis and a Go server on one core, with loads that step at random, beside busy loops
///
/// The load of each changes every one to four seconds, and takes between nearly none and a quarter of the core. Measured
/// without batch work and under Quell beside it, by turns and with the same arrivals. Needs root, two cores
/// and the services (`make setup`). Ctrl-C ends it after the measurement under way.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Time under load in each system, in seconds [default: 1200, quick: 20]
    #[arg(long, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    seconds: Option<u64>,
    /// Seed of loads, arrivals and orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Exit with 1 where a service's tail is longer than twice what it is without batch work
    #[arg(long)]
    judge: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let seconds = args.seconds.unwrap_or(if args.common.quick { 20 } else { 1_200 });
    let rounds = seconds.div_ceil(LENGTH_MAX_S);
    let spec = ThreeServicesSpec {
        command: command_line(),
        rounds: rounds as usize,
        length: Duration::from_secs(seconds.div_ceil(rounds)),
        seed: args.seed,
        place: place()?,
    };
    let stop = Stop::on_signals()?;
    let report = quell_bench::three_services::run(&spec, &mut Live::new(), &stop)?;
    let published = args.common.publish(&report)?;
    Ok(if args.judge && goals_missed(&report) { ExitCode::FAILURE } else { published })
}
