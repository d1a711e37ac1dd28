//! `quell status --follow`: decisions of a running daemon, as JSON and in words.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ground, QUELL};
use quell_control::subscribe::Update;
use rustix::process::{Pid, Signal, kill_process};

const BATCH: &str = "[[task]]\nname = \"batch\"\nclass = \"be\"\ncommand = [\"sleep\", \"1000\"]\n";

fn follow(ground: &Ground, more: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = Command::new(QUELL)
        .args(["status", "--follow"])
        .args(more)
        .env("QUELL_RUN_DIR", ground.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines.map(Result::unwrap))
}

/// Whether it ended in order, and what it wrote to standard error.
fn ended(mut child: Child) -> (bool, String) {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap().success(), text)
}

#[test]
fn the_state_comes_first_and_a_task_that_leaves_is_told() {
    let ground = Ground::new();
    let daemon = ground.run(BATCH);
    let (child, lines) = follow(&ground, &["--json"]);
    let mut updates = lines.map(|line| Update::parse(&line).unwrap());
    let Update::Task(batch) = updates.next().unwrap() else { panic!("no task first") };
    assert_eq!((batch.name.as_str(), batch.processes.len()), ("batch", 1));
    assert!(updates.any(|update| matches!(update, Update::Core(_))));
    assert!(ground.quell(&["remove", "batch"]).status.success());
    assert!(updates.any(|update| matches!(update, Update::TaskLeft(left) if left.id == batch.id)));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(ended(child), (true, String::new()));
    daemon.stop();
}

/// Times of the decisions among lines, and the number of lines that were lost.
fn decisions(lines: impl Iterator<Item = String>) -> (Vec<u64>, u64) {
    let (mut times, mut lost) = (Vec::new(), 0);
    for line in lines {
        match Update::parse(&line).unwrap() {
            Update::Decision(made) => times.push(made.at_ns.0),
            Update::Lost(lines) => lost += lines.count,
            _ => {}
        }
    }
    (times, lost)
}

#[test]
fn subscriber_that_is_stopped_for_ten_seconds_changes_no_plan() {
    let ground = Ground::new();
    let file = ground.path().join("decisions");
    let web = "[[task]]\nname = \"web\"\nclass = \"lc\"\ncommand = [\"stress-ng\", \"--pipe\", \"1\", \"--quiet\"]\n";
    let daemon =
        ground.run_with(&format!("{web}{BATCH}"), &["--record-decisions", file.to_str().unwrap()]);
    let (reader, lines) = follow(&ground, &["--json"]);
    let reading = std::thread::spawn(move || decisions(lines));
    let (stopped, mut lines) = follow(&ground, &["--json"]);
    let first = lines.next();
    kill_process(Pid::from_child(&stopped), Signal::STOP).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    for set in [web, &format!("{web}{BATCH}")].into_iter().cycle() {
        if Instant::now() > end {
            break;
        }
        let path = ground.config(set);
        assert!(ground.quell(&["apply", path.to_str().unwrap()]).status.success());
        std::thread::sleep(Duration::from_millis(200));
    }
    kill_process(Pid::from_child(&stopped), Signal::CONT).unwrap();
    let said = daemon.stop();
    assert!(said.contains("decisions, 0 left out"), "{said}");
    let (all, lost_by_reader) = reading.join().unwrap();
    let (some, lost) = decisions(first.into_iter().chain(lines));
    assert!(all.is_sorted() && some.is_sorted());
    // A line that the stopped one has, the other one has too.
    if lost_by_reader == 0 {
        let since = some.first().copied().unwrap_or_default();
        let missing = some.iter().filter(|at| **at > since && all.binary_search(at).is_err());
        assert_eq!(missing.count(), 0, "{lost} lines lost");
    }
    assert!(ended(reader).0 && ended(stopped).0);
    // Each Plan follows from its Snapshot alone.
    let out = ground.quell(&["replay", file.to_str().unwrap(), "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(told["replayed"]["decisions"].as_u64().unwrap() > 50, "{told:#}");
    assert_eq!(told["replayed"]["differing"], 0);
}

#[test]
fn words_name_tasks_and_the_end_of_the_daemon_ends_it() {
    let ground = Ground::new();
    let daemon = ground.run(BATCH);
    let (child, mut lines) = follow(&ground, &[]);
    assert!(lines.any(|line| line.contains("task batch: BE, processes: 1")));
    daemon.stop();
    lines.for_each(drop);
    assert_eq!(ended(child), (true, "the daemon ended\n".to_owned()));
}
