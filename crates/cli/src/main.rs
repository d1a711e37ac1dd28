//! `quell`: latency-critical services and batch work on one Linux host.
//!
//! One subcommand a file and no logic: each reads its arguments, calls a library and prints.

mod apply;
mod check;
mod check_lint;
mod check_live;
mod check_plan;

mod client;
mod doctor;
mod guardian;
mod lab;
mod lane;
mod launch;
mod record;
mod remove;
mod renamed;
mod replay;
mod restore;
mod run;
mod stats;
mod status;
mod status_follow;
mod stop;
mod top;
mod trace_file;
mod view;
mod why;
mod why_file;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use quell_terminal::generate::{self, Program};
use quell_terminal::{end_quietly_on_closed_pipes, start_logging};

/// Latency-critical services and batch work on one Linux host: the service keeps the tail latency it has
/// alone, the batch work gets all that is left. No changed kernel, no changed program.
///
/// Start with `quell doctor` (what this host can do), then `quell run FILE.toml`. Whatever ends Quell, by
/// Ctrl-C or by SIGKILL, every priority, affinity and setting goes back to what it was.
#[derive(Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Lane(lane::Args),
    Apply(apply::Args),
    Remove(remove::Args),
    Status(status::Args),
    Why(why::Args),
    Record(record::Args),
    Top(top::Args),
    Check(check::Args),
    Stop(stop::Args),
    Restore(restore::Args),
    Replay(replay::Args),
    Stats(stats::Args),
    View(view::Args),
    Doctor(doctor::Args),
    /// Offer load to a service, find what it sustains, or serve fake work (by quell-lab)
    Load(lab::Args),
    /// Simulate a host, its tasks and a policy, as a scenario file describes them (by quell-lab)
    Sim(lab::Args),
    /// Run a benchmark, or make the pages of docs/results.md (by quell-lab)
    Bench(lab::Args),

    #[command(hide = true)]
    Generate(generate::Args),
    #[command(hide = true)]
    Guardian(guardian::Args),
    #[command(hide = true)]
    Launch(launch::Args),
}

fn main() -> ExitCode {
    start_logging();
    let command = match renamed::RENAMED.parse::<Cli>() {
        Ok(cli) => cli.command,
        Err(notice) => {
            eprintln!("error: {notice}");
            return ExitCode::from(2);
        }
    };
    // `top` gives the terminal back first, whichever pipe or socket was closed.
    if !matches!(
        command,
        Command::Run(_) | Command::Lane(_) | Command::Guardian(_) | Command::Top(_)
    ) {
        end_quietly_on_closed_pipes();
    }
    let result = match command {
        Command::Run(args) => run::run(args),
        Command::Lane(args) => lane::run(args),
        Command::Apply(args) => apply::run(args),
        Command::Remove(args) => remove::run(args),
        Command::Status(args) => status::run(args),
        Command::Why(args) => why::run(args),
        Command::Record(args) => record::run(args),
        Command::Top(args) => top::run(args),
        Command::Check(args) => check::run(args),
        Command::Stop(args) => stop::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Stats(args) => stats::run(args),
        Command::View(args) => view::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Load(args) => lab::run("load", args),
        Command::Sim(args) => lab::run("sim", args),
        Command::Bench(args) => lab::run("bench", args),

        Command::Generate(args) => generate::run(args, &Cli::command(), Program::Quell),
        Command::Guardian(args) => guardian::run(args),
        Command::Launch(args) => launch::run(args),
    };
    match result {
        Ok(code) => code,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::from(2)
        }
    }
}
