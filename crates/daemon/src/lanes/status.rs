//! The status of lanes that run, as JSON over a socket: whoever connects is told, once.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_control::lanes::LanePattern;
use serde::Serialize;

use super::counters::LaneStatus;

/// The directory of a set of lanes, in the run directory: this and the number of its first core.
const PREFIX: &str = "lane-";
/// How long a client may take to read.
const PATIENCE: Duration = Duration::from_millis(20);
/// The longest status that is read.
const BYTES_MAX: u64 = 1 << 22;

/// What a set of lanes does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The process that runs them.
    pub pid: u32,
    /// How its schedulers wait.
    pub pattern: LanePattern,
    /// Its scheduler threads.
    pub schedulers: Vec<SchedulerStatus>,
    /// The lanes.
    pub lanes: Vec<LaneStatus>,
    /// What is less than it could be.
    pub degraded: Vec<String>,
}

/// A scheduler thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SchedulerStatus {
    /// Its number.
    pub tid: i32,
    /// Its core.
    pub core: u16,
    /// For how long it has run.
    pub uptime_ns: u64,
    /// The CPU time that it used meanwhile, by the kernel's account: all that its lanes cost beside their members' turns.
    pub cpu_ns: Option<u64>,
    /// Member switches on its lanes.
    pub switches: u64,
}

/// Where the lanes with this first core keep journal and socket.
pub(super) fn dir(run_dir: &Path, core: u16) -> PathBuf {
    run_dir.join(format!("{PREFIX}{core}"))
}

/// The directories of all lanes of a run directory, whether they run or not.
pub(super) fn dirs(run_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        path.is_dir() && name.strip_prefix(PREFIX).is_some_and(|core| core.parse::<u16>().is_ok())
    };
    let mut dirs: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_one).collect();
    dirs.sort();
    dirs
}

/// The status of every set of lanes that runs in a run directory, one JSON object each.
///
/// # Errors
/// When one runs and does not answer.
pub fn ask(run_dir: &Path) -> io::Result<Vec<String>> {
    let mut answers = Vec::new();
    for dir in dirs(run_dir) {
        // No socket, or nobody behind it: it does not run.
        let Ok(stream) = UnixStream::connect(socket(&dir)) else { continue };
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut answer = String::new();
        stream.take(BYTES_MAX).read_to_string(&mut answer)?;
        answers.push(answer.trim_end().to_owned());
    }
    Ok(answers)
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("status.sock")
}

/// Opens the socket of a directory, which is this process' own.
pub(super) fn listen(dir: &Path) -> io::Result<UnixListener> {
    let path = socket(dir);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Tells everybody who connected.
pub(super) fn answer(listener: &UnixListener, status: impl Fn() -> Status) {
    while let Ok((mut client, _)) = listener.accept() {
        let Ok(text) = serde_json::to_string(&status()) else { continue };
        // A client that does not read is left without an answer: nothing may hold up the heartbeat.
        let _ = client.set_nonblocking(false);
        let _ = client.set_write_timeout(Some(PATIENCE));
        let _ = client.write_all(text.as_bytes()).and_then(|()| client.write_all(b"\n"));
    }
}

/// Removes the socket.
pub(super) fn close(dir: &Path) {
    let _ = std::fs::remove_file(socket(dir));
}
