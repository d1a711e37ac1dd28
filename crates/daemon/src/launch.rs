//! Launching a task's program so that no instruction of it runs unwatched.
//!
//! ```text
//! daemon: spawn `quell launch -- PROGRAM ..` ──► helper: back to default policy and affinity, stop itself
//! daemon: waits for the stop; groups, watches, plans the helper ──► SIGCONT
//!                                                       helper: becomes PROGRAM (same process)
//! ```
//!
//! The helper is our own child and not yet the program, so stopping it surprises nobody's parent.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use quell_control::config::Launch;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// The name of the hidden subcommand that [`become_program`] serves.
pub const HELPER: &str = "launch";
/// How long the helper may take to stop itself; it only starts and resets its scheduling.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an ended program may take after SIGTERM before SIGKILL follows.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A program that was launched, stopped before its first instruction until [`Launched::release`].
pub struct Launched {
    child: Child,
}

impl Launched {
    /// Spawns the helper and waits until it has stopped itself.
    ///
    /// # Errors
    /// When it cannot be started, or its output file or directory cannot be opened.
    pub fn spawn(launch: &Launch) -> io::Result<Launched> {
        let (out, err) = output(launch.output.as_deref())?;
        Launched::spawn_to(launch, out, err)
    }

    /// As [`Launched::spawn`], with the output where this process has its own.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn_here(launch: &Launch) -> io::Result<Launched> {
        Launched::spawn_to(launch, Stdio::inherit(), Stdio::inherit())
    }

    fn spawn_to(launch: &Launch, out: Stdio, err: Stdio) -> io::Result<Launched> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(HELPER).arg("--").args(&launch.command);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        command.envs(launch.env.iter().map(|(key, value)| (key, value)));
        if let Some(cwd) = &launch.cwd {
            command.current_dir(cwd);
        }
        // Its own group: Ctrl-C at the terminal is for the daemon, which ends tasks in its own order.
        command.process_group(0);
        let mut launched = Launched { child: command.spawn()? };
        launched.wait_for_stop()?;
        Ok(launched)
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Lets the program start.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn release(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Its exit status, once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Ends the program and all it created: SIGTERM, and SIGKILL to those that are there 5 s later.
    /// `members` tells the processes of its group now.
    pub fn end(&mut self, members: &dyn Fn() -> Vec<i32>) -> Option<ExitStatus> {
        let everybody = |signal| {
            for pid in members().into_iter().filter_map(Pid::from_raw) {
                // One that ended meanwhile needs no signal.
                let _ = kill_process(pid, signal);
            }
        };
        let _ = self.signal(Signal::TERM);
        let _ = self.signal(Signal::CONT);
        everybody(Signal::TERM);
        let deadline = Instant::now() + END_TIMEOUT;
        let mut status = None;
        while Instant::now() < deadline {
            status = status.or_else(|| self.ended());
            if status.is_some() && members().is_empty() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.signal(Signal::KILL);
        everybody(Signal::KILL);
        status.or_else(|| self.child.wait().ok())
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_child(&self.child);
        Ok(kill_process(pid, signal)?)
    }

    fn wait_for_stop(&mut self) -> io::Result<()> {
        let pid = Pid::from_child(&self.child);
        let deadline = Instant::now() + STOP_TIMEOUT;
        let look = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while Instant::now() < deadline {
            match waitid(WaitId::Pid(pid), look | WaitIdOptions::NOHANG)? {
                Some(status) if status.stopped() => return Ok(()),
                Some(_) => {
                    return Err(io::Error::other("the launch helper ended before the program"));
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        let _ = self.signal(Signal::KILL);
        let _ = self.child.wait();
        Err(io::Error::new(io::ErrorKind::TimedOut, "the launch helper did not stop itself"))
    }
}

/// In words: `exited with status 1`, `killed by signal 9`.
pub fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "exited".to_owned(),
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

fn output(path: Option<&Path>) -> io::Result<(Stdio, Stdio)> {
    let Some(path) = path else { return Ok((Stdio::null(), Stdio::null())) };
    let file: File = OpenOptions::new().create(true).append(true).open(path).map_err(|err| {
        io::Error::new(err.kind(), format!("output file {}: {err}", path.display()))
    })?;
    Ok((file.try_clone()?.into(), file.into()))
}

/// The helper's life: called in the hidden subcommand, returns only if the program cannot be run.
pub fn become_program(command: &[OsString]) -> io::Error {
    let Some((program, arguments)) = command.split_first() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "no program is named");
    };
    if let Err(err) = reset_scheduling() {
        return err;
    }
    let me = rustix::process::getpid();
    if let Err(err) = kill_process(me, Signal::STOP) {
        return err.into();
    }
    Command::new(program).args(arguments).exec()
}

/// The daemon keeps to the unmanaged cores; its tasks start as if a shell had started them.
fn reset_scheduling() -> io::Result<()> {
    let mut everywhere = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|core| everywhere.set(core));
    Ok(rustix::thread::sched_setaffinity(None, &everywhere)?)
}

/// Finds a program as `execvp` does.
pub fn find_program(name: &str, cwd: Option<&Path>) -> Option<PathBuf> {
    let runs = |path: &Path| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    if name.contains('/') {
        let path = cwd.map_or_else(|| PathBuf::from(name), |cwd| cwd.join(name));
        return runs(&path).then_some(path);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| runs(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_does() {
        assert!(find_program("sh", None).is_some());
        assert!(find_program("no-such-program-here", None).is_none());
        assert!(find_program("./sh", Some(Path::new("/bin"))).is_some());
        assert!(find_program("/etc/passwd", None).is_none(), "not executable");
    }
}
