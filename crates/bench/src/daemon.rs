//! A real `quell run`, as a user would start it, around one measurement.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_model::{Class, CoreSet, Nanos};
use quell_observe::procs;
use rustix::process::Signal;
use serde::Deserialize;
use tempfile::TempDir;

use crate::host::{Program, directory, pin};
use quell_terminal::Stop;

/// How long a daemon may take until it manages its tasks.
const START_MAX: Duration = Duration::from_secs(20);
/// How long it may take to give everything back.
const STOP_MAX: Duration = Duration::from_secs(20);

/// A running program that the daemon adopts.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// The task's name.
    pub name: String,
    /// Its class.
    pub class: Class,
    /// What it is.
    pub what: Adoptee,
    /// Cores of its own.
    pub guaranteed: u32,
    /// Cores at most.
    pub max: u32,
    /// How long an LC thread may run without sleeping; absent: the daemon's own bound.
    pub runaway: Option<Nanos>,
}

/// What a task adopts.
#[derive(Clone, Debug, PartialEq)]
pub enum Adoptee {
    /// A process, and those that it makes from then on.
    Process(i32),
    /// Every process of a cgroup.
    Cgroup(String),
}

/// The configuration of the daemon.
#[derive(Clone, Debug)]
pub struct DaemonSpec {
    /// The `quell` program.
    pub program: PathBuf,
    /// Cores that it manages.
    pub managed: CoreSet,
    /// Lines of the `[host]` table besides `managed`.
    pub host: Vec<String>,
    /// The tasks.
    pub tasks: Vec<Adopted>,
}

impl DaemonSpec {
    fn toml(&self) -> String {
        let mut text = format!("[host]\nmanaged = \"{}\"\n", self.managed);
        for line in &self.host {
            text += line;
            text.push('\n');
        }
        for task in &self.tasks {
            let class = match task.class {
                Class::LatencyCritical => "lc",
                Class::BestEffort => "be",
            };
            let what = match &task.what {
                Adoptee::Process(pid) => format!("pid = {pid}"),
                Adoptee::Cgroup(path) => format!("cgroup = \"{path}\""),
            };
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "\n[[task]]\nname = \"{}\"\nclass = \"{class}\"\n{what}\nguaranteed = {}\nmax = {}\n",
                task.name, task.guaranteed, task.max
            );
            if let Some(runaway) = task.runaway {
                let _ = writeln!(text, "runaway_ms = {}", runaway.as_micros() / 1_000);
            }
        }
        text
    }
}

/// What a benchmark reads of `quell status --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// Its tasks.
    pub tasks: Vec<TaskStatus>,
    /// `shared` or `dedicated`.
    pub pattern: String,
    /// `bpf` or `proc`.
    pub observer: String,
    /// What this host lacks.
    #[serde(default)]
    pub degraded: Vec<String>,
    /// Totals since the start.
    pub counters: serde_json::Map<String, serde_json::Value>,
}

/// One task of [`Status`].
#[derive(Clone, Debug, Deserialize)]
pub struct TaskStatus {
    /// Its name.
    pub name: String,
    /// Threads watched.
    pub threads: u32,
    /// The rung of its threads.
    pub rung: String,
    /// What went wrong with it.
    #[serde(default)]
    pub problems: Vec<String>,
}

impl Status {
    /// A counter, if the daemon has it.
    pub fn counter(&self, name: &str) -> Option<f64> {
        self.counters.get(name)?.as_f64()
    }
}

/// A daemon that manages its tasks. Dropped without [`Daemon::stop`], it is asked to end and its
/// guardians restore the host.
pub struct Daemon {
    program: PathBuf,
    directory: TempDir,
    child: Option<Program>,
}

impl Daemon {
    /// Starts `quell run` and waits until every task has its threads on their rungs.
    ///
    /// # Errors
    /// With the daemon's own words when it does not come up.
    pub fn start(spec: &DaemonSpec, stop: &Stop) -> Result<Daemon> {
        let directory = directory()?;
        let file = directory.path().join("bench.toml");
        fs::write(&file, spec.toml()).context("write the configuration")?;
        let log = File::create(directory.path().join("log")).context("write the daemon's log")?;
        let mut command = Command::new(&spec.program);
        command
            .arg("run")
            .arg(&file)
            .env("QUELL_RUN_DIR", directory.path())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = Program::start("quell run", &mut command)?;
        let mut daemon = Daemon { program: spec.program.clone(), directory, child: Some(child) };
        daemon.wait_until_ready(spec, stop)?;
        Ok(daemon)
    }

    fn wait_until_ready(&mut self, spec: &DaemonSpec, stop: &Stop) -> Result<()> {
        let until = Instant::now() + START_MAX;
        loop {
            stop.check()?;
            if let Some(child) = &mut self.child
                && let Err(ended) = child.check()
            {
                bail!("{ended}: {}", self.log());
            }
            let ready = |status: &Status| {
                spec.tasks.iter().all(|wanted| {
                    let mut tasks = status.tasks.iter();
                    tasks.any(|task| task.name == wanted.name && task.threads > 0)
                })
            };
            if self.status().is_ok_and(|status| ready(&status)) {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("quell run did not manage its tasks within {START_MAX:?}: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its run directory, in which programs on the runtime find its socket.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, Program::pid)
    }

    /// Its processes, guardians included: all that run its program, but for this one.
    pub fn processes(&self) -> Vec<i32> {
        let Ok(program) = fs::canonicalize(&self.program) else { return vec![self.pid()] };
        let pids = procs::all().unwrap_or_default().into_iter();
        pids.filter(|&pid| pid.cast_unsigned() != std::process::id())
            .filter(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program))
            .collect()
    }

    /// Puts all of its threads on these cores.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pin(&self, cores: &CoreSet) -> Result<()> {
        for pid in self.processes() {
            for thread in procs::threads(pid).unwrap_or_default() {
                let tid = thread.tid.0;
                pin(tid, cores).with_context(|| format!("move thread {tid} of Quell"))?;
            }
        }
        Ok(())
    }

    /// What `quell status --json` says.
    ///
    /// # Errors
    /// When it does not answer or its answer is malformed.
    pub fn status(&self) -> Result<Status> {
        let out = self.client().args(["status", "--json"]).output().context("quell status")?;
        if !out.status.success() {
            bail!("quell status: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        serde_json::from_slice(&out.stdout).context("the answer of quell status --json")
    }

    /// Ends it as Ctrl-C does, and waits until it has given everything back.
    ///
    /// # Errors
    /// When it does not end by itself with success.
    pub fn stop(mut self) -> Result<()> {
        let Some(child) = self.child.take() else { return Ok(()) };
        match child.end(Signal::INT, STOP_MAX)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("quell run did not stop in order ({status}): {}", self.log()),
            None => bail!("quell run did not stop within {STOP_MAX:?}: {}", self.log()),
        }
    }

    fn client(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("QUELL_RUN_DIR", self.directory.path());
        command
    }

    /// The end of its output.
    fn log(&self) -> String {
        let text = fs::read(self.directory.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.trim().lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = child.end(Signal::TERM, STOP_MAX);
            // Whatever became of it, nothing may stay elevated.
            let _ = self.client().arg("restore").output();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_every_task() {
        let spec = DaemonSpec {
            program: "quell".into(),
            managed: "1".parse().unwrap(),
            host: vec!["policy = \"static\"".into()],
            tasks: vec![Adopted {
                name: "memcached".into(),
                class: Class::LatencyCritical,
                what: Adoptee::Process(7),
                guaranteed: 1,
                max: 1,
                runaway: Some(Nanos::from_millis(50)),
            }],
        };
        let expected = "[host]\nmanaged = \"1\"\npolicy = \"static\"\n\n[[task]]\nname = \"memcached\"\n\
                        class = \"lc\"\npid = 7\nguaranteed = 1\nmax = 1\nrunaway_ms = 50\n";
        assert_eq!(spec.toml(), expected);
    }

    #[test]
    fn a_program_that_ends_at_once_is_told_with_its_words() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("quell");
        fs::write(&program, "#!/bin/sh\necho no BPF here >&2\nexit 3\n").unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, executable).unwrap();
        let managed = "1".parse().unwrap();
        let spec = DaemonSpec { program, managed, host: Vec::new(), tasks: Vec::new() };
        // Without tasks it would count as ready as soon as it answers; it never does.
        let error = Daemon::start(&spec, &Stop::default()).err().unwrap();
        assert!(error.to_string().contains("no BPF here"), "{error:#}");
    }
}
