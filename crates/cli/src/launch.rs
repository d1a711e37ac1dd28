//! `quell launch -- PROGRAM ..`: what becomes a launched task. Not for people.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Stop until watched, then become a program (used by the daemon)
#[derive(clap::Args)]
pub struct Args {
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let err = quell_daemon::become_program(&args.command);
    Err(err).with_context(|| format!("cannot run {}", args.command[0].display()))
}
