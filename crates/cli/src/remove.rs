//! `quell remove NAME`: give one task back.

use std::process::ExitCode;

use anyhow::Result;
use quell_control::protocol::Method;

use crate::client::Daemon;

/// Give one task back: its threads as they were found, a launched program ended
#[derive(clap::Args)]
pub struct Args {
    /// The task's name, as `quell status` shows it
    name: String,
    #[command(flatten)]
    daemon: Daemon,
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.daemon.tell(Method::Remove { task: args.name })?;
    Ok(ExitCode::SUCCESS)
}
