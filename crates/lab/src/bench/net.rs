//! `quell bench net`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_bench::net::{self, NetSpec};
use quell_terminal::quantity::seconds;
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line};

/// Virtual sockets beside kernel TCP between two network namespaces, and beside TCP and Unix sockets on one host
///
/// Both ends are programs of their own, alike for all systems: the same buffers, cubic, no delay, no affinity. Every byte that
/// arrives is compared with what was sent, and counts only then. The namespaces are gone with the benchmark. Takes root.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Only cases whose names begin so [default: all]
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    only: Vec<String>,
    /// Interleaved rounds [default: 10, quick: 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// The time that counts in each round of each system [default: 1s, quick: 200ms]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
}

/// Where `make` builds `quinn` and `yamux`: beside the directory of this program.
fn multiplexers() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("../peers/release/quell-peer-net"))
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    // Refused before anything is looked for.
    net::chosen_cases(&args.only)?;
    let spec = NetSpec {
        command: command_line(),
        only: args.only,
        rounds: args.rounds.unwrap_or(if quick { 2 } else { 10 }),
        time: args.duration.unwrap_or(Duration::from_millis(if quick { 200 } else { 1_000 })),
        peers: beside("quell-bench-peers")?,
        multiplexers: multiplexers()?,
    };
    let stop = Stop::on_signals()?;
    let report = net::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
