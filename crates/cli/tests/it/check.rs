//! `quell check` on recorded files and on this host.
//!
//! Verdicts about this host need a quiet one: `make test-all` asserts them, under schedulers that waste cores and that do
//! not. Guards restore each change; if the test is killed, a process that waits for its end does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::common::recording::{WAITER, two_threads_on_core_1};
use crate::common::{Ground, Program, QUELL, Waste, hog, start_bound};
use quell_control::subscribe::{Subscription, Update};
use quell_model::CoreId;
use quell_testkit::{HostLock, Quiet, Undo, host_lock, skipped};
use serde_json::Value;

/// How often a control is repeated until other work on this host leaves it a core.
const ATTEMPTS: usize = 4;
/// A cgroup of the v1 cpu controller whose threads get a tenth of a core together.
struct Throttled {
    directory: String,
    _undo: Undo,
}

impl Throttled {
    fn new() -> Option<Throttled> {
        if !Path::new("/sys/fs/cgroup/cpu/cgroup.procs").exists() {
            return None;
        }
        let directory = format!("/sys/fs/cgroup/cpu/quell-check-{}", std::process::id());
        let undo = Undo::with(&format!(
            "for i in $(seq 100); do rmdir {directory} && exit; sleep 0.1; done"
        ));
        let throttled = Throttled { directory, _undo: undo.unwrap() };
        fs::create_dir(&throttled.directory).unwrap();
        fs::write(format!("{}/cpu.cfs_period_us", throttled.directory), "100000").unwrap();
        fs::write(format!("{}/cpu.cfs_quota_us", throttled.directory), "10000").unwrap();
        Some(throttled)
    }

    fn admit(&self, program: &Program) {
        fs::write(format!("{}/cgroup.procs", self.directory), program.pid().to_string()).unwrap();
    }
}

/// Checks this host; a directory of its own takes the trace, and there is no daemon.
fn check(args: &[&str]) -> (Option<i32>, Value) {
    let directory = tempfile::tempdir().unwrap();
    check_in(directory.path(), args)
}

/// Checks this host, with the daemon of this run directory.
fn check_in(run_dir: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let out = Command::new(QUELL)
        .args(["check", "--json", "--duration", "2s"])
        .args(args)
        .env("QUELL_RUN_DIR", run_dir)
        .current_dir(run_dir)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", text(&out)));
    (out.status.code(), report)
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// No violation, in exact mode. On a host so busy that events are lost the checker cannot tell, and is asked again.
fn assert_no_violation(_: &HostLock) -> Value {
    for _ in 0..ATTEMPTS {
        let (code, report) = check(&["--mode", "exact"]);
        assert!(report["violations"].as_array().unwrap().is_empty(), "{report:#}");
        if code != Some(2) {
            assert_eq!((code, &report["verdict"]), (Some(0), &"clean".into()), "{report:#}");
            return report;
        }
    }
    panic!("could not tell in {ATTEMPTS} attempts; is this host overloaded?");
}

/// Two hogs that began on core 1 and may use core 0 as well, while nothing is balanced.
fn assert_violated_without_balancing(args: &[&str]) {
    let lock = host_lock().unwrap();
    let Some(_waste) = Waste::plant(&lock) else { return };
    let mut last = Value::Null;
    for _ in 0..ATTEMPTS {
        let hogs = [hog(&[], "0-1"), hog(&[], "0-1")];
        let (code, report) = check(args);
        let pids = hogs.each_ref().map(|hog| Value::from(hog.pid()));
        let ours = |finding: &&Value| {
            finding["core"] == 1
                && finding["waiters"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|w| pids.contains(&w["thread"]))
        };
        let Some(found) = report["violations"].as_array().unwrap().iter().find(ours) else {
            last = report;
            continue;
        };
        assert_eq!((code, &report["verdict"]), (Some(1), &Value::from("violated")));
        assert_eq!(
            (&found["reach"], &found["label"]),
            (&"no-common-domain".into(), &"no-common-domain".into())
        );
        assert_eq!((&found["idle"], &found["evidence"]["domain"]), (&"0".into(), &"1".into()));
        assert!(
            report["facts"]
                .as_array()
                .unwrap()
                .iter()
                .any(|fact| { fact.as_str().unwrap().contains("cpuset.sched_load_balance") })
        );
        assert!(report["trace"].as_str().unwrap().ends_with(".pftrace"));
        return;
    }
    panic!("never violated in {ATTEMPTS} attempts; is core 0 ever idle? The last: {last:#}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn without_balancing_movable_hogs_on_one_core_are_violated_in_exact_mode() {
    assert_violated_without_balancing(&["--mode", "exact"]);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn without_balancing_movable_hogs_on_one_core_are_violated_in_sampling_mode() {
    assert_violated_without_balancing(&["--mode", "sampling", "--interval", "500ms"]);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn with_balancing_the_same_hogs_are_clean() {
    let lock = host_lock().unwrap();
    let _hogs = [hog(&[], "0-1"), hog(&[], "0-1")];
    assert_no_violation(&lock);
    // 2: it could not tell, on a host that is too busy.
    let verdicts = (0..ATTEMPTS).map(|_| check(&["--interval", "200ms"]).0);
    assert_eq!(verdicts.into_iter().find(|verdict| *verdict != Some(2)), Some(Some(0)));
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn pinned_hogs_are_clean() {
    let lock = host_lock().unwrap();
    let _hogs = [hog(&[], "1"), hog(&[], "1")];
    assert_no_violation(&lock);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn short_sleepers_are_clean() {
    let lock = host_lock().unwrap();
    let _sleepers = [(); 8].map(|()| start_bound(&["sh", "-c", "while :; do sleep 0.002; done"]));
    assert_no_violation(&lock);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn storms_of_kernel_workers_are_clean() {
    let lock = host_lock().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap().to_owned();
    let _storm = start_bound(&[
        "stress-ng",
        "--hdd",
        "2",
        "--hdd-bytes",
        "8M",
        "--temp-path",
        &path,
        "--quiet",
    ]);
    assert_no_violation(&lock);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn sched_idle_hogs_are_clean() {
    let lock = host_lock().unwrap();
    let _hogs = [(); 3].map(|()| hog(&["chrt", "-i", "0"], "0-1"));
    assert_no_violation(&lock);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn a_realtime_hog_before_a_movable_thread_is_clean() {
    let lock = host_lock().unwrap();
    // Bounded, whatever happens: the kernel ends it after 20 s without sleep.
    let _realtime = hog(&["prlimit", "--rttime=20000000", "chrt", "-f", "1"], "1");
    let _fair = hog(&[], "0-1");
    assert_no_violation(&lock);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn a_throttled_cgroup_is_clean() {
    let lock = host_lock().unwrap();
    let Some(group) = Throttled::new() else {
        return skipped("this host has no cpu controller of cgroup v1");
    };
    let hogs = [hog(&[], "0-1"), hog(&[], "1"), hog(&[], "0-1")];
    hogs.iter().take(2).for_each(|hog| group.admit(hog));
    assert_no_violation(&lock);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn a_storm_of_affinities_is_clean_and_its_moves_are_named() {
    let lock = host_lock().unwrap();
    let hog = hog(&[], "0-1");
    let pid = hog.pid();
    let storm = format!("while :; do taskset -cp 0 {pid}; taskset -cp 1 {pid}; done");
    let _storm = start_bound(&["sh", "-c", &storm]);
    let report = assert_no_violation(&lock);
    assert!(report["migrations"]["affinity"].as_u64().is_some_and(|moves| moves > 0), "{report:#}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn what_a_daemons_plan_keeps_a_thread_from_is_explained_by_it() {
    let ground = Ground::new();
    let Some(_quiet) = Quiet::on(CoreId(0), &ground.lock).unwrap() else {
        return skipped("this host has no cpusets of cgroup v1, or a kernel before Linux 6.2");
    };
    let daemon = ground.run(
        "[[task]]\nname = \"batch\"\nclass = \"be\"\ncommand = [\"stress-ng\", \"--cpu\", \"2\", \"--quiet\"]\n",
    );
    let socket = ground.path().join("control.sock");
    let mut subscription = Subscription::open(&socket, Duration::from_secs(120)).unwrap();
    let mut updates = std::iter::from_fn(|| subscription.next_update().unwrap());
    let kept = |update| matches!(update, Update::Task(task) if task.affinities.iter().map(|kept| kept.threads.len()).sum::<usize>() >= 3);
    assert!(updates.any(kept), "the workers of stress-ng are never kept on managed cores");
    let mut explained = false;
    for _ in 0..ATTEMPTS {
        let (_, report) = check_in(ground.path(), &["--mode", "exact"]);
        let findings = |kind: &str| report[kind].as_array().unwrap().clone();
        assert!(findings("violations").iter().all(|found| found["label"] != "quell"), "{report:#}");
        let by_plan = |found: &Value| found["label"]["policy"] == "plan";
        let told = |fact: &Value| fact.as_str().unwrap().contains("a Quell daemon");
        assert!(report["facts"].as_array().unwrap().iter().any(told));
        explained = findings("allowed_by_policy").iter().any(by_plan);
        if explained {
            break;
        }
    }
    assert!(explained, "never explained in {ATTEMPTS} attempts; is core 0 ever idle?");
    daemon.stop();
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn what_was_saved_around_a_violation_is_violated_when_it_is_read_back() {
    let lock = host_lock().unwrap();
    let Some(_waste) = Waste::plant(&lock) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("found.pftrace");
    let path = path.to_str().unwrap();
    let _hogs = [hog(&[], "0-1"), hog(&[], "0-1")];
    let found = (0..ATTEMPTS).any(|_| check(&["--mode", "exact", "--save", path]).0 == Some(1));
    assert!(found, "never violated in {ATTEMPTS} attempts; is core 0 ever idle?");
    let out = Command::new(QUELL).args(["check", path]).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(text(&out).starts_with("violated: "), "{}", text(&out));
}

/// `quell check` of a file, as JSON.
fn check_file(path: &Path) -> (Option<i32>, Value) {
    let out = Command::new(QUELL).args(["check", "--json"]).arg(path).output().unwrap();
    let report = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", text(&out)));
    (out.status.code(), report)
}

#[test]
fn recorded_waste_is_violated_with_its_waiter_and_domain() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("waste.pftrace");
    two_threads_on_core_1(&path, "0-1");
    let (code, report) = check_file(&path);
    assert_eq!((code, &report["verdict"]), (Some(1), &"violated".into()), "{report:#}");
    let found = &report["violations"][0];
    assert_eq!((&found["core"], &found["reach"]), (&1.into(), &"no-common-domain".into()));
    assert_eq!((&found["label"], &found["idle"]), (&"no-common-domain".into(), &"0".into()));
    assert_eq!(found["evidence"]["domain"], "1");
    let waiters = found["waiters"].as_array().unwrap();
    assert!(waiters.iter().any(|waiter| waiter["thread"] == WAITER), "{found:#}");
    let out = Command::new(QUELL).arg("check").arg(&path).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(text(&out).starts_with("violated: "), "{}", text(&out));
}

#[test]
fn recorded_pinned_threads_are_clean() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pinned.pftrace");
    two_threads_on_core_1(&path, "1");
    let (code, report) = check_file(&path);
    assert_eq!((code, &report["verdict"]), (Some(0), &"clean".into()), "{report:#}");
    assert!(report["violations"].as_array().unwrap().is_empty(), "{report:#}");
}

#[test]
fn live_check_follows_the_host_and_names_the_daemon() {
    let ground = Ground::new();
    let daemon = ground.run("version = 1\n");
    for (mode, followed) in [("exact", "events"), ("sampling", "samples")] {
        let args = ["check", "--json", "--duration", "600ms", "--mode", mode];
        let out = Command::new(QUELL)
            .args(args)
            .env("QUELL_RUN_DIR", ground.path())
            .current_dir(ground.path())
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        // Which verdict this host gets is not this test's matter; the exit status follows it.
        let verdicts = ["clean", "violated", "could-not-tell"].map(Value::from);
        let status = verdicts.iter().position(|verdict| *verdict == report["verdict"]);
        assert_eq!(out.status.code(), status.map(|status| status as i32), "{report:#}");
        assert!(report[followed].as_u64().unwrap() > 0, "{report:#}");
        let facts = report["facts"].as_array().unwrap();
        assert!(facts.iter().any(|fact| fact.as_str().unwrap().contains("a Quell daemon")));
        let saved = report["trace"].as_str();
        assert_eq!(saved.is_some(), report["verdict"] == "violated", "{report:#}");
        assert!(saved.is_none_or(|name| name.ends_with(".pftrace")));
    }
    daemon.stop();
}

#[test]
fn what_is_no_trace_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("no-trace");
    fs::write(&path, "this is no trace\n").unwrap();
    for file in [path.to_str().unwrap(), "/nonexistent"] {
        let out = Command::new(QUELL).args(["check", file]).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{}", text(&out));
        assert!(text(&out).starts_with(&format!("error: {file}")), "{}", text(&out));
    }
}
