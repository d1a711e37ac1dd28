//! `quell bench report`: docs/results.md and docs/results/*.md from bench/results/*.json.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::docs;
use anyhow::Result;

/// Make docs/results.md, docs/results/*.md, their plots and the README's figures from bench/results/*.json
#[derive(clap::Args)]
pub struct Args {
    /// The repository
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// Only tell what is out of date; exit status 1 if anything is
    #[arg(long)]
    check: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if args.check {
        let stale = docs::stale(&args.root)?;
        stale.iter().for_each(|path| println!("out of date: {}", path.display()));
        return Ok(if stale.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) });
    }
    docs::generate(&args.root)?.iter().for_each(|path| println!("wrote {}", path.display()));
    Ok(ExitCode::SUCCESS)
}
