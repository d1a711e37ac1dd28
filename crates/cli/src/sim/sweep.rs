//! `quell sim sweep`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use quell_bench::simulate::sweep::{self, SweepSpec};
use quell_bench::{Live, Stop};

/// Simulate a scenario over values of its parameters and over seeds, on all cores of this machine
///
/// Each finished case is a line of JSON in the file of results. A sweep that was interrupted goes on where it was when the
/// same command is given again.
#[derive(clap::Args)]
pub struct Args {
    /// The scenario, in TOML
    file: PathBuf,
    /// A key and its values: host.policy=quell,static or task.NAME.rate=100000,200000; may be repeated
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
}

pub fn run(args: Args) -> Result<ExitCode> {
    let parameters = args.parameters.iter().map(|text| sweep::parameter(text).context("--set"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spec = SweepSpec {
        parameters: parameters.collect::<Result<_>>()?,
        file: args.file,
        seeds: args.seeds,
        out: args.out,
        threads: args.threads.unwrap_or(cores),
    };
    let stop = Stop::on_signals()?;
    let cases = sweep::run(&spec, &mut Live::new(), &stop)?;
    print!("{}", sweep::table(&cases).text());
    Ok(ExitCode::from(u8::from(cases.iter().any(|case| !case.sound))))
}
