//! `quell record`: what the scheduler of this host does, into a file.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_model::Nanos;
use quell_record::{Events, Keep, Options, Progress};

use crate::client::Daemon;
use quell_terminal::interrupted;
use quell_terminal::quantity::{seconds, size};

/// Record what the scheduler does, into a trace that Perfetto's UI and `quell view` show
///
/// Every switch, wake-up, migration (with its cause), fork and exit; the size and load of each run queue at each
/// change; softirqs and interrupts; where each thread may run; once a second who runs and who waits; and what a Quell
/// daemon decides meanwhile. Ends by Ctrl-C, after a time, at a size of the file, or with the command.
///
/// Changes nothing on the host. Needs root and BPF, but no daemon. What is lost is counted and stored.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    quell record --duration 10s\n  \
    quell record -o make.pftrace -- make -j8\n  \
    quell record --last 10s --on-violation\n  \
    quell record --events why -o night.pftrace   (small, for `quell why night.pftrace`)")]
pub struct Args {
    /// The file; replaced if it exists
    #[arg(short, long, value_name = "FILE", default_value = "quell.pftrace")]
    output: PathBuf,
    /// End after this time: 10, 10s, 500ms, 5m
    #[arg(short, long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
    /// End when the file has this size: 512K, 100M, 2G
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// End a second after a thread was found to wait beside an idle core that it could use (`quell check`)
    #[arg(long)]
    on_violation: bool,
    /// Keep only the last so much of time, in memory, and save it at the end
    #[arg(short = 'k', long, value_name = "TIME", value_parser = seconds, conflicts_with = "size")]
    last: Option<Duration>,
    /// Memory for what is kept; where it holds less than that time, the summary says so
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size, requires = "last")]
    last_size: u64,
    /// Which events: all, or what `quell why` needs (switches, wake-ups, softirqs, interrupts, keyframes)
    #[arg(long, value_enum, default_value_t = Preset::All)]
    events: Preset,
    /// Leave out how loads change, about half of all events
    #[arg(long)]
    no_load: bool,
    /// Between the kernel and this program: more for bursts that are lost otherwise
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = size)]
    buffer: u64,
    /// Time between two pictures of the whole host
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = seconds)]
    keyframe_interval: Duration,
    /// Measure what recording costs the host, which itself costs some 20 ns an event
    #[arg(long)]
    cost: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// No progress on standard error
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    daemon: Daemon,
    /// Run this program meanwhile; the recording ends with it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A choice of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Preset {
    All,
    Why,
}

impl Preset {
    fn events(self, load: bool) -> Events {
        match self {
            Preset::All => Events { load, ..Events::ALL },
            Preset::Why => Events::WHY,
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let stop = interrupted()?;
    let last_bytes = usize::try_from(args.last_size)?;
    let options = Options {
        file: args.output,
        events: args.events.events(!args.no_load),
        ring_bytes: usize::try_from(args.buffer)?,
        keyframe_every: nanos(args.keyframe_interval),
        duration: args.duration.map(nanos),
        bytes: args.size,
        on_violation: args.on_violation,
        keep: args.last.map(|time| Keep { time: nanos(time), bytes: last_bytes }),
        daemon: args.daemon.socket(),
        command: args.command,
        cost: args.cost,
    };
    let mut line = Line::new(!args.quiet && std::io::stderr().is_terminal());
    let summary = quell_record::record(&options, &stop, &mut |progress| line.show(progress))?;
    line.clear();
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&summary)?),
        false => print!("{summary}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// One line that is written again and again.
struct Line {
    wanted: bool,
    due: Duration,
}

impl Line {
    const EVERY: Duration = Duration::from_millis(250);

    fn new(wanted: bool) -> Line {
        Line { wanted, due: Duration::ZERO }
    }

    fn show(&mut self, progress: &Progress) {
        let elapsed = Duration::from_nanos(progress.elapsed.0);
        if self.wanted && elapsed >= self.due {
            self.due = elapsed + Self::EVERY;
            eprint!("\r\x1b[Krecording: {progress}; Ctrl-C ends it");
            let _ = std::io::stderr().flush();
        }
    }

    fn clear(&self) {
        if self.wanted {
            eprint!("\r\x1b[K");
        }
    }
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
