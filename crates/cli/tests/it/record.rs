//! `quell record`, as people end it, beside a daemon and without one.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::recording::{NOTE, two_threads_on_core_1};
use crate::common::{Ground, Program, QUELL, Waste, eventually, hog};
use quell_control::subscribe::{Subscription, Update};
use quell_model::{CoreId, CoreSet, Event, TaskId, Violation, What};
use quell_trace::perfetto::Reader;
use quell_trace::stream::Source as _;
use quell_view::{Builder, Range};
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

/// Decisions that the daemon sends until it ends, by time and core.
fn subscribed(ground: &Ground) -> JoinHandle<Vec<(u64, u16)>> {
    let socket = ground.path().join("control.sock");
    let mut subscription = Subscription::open(&socket, Duration::from_secs(120)).unwrap();
    std::thread::spawn(move || {
        let updates = std::iter::from_fn(|| subscription.next_update().ok().flatten());
        let decision = |update| match update {
            Update::Decision(made) => Some((made.at_ns.0, made.decision.core.0)),
            Update::Lost(lost) => panic!("{lost:?}"),
            _ => None,
        };
        updates.filter_map(decision).collect()
    })
}

#[test]
fn decisions_of_a_daemon_stand_among_the_events() {
    let ground = Ground::new();
    let batch =
        "[[task]]\nname = \"batch\"\nclass = \"be\"\ncommand = [\"stress-ng\", \"--cpu\", \"2\"]\n";
    let daemon = ground.run(batch);
    let file = ground.path().join("trace");
    let sent = subscribed(&ground);
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
    let decided = |event: &Event, web: &mut Option<TaskId>| {
        if let What::Task(task) = &event.what
            && task.name == "web"
        {
            *web = Some(task.id);
        }
        web.is_some() && matches!(&event.what, What::Decision(made) if made.to == *web)
    };
    eventually("the task and a decision for it are in the file", || {
        let (reader, mut web) = (Reader::new(BufReader::new(File::open(&file).unwrap())), None);
        reader
            .is_ok_and(|reader| reader.map_while(Result::ok).any(|event| decided(&event, &mut web)))
    });
    let summary = end(child);
    assert_eq!(summary["lost_decisions"], 0);
    let (events, mut web) = (read(&file), None);
    assert!(events.iter().any(|event| decided(event, &mut web)));
    assert!(events.iter().all(|event| !matches!(event.what, What::Annotation(_))));
    assert!(events.is_sorted_by_key(|event| event.at));
    daemon.stop();
    // Exact times, but for those that came after the window: another subscriber received the same.
    let sent: BTreeSet<(u64, u16)> = sent.join().unwrap().into_iter().collect();
    let recorded = events.iter().filter_map(|event| match &event.what {
        What::Decision(made) => Some((event.at.0, made.core.0)),
        _ => None,
    });
    let recorded: Vec<(u64, u16)> = recorded.collect();
    let moved = recorded.iter().filter(|made| !sent.contains(made)).count() as u64;
    assert!(moved <= summary["late"].as_u64().unwrap(), "{recorded:?} {sent:?}");
}

#[test]
fn a_recorded_violation_is_shown_by_check_stats_and_view() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("found.pftrace");
    let path = file.to_str().unwrap();
    let events = two_threads_on_core_1(&file, "0-1");
    let quell = |args: &[&str]| Command::new(QUELL).args(args).output().unwrap();
    let check = quell(&["check", "--json", path]);
    assert_eq!(check.status.code(), Some(1));
    let check: Value = serde_json::from_slice(&check.stdout).unwrap();

    for output in ["found.html", "found.png"].map(|name| directory.path().join(name)) {
        let view = quell(&["view", path, "-o", output.to_str().unwrap()]);
        assert!(view.status.success(), "{}", String::from_utf8_lossy(&view.stderr));
    }
    assert!(std::fs::read(directory.path().join("found.png")).unwrap().starts_with(b"\x89PNG"));
    assert_eq!(read(&file), events);
    let meta = Reader::new(BufReader::new(File::open(&file).unwrap())).unwrap().meta().clone();
    let mut builder = Builder::new(meta, Range::ALL).unwrap();
    events.iter().for_each(|event| assert!(builder.push(event).unwrap()));
    let shown = builder.finish().unwrap().index;
    let note = shown.notes.iter().find(|note| *note.text == *NOTE).unwrap();
    let meets = |episode: &quell_view::IdleEpisode| {
        episode.from_ns < note.to_ns
            && episode.to_ns > note.at_ns
            && episode.cores.contains(CoreId(0))
    };
    assert!(shown.findings.iter().any(meets), "{:?}", shown.findings);

    let stats = quell(&["stats", "--json", path]);
    let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
    let by_check = check["waste"]["any_s"].as_f64().unwrap();
    let by_stats = stats["wasted"]["wall_ns"].as_f64().unwrap() / 1e9;
    let by_view = shown.wasted_ns as f64 / 1e9;
    let figures = [by_check, by_stats, by_view];
    let differs = |figure: &f64| (figure - by_check).abs() > by_check / 10.0;
    assert!(by_check > 0.4 && !figures.iter().any(differs), "{figures:?} s");
}

/// Whether a process has a thread of this name.
fn has_thread(pid: u32, name: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let names = threads.map(|thread| std::fs::read_to_string(thread.path().join("comm")));
    names.flatten().any(|comm| comm.trim() == name)
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn the_seconds_around_a_violation_are_kept_and_check_stats_and_view_find_it_there() {
    let ground = Ground::new();
    let Some(_waste) = Waste::plant(&ground.lock) else { return };
    let file = ground.path().join("found.pftrace");
    let path = file.to_str().unwrap();
    let child = start(&ground, &file, &["--on-violation", "--last=5s", "--duration=60s"]);
    eventually("it records", || has_thread(child.id(), "quell-decisions"));
    let hogs = [hog(&[], "0-1"), hog(&[], "0-1")];
    let out = child.wait_with_output().unwrap();
    let pids = hogs.each_ref().map(Program::pid);
    drop(hogs);
    let summary: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&summary["ended"], &summary["kept_less"]), (&"violation".into(), &false.into()));

    let events = read(&file);
    let told: Vec<&Violation> = events
        .iter()
        .filter_map(|event| match &event.what {
            What::Violation(told) => Some(&**told),
            _ => None,
        })
        .collect();
    let texts: Vec<&str> = told.iter().map(|told| &*told.text).collect();
    assert_eq!(summary["violations"], Value::from(texts));
    let ours = |told: &&&Violation| told.waiters.iter().any(|waiter| pids.contains(waiter));
    let ours = told.iter().find(ours).unwrap_or_else(|| panic!("{told:?}"));
    assert_eq!((ours.core, ours.idle), (CoreId(1), CoreSet::of(CoreId(0))));
    let (first, last) = (&events[0], &events[events.len() - 1]);
    assert!(matches!(first.what, What::Keyframe(_)) && first.at < ours.from, "{ours:?}");
    assert!(last.at >= ours.until, "{ours:?}");

    let check = ground.quell(&["check", "--json", path]);
    assert_eq!(check.status.code(), Some(1));
    let check: Value = serde_json::from_slice(&check.stdout).unwrap();
    let same = |found: &&Value| {
        let at = |key: &str| found[key].as_u64().unwrap();
        found["core"] == 1 && at("from_ns") <= ours.until.0 && at("until_ns") >= ours.from.0
    };
    let found = check["violations"].as_array().unwrap().iter().find(same).unwrap();
    assert_eq!(
        (&found["reach"], &found["label"]),
        (&"no-common-domain".into(), &"no-common-domain".into())
    );

    for output in ["found.html", "found.png"].map(|name| ground.path().join(name)) {
        let view = ground.quell(&["view", path, "-o", output.to_str().unwrap()]);
        assert!(view.status.success(), "{}", String::from_utf8_lossy(&view.stderr));
    }
    assert!(std::fs::read(ground.path().join("found.png")).unwrap().starts_with(b"\x89PNG"));
    let meta = Reader::new(BufReader::new(File::open(&file).unwrap())).unwrap().meta().clone();
    let mut builder = Builder::new(meta, Range::ALL).unwrap();
    events.iter().for_each(|event| assert!(builder.push(event).unwrap()));
    let shown = builder.finish().unwrap().index;
    let note = shown.notes.iter().find(|note| *note.text == *ours.text).unwrap();
    assert_eq!(note.at_ns, (ours.from - first.at).0);
    let meets = |episode: &quell_view::IdleEpisode| {
        episode.from_ns < note.to_ns
            && episode.to_ns > note.at_ns
            && episode.cores.contains(CoreId(0))
    };
    assert!(shown.findings.iter().any(meets), "{:?}", shown.findings);

    let stats = ground.quell(&["stats", "--json", path]);
    let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
    let by_check = check["waste"]["any_s"].as_f64().unwrap();
    let by_stats = stats["wasted"]["wall_ns"].as_f64().unwrap() / 1e9;
    let by_view = shown.wasted_ns as f64 / 1e9;
    let figures = [by_check, by_stats, by_view];
    // They differ in what they say of a core that is about to run somebody.
    let differs = |figure: &f64| (figure - by_check).abs() > by_check / 10.0;
    assert!(by_check > 0.0 && !figures.iter().any(differs), "{figures:?} s");
}

#[test]
fn bad_times_and_sizes_are_refused_by_name() {
    let ground = Ground::new();
    for (flag, value) in
        [("--duration", "soon"), ("--size", "-1"), ("--last", "0s"), ("--last-size", "64MB")]
    {
        let out = ground.quell(&["record", &format!("{flag}={value}")]);
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2));
        assert!(told.contains(flag) && told.contains(value), "{told}");
    }
}
