//! `quell-lab lane-loop`: a dedicated lane scheduler that offers load from within its loop, for `quell bench lanes`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use quell_control::lanes::{LanePattern, LanesConfig};
use quell_daemon::lanes;

/// Run the lanes of a file, and offer a load from the loop of their scheduler
#[derive(clap::Args)]
pub struct Args {
    /// The lanes, in TOML; their pattern is `dedicated`
    lanes: PathBuf,
    /// The load, in JSON
    client: PathBuf,
    /// The run directory for journals and sockets
    run_dir: PathBuf,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let name = args.lanes.display().to_string();
    let text = std::fs::read_to_string(&args.lanes).with_context(|| name.clone())?;
    let lanes = LanesConfig::parse(&text, &name)?;
    ensure!(
        lanes.pattern == LanePattern::Dedicated,
        "{name}: a load is offered by a dedicated scheduler: a shared one sleeps"
    );
    let status = lanes::run(lanes::Options {
        lanes,
        run_dir: args.run_dir.clone(),
        hold_for: None,
        verbose: false,
        companion: Some(quell_bench::lanes::in_loop(&args.client)?),
    })?;
    println!("{}", serde_json::to_string(&status)?);
    Ok(ExitCode::SUCCESS)
}
