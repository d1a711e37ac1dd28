//! `quell lane`: threads that take turns on a core.

mod run;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Have threads take turns on a core, microseconds each, as a policy says
///
/// A lane is the run queue that Quell keeps for one core in user space. Its members are programs that it starts,
/// processes that run, or single threads (pthreads, QEMU's vCPUs): nothing in them has to change. See docs/reference/lanes.md.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Status(status::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Run(args) => run::run(*args),
        Command::Status(args) => status::run(&args),
    }
}
