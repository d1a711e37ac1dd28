//! `quell check`: whether the scheduler wastes cores.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::check_lint;

/// Check whether the scheduler wastes cores
///
/// Exit status: 0 clean, 1 violated, 2 could not tell.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    lint: check_lint::Lint,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.lint.lint {
        bail!("say what to check: `quell check --lint`");
    }
    check_lint::run(&args.lint, args.json)
}
