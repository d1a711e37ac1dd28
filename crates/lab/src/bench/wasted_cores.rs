//! `quell bench wasted-cores`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use quell_study::wasted_cores::{self, WastedCoresSpec};
use quell_terminal::{Live, Stop};

/// The scheduler bugs of "A Decade of Wasted Cores" in simulation: the paper's workloads with and without each fix
///
/// Prints the paper's figures beside those of the model, with the bounds that were set before. Needs no root, and any machine
/// gives the same figures.
#[derive(clap::Args)]
pub struct Args {
    /// Two seeds, for a first look
    #[arg(long)]
    quick: bool,
    /// Seeds of each arm [default: 10, quick: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: Option<u64>,
    /// Only cases whose names begin so: make-r, two-nodes, hotplug [default: all]
    #[arg(long, value_name = "CASE", default_value = "", hide_default_value = true)]
    only: String,
    /// Simulations at one time [default: as many as this machine has cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spec = WastedCoresSpec {
        command: super::command_line(),
        seeds: args.seeds.unwrap_or(if args.quick { 2 } else { 10 }),
        threads: args.threads.unwrap_or(cores),
        only: args.only,
    };
    let report = wasted_cores::run(&spec, &mut Live::new(), &Stop::on_signals()?)?;
    print!("{}", wasted_cores::text(&report));
    if let Some(path) = &args.json {
        report.write(path)?;
        println!("wrote {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
