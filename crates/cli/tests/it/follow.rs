//! `quell status --follow`: decisions of a running daemon, as JSON and in words.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

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
