//! Who has threads share a core while something is measured: a lane, the published prototype, the kernel.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use quell_model::{CoreId, Nanos};
use serde_json::Value;

use super::peers::{Arranged, Peer};
use crate::host::{self, Program};
use quell_terminal::Stop;

/// How long programs and lanes may take beyond their time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How the scheduler of a lane waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Asleep on the lane's own core.
    Shared,
    /// Spinning on another one.
    Dedicated,
}

impl Pattern {
    /// Both.
    pub const ALL: [Pattern; 2] = [Pattern::Shared, Pattern::Dedicated];

    /// Its name, as `quell lane run --pattern` has it.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Shared => "shared",
            Pattern::Dedicated => "dedicated",
        }
    }
}

/// What a lane is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turns {
    /// How its scheduler waits.
    pub pattern: Pattern,
    /// The length of a turn.
    pub slice: Nanos,
    /// Whose turn it is, as `--table` has it; `None`: everybody's in turn.
    pub table: Option<&'static str>,
}

/// Who has threads share a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum System {
    /// A lane.
    Lane(Turns),
    /// The prototype of the article.
    Prototype(Pattern, Nanos),
    /// The kernel.
    Kernel(Peer),
    /// A lane with one member: nobody takes its core.
    Alone,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            System::Lane(_) => f.write_str("quell"),
            System::Prototype(..) => f.write_str("prototype"),
            System::Kernel(peer) => f.write_str(peer.name()),
            System::Alone => f.write_str("alone"),
        }
    }
}

/// The programs that a run needs, and where it takes place.
#[derive(Clone, Debug)]
pub struct Place {
    /// The core that is shared.
    pub core: CoreId,
    /// Where a client and dedicated schedulers are.
    pub other: CoreId,
    /// The `quell` program.
    pub quell: PathBuf,
    /// The `quell-lab` program: what is put on lanes, and lanes with a load in their loop.
    pub lab: PathBuf,
    /// The prototype's program, `trick`.
    pub prototype: Option<PathBuf>,
}

impl Place {
    /// The command of a busy loop or a server ([`super::program`]).
    pub fn member(&self) -> Command {
        let mut command = Command::new(&self.lab);
        command.arg("lane-member");
        command
    }
}

/// Threads that share the core; they do so until the value is dropped.
pub enum Shared {
    /// On a lane.
    Lane(Lane),
    /// By the prototype, until it is dropped.
    Prototype {
        /// What does it.
        _program: Program,
    },
    /// By the kernel, until it is dropped.
    Kernel {
        /// What the host was changed for it.
        _arranged: Arranged,
    },
}

impl System {
    /// Whether it is somebody else's: where that does not do, its cell is left out and the reason told.
    pub fn is_peer(&self) -> bool {
        matches!(self, System::Kernel(_) | System::Prototype(..))
    }

    /// How long what shares the core may take beyond its time. The prototype leaves its members nothing where a slice is
    /// shorter than what its own hand-over takes.
    pub fn patience(&self) -> Duration {
        if self.is_peer() { PATIENCE / 6 } else { PATIENCE }
    }

    /// Has threads share the core. Each with its part of it, where that can be said. `client` is the file of a load that
    /// is offered from within the loop of a dedicated scheduler. Returns when they do.
    ///
    /// # Errors
    /// When the lane, the prototype or the kernel does not do it.
    pub fn start(
        &self,
        place: &Place,
        directory: &Path,
        threads: &[(i32, f64)],
        client: Option<&Path>,
        stop: &Stop,
    ) -> Result<Shared> {
        match self {
            System::Lane(turns) => {
                let mut lane = Lane::start(place, directory, threads, Some(turns), client)?;
                lane.wait_for(threads, stop)?;
                Ok(Shared::Lane(lane))
            }
            System::Alone => {
                let mut lane = Lane::start(place, directory, threads, None, None)?;
                lane.wait_for(threads, stop)?;
                Ok(Shared::Lane(lane))
            }
            System::Prototype(pattern, slice) => {
                ensure!(client.is_none(), "the prototype has no client in its loop");
                let program = prototype(place, *pattern, *slice, threads)?;
                Ok(Shared::Prototype { _program: program })
            }
            System::Kernel(peer) => {
                let arranged = peer.arrange(place.core)?;
                arranged.put(threads)?;
                Ok(Shared::Kernel { _arranged: arranged })
            }
        }
    }
}

impl Shared {
    /// Waits for the end of a lane, which is that of its last member, and ends the others. What the lane says of itself.
    ///
    /// # Errors
    /// When the lane does not end, or not in order.
    pub fn finish(self, stop: &Stop) -> Result<Value> {
        match self {
            Shared::Lane(lane) => lane.finish(stop),
            Shared::Prototype { .. } | Shared::Kernel { .. } => Ok(Value::Null),
        }
    }
}

/// The published prototype, which runs until it is killed.
fn prototype(
    place: &Place,
    pattern: Pattern,
    slice: Nanos,
    threads: &[(i32, f64)],
) -> Result<Program> {
    let mut command = Command::new(place.prototype.as_ref().context("no --prototype")?);
    command.args(["-c", &place.core.to_string(), "-i", &slice.as_micros().to_string()]);
    if pattern == Pattern::Dedicated {
        command.args(["-s", &place.other.to_string()]);
    }
    for (tid, _) in threads {
        command.args(["-p", &tid.to_string()]);
    }
    Program::start("the prototype", &mut command)
}

/// A real `quell lane run`.
pub struct Lane {
    child: Child,
}

impl Lane {
    fn start(
        place: &Place,
        directory: &Path,
        threads: &[(i32, f64)],
        turns: Option<&Turns>,
        client: Option<&Path>,
    ) -> Result<Lane> {
        if let Some(client) = client {
            return Lane::with_client(place, directory, threads, turns, client);
        }
        let mut command = Command::new(&place.quell);
        command.args(["lane", "run", "--quiet", "--json", "--core", &place.core.to_string()]);
        command.arg("--run-dir").arg(directory.join("run"));
        if let Some(turns) = turns {
            command.args(["--slice", &format!("{}ns", turns.slice.0)]);
            command.args(["--pattern", turns.pattern.name()]);
            if turns.pattern == Pattern::Dedicated {
                command.args(["--scheduler-core", &place.other.to_string()]);
            }
            turns.table.iter().for_each(|table| {
                command.args(["--table", table]);
            });
        }
        threads.iter().for_each(|(tid, _)| {
            command.args(["--tid", &tid.to_string()]);
        });
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Lane { child: command.spawn().context("start `quell lane run`")? })
    }

    /// A lane whose dedicated scheduler offers the load of a file from within its loop.
    fn with_client(
        place: &Place,
        directory: &Path,
        threads: &[(i32, f64)],
        turns: Option<&Turns>,
        client: &Path,
    ) -> Result<Lane> {
        let turns = turns.context("a load in the loop of a lane needs its slices")?;
        let mut config = format!(
            "[host]\nmanaged = \"{}\"\nrt_throttling = \"leave\"\n\n[[task]]\nname = \"lane\"\nclass = \"be\"\n\
             [task.lane]\npattern = \"{}\"\nscheduler_core = {}\nslice = \"{}ns\"\n",
            place.core,
            turns.pattern.name(),
            place.other,
            turns.slice.0
        );
        if let Some(table) = &turns.table {
            config += &format!("table = \"{table}\"\n");
        }
        for (tid, _) in threads {
            config += &format!("\n[[task.lane.member]]\ntid = {tid}\n");
        }
        let file = directory.join("lane.toml");
        fs::write(&file, config).with_context(|| format!("write {}", file.display()))?;
        let mut command = Command::new(&place.lab);
        command.arg("lane-loop").arg(&file).arg(client).arg(directory.join("run"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Lane { child: command.spawn().context("start `quell-lab lane-loop`")? })
    }

    /// Waits until all of its threads are on it, or were and have ended.
    fn wait_for(&mut self, threads: &[(i32, f64)], stop: &Stop) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let is_on = |(tid, _): &(i32, f64)| host::policy(*tid).is_ok_and(|(_, rung)| rung > 0);
        while !threads.iter().all(is_on) && !self.has_ended()? {
            ensure!(Instant::now() < until, "the threads do not come onto the lane");
            stop.sleep(Duration::from_millis(1))?;
        }
        Ok(())
    }

    /// Whether it has ended, in order.
    fn has_ended(&mut self) -> Result<bool> {
        let Some(status) = self.child.try_wait()? else { return Ok(false) };
        if !status.success() {
            let mut said = String::new();
            if let Some(mut err) = self.child.stderr.take() {
                let _ = std::io::Read::read_to_string(&mut err, &mut said);
            }
            bail!("`quell lane run` ended with {status}: {}", said.trim());
        }
        Ok(true)
    }

    /// What it says of itself, at its end.
    pub(super) fn finish(mut self, stop: &Stop) -> Result<Value> {
        let until = Instant::now() + PATIENCE;
        while !self.has_ended()? {
            ensure!(Instant::now() < until, "the lane does not end");
            stop.sleep(Duration::from_millis(10))?;
        }
        let out = self.child.stdout.take().context("no output of the lane")?;
        serde_json::from_reader(out).context("the lane's JSON")
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Killed, what it changed is given back by its guardians.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Microseconds of a value in ns of a lane's JSON.
pub fn micros(value: &Value) -> Option<f64> {
    value.as_u64().map(|ns| ns as f64 / 1e3)
}
