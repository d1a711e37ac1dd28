//! What is compared: Quell's checker and recorder, and what else records the scheduler.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use quell_model::Nanos;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::account::{Account, has_bpf};
use super::ftrace::Instance;
use super::perf_data;
use crate::host::{Program, directory};
use quell_terminal::Stop;

/// Room for events between the kernel and whoever stores them, on all cores together: what Quell's recorder takes by
/// default.
const BUFFER_BYTES: usize = 32 << 20;
/// A tool that has much to store may take its time.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take until its BPF programs are there.
const LOADED_MAX: Duration = Duration::from_secs(30);
/// The bpftrace program.
const TRACK: &str = include_str!("track.bt");

/// A tool that watches the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// `quell check`.
    CheckSampling,
    /// `quell check --mode exact`.
    CheckExact,
    /// `quell record`.
    Record,
    /// `perf sched record`.
    PerfSched,
    /// What `trace-cmd record` does: the scheduler's tracepoints into the buffers of an instance of ftrace, which are
    /// copied to a file. By hand, because trace-cmd insists on files of the function tracer,
    /// which a kernel in lockdown refuses.
    Ftrace,
    /// A bpftrace script that prints switches, wake-ups, moves, forks and exits.
    Bpftrace,
}

/// What a tool counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events that it kept, each tool's own kinds.
    pub events: u64,
    /// Events that it lost.
    pub lost: u64,
}

impl Tool {
    /// All of them.
    pub const ALL: [Tool; 6] = [
        Tool::CheckSampling,
        Tool::CheckExact,
        Tool::Record,
        Tool::PerfSched,
        Tool::Ftrace,
        Tool::Bpftrace,
    ];

    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Tool::CheckSampling => "check",
            Tool::CheckExact => "check-exact",
            Tool::Record => "record",
            Tool::PerfSched => "perf-sched",
            Tool::Ftrace => "ftrace",
            Tool::Bpftrace => "bpftrace",
        }
    }

    /// Whether it is Quell's.
    pub fn is_own(self) -> bool {
        matches!(self, Tool::CheckSampling | Tool::CheckExact | Tool::Record)
    }

    /// Whether it follows events, and so can lose some.
    pub fn follows_events(self) -> bool {
        self != Tool::CheckSampling
    }
}

/// A tool at work. It ends with the value.
pub struct Running {
    tool: Tool,
    programs: Vec<Program>,
    instance: Option<Instance>,
    directory: TempDir,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(tool: Tool, quell: &Path) -> Result<Running> {
        let directory = directory()?;
        let (mut programs, mut instance) = (Vec::new(), None);
        if tool == Tool::Ftrace {
            instance = Some(Instance::start(BUFFER_BYTES, &directory.path().join("trace"))?);
        } else {
            let mut command = command(tool, quell, directory.path())?;
            command.stdout(File::create(directory.path().join("out"))?);
            command.stderr(File::create(directory.path().join("err"))?);
            programs.push(Program::start(tool.name(), &mut command)?);
        }
        Ok(Running { tool, programs, instance, directory })
    }

    /// Waits until one of Quell's has its BPF programs, which the kernel may verify for seconds on a busy host.
    ///
    /// # Errors
    /// When it ended by itself or takes too long, or a stop was asked for.
    pub fn await_loaded(&mut self, stop: &Stop) -> Result<()> {
        let until = Instant::now() + LOADED_MAX;
        while self.tool.is_own() && !has_bpf(&self.programs)? {
            self.account()?;
            ensure!(Instant::now() < until, "{} does not load its programs", self.tool.name());
            stop.sleep(Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// What it took so far.
    ///
    /// # Errors
    /// When it ended by itself: with what it said.
    pub fn account(&mut self) -> Result<Account> {
        for program in &mut self.programs {
            program.check().with_context(|| {
                let said =
                    fs::read_to_string(self.directory.path().join("err")).unwrap_or_default();
                let last = said.lines().rev().find(|line| !line.trim().is_empty());
                last.unwrap_or("it said nothing").to_owned()
            })?;
        }
        let mut account = Account::of(&self.programs)?;
        account.own += self.instance.as_ref().map_or(Nanos::ZERO, Instance::cpu);
        Ok(account)
    }

    /// Ends it, and reads what it counted.
    ///
    /// # Errors
    /// When it does not end, or what it wrote does not read.
    pub fn finish(self) -> Result<Tally> {
        let Running { tool, programs, mut instance, directory } = self;
        instance.iter_mut().try_for_each(Instance::stop)?;
        for program in programs {
            // Whether it ended well shows in what it wrote; checkers end with their verdict.
            program.end(Signal::INT, PATIENCE)?;
        }
        let path = |name: &str| directory.path().join(name);
        match (tool, instance.take()) {
            (Tool::Ftrace, Some(instance)) => instance.tally(),
            (Tool::CheckSampling | Tool::CheckExact | Tool::Record, _) => summary(&path("out")),
            (Tool::PerfSched, _) => perf_data::count(BufReader::new(File::open(path("trace"))?)),
            _ => lines(&path("trace")),
        }
        .with_context(|| format!("what {} wrote", tool.name()))
    }
}

fn command(tool: Tool, quell: &Path, directory: &Path) -> Result<Command> {
    let trace = directory.join("trace");
    let bytes_a_core = a_core(BUFFER_BYTES)?;
    let mut command = Command::new(match tool {
        Tool::PerfSched => Path::new("perf"),
        Tool::Bpftrace => Path::new("bpftrace"),
        _ => quell,
    });
    match tool {
        Tool::CheckSampling | Tool::CheckExact => {
            let mode = if tool == Tool::CheckExact { "exact" } else { "sampling" };
            command.args(["check", "--json", "--mode", mode, "--save"]).arg(trace);
            command.arg("--run-dir").arg(directory);
        }
        Tool::Record => {
            command.args(["record", "--json", "--quiet", "--buffer"]).arg(BUFFER_BYTES.to_string());
            command.arg("-o").arg(trace).arg("--run-dir").arg(directory);
        }
        Tool::PerfSched => {
            command.args(["sched", "record", "-m", &format!("{}K", bytes_a_core >> 10), "-o"]);
            command.arg(trace);
        }
        Tool::Bpftrace => {
            let script: PathBuf = directory.join("track.bt");
            fs::write(&script, TRACK)?;
            let pages = bytes_a_core / rustix::param::page_size();
            command.env("BPFTRACE_PERF_RB_PAGES", pages.to_string());
            command.args(["-B", "full", "-o"]).arg(trace).arg(script);
        }
        Tool::Ftrace => bail!("ftrace is no program"),
    }
    Ok(command)
}

/// Of so many bytes the share of a core, which perf and bpftrace want as a power of two.
fn a_core(bytes: usize) -> Result<usize> {
    let cores = quell_observe::topology::online()?.len().max(1);
    Ok(1 << (bytes / cores).max(rustix::param::page_size()).ilog2())
}

/// `events` and `lost` of what Quell says as JSON.
fn summary(path: &Path) -> Result<Tally> {
    let said: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let number = |name: &str| said[name].as_u64().with_context(|| format!("no `{name}`"));
    Ok(Tally { events: number("events")?, lost: number("lost")? })
}

/// Of bpftrace: a line an event, and `Lost 12 events` now and then.
fn lines(path: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        let line = line?;
        let lost = line.strip_prefix(b"Lost ").and_then(|rest| rest.strip_suffix(b" events"));
        let lost = lost.and_then(|count| std::str::from_utf8(count).ok()?.parse::<u64>().ok());
        match lost {
            Some(count) => tally.lost += count,
            None => tally.events += u64::from(line.first().is_some_and(u8::is_ascii_digit)),
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_bpftrace_are_events_or_say_what_was_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        fs::write(&path, "Attaching 7 probes...\n1 0 exit 5\nLost 12 events\n2 1 exit 6\n\n")
            .unwrap();
        assert_eq!(lines(&path).unwrap(), Tally { events: 2, lost: 12 });
    }

    #[test]
    fn the_share_of_a_core_is_a_power_of_two() {
        let share = a_core(32 << 20).unwrap();
        assert!(share.is_power_of_two() && share <= 32 << 20, "{share}");
    }

    #[test]
    fn a_tool_that_ends_by_itself_is_told_with_its_last_words() {
        let missing = Path::new("/there/is/none");
        assert!(Running::start(Tool::Record, missing).is_err());
        let mut running = Running::start(Tool::Record, Path::new("false")).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let error = loop {
            match running.account() {
                Err(error) => break format!("{error:#}"),
                Ok(_) => assert!(Instant::now() < until, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(error.contains("record ended early"), "{error}");
    }
}
