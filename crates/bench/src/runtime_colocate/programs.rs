//! Programs on the runtime: how they are started, and where they listen.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quell_load::{LoadReport, LoadSpec};
use quell_model::CoreSet;

use crate::host::{self, Program, set_nice};
use quell_terminal::Stop;

/// How long a program may take until it says where it listens.
const START_MAX: Duration = Duration::from_secs(10);
/// Nice value of the client's thread: a foreign thread on its core would be measured as latency.
const CLIENT_NICE: i32 = -10;

/// Starts a program on these cores; it prints to `out`, and finds a daemon in `run` if that is given.
pub fn start(
    name: &str,
    program: &Path,
    args: &[&OsStr],
    cores: &CoreSet,
    run: Option<&Path>,
    out: &Path,
) -> Result<Program> {
    let mut command = Command::new(program);
    command.args(args).stdout(File::create(out)?).stderr(Stdio::inherit());
    // An empty directory has no daemon.
    command.env("QUELL_RUN_DIR", run.unwrap_or(Path::new("/nonexistent")));
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, cores).context("pin a program")?;
    let started = Program::start(name, &mut command);
    host::pin(0, &own).context("take back the own affinity")?;
    started
}

/// The first line that a program prints.
pub fn first_line(program: &mut Program, out: &Path, stop: &Stop) -> Result<String> {
    let until = Instant::now() + START_MAX;
    loop {
        let text = fs::read_to_string(out)?;
        if let Some((line, _)) = text.split_once('\n') {
            return Ok(line.to_owned());
        }
        program.check()?;
        ensure!(Instant::now() < until, "{} does not say where it listens", program.name());
        stop.sleep(Duration::from_millis(5))?;
    }
}

/// A server on the runtime.
pub struct Server {
    /// It.
    pub program: Program,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl Server {
    /// Waits for the first line of a program, in which `addr` finds where it listens.
    pub fn listening(
        mut program: Program,
        out: &Path,
        stop: &Stop,
        addr: impl Fn(&str) -> Option<SocketAddr>,
    ) -> Result<Server> {
        let line = first_line(&mut program, out, stop)?;
        let addr = addr(&line).with_context(|| format!("`{line}` says no address"))?;
        Ok(Server { program, addr })
    }

    /// Offers it load, from a thread that comes before others on its core.
    pub fn offer(&self, load: &LoadSpec) -> Result<LoadReport> {
        set_nice(0, CLIENT_NICE).context("favour the client")?;
        let report = quell_load::run(load, &mut quell_load::Silent);
        set_nice(0, 0).context("favour the client no longer")?;
        report.context("offer load")
    }
}

/// The output file of a program.
pub fn output(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.out"))
}
