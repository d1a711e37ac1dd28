//! Threads of a service keep its rung only while their bursts are short.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use crate::common::{Daemon, Ground, eventually};
use quell_testkit::skipped;

/// A service on one core, two processes of which compute without a pause, as a save child or a collector does; another
/// counts its rounds in a file. It ends by itself, should the test fail.
fn service(rounds: &str) -> String {
    let script = format!(
        "while :; do :; done & while :; do :; done & while sleep 0.002; do echo >> {rounds}; done"
    );
    format!(
        "[host]\nmanaged = \"1\"\n[[task]]\nname = \"web\"\nclass = \"lc\"\nguaranteed = 1\n\
         command = [\"timeout\", \"100\", \"sh\", \"-c\", \"{script}\"]\n"
    )
}

/// Threads in the background now, and their bursts in microseconds.
fn background(daemon: &Daemon) -> Vec<(i64, f64)> {
    let task = daemon.task("web");
    let roles = task["roles"].as_array().unwrap();
    let background = roles.iter().filter(|thread| thread["role"] == "background");
    background
        .map(|thread| (thread["tid"].as_i64().unwrap(), thread["burst_us"].as_f64().unwrap()))
        .collect()
}

#[test]
fn processes_that_compute_are_in_the_background_of_their_service() {
    let ground = Ground::new();
    let dir = tempfile::tempdir().unwrap();
    let rounds = dir.path().join("rounds");
    let daemon = ground.run(&service(rounds.to_str().unwrap()));
    // Roles change from one look to the next, so each of these is seen at some time.
    eventually("a process that computes is in the background, in the fair class", || {
        let threads = background(&daemon);
        assert!(threads.iter().all(|(_, burst_us)| *burst_us >= 2_000.0), "{threads:?}");
        threads.iter().any(|(tid, _)| policy_of(*tid) == Some(0))
    });
    let before = std::fs::read_to_string(&rounds).unwrap_or_default().len();
    eventually("the other process goes on beside it", || {
        std::fs::read_to_string(&rounds).unwrap_or_default().len() > before + 50
    });
    let words = |args: &[&str]| String::from_utf8(ground.quell(args).stdout).unwrap();
    eventually("the explanation names it", || {
        words(&["status", "--explain", "web"]).contains(" is background since")
    });
    eventually("the table lists it", || {
        let table = words(&["status"]);
        table.contains("NEEDS") && table.contains("background")
    });
    daemon.stop();
}

#[test]
fn kernel_threads_of_a_core_that_a_service_fills_run() {
    /// Written to, it has a kernel thread of each core do something, and waits for all of them.
    const EACH_CORE: &str = "/proc/sys/vm/stat_refresh";
    let ground = Ground::new();
    let daemon = ground.run(
        "[host]\nmanaged = \"1\"\n[[task]]\nname = \"web\"\nclass = \"lc\"\nguaranteed = 1\n\
         command = [\"timeout\", \"100\", \"sh\", \"-c\", \"while :; do :; done\"]\n",
    );
    let cpu_ms = || daemon.task("web")["cpu_ms"].as_f64().unwrap();
    eventually("the service fills its core", || cpu_ms() > 300.0);
    for _ in 0..50 {
        if std::fs::write(EACH_CORE, "1").is_err() {
            return skipped("this kernel has no file to call the kernel threads of each core");
        }
    }
    let before = cpu_ms();
    eventually("and the service goes on", || cpu_ms() > before + 300.0);
    daemon.stop();
}

#[test]
fn configured_role_holds_for_threads_of_that_name_whatever_they_do() {
    let ground = Ground::new();
    let text = |rules: &str| {
        format!(
            "[host]\nmanaged = \"1\"\n[[task]]\nname = \"web\"\nclass = \"lc\"\nguaranteed = 1\n\
             command = [\"sleep\", \"100\"]\n{rules}"
        )
    };
    let rule = "[[task.threads]]\nname = \"sle*\"\nrole = \"background\"\n";
    let daemon = ground.run(&text(rule));
    eventually("the thread is in the fair class", || {
        let threads = background(&daemon);
        threads.iter().any(|(tid, _)| policy_of(*tid) == Some(0))
    });
    let words = |args: &[&str]| String::from_utf8(ground.quell(args).stdout).unwrap();
    assert!(words(&["status", "--explain", "web"]).contains(": configured"));
    assert!(words(&["status"]).contains("configured"));

    let file = ground.config(&text(""));
    let applied = ground.quell(&["apply", file.to_str().unwrap()]);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    eventually("without the rule it has the rung of its task", || background(&daemon).is_empty());
    daemon.stop();
}

/// Field 41 of /proc/TID/stat: the scheduling policy.
fn policy_of(tid: i64) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(38)?.parse().ok()
}
