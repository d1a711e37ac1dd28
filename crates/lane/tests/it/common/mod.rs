//! What the tests of lanes share: threads as the kernel shows them, and programs in C.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use quell_lane::{Lane, Priorities};
use quell_testkit::{HostLock, host_lock, skipped};

/// The core of the lanes; the first one is everybody else's.
pub const CORE: u32 = 1;

/// How long anything may take before a test calls it hung; generous, since machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// SCHED_OTHER, SCHED_FIFO and SCHED_BATCH as in `stat`.
pub const OTHER: i32 = 0;
pub const FIFO: i32 = 1;
pub const BATCH: i32 = 3;

/// The host to oneself, where it lets this test have lanes.
pub fn ground() -> Option<HostLock> {
    let lock = host_lock().unwrap();
    match Lane::open(CORE, Priorities::default()) {
        Ok(_) => Some(lock),
        Err(err) => {
            skipped(err);
            None
        }
    }
}

/// Waits until something is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The calling thread's number.
pub fn tid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Policy, real-time priority and allowed cores of a thread of this process.
pub fn scheduling(tid: i32) -> (i32, u8, String) {
    let dir = PathBuf::from(format!("/proc/self/task/{tid}"));
    let stat = fs::read_to_string(dir.join("stat")).unwrap();
    let status = fs::read_to_string(dir.join("status")).unwrap();
    // rt_priority and policy are fields 40 and 41 of proc(5).
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    (fields[38].parse().unwrap(), fields[37].parse().unwrap(), cores.trim().to_owned())
}

/// Runs a program that has to succeed.
pub fn succeed(command: &mut Command) -> Output {
    let out = command.output().unwrap();
    assert!(
        out.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    out
}

/// A folder of this repository.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Compiles a file with every warning an error.
pub fn compile(dir: &Path, compiler: &str, standard: &str, source: &Path) -> PathBuf {
    let language = if compiler == "cc" { "c" } else { "c++" };
    let name = source.file_stem().unwrap().to_str().unwrap();
    let program = dir.join(format!("{name}-{standard}"));
    succeed(
        Command::new(compiler)
            .args(["-x", language, &format!("-std={standard}"), "-O2", "-pthread"])
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
            .arg(folder("crates/lane/include"))
            .arg("-o")
            .arg(&program)
            .arg(source)
            .args(["-lm"]),
    );
    program
}
