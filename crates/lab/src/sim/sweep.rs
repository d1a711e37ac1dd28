//! `quell sim sweep`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use quell_study::simulate::source;
use quell_study::simulate::sweep::{self, SweepSpec};
use quell_terminal::{Live, Stop};

use super::checking::Checking;

/// Simulate a scenario over values of its parameters and over seeds, on all cores of this machine
///
/// Each finished case is a line of JSON in the file of results. A sweep that was interrupted goes on where it was when the
/// same command is given again; a case of which anything changed, be it the file, is simulated anew. A policy that cannot run on
/// the host of a case makes it a row `n/a`, with the reason.
#[derive(clap::Args)]
pub struct Args {
    /// The scenario, in TOML
    file: PathBuf,
    /// A key and its values: host.policy=quell,static or task.NAME.rate=100000,200000; may be repeated. A value may be any of
    /// TOML: task.NAME.load=[[0,1000],[50,9000]],[[0,2000]]
    #[arg(long = "set", value_name = "KEY=VALUE,VALUE...")]
    parameters: Vec<String>,
    /// How many seeds, from the file's on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Where the results go
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Simulations at one time [default: as many as this machine has cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    checking: Checking,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let parameters = args.parameters.iter().map(|text| source::parameter(text).context("--set"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spec = SweepSpec {
        parameters: parameters.collect::<Result<_>>()?,
        file: args.file,
        seeds: args.seeds,
        out: args.out,
        threads: args.threads.unwrap_or(cores),
        check: args.checking.is_on(),
    };
    let stop = Stop::on_signals()?;
    let cases = sweep::run(&spec, &mut Live::new(), &stop)?;
    print!("{}", sweep::text(&cases));
    Ok(ExitCode::from(u8::from(cases.iter().any(|case| !case.sound))))
}
