//! `quell stop`: end the daemon.

use std::process::ExitCode;

use anyhow::Result;
use quell_control::protocol::Call;

use crate::client::Daemon;

/// Give everything back and end the daemon
///
/// Launched programs get SIGTERM, and SIGKILL five seconds later; adopted ones go on as they were found.
#[derive(clap::Args)]
pub struct Args {
    /// Leave launched programs running
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    daemon: Daemon,
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.daemon.tell(Call::Stop { keep: args.keep })?;
    Ok(ExitCode::SUCCESS)
}
