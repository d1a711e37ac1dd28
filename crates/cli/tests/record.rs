//! `quell record`, as people end it, beside a daemon and without one.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Ground, Program, QUELL, eventually};
use quell_model::{Event, What};
use quell_trace::perfetto::Reader;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn start(ground: &Ground, file: &Path, more: &[&str]) -> Child {
    Command::new(QUELL)
        .args(["record", "--json", "-o", file.to_str().unwrap()])
        .args(more)
        .env("QUELL_RUN_DIR", ground.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Ends it as Ctrl-C does, and gives its summary.
fn end(child: Child) -> Value {
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn read(file: &Path) -> Vec<Event> {
    let reader = Reader::new(BufReader::new(File::open(file).unwrap())).unwrap();
    reader.map(|event| event.unwrap()).collect()
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |meta| meta.len())
}

#[test]
fn ctrl_c_leaves_a_whole_file() {
    let ground = Ground::new();
    let file = ground.path().join("trace");
    let child = start(&ground, &file, &[]);
    eventually("something is recorded", || size(&file) > 10_000);
    let summary = end(child);
    assert_eq!(summary["ended"], "interrupted");
    assert_eq!(summary["bytes"], size(&file));
    let events = read(&file);
    assert_eq!(summary["kept_events"], events.len() as u64);
    let stats = ground.quell(&["stats", "--json", file.to_str().unwrap()]);
    assert!(stats.status.success(), "{}", String::from_utf8_lossy(&stats.stderr));
}

#[test]
fn what_was_written_before_a_kill_can_be_read() {
    let ground = Ground::new();
    let file = ground.path().join("trace");
    let mut child = start(&ground, &file, &[]);
    eventually("something is recorded", || size(&file) > 10_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let reader = Reader::new(BufReader::new(File::open(&file).unwrap())).unwrap();
    let events: Vec<Event> = reader.map_while(Result::ok).collect();
    assert!(events.len() > 100);
}

#[test]
fn decisions_of_a_daemon_stand_among_the_events() {
    let ground = Ground::new();
    let batch =
        "[[task]]\nname = \"batch\"\nclass = \"be\"\ncommand = [\"stress-ng\", \"--cpu\", \"2\"]\n";
    let daemon = ground.run(batch);
    let file = ground.path().join("trace");
    let child = start(&ground, &file, &[]);
    eventually("something is recorded", || size(&file) > 10_000);
    let web = Program::start("stress-ng", &["--pipe", "1", "--quiet"]);
    let service =
        format!("[[task]]\nname = \"web\"\nclass = \"lc\"\npid = {}\nguaranteed = 1\n", web.pid());
    let config = ground.config(&(service + batch));
    let applied = ground.quell(&["apply", config.to_str().unwrap()]);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let decided = || daemon.status()["decisions"].to_string().contains("web");
    eventually("a core goes to the service", decided);
    std::thread::sleep(Duration::from_secs(1));
    end(child);
    let events = read(&file);
    let told =
        |event: &Event| matches!(&event.what, What::Decision(words) if words.contains("web"));
    assert!(events.iter().any(told));
    assert!(events.is_sorted_by_key(|event| event.at));
    daemon.stop();
}

#[test]
fn bad_times_and_sizes_are_refused_by_name() {
    let ground = Ground::new();
    for (flag, value) in [("--duration", "soon"), ("--size", "-1"), ("--keep", "0s")] {
        let out = ground.quell(&["record", &format!("{flag}={value}")]);
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2));
        assert!(told.contains(flag) && told.contains(value), "{told}");
    }
}
