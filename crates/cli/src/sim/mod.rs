//! `quell sim`: a simulated host.

mod hunt;
mod sweep;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use quell_bench::simulate::{self, SimResult};
use quell_sim::file::Simulation;

/// Simulate a host, its tasks and a policy, as a scenario file describes them
///
/// The policy is the same code that `quell run` uses; the hardware need not exist. The same file and seed give the same
/// bytes on every machine. Exit status 1 if `quell` or `caladan`
/// broke one of their invariants, or wasted cores (--check), or the simulator's own books do not balance. Ready scenarios are in examples/sim.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The scenario, in TOML
    #[arg(required = true)]
    file: Option<PathBuf>,
    /// Use this seed instead of the file's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Use this policy instead of the file's
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Write the result as JSON; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw cores, memory and latency over time, as SVG and PNG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write what the scheduler did as a trace, for `quell view`, `quell check`, `quell stats` and Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Check meanwhile, as `quell check` does a trace, whether threads wait while cores idle that they could use; what the plan
    /// wants so is told with its reason
    #[arg(long)]
    check: bool,
}

#[derive(Subcommand)]
enum Command {
    Sweep(sweep::Args),
    Hunt(hunt::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Some(Command::Sweep(args)) => return sweep::run(args),
        Some(Command::Hunt(args)) => return hunt::run(args),
        None => {}
    }
    let file = args.file.context("name a scenario file; examples are in examples/sim")?;
    let mut simulation = Simulation::load(&file)?;
    simulation.scenario.seed = args.seed.unwrap_or(simulation.scenario.seed);
    simulation.policy = args.policy.unwrap_or(simulation.policy);
    let mut policy = simulate::policy(&simulation)?;
    let scenario = &simulation.scenario;
    let trace = args.trace.as_deref();
    let (report, checked) = match args.check {
        true => {
            let (report, checked) = simulate::run_checked(scenario, policy.as_mut(), trace)?;
            (report, Some(checked))
        }
        false => (simulate::run(scenario, policy.as_mut(), trace)?, None),
    };
    let mut result = SimResult::new(scenario, policy.name(), &report);
    result.check = checked.as_ref().map(Into::into);
    let mut out = std::io::stdout().lock();
    match &args.json {
        Some(path) if path == Path::new("-") => write!(out, "{}", result.to_json()?)?,
        Some(path) => {
            std::fs::write(path, result.to_json()?)
                .with_context(|| format!("write {}", path.display()))?;
            writeln!(out, "{}wrote {}", result.text(scenario), path.display())?;
        }
        None => write!(out, "{}", result.text(scenario))?,
    }
    if let Some(path) = &args.plot {
        for plot in quell_bench::plot::simulation(scenario, policy.name(), &report, path)? {
            eprintln!("wrote {}", plot.display());
        }
    }
    Ok(ExitCode::from(u8::from(!result.is_sound())))
}
