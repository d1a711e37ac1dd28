//! `quell why`: why threads of a service waited for a core, or requests were slow; live and of a trace.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quell_control::protocol::{Method, Reply};
use quell_model::Nanos;
use quell_observe::procs;
use quell_os::{Tid, clock};
use quell_record::Recording;
use quell_terminal::interrupted;
use quell_trace::why::{Inquiry, Report};

use crate::client::Daemon;
use quell_terminal::quantity::time;

use crate::why_file::{self, OfTrace};

/// Explain why threads of a service got their core late, or why requests were slow
///
/// Live it records who has each core for a while, some 150 ns a switch; with a trace (of `quell record`, best with
/// `--events why`, of the simulator, or a text of ftrace, trace-cmd or perf) it reads what was recorded. Each slow
/// wake-up of the service's threads is charged: waiting behind a thread, the kernel section of a thread that could
/// not be preempted, softirqs, interrupts, the hypervisor, an idle core that had to wake. Time that the trace does not
/// explain (lost events, no softirqs in it) is `unknown`. Live it needs root and BPF, but no daemon.
///
/// For requests rather than wake-ups: `--requests FILE`, or live `quell load ... --why PID`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    quell why web                                (a task of the running daemon, live)\n  \
    quell why --pid 4242 --threshold 200us\n  \
    quell why night.pftrace --task web --since 02:10 --until 02:15\n  \
    quell why night.pftrace --comm memcached --requests requests.csv")]
pub struct Args {
    /// A task of the running daemon, by its name; or a trace, `-` for standard input
    #[arg(value_name = "TASK|FILE", required_unless_present = "pid")]
    subject: Option<String>,
    /// The threads of this process: live with its descendants, in a trace with what it forks
    #[arg(long)]
    pid: Option<i32>,
    #[command(flatten)]
    of_trace: OfTrace,
    /// Seconds to record, live; Ctrl-C ends it early [default: 10]
    #[arg(long, short, value_name = "S")]
    duration: Option<f64>,
    /// What counts as slow, from the wake-up until the thread runs, or from a request's send time to
    /// its reply [default: 100us; of requests the slowest tenth of a percent]
    #[arg(long, value_name = "TIME", value_parser = time)]
    threshold: Option<Duration>,
    /// How many of the slowest to list
    #[arg(long, default_value_t = 10, value_name = "N")]
    slowest: usize,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Daemon,
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.subject.as_deref() {
        Some(file) if args.of_trace.is_asked() || is_file(file) => {
            if args.duration.is_some() {
                bail!(
                    "--duration is for recording live; choose a part of {file} with --since and --until"
                );
            }
            let bound = args.threshold.map(nanos);
            let slowest = args.slowest;
            let (report, status) = why_file::run(file, args.pid, &args.of_trace, bound, slowest)?;
            show(&report, args.json)?;
            Ok(status)
        }
        _ if args.of_trace.is_asked() => {
            bail!("name a trace: quell why FILE ...; live there are only TASK and --pid")
        }
        Some(task) if args.pid.is_some() => {
            bail!(
                "there is no trace {task}; --pid goes with a trace, or alone for a process of this host"
            )
        }
        task => live(&args, task),
    }
}

fn is_file(name: &str) -> bool {
    name == "-" || std::path::Path::new(name).is_file()
}

fn live(args: &Args, task: Option<&str>) -> Result<ExitCode> {
    let processes = match task {
        Some(task) => of_task(&args.daemon, task)?,
        None => of_process(args.pid.unwrap_or_default())?,
    };
    let stop = interrupted()?;
    let mut recording = Recording::start(&processes)?;
    let until = clock::now() + Nanos((args.duration.unwrap_or(10.0).max(0.0) * 1e9) as u64);
    // Relaxed: a flag alone, nothing is published by it.
    while clock::now() < until && !stop.load(Ordering::Relaxed) && !recording.is_full() {
        std::thread::sleep(Duration::from_millis(50));
        recording.collect()?;
    }
    if recording.is_full() {
        eprintln!("the record is full: ended early");
    }
    let evidence = recording.end();
    let lost = evidence.lost;
    let inquiry = Inquiry::new(evidence.timeline, Vec::new(), Vec::new());
    let bound = args.threshold.map_or(why_file::BOUND, nanos);
    let report = Report::of_wake_ups(&inquiry, bound, args.slowest, lost);
    show(&report, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn show(report: &Report, json: bool) -> Result<()> {
    match json {
        true => println!("{}", serde_json::to_string_pretty(report)?),
        false => print!("{report}"),
    }
    Ok(())
}

fn of_task(daemon: &Daemon, name: &str) -> Result<Vec<Tid>> {
    let reply = daemon.call(Method::Status).with_context(|| {
        format!("`{name}` is no trace (there is no such file), and as a task it needs the daemon")
    });
    let Reply::Status(status) = reply? else {
        bail!("the daemon answered out of turn");
    };
    let Some(task) = status.tasks.iter().find(|task| task.name == name) else {
        let names: Vec<&str> = status.tasks.iter().map(|task| task.name.as_str()).collect();
        bail!("the daemon has no task `{name}`; it has: {}", names.join(", "));
    };
    Ok(task.processes.iter().map(|pid| Tid(*pid)).collect())
}

fn of_process(pid: i32) -> Result<Vec<Tid>> {
    if !procs::exists(pid) {
        bail!("there is no process {pid}");
    }
    Ok(std::iter::once(pid).chain(procs::descendants(pid)).map(Tid).collect())
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
