//! Recordings of this host under real load, read back. Needs the right to use BPF.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::process::Stdio;

use quell_model::{CoreId, Source};
use quell_testkit::host_lock;
use quell_trace::perfetto::Reader;
use quell_trace::stream::Source as _;

use super::*;

fn options(file: &Path) -> Options {
    Options {
        file: file.to_owned(),
        events: Events::ALL,
        ring_bytes: 32 << 20,
        keyframe_every: Nanos::from_secs(1),
        duration: Some(Nanos::from_millis(2_500)),
        bytes: None,
        on_violation: false,
        keep: None,
        daemon: "/nonexistent/quell.sock".into(),
        command: Vec::new(),
        cost: false,
    }
}

fn recorded(options: &Options) -> Summary {
    record(options, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn read(file: &Path) -> Vec<Event> {
    let reader = Reader::new(BufReader::new(File::open(file).unwrap())).unwrap();
    assert_eq!(reader.meta().source, Source::Recorder);
    reader.map(|event| event.unwrap()).collect()
}

/// A program that is ended with the test.
struct Load(Child);

impl Load {
    fn start(program: &str, arguments: &[&str]) -> Load {
        let quiet = || Stdio::null();
        let child = Command::new(program).args(arguments).stdout(quiet()).stderr(quiet()).spawn();
        Load(child.unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // SIGTERM, which it passes on to its children.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn keyframes(events: &[Event]) -> Vec<Nanos> {
    let keyframes = events.iter().filter(|event| matches!(event.what, What::Keyframe(_)));
    keyframes.map(|event| event.at).collect()
}

#[test]
fn under_load_every_switch_connects_every_number_is_there_and_keyframes_come_again_and_again() {
    let _lock = host_lock().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("load.pftrace");
    let _load = Load::start("stress-ng", &["--cpu", "2", "--pipe", "1", "--fork", "1", "-q"]);
    let summary = recorded(&options(&file));
    assert_eq!(summary.ended, Ended::Duration);
    let events = read(&file);
    assert_eq!(events.len() as u64, summary.kept_events);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), summary.bytes);
    let keyframes = keyframes(&events);
    // On a machine this busy they come late.
    assert!(keyframes.len() >= 2, "{keyframes:?}");
    let (mut next, mut lost) = (BTreeMap::<CoreId, u64>::new(), 0);
    let (mut running, mut switches, mut wakes) = (BTreeMap::<CoreId, i32>::new(), 0, 0);
    for event in &events {
        let next = next.entry(event.core).or_default();
        assert_eq!(event.sequence, *next, "{event:?}");
        *next += 1;
        match &event.what {
            What::Lost { count } => {
                *next += count - 1;
                lost += count;
                running.clear();
            }
            What::Switch { next, left, .. } => {
                let before = running.insert(event.core, next.thread);
                assert_eq!(before.unwrap_or(*left), *left, "{event:?}");
                switches += 1;
            }
            What::Woken { .. } => wakes += 1,
            _ => {}
        }
    }
    assert_eq!(lost, summary.lost);
    assert!(switches > 1_000 && wakes > 1_000, "{switches} switches, {wakes} wakes");
}

/// Records two seconds and keeps the last half second; the time from the first kept event to the last.
fn recorded_in_flight() -> Nanos {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("flight.pftrace");
    let every = Nanos::from_millis(100);
    let summary = recorded(&Options {
        keep: Some(Keep { time: Nanos::from_millis(500), bytes: 64 << 20 }),
        keyframe_every: every,
        duration: Some(Nanos::from_secs(2)),
        ..options(&file)
    });
    assert!(summary.kept_events < summary.events && !summary.kept_less);
    let events = read(&file);
    assert!(matches!(events[0].what, What::Keyframe(_)));
    let span = events[events.len() - 1].at.since(events[0].at);
    assert_eq!(summary.kept_seconds, span.0 as f64 / 1e9);
    span
}

#[test]
fn a_flight_recorder_keeps_the_end_from_a_keyframe_on() {
    let _lock = host_lock().unwrap();
    recorded_in_flight();
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn a_flight_recorder_keeps_as_much_time_as_asked_for() {
    let _lock = host_lock().unwrap();
    let span = recorded_in_flight();
    // Some keyframes come late on a machine that is busy.
    assert!(span >= Nanos::from_millis(450) && span <= Nanos::from_millis(1_500), "{span}");
}

#[test]
fn a_flight_recorder_whose_memory_is_full_says_so() {
    let _lock = host_lock().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("flight.pftrace");
    let _load = Load::start("stress-ng", &["--pipe", "1", "-q"]);
    let bytes = 500_000;
    let summary = recorded(&Options {
        keep: Some(Keep { time: Nanos::from_secs(60), bytes }),
        keyframe_every: Nanos::from_millis(100),
        duration: Some(Nanos::from_secs(1)),
        ..options(&file)
    });
    assert!(summary.kept_less && summary.kept_events < summary.events, "{summary}");
    assert!(summary.kept_events as usize * size_of::<Event>() <= bytes);
    assert!(summary.to_string().contains("--last-size"), "{summary}");
}

#[test]
fn the_size_of_the_file_ends_it() {
    let _lock = host_lock().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("size.pftrace");
    let summary = recorded(&Options { bytes: Some(200_000), duration: None, ..options(&file) });
    assert_eq!(summary.ended, Ended::Size);
    assert!(summary.bytes >= 200_000);
    assert!(!read(&file).is_empty());
}

#[test]
fn the_command_ends_it_and_its_life_is_in_the_trace() {
    let _lock = host_lock().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("command.pftrace");
    let command = ["sh", "-c", "sleep 0.2; exit 3"].map(OsString::from).to_vec();
    let summary = recorded(&Options { command, duration: None, ..options(&file) });
    assert_eq!(summary.ended, Ended::Command { code: Some(3) });
    let slept = |event: &Event| matches!(&event.what, What::Exec { thread } if thread.name.to_string() == "sleep");
    assert!(read(&file).iter().any(slept));
}

#[test]
fn a_command_or_a_file_that_cannot_be_is_told_by_name() {
    let _lock = host_lock().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let bad = Options {
        command: vec!["/nonexistent/program".into()],
        ..options(&directory.path().join("a"))
    };
    let told = record(&bad, &stop, &mut |_| {}).unwrap_err().to_string();
    assert!(told.starts_with("/nonexistent/program: "), "{told}");
    let told = record(&options(Path::new("/nonexistent/a")), &stop, &mut |_| {}).unwrap_err();
    assert!(told.to_string().starts_with("/nonexistent/a: "), "{told}");
}

#[test]
fn what_it_costs_is_told_where_asked_for() {
    let _lock = host_lock().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cost.pftrace");
    let duration = Some(Nanos::from_millis(300));
    let summary = recorded(&Options { cost: true, duration, ..options(&file) });
    let programs = summary.programs.as_ref().unwrap();
    let switch = programs.iter().find(|program| program.event == "sched_switch").unwrap();
    assert!(switch.runs > 0 && switch.ns_per_run > 0.0 && summary.cpu_ms > 0.0);
    assert!(summary.to_string().contains("sched_switch"));
}
