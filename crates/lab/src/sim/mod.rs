//! `quell sim`: a simulated host.

mod checking;
mod hunt;
mod oracle;
mod sweep;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use quell_sim::file::Simulation;
use quell_study::simulate::source::{Source, parameter};
use quell_study::simulate::{self, SimResult};

use checking::Checking;

/// Simulate a host, its tasks and a policy, as a scenario file describes them
///
/// The policy is the same code that `quell run` uses; the hardware need not exist. The same file and seed give the same
/// bytes on every machine. Exit status 1 if `quell` or `caladan`
/// broke one of their invariants, or wasted cores (unless --no-check), or the simulator's own books do not balance. Ready scenarios are in examples/sim.
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
    /// Change a key of the file: host.policy=static, task.NAME.rate=100000; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    checking: Checking,
}

#[derive(Subcommand)]
enum Command {
    Sweep(sweep::Args),
    Fuzz(hunt::Args),
    Oracle(oracle::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Some(Command::Sweep(args)) => return sweep::run(args),
        Some(Command::Fuzz(args)) => return hunt::run(args),
        Some(Command::Oracle(args)) => return oracle::run(args),
        None => {}
    }
    let simulation = simulation(&args)?;
    let mut policy = simulate::policy(&simulation)?;
    let scenario = &simulation.scenario;
    let trace = args.trace.as_deref();
    let (report, checked) = match args.checking.is_on() {
        true => {
            let (report, checked) = simulate::run_checked(scenario, policy.as_mut(), trace)?;
            (report, Some(checked))
        }
        false => (simulate::run(scenario, policy.as_mut(), trace)?, None),
    };
    let mut result = SimResult::new(scenario, policy.name(), &report);
    result.check = checked.as_ref().map(Into::into);
    result.notes.extend(simulate::notes(scenario, policy.as_ref()));
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
        for plot in quell_study::plot::simulation(scenario, policy.name(), &report, path)? {
            eprintln!("wrote {}", plot.display());
        }
    }
    Ok(ExitCode::from(u8::from(!result.is_sound())))
}

/// The scenario as the file and the command line have it.
fn simulation(args: &Args) -> Result<Simulation> {
    let file = args.file.as_ref().context("name a scenario file; examples are in examples/sim")?;
    let source = Source::open(file)?;
    let mut settings: Vec<(String, _)> = Vec::new();
    for typed in &args.settings {
        let (key, values) = parameter(typed).context("--set")?;
        let [value] = values.as_slice() else {
            bail!("--set {typed}: one simulation takes one value; `quell sim sweep` takes several");
        };
        if key == "seed" || settings.iter().any(|(other, _)| *other == key) {
            let remedy = if key == "seed" { "use --seed" } else { "it is set already" };
            bail!("--set {typed}: {remedy}");
        }
        settings.push((key, value.clone()));
    }
    let settings: Vec<_> = settings.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let mut simulation = source.resolve(&settings)?.simulation;
    simulation.scenario.seed = args.seed.unwrap_or(simulation.scenario.seed);
    if let Some(name) = &args.policy {
        simulation.choose(name.clone(), &format!("--policy {name}"));
    }
    Ok(simulation)
}
