//! A PAUSE loop at SCHED_IDLE beside a service: it keeps the core from halting and steps aside for anything.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_load::be::Progress;
use quell_model::{CoreSet, Nanos};
use tempfile::TempDir;

use super::batch::Programs;
use crate::host::{Group, Policy, Program, directory};

/// How long it may take until it turns.
const START_MAX: Duration = Duration::from_secs(10);

/// A loop at SCHED_IDLE in the service's own group: from another one it would take half of the core, since ranks of
/// the fair class hold within a group only. Until dropped.
pub struct PauseProgram {
    program: Program,
    progress: Progress,
    _folder: TempDir,
}

impl PauseProgram {
    /// Starts it on these cores. `antagonist` is the `quell-antagonist` program; it rests at the times of a seed, if
    /// there is one.
    ///
    /// # Errors
    /// When it cannot be started, or refuses to be SCHED_IDLE.
    pub fn start(
        antagonist: &Path,
        group: &Group,
        managed: &CoreSet,
        rests: Option<u64>,
    ) -> Result<PauseProgram> {
        let directory = directory()?;
        let file = directory.path().join("progress");
        let mut command = Programs::antagonist(antagonist, &["pause"], rests);
        command.arg("--progress").arg(&file);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let program = Program::start_in("pause loop", &mut command, group)?;
        program.set_policy(Policy::Idle, 0)?;
        program.pin(managed)?;
        let progress = Progress::wait(&file, START_MAX).context("the PAUSE loop does not turn")?;
        Ok(PauseProgram { program, progress, _folder: directory })
    }

    /// How often it went round so far.
    ///
    /// # Errors
    /// When its count is malformed.
    pub fn turns(&self) -> Result<u64> {
        Ok(self.progress.read()?.ops)
    }

    /// CPU time that it took.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu(&self) -> Result<Nanos> {
        Ok(self.program.usage()?.cpu)
    }
}
