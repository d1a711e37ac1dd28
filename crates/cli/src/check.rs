//! `quell check`: whether the scheduler wastes cores.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quell_model::{Nanos, Permille};
use quell_trace::check::{Checker, Options, Report, Verdict};
use serde::Serialize;

use crate::client::Daemon;
use crate::trace_file::TraceFile;
use crate::{check_lint, check_live};
use quell_terminal::quantity::seconds;

/// Check whether threads wait while cores idle that they could use
///
/// The sanity checker of "A Decade of Wasted Cores", on a stock kernel. Looks at this host, or at a recorded
/// trace. A violation is a thread (or threads that take turns) waiting for most of a window beside an idle core
/// that its affinity allows and no policy denies. With a Quell daemon running, managed threads are judged by its
/// plan. Changes nothing on the host; live it needs root and BPF.
///
/// Exit status: 0 clean, 1 violated, 2 could not tell, also after an error (a message on standard error says
/// which).
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    quell check --duration 60s              (a look each second, closer ones where it is suspicious)\n  \
    quell check --mode exact --duration 6s  (every event: wasted time, moves and their causes)\n  \
    quell check quell.pftrace --json\n  \
    quell check --lint                      (scheduling domains; needs no load)")]
pub struct Args {
    /// A recorded trace instead of this host: of `quell record`, or a text of ftrace, `trace-cmd report`, `perf
    /// sched script` or the Wasted Cores recorder; `-` for standard input. With --lint: dumps of scheduling
    /// domains, what --save wrote or a kernel log with `sched_verbose`, each also compared with the one before; or a
    /// trace of `quell sim`, whose domains are judged at the start and after each rebuild
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Judge the scheduling domains instead, by the rules L1 to L5; needs no load
    #[arg(long)]
    lint: bool,
    /// How to watch this host
    #[arg(long, value_enum, default_value_t = check_live::Mode::Sampling)]
    mode: check_live::Mode,
    /// Time between two looks of the sampling mode (the paper's S)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = seconds)]
    interval: Duration,
    /// What is repaired within this time is no violation (the paper's M)
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = seconds)]
    window: Duration,
    /// How much of the window must be wasted, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u16).range(1..=95))]
    share: u16,
    /// The paper's form: any interruption of the waste, however short, begins the window anew
    #[arg(long)]
    strict: bool,
    /// End after this time [default: with Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
    /// Where the seconds around the first violation are saved, as a Perfetto trace [default: a new
    /// quell-violation-TIME.pftrace here]; with --lint: where the domains of this host are saved
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print the report as JSON; what is said meanwhile goes to standard error
    #[arg(long)]
    json: bool,
    /// Of a text: how many cores the host has [default: as many as its first events name]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    cores: Option<u16>,
    /// Of a text: into how many nodes the cores fall, one behind the other [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: Option<u16>,
    #[command(flatten)]
    daemon: Daemon,
}

/// The report and where the trace is.
#[derive(Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    report: &'a Report,
    trace: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if args.lint {
        return check_lint::run(&args.files, args.save.as_deref(), args.json);
    }
    let (report, trace) = match args.files.as_slice() {
        [] => check_live::run(&check_live::Wanted {
            mode: args.mode,
            interval: nanos(args.interval),
            duration: args.duration.map(nanos),
            options: options(&args),
            save: args.save.clone(),
            quiet_output: args.json,
            daemon: &args.daemon,
        })?,
        [_] if args.save.is_some() => {
            bail!("--save is for what is seen on this host, not for a trace")
        }
        [file] => (check_file(&args, file)?, None),
        _ => bail!("one trace at a time"),
    };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&Output { report: &report, trace })?),
        false => {
            print!("{report}");
            if let Some(trace) = trace {
                println!("\nthe seconds around the first violation: {}", trace.display());
            }
        }
    }
    Ok(match report.verdict {
        Verdict::Clean => ExitCode::SUCCESS,
        Verdict::Violated => ExitCode::from(1),
        Verdict::CouldNotTell => ExitCode::from(2),
    })
}

fn check_file(args: &Args, file: &std::path::Path) -> Result<Report> {
    let file = TraceFile::new(file.to_owned(), args.cores, args.nodes);
    let mut events = file.open()?;
    let mut checker = Checker::new(events.meta(), options(args));
    let mut last = Nanos::ZERO;
    for event in events.by_ref() {
        let event = event.with_context(|| file.name())?;
        last = event.at;
        checker.event(&event);
    }
    events.remarks().iter().for_each(|remark| eprintln!("{}: {remark}", file.name()));
    Ok(checker.finish(last))
}

fn options(args: &Args) -> Options {
    Options {
        window: nanos(args.window),
        share: Permille(args.share * 10),
        strict: args.strict,
        ..Options::default()
    }
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
