//! `quell bench sim-host`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use quell_report::BenchReport;
use quell_study::simhost;
use quell_terminal::{Live, Stop};

use super::{Common, command_line};

/// The simulator against this host: memcached beside batch work simulated, and what `quell bench services` measured
///
/// Takes the host's costs from the reports of `quell bench services`, `mechanism` and `overhead`, and fits nothing. Needs
/// no root.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The directory with services-memcached.json, mechanism.json and overhead.json
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/results")]
    results: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let read = |name: &str| BenchReport::read(&args.results.join(name));
    let measured = simhost::Measured {
        services: read("services-memcached.json")?,
        mechanism: read("mechanism.json")?,
        overhead: read("overhead.json")?,
    };
    let stop = Stop::on_signals()?;
    let report = simhost::run(&command_line(), &measured, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
