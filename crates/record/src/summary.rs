//! What is told of a recording, while it goes on and after it.

use std::fmt;
use std::path::PathBuf;

use quell_model::Nanos;
use quell_observe::bpf::ProgramCost;
use serde::Serialize;

/// How far a recording is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since its begin.
    pub elapsed: Nanos,
    /// Events so far.
    pub events: u64,
    /// Events lost so far.
    pub lost: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { elapsed, events, lost, bytes } = *self;
        let (seconds, size) = (elapsed.0 as f64 / 1e9, Size(bytes));
        write!(f, "{seconds:.1} s, {events} events, {lost} lost, {size} written")
    }
}

/// Bytes for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..0x400 => write!(f, "{} B", self.0),
            0x400..0x10_0000 => write!(f, "{:.1} KiB", bytes / 1024.0),
            0x10_0000..0x4000_0000 => write!(f, "{:.1} MiB", bytes / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", bytes / 1_073_741_824.0),
        }
    }
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// Its time was over.
    Duration,
    /// Its file was as large as it may be.
    Size,
    /// The command ended.
    Command {
        /// With this code; `None`: by a signal.
        code: Option<i32>,
    },
    /// A violation was found.
    Violation,
    /// Somebody stopped it.
    Interrupted,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Duration => f.write_str("its time was over"),
            Ended::Size => f.write_str("its file has the size asked for"),
            Ended::Command { code: Some(code) } => {
                write!(f, "the command ended with status {code}")
            }
            Ended::Command { code: None } => f.write_str("the command was ended by a signal"),
            Ended::Violation => f.write_str("a thread waited beside an idle core"),
            Ended::Interrupted => f.write_str("it was stopped"),
        }
    }
}

/// What one of the BPF programs cost.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The tracepoint.
    pub event: String,
    /// How often it ran.
    pub runs: u64,
    /// The mean time of a run, in nanoseconds.
    pub ns_per_run: f64,
    /// All that time, in milliseconds.
    pub ms: f64,
}

impl From<&ProgramCost> for Cost {
    fn from(cost: &ProgramCost) -> Cost {
        let ns = cost.time.as_nanos() as f64;
        Cost {
            event: cost.event.clone(),
            runs: cost.runs,
            ns_per_run: ns / cost.runs.max(1) as f64,
            ms: ns / 1e6,
        }
    }
}

/// What a recording was.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The file.
    pub file: PathBuf,
    /// Why it ended.
    pub ended: Ended,
    /// How long it was.
    pub seconds: f64,
    /// Events recorded.
    pub events: u64,
    /// Events in the file: of a flight recorder fewer than were recorded.
    pub kept_events: u64,
    /// How much time they span.
    pub kept_seconds: f64,
    /// Whether memory held less than the time that a flight recorder was to keep.
    pub kept_less: bool,
    /// Violations that were found, each in a line.
    pub violations: Vec<String>,
    /// Events recorded in a second.
    pub events_per_s: f64,
    /// Events lost.
    pub lost: u64,
    /// Lines of a daemon, mostly decisions, that were lost.
    pub lost_decisions: u64,
    /// Events that came too late for their place in time and were moved to the present.
    pub late: u64,
    /// Switches that no tracepoint told, and that were inferred from what came next on their core.
    pub unseen: u64,
    /// The size of the file.
    pub bytes: u64,
    /// CPU time of the recording process.
    pub cpu_ms: f64,
    /// What the BPF programs cost, where that was measured.
    pub programs: Option<Vec<Cost>>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} events of {:.1} s in {}; {} after {:.1} s at {:.0} events/s",
            self.file.display(),
            self.kept_events,
            self.kept_seconds,
            Size(self.bytes),
            self.ended,
            self.seconds,
            self.events_per_s,
        )?;
        let share = 100.0 * self.lost as f64 / (self.events + self.lost).max(1) as f64;
        match self.lost {
            0 => writeln!(f, "nothing was lost")?,
            lost => writeln!(
                f,
                "{lost} events were lost ({share:.1} %), and the trace says where; a larger --buffer or \
                 --no-load helps"
            )?,
        }
        if self.lost_decisions > 0 {
            writeln!(
                f,
                "{} lines of the daemon were lost: it decides faster than this host records",
                self.lost_decisions
            )?;
        }
        if self.kept_less {
            writeln!(
                f,
                "memory held the last {:.1} s and no more; a larger --last-size, or --no-load, helps",
                self.kept_seconds
            )?;
        }
        if self.unseen > 0 {
            writeln!(
                f,
                "{} switches were told by no tracepoint and inferred (the hypervisor's agent?)",
                self.unseen
            )?;
        }
        if self.late > 0 {
            writeln!(f, "{} events came too late for their place and were moved", self.late)?;
        }
        self.violations.iter().try_for_each(|found| writeln!(f, "violation: {found}"))?;
        let Some(programs) = &self.programs else { return Ok(()) };
        let total: f64 = programs.iter().map(|program| program.ms).sum();
        writeln!(
            f,
            "cost: {:.1} ms in BPF programs and {:.1} ms in this process",
            total, self.cpu_ms
        )?;
        for Cost { event, runs, ns_per_run, ms } in programs {
            writeln!(f, "  {event:<28} {runs:>9} runs  {ns_per_run:>5.0} ns each  {ms:>8.1} ms")?;
        }
        Ok(())
    }
}
