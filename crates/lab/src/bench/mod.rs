//! `quell bench`: every benchmark, and the pages of results.

mod check;
mod client;
mod lanes;
mod mechanism;
mod net;
mod net_figures;
mod overhead;
mod overload;
mod reaction;
mod replay;
mod report;
mod runtime;
mod runtime_colocate;
mod services;
mod sim;
mod sim_host;
mod three_services;
mod validation;
mod view;
mod wake_cost;
mod wasted_cores;
mod why;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::summary;
use anyhow::{Context, Result};
use clap::Subcommand;
use quell_bench::stage::Place;
use quell_report::BenchReport;

/// Run a benchmark, or make the pages of docs/results.md from the results
///
/// Everything is measured side by side in one run and reported with its spread, the machine's facts and the
/// command that makes it again. Keep the machine quiet meanwhile.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Services(services::Args),
    Client(client::Args),
    Mechanism(mechanism::Args),
    WakeCost(wake_cost::Args),
    Reaction(reaction::Args),
    Overhead(overhead::Args),
    Overload(overload::Args),
    ThreeServices(three_services::Args),
    Check(check::Args),
    View(view::Args),
    Why(why::Args),
    Lanes(lanes::Args),
    Net(net::Args),
    NetFigures(net_figures::Args),
    Runtime(runtime::Args),
    RuntimeColocate(runtime_colocate::Args),
    Sim(sim::Args),
    SimHost(sim_host::Args),
    Validation(validation::Args),
    WastedCores(wasted_cores::Args),
    Replay(replay::Args),
    Report(report::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Services(args) => services::run(args),
        Command::Client(args) => client::run(args),
        Command::Mechanism(args) => mechanism::run(args),
        Command::WakeCost(args) => wake_cost::run(args),
        Command::Reaction(args) => reaction::run(args),
        Command::Overhead(args) => overhead::run(args),
        Command::Overload(args) => overload::run(args),
        Command::ThreeServices(args) => three_services::run(args),
        Command::Check(args) => check::run(args),
        Command::View(args) => view::run(args),
        Command::Why(args) => why::run(args),
        Command::Lanes(args) => lanes::run(args),
        Command::Net(args) => net::run(args),
        Command::NetFigures(args) => net_figures::run(args),
        Command::Runtime(args) => runtime::run(args),
        Command::RuntimeColocate(args) => runtime_colocate::run(args),
        Command::Sim(args) => sim::run(args),
        Command::SimHost(args) => sim_host::run(args),
        Command::Validation(args) => validation::run(args),
        Command::WastedCores(args) => wasted_cores::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Report(args) => report::run(args),
    }
}

/// The first line of a benchmark's help, by its name on the command line.
pub fn about(name: &str) -> Option<String> {
    let all = Command::augment_subcommands(clap::Command::new("bench"));
    all.find_subcommand(name)?.get_about().map(ToString::to_string)
}

/// Flags of every benchmark.
#[derive(clap::Args)]
struct Common {
    /// Much shorter: for a first look, not for quoting
    #[arg(long)]
    quick: bool,
    /// Write the report as JSON to this file, and plots beside it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Common {
    /// Prints the report, and writes what was asked for.
    fn publish(&self, report: &BenchReport) -> Result<ExitCode> {
        println!("{}", summary::text(report));
        self.write_json(report)
    }

    /// Writes the report and its plots, if a file was asked for.
    fn write_json(&self, report: &BenchReport) -> Result<ExitCode> {
        let Some(path) = &self.json else { return Ok(ExitCode::SUCCESS) };
        report.write(path)?;
        println!("wrote {}", path.display());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        for picture in &report.plots {
            let folder = folder.unwrap_or(Path::new("."));
            quell_report::plot::panels(picture, folder)?;
            println!("wrote {}", folder.join(format!("{}.svg", picture.name)).display());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The command as typed, without the program's path.
fn command_line() -> String {
    let args: Vec<String> = std::env::args().skip(1).collect();
    format!("quell {}", args.join(" "))
}

/// A program that is built beside this one; a package puts it into `libexec`.
fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let packaged = own.with_file_name("../libexec/quell").join(name);
    let found = [own.with_file_name(name), packaged].into_iter().find(|path| path.exists());
    found.with_context(|| {
        format!(
            "{name} is not beside {}; build it with `cargo build --release --bins`",
            own.display()
        )
    })
}

/// The program `quell`: beside this one, or where a package has it.
fn quell_program() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let packaged = own.with_file_name("../../bin/quell");
    let found = [own.with_file_name("quell"), packaged].into_iter().find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "quell is not beside {}; install the package quell, or build it with `cargo build --release --bins`",
            own.display()
        )
    })
}

/// The managed core or cores of benchmarks and the client's: this host's default split.
fn split() -> Result<(quell_model::CoreSet, quell_model::CoreId)> {
    let topology = quell_observe::topology::read()?;
    let first = topology.cores().first().context("this host shows no core")?.id;
    let last = topology.cores().last().context("this host shows no core")?.id;
    anyhow::ensure!(first != last, "benchmarks need two cores: one for the client, one to share");
    Ok((quell_model::CoreSet::of(last), first))
}

/// This host's default split, and the programs beside this one.
fn place() -> Result<Place> {
    let (managed, client) = split()?;
    let (quell, antagonist) = (quell_program()?, beside("quell-antagonist")?);
    Ok(Place { managed, client, quell, antagonist })
}
