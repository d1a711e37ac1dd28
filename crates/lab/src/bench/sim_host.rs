//! `quell bench sim-host`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use quell_report::BenchReport;
use quell_study::simhost;
use quell_terminal::{Live, Stop};

use super::{Common, command_line};

/// The simulator against this host: the co-location of `quell bench colocate` simulated, beside what was measured
///
/// Takes the host's costs from the reports of `quell bench mechanism` and `quell bench colocate`, and fits nothing. Needs no root.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The folder with colocate.json and mechanism.json
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    results: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let read = |name: &str| BenchReport::read(&args.results.join(name));
    let (colocate, mechanism) = (read("colocate.json")?, read("mechanism.json")?);
    let stop = Stop::on_signals()?;
    let report = simhost::run(&command_line(), &colocate, &mechanism, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
