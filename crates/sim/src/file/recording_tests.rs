//! `model = "trace"` in files.

use quell_model::{CoreId, CoreSet, Nanos};

use super::*;
use crate::scenario::Scenario;
use crate::workload::{
    Program, ProgramStep, RecordedClass, RecordedFigures, RecordedStart, RecordedThread, Service,
    Sync, SyncKind, ThreadKind, Waiting,
};

const FILE: &str = r#"
version = 1
length_ms = 1000
warm_up_ms = 0
[machine]
physical = 4
managed = "0-3"
[host]
policy = "linux-default"
cores = "shared"
bursts = false
costs = { switch_ns = 0 }
[kernel]
model = "linux-6.12"
[[task]]
name = "build"
model = "trace"
trace = "build.pftrace"
"#;

/// One recording, whatever its name, or none.
struct One(Option<Recording>);

impl Files for One {
    fn text(&self, _: &str) -> Result<String, FileError> {
        unreachable!("no other file is named")
    }

    fn recording(&self, name: &str, window: Window) -> Result<Recording, FileError> {
        assert_eq!((name, window.length.is_some()), ("build.pftrace", window.from > Nanos::ZERO));
        self.0.clone().ok_or_else(|| FileError {
            file: name.to_owned(),
            line: None,
            what: "7 events were lost".to_owned(),
            remedy: "record again".to_owned(),
        })
    }
}

fn parse(text: &str, recording: Option<Recording>) -> Result<Scenario, FileError> {
    let parsed = Simulation::parse_with(text, "x.toml", "x", &One(recording));
    parsed.map(|simulation| simulation.scenario)
}

fn compute(ms: u64) -> ProgramStep {
    ProgramStep::Compute(Service::Fixed(Nanos::from_millis(ms)))
}

/// Threads with these steps, starts and sets of cores.
fn recording(threads: Vec<(Vec<ProgramStep>, RecordedStart, Option<u32>)>) -> Recording {
    let sync = Sync { kind: SyncKind::Tokens { initial: 0 }, waits: Waiting::Sleep };
    let syncs = vec![sync; threads.len()];
    let (mut kinds, mut recorded) = (Vec::new(), Vec::new());
    for (steps, start, allowed) in threads {
        kinds.push(ThreadKind {
            name: "t".to_owned(),
            count: 0,
            start_core: None,
            session: None,
            steps,
        });
        recorded.push(RecordedThread { start, class: RecordedClass::Fair, allowed, ended: None });
    }
    Recording {
        program: Program { kinds, syncs, sync_names: Vec::new() },
        threads: recorded,
        cores: vec![CoreSet::of(CoreId(2)), CoreSet::of(CoreId(77)), CoreSet::EMPTY],
        figures: RecordedFigures::default(),
    }
}

/// When the task is completed, in milliseconds, under a kernel and with one queue for all cores.
fn completed(recording: &Recording) -> [u64; 2] {
    ["linux-6.12", "global"].map(|model| {
        let text = FILE.replace("linux-6.12", model);
        let mut simulation =
            Simulation::parse_with(&text, "x", "x", &One(Some(recording.clone()))).unwrap();
        simulation.config = Config::default();
        let mut policy = simulation.driver().unwrap();
        let report = crate::run(&simulation.scenario, policy.as_mut());
        assert_eq!(report.broken, []);
        report.tasks[0].completed.unwrap().0 / 1_000_000
    })
}

const START: RecordedStart = RecordedStart::Runnable(CoreId(0));
const ASLEEP: RecordedStart = RecordedStart::Asleep(CoreId(1));

#[test]
fn threads_wake_and_fork_each_other_at_their_place() {
    let first = vec![
        compute(10),
        ProgramStep::Post(1),
        compute(20),
        ProgramStep::Fork(2),
        compute(5),
        ProgramStep::Take(0),
        compute(1),
    ];
    let second = vec![ProgramStep::Take(1), compute(40), ProgramStep::Post(0)];
    let sleep = ProgramStep::Sleep(Service::Fixed(Nanos::from_millis(90)));
    let third = vec![compute(7), sleep, compute(1)];
    // 10 + 40 + 1; 10 + 20 + 7 + 90 + 1.
    let both = vec![(first, START, None), (second, ASLEEP, None)];
    let mut all = both.clone();
    all.push((third, RecordedStart::Forked, None));
    assert_eq!(completed(&recording(all.clone())), [128, 128]);
    // Only what ended in the recording counts.
    let mut ended = recording(all);
    ended.threads[0].ended = Some(Nanos(1));
    assert_eq!(completed(&ended), [51, 51]);
}

#[test]
fn threads_run_where_they_may() {
    let two = |set: Option<u32>| {
        let one = |start| (vec![compute(30)], start, set);
        recording(vec![one(START), one(RecordedStart::Runnable(CoreId(1)))])
    };
    assert_eq!(completed(&two(None)), [30, 30]);
    assert_eq!(completed(&two(Some(0))), [60, 60]);
    // The host has no core 77, and the empty set is all.
    assert_eq!(completed(&two(Some(1))), [30, 30]);
    assert_eq!(completed(&two(Some(2))), [30, 30]);
    let changes = vec![compute(10), ProgramStep::Allow(0), compute(20)];
    let stays = (vec![compute(30)], START, Some(0));
    let found = completed(&recording(vec![(changes.clone(), START, None), stays]));
    assert!(found.iter().all(|found| (45..=50).contains(found)), "{found:?}");
}

#[test]
fn a_realtime_thread_comes_first_and_an_idle_one_last() {
    let thread = (vec![compute(30)], START, Some(0));
    let mut both = recording(vec![thread.clone(), thread]);
    both.threads[0].ended = Some(Nanos(1));
    let first = |class| {
        let mut both = both.clone();
        both.threads[0].class = class;
        completed(&both)[0]
    };
    assert_eq!(first(RecordedClass::RealTime(7)), 30);
    assert!(first(RecordedClass::Idle) >= 58, "{}", first(RecordedClass::Idle));
}

#[test]
fn what_is_wrong_is_said_with_line_and_remedy() {
    let sound = || Some(recording(vec![(vec![compute(1)], START, None)]));
    assert!(parse(FILE, sound()).is_ok());
    let timed = format!("{FILE}from_s = 1.5\nlength_s = 2\n");
    assert!(parse(&timed, sound()).is_ok());
    let error = parse(FILE, None).unwrap_err();
    assert_eq!((error.line, error.remedy.as_str()), (Some(18), "record again"));
    assert!(error.what.contains("`trace = \"build.pftrace\"`: 7 events were lost"), "{error}");
    for (text, part) in [
        (FILE.replace("trace = \"build.pftrace\"\n", ""), "has no trace"),
        (FILE.replace("model = \"trace\"", "model = \"hog\""), "go with `model = \"trace\"`"),
        (format!("{FILE}threads = 3\n"), "`threads`"),
        (format!("{FILE}start_core = 1\n"), "`start_core`"),
        (format!("{FILE}from_s = -1\n"), "between 0 and 3600 s"),
        (format!("{FILE}length_s = 0\n"), "replay all of the trace"),
        (format!("{FILE}from_s = nan\n"), "between 0 and 3600 s"),
    ] {
        let error = parse(&text, sound()).unwrap_err();
        assert!(error.line.is_some() && error.to_string().contains(part), "{error}");
    }
    let none = parse(FILE, Some(recording(Vec::new()))).unwrap_err();
    assert!(none.to_string().contains("no thread runs in it"), "{none}");
    let mut broken = recording(vec![(vec![ProgramStep::Allow(3)], START, None)]);
    assert!(parse(FILE, Some(broken.clone())).unwrap_err().to_string().contains("set of cores 3"));
    broken.program.kinds[0].steps = vec![ProgramStep::Fork(1)];
    assert!(parse(FILE, Some(broken)).unwrap_err().to_string().contains("no kind 1"));
    // Where only texts are read.
    let texts = Simulation::parse(FILE, "x.toml", "x", &|_| unreachable!("it names no text"));
    assert!(texts.unwrap_err().to_string().contains("`quell sim FILE`"));
}
