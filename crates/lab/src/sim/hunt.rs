//! `quell sim fuzz`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use quell_study::simulate::hunt::{self, HuntSpec};
use quell_terminal::{Live, Stop};

use super::checking::Checking;
use quell_terminal::quantity::seconds;

/// Search for mistakes of a policy with random hosts, loads, faults and changes, on all cores of this machine
///
/// Every scenario follows from its seed. What breaks an invariant, starves a task, keeps cores moving for nothing, or
/// does not add up is printed with the line that replays it, and so are threads that wait while cores idle that they could use
/// (the checker of `quell check`, which --no-check leaves out). With --log, a search that was interrupted goes on where it
/// was when the same command is given again. Exit status 1 if anything was found, 2 if it was interrupted.
#[derive(clap::Args)]
pub struct Args {
    /// The policy, or several
    #[arg(long, value_name = "NAME,NAME...", default_value = "quell", value_delimiter = ',')]
    policy: Vec<String>,
    /// The kernel model of all hosts: linux-4.1 to linux-6.18, whose queues for each core waste some time on their own, so that only
    /// invariants and sums are judged
    #[arg(long, value_name = "MODEL", default_value = hunt::GLOBAL)]
    kernel: String,
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
    /// Write what the scheduler did under this seed as a trace, for `quell view`, `quell check` and Perfetto
    #[arg(long, value_name = "FILE", requires = "seed")]
    trace: Option<PathBuf>,
    /// Draw cores, memory and latency over time under this seed, as SVG and PNG
    #[arg(long, value_name = "FILE", requires = "seed")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    checking: Checking,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(seed) = args.seed {
        return look(seed, &args);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spec = HuntSpec {
        policies: args.policy,
        kernel: args.kernel,
        time: args.time,
        from: args.from,
        threads: args.threads.unwrap_or(cores),
        log: args.log,
        check: args.checking.is_on(),
    };
    let hunted = hunt::run(&spec, &mut Live::new(), &Stop::on_signals()?)?;
    hunted.found.iter().for_each(|found| println!("{found}"));
    let before = match hunted.before {
        0 => String::new(),
        before => format!(", {before} of them before"),
    };
    println!("{} scenarios{before}, {} with findings", hunted.scenarios, hunted.found.len());
    if hunted.interrupted {
        bail!("interrupted before the time was over");
    }
    Ok(ExitCode::from(u8::from(!hunted.found.is_empty())))
}

fn look(seed: u64, args: &Args) -> Result<ExitCode> {
    let policies = &args.policy;
    let shows = args.trace.is_some() || args.plot.is_some();
    if shows && policies.len() > 1 {
        bail!("--trace and --plot show one policy; name one with --policy");
    }
    println!("{}", quell_sim::fuzz::describe(seed));
    let mut found = false;
    for policy in policies {
        for finding in hunt::look(seed, policy, &args.kernel, args.checking.is_on())? {
            println!("{policy}: {finding}");
            found = true;
        }
        if shows {
            for path in
                hunt::show(seed, policy, &args.kernel, args.trace.as_deref(), args.plot.as_deref())?
            {
                eprintln!("wrote {}", path.display());
            }
        }
    }
    Ok(ExitCode::from(u8::from(found)))
}
