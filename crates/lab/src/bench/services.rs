//! `quell bench services`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quell_bench::services::{
    Definition, FILE_BYTES_MAX, Kind, LoopCase, ServicesSpec, System, Wanted,
};
use quell_model::CoreSet;
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line, split};

/// Rounds of a first look.
const QUICK_ROUNDS: usize = 5;
/// Rounds of the pilot, which chooses rivals and numbers of rounds.
const PILOT_ROUNDS: usize = 5;
/// Above this share of a core that other programs use, a short run has no verdict.
const BUSY_MAX: f64 = 0.2;

/// Services with their defaults beside batch work: plain Linux, the best settings by hand, and Quell
///
/// Each service and each kind of batch work is started as a service manager does it, in a session and a cgroup of its
/// own. The open-loop client has a core of its own. Systems run in an order drawn anew in each round, all with the same
/// arrivals; ratios are of pairs of one round, to the service alone on a core that is kept awake.
///
/// A service of your own is one TOML file: docs/lab/services.md.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    quell bench services --quick --service memcached,redis --batch hog\n  \
    quell bench services --service ./mine.toml --systems linux-default,rr,quell --rounds 20\n  \
    quell bench services --log all.log --json all.json    # for hours; goes on where it was stopped")]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Services: names of built-in ones, or TOML files [default: all built-in ones]
    #[arg(long, value_delimiter = ',')]
    service: Vec<String>,
    /// Kinds of batch work: hog, gc, faults-writes, go-gc, make, stream [default: all but stream; quick: hog]
    #[arg(long, value_delimiter = ',')]
    batch: Vec<String>,
    /// Only these systems [quick: alone-idle-poll, linux-default, fifo, sched-idle, quell]
    #[arg(long, value_delimiter = ',')]
    systems: Vec<String>,
    /// Loads in percent of the peak [default: 50, for two services also 20 and 80]
    #[arg(long, value_delimiter = ',')]
    loads: Vec<u32>,
    /// Cases of two services at once: two-lc-steps, runaway [default: both; quick: none]
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Rounds of each cell [default: as many as a pilot says; quick: 5]
    #[arg(long)]
    rounds: Option<usize>,
    /// Rounds of the pilot; of fewer than 5 no spread is known, and each cell gets 10 [default: 5]
    #[arg(long, conflicts_with = "rounds")]
    pilot: Option<usize>,
    /// No measurement is longer than so many seconds, whatever its quantile needs [quick: 2]
    #[arg(long)]
    longest: Option<f64>,
    /// Every measurement, a line each; a run that was stopped goes on from there [default: a temporary file]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Stop after so many minutes, with a report of what the log has until then; the same command goes on
    #[arg(long, value_name = "N", requires = "log")]
    minutes: Option<f64>,
    /// End in five lines for each service and kind of batch work; --json FILE takes the rest. On a host that is busy
    /// with other programs the answer is `too busy`
    #[arg(long)]
    brief: bool,
    /// Seed of arrivals and orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (managed, client) = split()?;
    let names = match args.service.is_empty() {
        true => Definition::built_in().map(str::to_owned).collect(),
        false => args.service.clone(),
    };
    let services: Result<Vec<Definition>> = names.iter().map(|name| service(name)).collect();
    if let Some(load) = args.loads.iter().find(|load| !(1..=100).contains(*load)) {
        bail!("--loads: {load} is not 1 to 100 percent of the peak");
    }
    let longest = args.longest.or(quick.then_some(2.0));
    if let Some(longest) = longest.filter(|longest| !(0.1..=600.0).contains(longest)) {
        bail!("--longest: {longest} is not 0.1 to 600 seconds");
    }
    let spec = ServicesSpec {
        command: without_minutes(&command_line()),
        services: services?,
        time_max: args
            .minutes
            .map(|minutes| Duration::from_secs_f64(minutes.clamp(0.0, 1e5) * 60.0)),
        wanted: wanted(&args, quick)?,
        rounds: args.rounds.or(quick.then_some(QUICK_ROUNDS)),
        pilot: args.pilot.unwrap_or(PILOT_ROUNDS),
        longest: longest.map(Duration::from_secs_f64),
        seed: args.seed,
        managed,
        client,
        quell: super::quell_program()?,
        antagonist: beside("quell-antagonist")?,
        log: args.log.clone(),
    };
    let stop = Stop::on_signals()?;
    let every = managed.union(&CoreSet::of(client));
    let (core, share) = quell_bench::host::busiest(&every, &stop)?;
    if share > BUSY_MAX {
        let busy = format!("core {core} is {:.0} % busy with other programs", share * 100.0);
        if args.brief {
            println!("too busy: {busy}; stop them and try again");
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("warning: {busy}: figures will be worse than on a quiet host");
    }
    let report = quell_bench::services::run(&spec, &mut Live::new(), &stop)?;
    if !args.brief {
        return args.common.publish(&report);
    }
    for line in quell_bench::services::five_lines(&report) {
        println!("{line}");
    }
    args.common.write_json(&report)
}

fn wanted(args: &Args, quick: bool) -> Result<Wanted> {
    let kind = |name: &String| {
        let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let known = || Kind::ALL.map(Kind::name).join(", ");
        found.with_context(|| format!("--batch: `{name}` is none of {}", known()))
    };
    let system = |name: &String| {
        let known = || System::ALL.map(System::name).join(", ");
        System::named(name).with_context(|| format!("--systems: `{name}` is none of {}", known()))
    };
    let case = |name: &String| {
        let found = LoopCase::ALL.into_iter().find(|case| case.name() == name);
        let known = || LoopCase::ALL.map(LoopCase::name).join(", ");
        found.with_context(|| format!("--cases: `{name}` is none of {}", known()))
    };
    let mut wanted = Wanted {
        batch: args.batch.iter().map(kind).collect::<Result<_>>()?,
        systems: args.systems.iter().map(system).collect::<Result<_>>()?,
        loads: args.loads.clone(),
        cases: args.cases.iter().map(case).collect::<Result<_>>()?,
    };
    // Named batch work or loads are all that is asked for.
    if !quick && args.cases.is_empty() && args.batch.is_empty() && args.loads.is_empty() {
        wanted.cases = LoopCase::ALL.to_vec();
    }
    if quick && wanted.batch.is_empty() {
        wanted.batch = vec![Kind::Hog];
    }
    if quick && wanted.systems.is_empty() {
        use System::{AloneIdlePoll, Fifo, LinuxDefault, Quell, SchedIdle};
        wanted.systems = vec![AloneIdlePoll, LinuxDefault, Fifo, SchedIdle, Quell];
    }
    if quick && wanted.loads.is_empty() {
        wanted.loads = vec![50];
    }
    Ok(wanted)
}

/// How much of a run is done at once is no part of what is asked for.
fn without_minutes(command: &str) -> String {
    let mut words = Vec::new();
    let mut rest = command.split(' ');
    while let Some(word) = rest.next() {
        match word {
            "--minutes" => _ = rest.next(),
            word if word.starts_with("--minutes=") => {}
            word => words.push(word),
        }
    }
    words.join(" ")
}

/// A built-in service by its name, or one of a file.
fn service(name: &str) -> Result<Definition> {
    if !name.ends_with(".toml") {
        return Ok(Definition::named(name)?);
    }
    let looks = std::fs::metadata(name).with_context(|| format!("read {name}"))?;
    if looks.len() > FILE_BYTES_MAX as u64 {
        bail!("{name} is longer than {FILE_BYTES_MAX} bytes: not the definition of a service");
    }
    let text = std::fs::read_to_string(name).with_context(|| format!("read {name}"))?;
    Ok(Definition::parse(&text, name)?)
}
