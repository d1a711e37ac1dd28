//! `quell-lab`: benchmarks, load generator and simulator. `quell bench`, `quell load` and `quell sim` execute it.
//!
//! One subcommand a file and no logic: each reads its arguments, calls a library and prints.

mod bench;
mod docs;
mod lane_loop;
mod load;
mod renamed;
mod render;
mod sim;
mod summary;
mod timeline;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use quell_terminal::generate::{self, Program};
use quell_terminal::{end_quietly_on_closed_pipes, start_logging};

/// Benchmarks, load generator and simulator of Quell. `quell bench`, `quell load` and `quell sim` execute this program.
#[derive(Parser)]
#[command(
    name = "quell-lab",
    bin_name = "quell",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Load(load::Args),
    Sim(sim::Args),
    Bench(bench::Args),

    /// The commit of this program: `quell` executes none of another
    #[command(hide = true)]
    Commit,
    #[command(hide = true)]
    Generate(generate::Args),
    #[command(hide = true)]
    Render(render::Args),
    /// What `quell bench lanes` puts on lanes
    #[command(hide = true)]
    LaneMember {
        #[arg(trailing_var_arg = true)]
        args: Vec<OsString>,
    },
    #[command(hide = true)]
    LaneLoop(lane_loop::Args),
    /// The guardians of `lane-loop`
    #[command(hide = true, disable_help_flag = true)]
    Guardian {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    start_logging();
    let command = match renamed::RENAMED.parse::<Lab>() {
        Ok(lab) => lab.command,
        Err(notice) => {
            eprintln!("error: {notice}");
            return ExitCode::from(2);
        }
    };
    if !matches!(command, Command::Guardian { .. } | Command::LaneLoop(_)) {
        end_quietly_on_closed_pipes();
    }
    let result = match command {
        Command::Load(args) => load::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Commit => {
            println!("{}", quell_terminal::commit());
            Ok(ExitCode::SUCCESS)
        }
        Command::Generate(args) => generate::run(args, &Lab::command(), Program::Lab),
        Command::Render(args) => render::run(&args),
        Command::LaneMember { args } => Ok(quell_bench::lanes::main(&args)),
        Command::LaneLoop(args) => lane_loop::run(&args),
        Command::Guardian { args } => Ok(quell_daemon::guardian_main(&args)),
    };
    match result {
        Ok(code) => code,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::from(2)
        }
    }
}
