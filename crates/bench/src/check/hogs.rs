//! What is left to batch work: a thread at SCHED_IDLE on each core, that computes when it is let.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use quell_load::be::Progress;
use tempfile::TempDir;

use crate::host::{Policy, Program, directory};
use quell_terminal::Stop;

/// How long to wait for it to start.
const START_MAX: Duration = Duration::from_secs(10);

/// The batch work; stopped but while it is measured.
pub struct Hogs {
    program: Program,
    progress: Progress,
    _folder: TempDir,
}

impl Hogs {
    /// Starts it, and stops it where it is.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(antagonist: &Path, cores: usize) -> Result<Hogs> {
        let directory = directory()?;
        let file = directory.path().join("progress");
        let mut command = Command::new(antagonist);
        command.args(["hog", "--threads", &cores.to_string(), "--progress"]).arg(&file);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let program = Program::start("hog", &mut command)?;
        let progress = Progress::wait(&file, START_MAX)?;
        program.set_policy(Policy::Idle, 0)?;
        program.pause()?;
        Ok(Hogs { program, progress, _folder: directory })
    }

    /// Lets it work for a while. Its work a second.
    ///
    /// # Errors
    /// When it is gone, or a stop was asked for.
    pub fn work(&self, time: Duration, stop: &Stop) -> Result<f64> {
        self.program.go_on()?;
        let before = self.progress.read()?;
        let slept = stop.sleep(time);
        let after = self.progress.read()?;
        self.program.pause()?;
        slept?;
        Ok(after.ops_per_sec_since(&before))
    }
}
