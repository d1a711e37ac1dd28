//! `quell apply FILE`: make a running daemon's tasks what a file says.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use quell_control::protocol::Method;

use crate::client::{Daemon, read_config};

/// Make the running daemon's tasks what FILE says
///
/// New tasks are launched or adopted, changed ones changed, missing ones drained. Applying the same file
/// twice changes nothing. The [host] table cannot change while the daemon runs.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration (see docs/reference/configuration.md)
    file: PathBuf,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    daemon: Daemon,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let text = read_config(&args.file)?;
    let file = args.file.display().to_string();
    args.daemon.tell(Method::Apply { file, text, dry_run: args.dry_run })?;
    Ok(ExitCode::SUCCESS)
}
