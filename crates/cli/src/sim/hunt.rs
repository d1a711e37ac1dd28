//! `quell sim hunt`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_bench::simulate::hunt::{self, HuntSpec};
use quell_bench::{Live, Stop};

use crate::quantity::seconds;

/// Search for mistakes of a policy with random hosts, loads, faults and changes, on all cores of this machine
///
/// Every scenario follows from its seed. What breaks an invariant, starves a task, keeps cores moving for nothing, or
/// does not add up is printed with the line that replays it. With --log, a search that was interrupted goes on where it
/// was when the same command is given again. Exit status 1 if anything was found.
#[derive(clap::Args)]
pub struct Args {
    /// The policy, or several
    #[arg(long, value_name = "NAME,NAME...", default_value = "quell", value_delimiter = ',')]
    policy: Vec<String>,
    /// How long to search: 30s, 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = seconds, conflicts_with = "seed")]
    time: Duration,
    /// Begin with this seed
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Look at this seed alone, and describe its scenario
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Keep what was searched here, as lines of JSON, and leave out what is there; one file for each version of quell
    #[arg(long, value_name = "FILE", conflicts_with = "seed")]
    log: Option<PathBuf>,
    /// Simulations at one time [default: as many as this machine has cores]
    #[arg(long, value_name = "N", conflicts_with = "seed")]
    threads: Option<usize>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(seed) = args.seed {
        return look(seed, &args.policy);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spec = HuntSpec {
        policies: args.policy,
        time: args.time,
        from: args.from,
        threads: args.threads.unwrap_or(cores),
        log: args.log,
    };
    let hunted = hunt::run(&spec, &mut Live::new(), &Stop::on_signals()?)?;
    hunted.found.iter().for_each(|found| println!("{found}"));
    let before = match hunted.before {
        0 => String::new(),
        before => format!(", {before} of them before"),
    };
    println!("{} scenarios{before}, {} with findings", hunted.scenarios, hunted.found.len());
    Ok(ExitCode::from(u8::from(!hunted.found.is_empty())))
}

fn look(seed: u64, policies: &[String]) -> Result<ExitCode> {
    println!("{}", quell_sim::hunt::describe(seed));
    let mut found = false;
    for policy in policies {
        for finding in quell_sim::hunt::look(seed, policy)? {
            println!("{policy}: {finding}");
            found = true;
        }
    }
    Ok(ExitCode::from(u8::from(found)))
}
