//! `quell stats` on the texts of real programs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::path::PathBuf;
use std::process::{Command, Output};

fn sample(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data").join(name)
}

fn stats(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quell")).arg("stats").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn each_programs_text_gives_figures() {
    for name in ["ftrace.txt", "trace-cmd.txt", "perf-sched.txt"] {
        let path = sample(name);
        let path = path.to_str().unwrap();
        let table = stats(&[path]);
        assert_eq!(table.status.code(), Some(0), "{}", text(&table.stderr));
        let table = text(&table.stdout);
        for part in ["rcu_preempt", "threads that want a core", "affinity is not known"] {
            assert!(table.contains(part), "{name}: {table}");
        }
        let json = stats(&[path, "--json", "--cores", "8", "--nodes", "2"]);
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(json["cores"], 8);
        assert!(json["wakeups"].as_array().unwrap().len() > 3);
    }
}

#[test]
fn a_damaged_trace_gives_what_came_before_and_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.txt");
    let whole = std::fs::read(sample("ftrace.txt")).unwrap();
    std::fs::write(&path, [&whole[..10_000], b"\noops\n"].concat()).unwrap();
    let cut = stats(&[path.to_str().unwrap()]);
    assert_eq!(cut.status.code(), Some(1));
    assert!(text(&cut.stdout).contains("wake-up latency"));
    let error = text(&cut.stderr);
    assert!(error.contains("cut.txt: line") && error.contains("came before"), "{error}");
}

#[test]
fn what_is_no_trace_is_refused_in_one_line() {
    let refused = stats(&[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    assert_eq!(refused.status.code(), Some(2));
    let error = text(&refused.stderr);
    assert_eq!(error.lines().count(), 1);
    assert!(error.contains("Cargo.toml: line 1: this is no trace"), "{error}");
}
