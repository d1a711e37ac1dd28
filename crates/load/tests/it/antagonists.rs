//! Every antagonist does its work, publishes it, and ends when asked to.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quell_load::Stalls;
use quell_load::be::{Progress, Reading};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

/// An antagonist that is killed if the test fails.
struct Antagonist {
    child: Child,
    dir: tempfile::TempDir,
}

impl Antagonist {
    fn start(program: &Path, arguments: &[&str]) -> Antagonist {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let child = Command::new(program)
            .arg("--progress")
            .arg(dir.path().join("progress"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Antagonist { child, dir }
    }

    fn progress(&self) -> Progress {
        Progress::wait(&self.dir.path().join("progress"), PATIENCE).unwrap()
    }

    /// SIGTERM, and what was printed.
    fn end(mut self) -> String {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        let mut printed = String::new();
        std::io::Read::read_to_string(self.child.stdout.as_mut().unwrap(), &mut printed).unwrap();
        assert!(self.child.wait().unwrap().success());
        printed
    }
}

impl Drop for Antagonist {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until work beyond `earlier` is published.
fn more_than(progress: &Progress, earlier: Reading) -> Reading {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reading = progress.read().unwrap();
        if reading.ops > earlier.ops && reading.cpu_ns > earlier.cpu_ns {
            return reading;
        }
        assert!(Instant::now() < deadline, "no work since {earlier:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn works_and_ends(program: &Path, arguments: &[&str], unit: &str) -> String {
    let antagonist = Antagonist::start(program, arguments);
    let progress = antagonist.progress();
    assert_eq!(progress.unit(), unit);
    let first = more_than(&progress, Reading::default());
    let second = more_than(&progress, first);
    assert!(second.ops_per_sec_since(&first) > 0.0);
    let printed = antagonist.end();
    assert!(printed.contains(" ops ("), "{printed}");
    // What was done since the last regular write is published at the end.
    let ops: u64 = printed.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(progress.read().unwrap().ops, ops);
    printed
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_quell-antagonist"))
}

#[test]
fn stream() {
    works_and_ends(&program(), &["stream", "--threads", "2", "--mib", "8"], "MiB moved");
}

#[test]
fn work_that_rests_goes_on_after_it() {
    works_and_ends(&program(), &["hog", "--threads", "3", "--rests", "1"], "1,024 random steps");
}

#[test]
fn hog() {
    works_and_ends(&program(), &["hog", "--threads", "3"], "1,024 random steps");
}

#[test]
fn faults() {
    works_and_ends(&program(), &["faults"], "page fault");
}

#[test]
fn writes() {
    works_and_ends(&program(), &["writes", "--mib", "1"], "block synced");
}

#[test]
fn gc_pauses_and_says_how_long() {
    let printed = works_and_ends(&program(), &["gc", "--pause-ms", "5"], "Monte-Carlo trial");
    assert!(printed.contains("pauses, wall p50"), "{printed}");
}

#[test]
fn pause_records_its_own_gaps() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let gaps = dir.path().join("gaps");
    works_and_ends(&program(), &["pause", "--gaps", gaps.to_str().unwrap()], "1,000 PAUSEs");
    let stalls: Stalls = serde_json::from_slice(&std::fs::read(gaps).unwrap()).unwrap();
    assert!(stalls.windows.iter().all(|w| w.end_ns.since(w.start_ns) > stalls.threshold_ns));
}

#[test]
fn go_gc() {
    let dir = tempfile::tempdir().unwrap();
    let program = quell_load::go::build_gc(dir.path()).unwrap();
    let arguments = ["-threads", "2", "-live-mib", "8", "-rests", "1"];
    works_and_ends(&program, &arguments, "map entry replaced");
    // It rests when the other programs do.
    let mut test = Command::new("go");
    test.args(["test", "./..."]).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/go/gc"));
    let output = test.envs([("GOTOOLCHAIN", "local"), ("GOPROXY", "off")]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_number_that_makes_no_sense_is_refused_by_name() {
    let refused = |arguments: &[&str], name: &str| {
        let output = Command::new(program()).args(arguments).output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(name), "{said}");
    };
    refused(&["stream", "--mib", "0"], "--mib");
    refused(&["faults", "--mib", "1"], "--mib");
    refused(&["hog", "--threads", "0"], "threads");
    refused(&["gc", "--pause-ms", "0"], "--pause-ms");
    refused(&["writes", "--dir", "/nonexistent"], "/nonexistent");
    refused(&["--seconds", "0", "hog"], "--seconds");
}
