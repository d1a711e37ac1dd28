//! `quell guardian`: restores the host when the daemon dies. Not for people.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;

/// Wait for the daemon's end and restore the host (started by the daemon)
#[derive(clap::Args)]
pub struct Args {
    /// What the daemon passes on
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    Ok(quell_daemon::guardian_main(&args.rest))
}
