//! `quell bench sim`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use quell_study::simspeed::{self, SimSpeedSpec};
use quell_terminal::{Live, Stop};

use super::{Common, command_line};

/// How fast the simulator is: events a second, simulated seconds a second, memory, against SimPy and salabim
///
/// A queue with ten servers in all simulators, and hosts of 24 to 1,000 cores with decisions every 10 us. A recipe of CPU
/// hogs runs in a virtual machine, too. Needs no root.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Rounds of all cases [default: 5, quick: 1]
    #[arg(long)]
    rounds: Option<usize>,
    /// The Python that has SimPy and salabim; without them they are not measured [default: that of `make setup`, else
    /// python3]
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// What runs a recipe of CPU hogs in a virtual machine, beside the same in the simulator; without QEMU or a kernel
    /// (`scripts/vm/kernel.sh 6.12`) it is not measured [default: scripts/vm/recipe.sh; quick: none]
    #[arg(long, value_name = "SCRIPT")]
    guest: Option<PathBuf>,
    /// Simulate one file and print what it cost
    #[arg(long, value_name = "FILE", hide = true)]
    measure: Option<PathBuf>,
    /// With a trace that the checker reads
    #[arg(long, requires = "measure", hide = true)]
    checked: bool,
}

/// Where `make setup` puts a Python with the packages.
const PYTHON: &str = "target/python/bin/python";
/// In a checkout.
const GUEST: &str = "scripts/vm/recipe.sh";

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(file) = args.measure {
        println!("{}", serde_json::to_string(&simspeed::measure(&file, args.checked)?)?);
        return Ok(ExitCode::SUCCESS);
    }
    let ready = || Some(PathBuf::from(PYTHON)).filter(|python| python.exists());
    let quick = args.common.quick;
    let spec = SimSpeedSpec {
        command: command_line(),
        rounds: args.rounds.unwrap_or(if quick { 1 } else { 5 }),
        cores: vec![24, 64, 256, 1_000],
        toy_ms: if quick { 100 } else { 2_000 },
        host_ms: if quick { 2 } else { 50 },
        database_ms: if quick { 200 } else { 60_000 },
        python: args.python.or_else(ready).unwrap_or_else(|| "python3".into()),
        guest: args.guest.or_else(|| (!quick).then(|| GUEST.into())),
        quell: std::env::current_exe().context("the path of this program")?,
    };
    let stop = Stop::on_signals()?;
    let report = simspeed::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}
