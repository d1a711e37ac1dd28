//! `quell bench colocate`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use quell_bench::colocate::{ColocateSpec, Lc, Mix, System};
use quell_terminal::{Live, Stop};

use super::{Common, beside, command_line, split};

/// A real service beside real batch work on one core: Quell, and plain Linux in four ways
///
/// The open-loop client has a core of its own. Systems run in an order drawn anew in each round, all with the same
/// arrivals; ratios are paired by round.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The service: memcached, redis or nginx
    #[arg(long, default_value = "memcached", value_parser = service)]
    lc: Lc,
    /// Valid rounds to collect [default: 10, quick: 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each measurement [default: 2, quick: 1]
    #[arg(long)]
    duration: Option<f64>,
    /// Kinds of batch work: stream, hog, gc, faults, go-gc [default: all, quick: stream,hog,gc]
    #[arg(long, value_delimiter = ',')]
    mixes: Vec<String>,
    /// Only these systems
    #[arg(long, value_delimiter = ',')]
    systems: Vec<String>,
    /// Offered load as a part of the peak
    #[arg(long, default_value_t = 0.5)]
    load: f64,
    /// Requests a second at the peak [default: searched for]
    #[arg(long)]
    peak: Option<f64>,
    /// Seed of arrivals and orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave out the cases in which the loop matters (two LC tasks with load steps, a runaway thread)
    #[arg(long)]
    no_loop_cases: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let quick = args.common.quick;
    let (managed, client) = split()?;
    let seconds = args.duration.unwrap_or(if quick { 1.0 } else { 2.0 }).clamp(0.1, 600.0);
    let mixes = match (args.mixes.is_empty(), quick) {
        (false, _) => named(&args.mixes, &Mix::ALL, Mix::name)?,
        (true, true) => Mix::DEMO.to_vec(),
        (true, false) => Mix::ALL.to_vec(),
    };
    let systems = match args.systems.is_empty() {
        true => System::ALL.to_vec(),
        false => named(&args.systems, &System::ALL, System::name)?,
    };
    let spec = ColocateSpec {
        name: args.lc.report_name(if quick { "demo" } else { "colocate" }),
        lc: args.lc,
        command: command_line(),
        mixes,
        systems,
        rounds: args.rounds.unwrap_or(if quick { 2 } else { 10 }),
        warmup: Duration::from_millis(200),
        duration: Duration::from_secs_f64(seconds),
        be_alone: Duration::from_secs_f64(seconds.min(2.0)),
        peak_rps: args.peak,
        load: args.load,
        seed: args.seed,
        managed,
        client,
        loop_cases: !quick && !args.no_loop_cases,
        quell: super::quell_program()?,
        antagonist: beside("quell-antagonist")?,
    };
    let stop = Stop::on_signals()?;
    let report = quell_bench::colocate::run(&spec, &mut Live::new(), &stop)?;
    args.common.publish(&report)
}

fn service(name: &str) -> Result<Lc> {
    one_named(name, &Lc::ALL, Lc::name)
}

fn named<T: Copy>(names: &[String], all: &[T], name: fn(T) -> &'static str) -> Result<Vec<T>> {
    names.iter().map(|wanted| one_named(wanted, all, name)).collect()
}

fn one_named<T: Copy>(wanted: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
    match all.iter().find(|&&one| name(one) == wanted) {
        Some(&one) => Ok(one),
        None => {
            let known: Vec<&str> = all.iter().map(|&one| name(one)).collect();
            bail!("`{wanted}` is none of {}", known.join(", "))
        }
    }
}
