//! The example `request-server.c`, built here and run.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quell_model::CoreId;
use serde::Deserialize;

use super::client::{self, Client, Load};
use super::sharing::PATIENCE;
use crate::host::{self, Program};
use quell_terminal::Stop;

/// Its sources, as files of a directory.
const SOURCES: [(&str, &str); 4] = [
    ("request-server.c", include_str!("../../../../examples/lanes/request-server.c")),
    ("request_ring.h", include_str!("../../../../examples/lanes/request_ring.h")),
    ("request_work.h", include_str!("../../../../examples/lanes/request_work.h")),
    ("quell_lane.h", include_str!("../../../lane/include/quell_lane.h")),
];
/// Threads that serve: the article's.
const WORKERS: u64 = 128;
/// How often it is asked how fast the core is: a virtual one may be slow for longer than one answer takes.
const SPEED_TRIES: usize = 8;

/// The program, for one core.
pub struct RequestServer {
    program: PathBuf,
    core: CoreId,
    /// What a microsecond of work is, in turns of its loop.
    spins_per_us: Option<u64>,
    /// Where the program is.
    _folder: tempfile::TempDir,
}

/// What it says at its end.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Said {
    spins_per_us: u64,
    /// What a resumed turn loses before its worker goes on.
    pub floor_ns: u64,
    /// A worker's own part of a turn.
    pub turn_ns: u64,
}

#[cfg(test)]
impl Said {
    /// What a server with these times says, in nanoseconds.
    pub fn of(floor_ns: u64, turn_ns: u64) -> Said {
        Said { spins_per_us: 1, floor_ns, turn_ns }
    }
}

/// One that runs, and its client.
pub struct Serving {
    /// The client, for requests.
    pub client: Client,
    program: Program,
    directory: tempfile::TempDir,
}

impl RequestServer {
    /// Builds it.
    ///
    /// # Errors
    /// Without a C compiler.
    pub fn build(core: CoreId) -> Result<RequestServer> {
        let directory = host::directory()?;
        for (name, text) in SOURCES {
            std::fs::write(directory.path().join(name), text)?;
        }
        let program = directory.path().join("request-server");
        let mut command = Command::new("cc");
        command.current_dir(directory.path()).args(["-O2", "-pthread", "-I.", "-o"]).arg(&program);
        let built = command.arg(SOURCES[0].0).output().context("no C compiler (cc)")?;
        let said = String::from_utf8_lossy(&built.stderr);
        ensure!(built.status.success(), "cc cannot build request-server.c: {}", said.trim());
        Ok(RequestServer { program, core, spins_per_us: None, _folder: directory })
    }

    /// Finds out how fast the core is, so that all that run from now on do the same work for a request: each would find
    /// something else by itself on a core that is slow now and then.
    ///
    /// # Errors
    /// When it fails, or a stop was asked for.
    pub fn find_speed(&mut self, load: &Load, stop: &Stop) -> Result<()> {
        self.spins_per_us = None;
        let mut best = None;
        for _ in 0..SPEED_TRIES {
            let said = self.start(load.clone(), 0, stop)?.finish(stop)?;
            best = best.max(Some(said.spins_per_us));
        }
        self.spins_per_us = best;
        Ok(())
    }

    /// Starts it with this budget (0: without preemption) and a client of this load, which says where its rings are not.
    ///
    /// # Errors
    /// When it does not serve, or a stop was asked for.
    pub fn start(&self, mut load: Load, budget_us: u64, stop: &Stop) -> Result<Serving> {
        stop.check()?;
        let directory = host::directory()?;
        load.ring = directory.path().join("ring");
        client::make(&load)?;
        let client = Client::open(load)?;
        let mut command = Command::new(&self.program);
        command.arg("--ring").arg(directory.path().join("ring"));
        command.args(["--core", &self.core.to_string(), "--workers", &WORKERS.to_string()]);
        command.args(["--budget", &budget_us.to_string()]);
        if let Some(spins) = self.spins_per_us {
            command.args(["--spins-per-us", &spins.to_string()]);
        }
        command.stdout(File::create(said(directory.path()))?);
        let mut program = Program::start("request-server", &mut command)?;
        let until = Instant::now() + PATIENCE;
        while !client.ring().is_ready() {
            program.check()?;
            ensure!(Instant::now() < until, "request-server does not serve");
            stop.sleep(Duration::from_millis(5))?;
        }
        Ok(Serving { client, program, directory })
    }
}

impl Serving {
    /// Ends it; what it says.
    ///
    /// # Errors
    /// When it does not end, or fails.
    pub fn finish(self, stop: &Stop) -> Result<Said> {
        self.client.ring().stop();
        self.program.finish(PATIENCE, stop)?;
        let text = std::fs::read(said(self.directory.path()))?;
        serde_json::from_slice(&text).context("what request-server says at its end")
    }
}

fn said(directory: &Path) -> PathBuf {
    directory.join("said")
}
