//! `quell bench lanes`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use quell_bench::lanes::{self, LanesSpec, Place};
use quell_model::Nanos;
use quell_terminal::{Live, Stop};

use super::{Common, command_line, split};
use quell_terminal::quantity::seconds;

/// Turns on a lane, a server beside busy loops, and short requests behind long ones, beside the article's figures
///
/// The evaluation of the priority elevation trick on this host: how long turns are and how long until the next one,
/// what switches cost, a server's tail by slice and by table, and requests of 0.5 us behind those of 500 us with and
/// without preemption; next to what the kernel offers in the same rounds. With two cores a dedicated scheduler leaves
/// hardly anything of the other core meanwhile.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Only these parts [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Interleaved rounds [default: 5, quick: 1]
    #[arg(long)]
    rounds: Option<usize>,
    /// How long each run takes [default: 1s, quick: 200ms]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
    /// The article's own scheduler, `trick`, built from its README; see docs/reference/lanes.md
    #[arg(long, value_name = "PROGRAM")]
    prototype: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Part {
    /// Slices as taken, gaps between them, and cycles lost
    Accuracy,
    /// A server by slice
    Slices,
    /// A server by table
    Table,
    /// Short requests behind long ones
    Bimodal,
}

impl From<Part> for lanes::Part {
    fn from(part: Part) -> lanes::Part {
        match part {
            Part::Accuracy => lanes::Part::Accuracy,
            Part::Slices => lanes::Part::Slices,
            Part::Table => lanes::Part::Table,
            Part::Bimodal => lanes::Part::Bimodal,
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (cores, other) = split()?;
    let core = cores.first().context("this host shows no core")?;
    let slices: &[u64] = if quick { &[10, 100] } else { &[5, 10, 20, 50, 100, 150] };
    let parts: Vec<lanes::Part> = match args.only.is_empty() {
        true => lanes::Part::ALL.to_vec(),
        false => args.only.iter().map(|part| (*part).into()).collect(),
    };
    let prototype =
        args.prototype.map(|path| path.canonicalize().context(path.display().to_string()));
    let spec = LanesSpec {
        command: command_line(),
        parts,
        rounds: args.rounds.unwrap_or(if quick { 1 } else { 5 }),
        time: args.duration.unwrap_or(Duration::from_millis(if quick { 200 } else { 1_000 })),
        slices: slices.iter().map(|micros| Nanos::from_micros(*micros)).collect(),
        place: Place {
            core,
            other,
            quell: super::quell_program()?,
            lab: std::env::current_exe()?,
            prototype: prototype.transpose()?,
        },
    };
    let stop = Stop::on_signals()?;
    let report = lanes::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
