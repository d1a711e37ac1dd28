//! `quell stats` on the texts of real programs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

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
    assert!(text(&cut.stdout).contains("wakeup latency"));
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

/// What a reader of texts may hold, as docs/reference/formats.md says, in bytes.
const MEMORY: u64 = 32 << 20;

/// Two cores on which 4,000 threads take turns, as ftrace tells it, up to so many bytes.
fn write_turns(to: impl Write, bytes: u64) -> std::io::Result<()> {
    let mut to = BufWriter::new(to);
    let (mut at, mut written) = (0u64, 0);
    while written < bytes {
        at += 1;
        let (seconds, micros) = (at / 100_000, at % 100_000 * 10);
        let (prev, next, core) = (at % 4_000 + 1, (at + 2) % 4_000 + 1, at % 2);
        let line = format!(
            "worker-{prev} [00{core}] d..2. {seconds}.{micros:06}: sched_switch: prev_comm=worker prev_pid={prev} \
             prev_prio=120 prev_state=S ==> next_comm=worker next_pid={next} next_prio=120\n"
        );
        to.write_all(line.as_bytes())?;
        written += line.len() as u64;
    }
    to.flush()
}

#[test]
fn a_text_of_any_length_is_read_through_a_pipe_in_the_memory_that_the_docs_say() {
    // More than the memory, or as many as somebody asks for.
    let bytes = std::env::var("QUELL_TEXT_BYTES").map_or(48 << 20, |bytes| bytes.parse().unwrap());
    for command in ["stats", "check"] {
        let mut child = Command::new("prlimit")
            .args([
                &format!("--data={MEMORY}"),
                env!("CARGO_BIN_EXE_quell"),
                command,
                "--json",
                "-",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let written = write_turns(child.stdin.take().unwrap(), bytes);
        let out = child.wait_with_output().unwrap();
        written.unwrap_or_else(|err| panic!("{command}: {err}: {}", text(&out.stderr)));
        assert_eq!(out.status.code(), Some(0), "{command}: {}", text(&out.stderr));
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let lines = bytes / 170;
        assert!(command != "stats" || report["events"].as_u64().unwrap() > lines, "{report:#}");
    }
}
