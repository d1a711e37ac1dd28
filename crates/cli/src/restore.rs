//! `quell restore`: give everything back even if the daemon is gone.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

/// Give back what a daemon that is gone left changed
///
/// The guardians do this by themselves; it is for the case that all three were killed at once. Needs nothing
/// but the journal.
#[derive(clap::Args)]
pub struct Args {
    /// The run directory [default: $QUELL_RUN_DIR, else /run/quell where /run is a tmpfs, else /dev/shm/quell]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let dir = args.run_dir.unwrap_or_else(quell_control::run_dir::default_run_dir);
    quell_daemon::restore(&dir)?.iter().for_each(|line| println!("{line}"));
    Ok(ExitCode::SUCCESS)
}
