//! `quell bench runtime-colocate`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use quell_bench::runtime_colocate::{self, RuntimeColocateSpec};
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line, split};
use quell_terminal::quantity::seconds;

/// A key-value server on the runtime beside batch work, how fast cores are granted, and short requests behind long ones
///
/// The server, batch work on the runtime and adopted batch work share the managed core under a daemon of its own; the client has
/// the other one.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Only these parts [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Interleaved rounds [default: 10, quick: 1]
    #[arg(long)]
    rounds: Option<usize>,
    /// How long each measurement takes [default: 3s, quick: 500ms]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
    /// Requests a second to the key-value server
    #[arg(long, default_value_t = 20_000.0)]
    rate: f64,
    /// The key-value server [default: examples/keyvalue beside quell]
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Part {
    /// The key-value server
    Service,
    /// From a wake-up to running
    Grant,
    /// Short requests behind long ones
    Bimodal,
}

impl From<Part> for runtime_colocate::Part {
    fn from(part: Part) -> runtime_colocate::Part {
        match part {
            Part::Service => runtime_colocate::Part::Service,
            Part::Grant => runtime_colocate::Part::Grant,
            Part::Bimodal => runtime_colocate::Part::Bimodal,
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (managed, client) = split()?;
    let parts: Vec<runtime_colocate::Part> = match args.only.is_empty() {
        true => runtime_colocate::Part::ALL.to_vec(),
        false => args.only.iter().map(|part| (*part).into()).collect(),
    };
    let server = match args.server {
        Some(path) => Some(path.canonicalize().with_context(|| path.display().to_string())?),
        None => beside("examples/keyvalue").ok(),
    };
    let time = args.duration.unwrap_or(Duration::from_millis(if quick { 500 } else { 3_000 }));
    let spec = RuntimeColocateSpec {
        command: command_line(),
        parts,
        rounds: args.rounds.unwrap_or(if quick { 1 } else { 10 }),
        time,
        rate_rps: args.rate,
        managed,
        client,
        quell: super::quell_program()?,
        antagonist: beside("quell-antagonist")?,
        peers: beside("quell-bench-peers")?,
        quantum: beside("quell-bench-quantum")?,
        server,
    };
    let stop = Stop::on_signals()?;
    let report = runtime_colocate::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
