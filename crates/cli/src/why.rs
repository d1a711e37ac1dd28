//! `quell why`: why threads of a service waited for a core; and of `quell load`, why requests were slow.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quell_control::protocol::{Call, Reply};
use quell_linux::observe::transitions::Recording;
use quell_linux::{Tid, clock, observe::procs};
use quell_load::{Evidence, LoadReport};
use quell_model::Nanos;
use quell_trace::why::{Bound, Inquiry, Report};

use crate::client::Daemon;
use crate::load::interrupted;

/// Explain why threads of a service got their core late
///
/// Records who has each core for a while, some 150 ns a switch, and charges each slow wake-up of the service's
/// threads: waiting behind a thread, the kernel section of a thread that could not be preempted, softirqs,
/// interrupts, the hypervisor, an idle core that had to wake. Needs root and BPF, but no daemon.
///
/// For requests rather than wake-ups: `quell load ... --why PID`.
#[derive(clap::Args)]
pub struct Args {
    /// The task of a running daemon, by its name
    #[arg(required_unless_present = "pid")]
    task: Option<String>,
    /// A process instead, with its descendants
    #[arg(long, conflicts_with = "task")]
    pid: Option<i32>,
    /// Seconds to record; Ctrl-C ends it early
    #[arg(long, short, default_value_t = 10.0, value_name = "S")]
    duration: f64,
    /// What counts as slow, in microseconds from the wake-up until the thread runs
    #[arg(long, default_value_t = 100.0, value_name = "US")]
    bound_us: f64,
    #[command(flatten)]
    listing: Listing,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Daemon,
}

/// How long the list is.
#[derive(clap::Args)]
pub struct Listing {
    /// How many of the slowest to list
    #[arg(long, default_value_t = 10, value_name = "N")]
    slowest: usize,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let processes = match (&args.task, args.pid) {
        (Some(task), _) => of_task(&args.daemon, task)?,
        (None, pid) => of_process(pid.unwrap_or_default())?,
    };
    let stop = interrupted()?;
    let mut recording = Recording::start(&processes)?;
    let until = clock::now() + micros(args.duration * 1e6);
    // Relaxed: a flag alone, nothing is published by it.
    while clock::now() < until && !stop.load(Ordering::Relaxed) && !recording.is_full() {
        std::thread::sleep(Duration::from_millis(50));
        recording.collect();
    }
    if recording.is_full() {
        eprintln!("the record is full: ended early");
    }
    let evidence = Evidence::from(recording.end());
    let inquiry = Inquiry::new(evidence.timeline, Vec::new(), Vec::new());
    let bound = micros(args.bound_us);
    let report = Report::of_wake_ups(&inquiry, bound, args.listing.slowest, evidence.lost);
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
    let Reply::Status(status) = daemon.call(Call::Status)? else {
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

fn micros(us: f64) -> Nanos {
    Nanos((us.max(0.0) * 1e3) as u64)
}

/// Flags of `quell load`.
#[derive(clap::Args)]
pub struct OfRequests {
    /// Say why requests were slow: the server's process id; needs root and BPF
    #[arg(long, value_name = "PID")]
    why: Option<i32>,
    /// What counts as slow, in microseconds [default: the slowest tenth of a percent]
    #[arg(long, value_name = "US", requires = "why")]
    why_bound_us: Option<f64>,
    #[command(flatten)]
    listing: Listing,
    /// Write that report as JSON to this file, `-` for standard output
    #[arg(long, value_name = "FILE", requires = "why")]
    why_json: Option<std::path::PathBuf>,
}

impl OfRequests {
    /// Begins to record, if that was asked for.
    pub fn start(&self) -> Result<Option<Recording>> {
        self.why.map(|pid| Ok(Recording::start(&of_process(pid)?)?)).transpose()
    }

    /// Says why, after the run.
    pub fn tell(&self, recording: Recording, load: &LoadReport) -> Result<()> {
        let bound =
            self.why_bound_us.map_or(Bound::Slowest(0.001), |us| Bound::AtLeast(micros(us)));
        let report = load.why(recording.end().into(), bound, self.listing.slowest);
        match &self.why_json {
            Some(path) if path.as_os_str() != "-" => {
                let text = serde_json::to_string_pretty(&report)?;
                std::fs::write(path, text).with_context(|| path.display().to_string())?;
                show(&report, false)
            }
            json => show(&report, json.is_some()),
        }
    }
}
