//! A real daemon around a test, in a run directory of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

pub mod feign;
pub mod lanes;
pub mod recording;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use quell_model::CoreId;
use quell_testkit::{HostLock, Quiet, Unbalanced, host_lock, skipped};
use serde_json::Value;

/// The program under test.
pub const QUELL: &str = env!("CARGO_BIN_EXE_quell");
/// How long anything may take before a test calls it hung; generous, since machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A run directory in memory, alone on the host while it lives.
pub struct Ground {
    pub dir: tempfile::TempDir,
    pub lock: HostLock,
}

impl Ground {
    pub fn new() -> Ground {
        Ground { lock: host_lock().unwrap(), dir: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn config(&self, text: &str) -> PathBuf {
        let path = self.path().join("quell.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// `quell` with these arguments and this run directory.
    pub fn quell(&self, args: &[&str]) -> Output {
        Command::new(QUELL).args(args).env("QUELL_RUN_DIR", self.path()).output().unwrap()
    }

    /// Standard error of a `quell run` of this text that has to fail.
    pub fn refused(&self, text: &str) -> String {
        let path = self.config(text);
        let out = self.quell(&["run", path.to_str().unwrap()]);
        assert!(!out.status.success(), "it ran: {}", String::from_utf8_lossy(&out.stdout));
        String::from_utf8(out.stderr).unwrap()
    }

    /// A running daemon with this configuration.
    pub fn run(&self, text: &str) -> Daemon<'_> {
        self.run_with(text, &[])
    }

    /// A running daemon with this configuration and further arguments.
    pub fn run_with(&self, text: &str, args: &[&str]) -> Daemon<'_> {
        let path = self.config(text);
        let log = fs::File::create(self.path().join("log")).unwrap();
        let child = Command::new(QUELL)
            .args(["run", "--quiet", path.to_str().unwrap()])
            .args(args)
            .env("QUELL_RUN_DIR", self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut daemon = Daemon { ground: self, child };
        eventually("the daemon answers", || {
            assert!(
                daemon.child.try_wait().unwrap().is_none(),
                "the daemon ended: {}",
                fs::read_to_string(self.path().join("log")).unwrap()
            );
            self.quell(&["status", "--json"]).status.success()
        });
        daemon
    }
}

/// A running daemon; stopped in order at the end.
pub struct Daemon<'a> {
    pub ground: &'a Ground,
    pub child: Child,
}

impl Daemon<'_> {
    pub fn status(&self) -> Value {
        let out = self.ground.quell(&["status", "--json"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    pub fn task(&self, name: &str) -> Value {
        let status = self.status();
        let tasks = status["tasks"].as_array().unwrap();
        tasks.iter().find(|task| task["name"] == name).unwrap_or(&Value::Null).clone()
    }

    pub fn stop(mut self) -> String {
        let out = self.ground.quell(&["stop"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        eventually("the daemon ends", || self.child.try_wait().unwrap().is_some());
        String::from_utf8(out.stdout).unwrap()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.ground.path().join("log")).unwrap_or_default();
            let how = self.child.try_wait();
            eprintln!("the daemon ({how:?}) said:\n{log}");
        }
        if self.child.try_wait().unwrap().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Waits until something is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A real program, ended at the end.
pub struct Program(pub Child);

impl Program {
    pub fn start(program: &str, args: &[&str]) -> Program {
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Program(child)
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Copies a program. By another process: a child that a test beside this one forks could hold the copy open for writing, so
/// that it could not be run.
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to).status().unwrap().success());
}

/// Policy, real-time priority and allowed cores of each thread of a process, as the kernel shows them.
pub fn scheduling(pid: i32) -> Vec<(i32, u32, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    threads.filter_map(|thread| thread_scheduling(&thread.path())).collect()
}

/// The same of one thread, by its directory in /proc; `None` if it is gone.
pub fn thread_scheduling(dir: &Path) -> Option<(i32, u32, String)> {
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    // rt_priority and policy are fields 40 and 41 of proc(5).
    Some((fields[38].parse().unwrap(), fields[37].parse().unwrap(), cores.trim().to_owned()))
}

/// SCHED_OTHER, SCHED_FIFO and SCHED_IDLE as in `stat`.
pub const OTHER: i32 = 0;
pub const FIFO: i32 = 1;
pub const IDLE: i32 = 5;

/// Runs a program that ends with this test, however that ends.
pub fn start_bound(command: &[&str]) -> Program {
    Program::start("setpriv", &[&["--pdeathsig", "KILL"][..], command].concat())
}

/// A thread that never sleeps, started by `prefix` on core 1, with this affinity from then on.
pub fn hog(prefix: &[&str], cores: &str) -> Program {
    const SPIN: &str = "while :; do :; done";
    let hog = start_bound(&[&["taskset", "-c", "1"][..], prefix, &["sh", "-c", SPIN]].concat());
    // It is where it shall be once it is what it shall be.
    eventually("the hog spins", || {
        fs::read_to_string(format!("/proc/{}/comm", hog.pid())).unwrap().trim() == "sh"
    });
    let done = Command::new("taskset").args(["-cp", cores, &hog.pid().to_string()]).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    hog
}

/// A host that does not balance, and whose core 0 is left to this test. Two hogs on core 1 waste it.
pub struct Waste {
    // In this order: what is changed last is put back first.
    _unbalanced: Unbalanced,
    _quiet: Quiet,
}

impl Waste {
    /// `None`, and said so, where this host cannot be made to waste a core.
    pub fn plant(lock: &HostLock) -> Option<Waste> {
        let quiet = Quiet::on(CoreId(0), lock).unwrap();
        let unbalanced = Unbalanced::begin(lock).unwrap();
        let waste =
            quiet.zip(unbalanced).map(|(_quiet, _unbalanced)| Waste { _unbalanced, _quiet });
        if waste.is_none() {
            skipped("this host has no cpusets of cgroup v1, or a kernel before Linux 6.2");
        }
        waste
    }
}

/// `kernel.sched_rt_runtime_us`.
pub fn rt_limit() -> String {
    let limit = std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
    limit.trim().to_owned()
}
