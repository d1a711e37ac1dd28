//! `quell-lab lane-loop`: a dedicated lane scheduler that offers load from within its loop, for `quell bench lanes`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use quell_daemon::{Lifetime, RunOptions};

/// Run the daemon of a file, and offer a load from the loop of its lanes' scheduler
#[derive(clap::Args)]
pub struct Args {
    /// The configuration, whose lanes have the pattern `dedicated`
    config: PathBuf,
    /// The load, in JSON
    client: PathBuf,
    /// The run directory for journals and sockets
    run_dir: PathBuf,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let file = args.config.display().to_string();
    let status = quell_daemon::run(RunOptions {
        text: std::fs::read_to_string(&args.config).with_context(|| file.clone())?,
        file,
        policy: None,
        run_dir: args.run_dir.clone(),
        record: None,
        live_line: false,
        lifetime: Lifetime::WhileBusy,
        companion: Some(quell_bench::lanes::in_loop(&args.client)?),
    })?;
    let lanes: Vec<_> = status.tasks.into_iter().filter_map(|task| task.lane).collect();
    println!("{}", serde_json::json!({ "lanes": lanes }));
    Ok(ExitCode::SUCCESS)
}
