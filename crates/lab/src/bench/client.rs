//! `quell bench client`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_bench::client::{self, ClientSpec};
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line, split};

/// What the load generator itself adds to a latency, beside pgbench, vegeta and a spinning C client
///
/// Servers that are idle nearly all the time are asked by both in turn, in an order drawn anew in each round. The kernel's time
/// stamps show how long after a reply came it was read.
#[derive(clap::Args)]
#[command(after_help = "vegeta is not packaged; `make bench` installs it, as does\n    \
    GOBIN=$PWD/target/peers go install github.com/tsenart/vegeta/v12@v12.12.0")]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Rounds [default: 20, quick: 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each turn [default: 3, quick: 1]
    #[arg(long)]
    duration: Option<f64>,
    /// The program vegeta [default: target/peers/vegeta, or the one of the PATH]
    #[arg(long, value_name = "PROGRAM")]
    vegeta: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (managed, client) = split()?;
    let seconds = args.duration.unwrap_or(if quick { 1.0 } else { 3.0 }).clamp(0.1, 600.0);
    let spec = ClientSpec {
        command: command_line(),
        rounds: args.rounds.unwrap_or(if quick { 3 } else { 20 }),
        duration: Duration::from_secs_f64(seconds),
        managed,
        client,
        antagonist: beside("quell-antagonist")?,
        vegeta: args.vegeta.or_else(vegeta),
    };
    let stop = Stop::on_signals()?;
    let report = client::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}

/// Where vegeta is, if anywhere.
fn vegeta() -> Option<PathBuf> {
    let own = PathBuf::from("target/peers/vegeta");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join("vegeta"));
    std::iter::once(own).chain(found).find(|program| program.is_file())
}
