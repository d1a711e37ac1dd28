//! `quell`: latency-critical services and batch work on one Linux host.
//!
//! One subcommand a file and no logic: each reads its arguments, calls a library and prints.

mod apply;
mod bench;
mod check;
mod check_lint;
mod check_live;
mod check_plan;

mod client;
mod doctor;
mod drain;
mod generate;
mod guardian;
mod lane;
mod launch;
mod load;
mod quantity;
mod record;
mod release;
mod replay;
mod run;
mod sim;
mod stats;
mod status;
mod stop;
mod table;
mod top;
mod trace_file;
mod view;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

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
    Drain(drain::Args),
    Status(status::Args),
    Why(why::Args),
    Record(record::Args),
    Top(top::Args),
    Check(check::Args),
    Stop(stop::Args),
    Release(release::Args),
    Replay(replay::Args),
    Stats(stats::Args),
    View(view::Args),
    Doctor(doctor::Args),
    Load(load::Args),
    Sim(sim::Args),
    Bench(bench::Args),

    #[command(hide = true)]
    Generate(generate::Args),
    #[command(hide = true)]
    Guardian(guardian::Args),
    #[command(hide = true)]
    Launch(launch::Args),
    /// What `quell bench lanes` puts on lanes
    #[command(hide = true)]
    LaneMember {
        #[arg(trailing_var_arg = true)]
        args: Vec<std::ffi::OsString>,
    },
}

fn main() -> ExitCode {
    start_logging();
    let command = Cli::parse().command;
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
        Command::Drain(args) => drain::run(args),
        Command::Status(args) => status::run(args),
        Command::Why(args) => why::run(args),
        Command::Record(args) => record::run(args),
        Command::Top(args) => top::run(args),
        Command::Check(args) => check::run(args),
        Command::Stop(args) => stop::run(args),
        Command::Release(args) => release::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Stats(args) => stats::run(args),
        Command::View(args) => view::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Load(args) => load::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Bench(args) => bench::run(args),

        Command::Generate(args) => generate::run(args, Cli::command()),
        Command::Guardian(args) => guardian::run(args),
        Command::Launch(args) => launch::run(args),
        Command::LaneMember { args } => Ok(quell_bench::lanes::main(&args)),
    };
    match result {
        Ok(code) => code,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::from(2)
        }
    }
}

/// Warnings by default, to standard error; `RUST_LOG=quell=debug` or `RUST_LOG=quell::audit=info` for more.
fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .try_init();
}

/// `quell status | head` ends like every other program, rather than with a panic on a closed pipe.
fn end_quietly_on_closed_pipes() {
    let always = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    // Without it a closed pipe is merely ugly.
    let _ = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGPIPE, always);
}
