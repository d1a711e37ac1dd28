//! `quell run FILE`: start the daemon with a configuration.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use quell_daemon::{Lifetime, RecordTo, RunOptions};

use crate::client::read_config;
use quell_terminal::quantity::size;

/// Manage cores and tasks as FILE says, until Ctrl-C or `quell stop`
///
/// Launches and adopts the file's tasks, keeps each LC task's latency and gives what is left to BE. Whatever
/// ends it, everything goes back to what it was: two guardians restore the host even if this process is
/// killed. Needs root (CAP_SYS_NICE, CAP_BPF and CAP_PERFMON).
#[derive(clap::Args)]
pub struct Args {
    /// The configuration (see docs/reference/configuration.md)
    file: PathBuf,
    /// Show what would be decided and changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Use this policy instead of the file's
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Record every decision to FILE, for `quell replay` (see docs/tools/replay.md)
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    record_decisions: Option<PathBuf>,
    /// Keep only about the newest SIZE bytes of the recording, e.g. 64M
    #[arg(long, value_name = "SIZE", requires = "record_decisions", value_parser = size)]
    record_decisions_max_size: Option<u64>,
    /// End with the last client that attaches tasks
    #[arg(long, hide = true)]
    while_attached: bool,
    /// No live status line
    #[arg(long, short)]
    quiet: bool,
    /// The run directory for socket, lock and journal [default: $QUELL_RUN_DIR, else /run/quell where /run is a
    /// tmpfs, else /dev/shm/quell]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let options = RunOptions {
        text: read_config(&args.file)?,
        file: args.file.display().to_string(),
        policy: args.policy,
        run_dir: args.run_dir.unwrap_or_else(quell_control::run_dir::default_run_dir),
        record: args
            .record_decisions
            .map(|file| RecordTo { file, ring: args.record_decisions_max_size }),
        live_line: !args.quiet,
        lifetime: match args.while_attached {
            true => Lifetime::WhileAttached,
            false => Lifetime::UntilAsked,
        },
        companion: None,
    };
    match args.dry_run {
        true => quell_daemon::dry_run(&options)?.iter().for_each(|line| println!("{line}")),
        false => drop(quell_daemon::run(options)?),
    }
    Ok(ExitCode::SUCCESS)
}
