//! Threads of a service keep its rung only while their bursts are short.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use crate::common::{Ground, eventually};

/// A service on one core, one process of which computes without a pause, as a save child or a collector does; the other
/// counts its rounds in a file.
fn service(rounds: &str) -> String {
    format!(
        "[host]\nmanaged = \"1\"\n[[task]]\nname = \"web\"\nclass = \"lc\"\nguaranteed = 1\n\
         command = [\"sh\", \"-c\", \"while :; do :; done & while sleep 0.002; do echo >> {rounds}; done\"]\n"
    )
}

#[test]
fn process_that_computes_is_in_the_background_of_its_service() {
    let ground = Ground::new();
    let dir = tempfile::tempdir().unwrap();
    let rounds = dir.path().join("rounds");
    let daemon = ground.run(&service(rounds.to_str().unwrap()));
    eventually("the process that computes is in the background", || {
        let task = daemon.task("web");
        let roles = task["roles"].as_array().unwrap().clone();
        roles.iter().any(|thread| thread["role"] == "background")
    });
    let task = daemon.task("web");
    let roles = task["roles"].as_array().unwrap();
    let background = roles.iter().find(|thread| thread["role"] == "background").unwrap();
    assert!(background["burst_us"].as_f64().unwrap() >= 2_000.0, "{background}");
    let tid = background["tid"].as_i64().unwrap();
    let policy = policy_of(tid);
    assert_eq!(policy, Some(0), "it is in the fair class");
    let before = std::fs::read_to_string(&rounds).unwrap_or_default().len();
    eventually("the other process goes on beside it", || {
        std::fs::read_to_string(&rounds).unwrap_or_default().len() > before + 50
    });
    let words = ground.quell(&["status", "--explain", "web"]);
    let words = String::from_utf8(words.stdout).unwrap();
    assert!(words.contains(&format!("thread {tid} is background since")), "{words}");
    let words = String::from_utf8(ground.quell(&["status"]).stdout).unwrap();
    assert!(words.contains("NEEDS") && words.contains("background"), "{words}");
    daemon.stop();
}

/// Field 41 of /proc/TID/stat: the scheduling policy.
fn policy_of(tid: i64) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(38)?.parse().ok()
}
