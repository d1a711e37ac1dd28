//! `quell stop`: end the daemon.

use std::process::ExitCode;

use anyhow::Result;
use quell_control::protocol::Method;

use crate::client::Daemon;

/// Give everything back and end the daemon
///
/// Launched programs get SIGTERM, and SIGKILL five seconds later; adopted ones go on as they were found.
#[derive(clap::Args)]
pub struct Args {
    /// Leave launched programs running
    #[arg(long)]
    keep_programs: bool,
    #[command(flatten)]
    daemon: Daemon,
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.daemon.tell(Method::Stop { keep_programs: args.keep_programs })?;
    Ok(ExitCode::SUCCESS)
}
