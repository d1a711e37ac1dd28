//! What `check`, `stats` and `why` say of recordings, byte for byte, and what each recording is there for.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

#[path = "recorded/mod.rs"]
mod recorded;
#[path = "recorded/why.rs"]
mod why;

use std::collections::BTreeMap;
use std::path::PathBuf;

use quell_model::{Activity, CoreId, CoreSet, Event, Meta, Nanos, Source as Origin, What};
use quell_trace::check::{self, Checker};
use quell_trace::host::{HostState, WastedTime};
use quell_trace::{perfetto, stats};
use serde::Serialize;

use crate::recorded::Recording;

/// Bytes of one recording and of all, compressed.
const SIZE_MAX: u64 = 200_000;
const SIZES_MAX: u64 = 1_500_000;

/// As `quell check FILE --json` prints it.
#[derive(Serialize)]
struct Checked {
    #[serde(flatten)]
    report: check::Report,
    trace: Option<PathBuf>,
}

fn read(recording: &Recording) -> (Meta, Vec<Event>) {
    let source = recording.open();
    let meta = source.meta().clone();
    (meta, source.map(Result::unwrap).collect())
}

#[test]
fn recordings_check_matches_expected() {
    recorded::expect("check", |recording| {
        let (meta, events) = read(recording);
        let mut checker = Checker::new(&meta, check::Options::default());
        events.iter().for_each(|event| checker.event(event));
        let end = events.last().map_or(Nanos::ZERO, |event| event.at);
        Checked { report: checker.finish(end), trace: None }
    });
}

#[test]
fn recordings_stats_matches_expected() {
    recorded::expect("stats", |recording| {
        let (report, error) = stats::read(recording.open().as_mut());
        assert!(error.is_none(), "{}: {error:?}", recording.name);
        report
    });
}

/// Wasted time is what one [`WastedTime`] says beside one [`HostState`], to the nanosecond.
#[test]
fn recordings_stats_idle_time_equals_wasted_time() {
    for recording in recorded::all() {
        let (meta, events) = read(&recording);
        let (mut host, mut wasted) = (HostState::new(&meta), WastedTime::default());
        for event in &events {
            wasted.advance(&host, event.at);
            host.push(event, &mut ());
        }
        wasted.finish(&host);
        let (report, _) = stats::read(recording.open().as_mut());
        assert_eq!(report.idle, *wasted.judged(), "{}", recording.name);
        assert_eq!(report.data_loss.time_ns, wasted.unjudged_time().0, "{}", recording.name);
        let time = wasted.judged_time() + wasted.unjudged_time();
        assert_eq!(report.to.since(report.from), time, "{}", recording.name);
    }
}

#[test]
fn recordings_why_matches_expected() {
    recorded::expect("why", |recording| {
        let (meta, events) = read(recording);
        why::report(&meta, &events)
    });
}

#[test]
fn recordings_are_small_and_each_report_has_one() {
    let recordings = recorded::all();
    let sizes: Vec<u64> = recordings.iter().map(Recording::compressed_size).collect();
    for (recording, size) in recordings.iter().zip(&sizes) {
        assert!(*size <= SIZE_MAX, "{}: {size} bytes", recording.name);
    }
    assert!(sizes.iter().sum::<u64>() <= SIZES_MAX, "{sizes:?}");
    let mut names: Vec<&str> = recordings.iter().map(|one| one.name.as_str()).collect();
    names.dedup();
    assert_eq!(names.len(), recordings.len(), "two recordings of one name");
    for entry in std::fs::read_dir(recorded::directory()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let of = file.split('.').next().unwrap();
        let kept = file == "README.md" || file.ends_with(".toml") || names.contains(&of);
        assert!(kept, "{file} belongs to no recording");
    }
}

/// How many events of each kind a recording has.
#[derive(Default)]
struct Content {
    origin: Option<Origin>,
    cores: usize,
    kinds: BTreeMap<&'static str, usize>,
    /// Names of threads that had a core.
    names: BTreeMap<String, usize>,
}

impl Content {
    fn of(name: &str) -> Content {
        let (meta, events) = read(&recorded::named(name));
        let mut content =
            Content { origin: Some(meta.source), cores: meta.topology.len(), ..Content::default() };
        for event in &events {
            *content.kinds.entry(kind(&event.what)).or_default() += 1;
            if let What::Switch { next, .. } = &event.what {
                *content.names.entry(next.name.to_string()).or_default() += 1;
            }
        }
        content
    }

    fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).copied().unwrap_or(0)
    }

    fn runs(&self, name: &str) -> usize {
        self.names.get(name).copied().unwrap_or(0)
    }
}

fn kind(what: &What) -> &'static str {
    match what {
        What::Switch { .. } => "switch",
        What::Waking { .. } => "waking",
        What::Woken { is_new: true, .. } => "woken new",
        What::Woken { .. } => "woken",
        What::Migrate { .. } => "migrate",
        What::Fork { .. } => "fork",
        What::Exec { .. } => "exec",
        What::Exit { .. } => "exit",
        What::Allowed { .. } => "allowed",
        What::Planned(_) => "planned",
        What::Queue { .. } => "queue",
        What::Load { .. } => "load",
        What::Considered { .. } => "considered",
        What::Pass(_) => "pass",
        What::Domains(_) => "domains",
        What::Softirq { .. } => "softirq",
        What::Interrupt { .. } => "interrupt",
        What::Online { .. } => "online",
        What::Lost { .. } => "lost",
        What::Keyframe(_) => "keyframe",
        What::Task(_) => "task",
        What::Decision(_) => "decision",
        What::Annotation(_) => "annotation",
        What::Violation(_) => "violation",
    }
}

#[test]
fn recording_of_memcached_has_service_hog_and_decisions() {
    let content = Content::of("memcached-hog");
    assert_eq!(content.origin, Some(Origin::Recorder));
    assert!(content.runs("mc-worker") > 500, "{:?}", content.names);
    assert!(content.runs("stress-ng-cpu") > 100, "{:?}", content.names);
    // Of a version that recorded them as text.
    assert!(content.count("annotation") >= 4, "{:?}", content.kinds);
    assert!(content.count("keyframe") >= 2 && content.count("queue") > 100);
    let (_, events) = read(&recorded::named("memcached-hog"));
    let says = |text: &str| {
        let decisions = events.iter().filter_map(|event| match &event.what {
            What::Annotation(words) => Some(words),
            _ => None,
        });
        decisions.filter(|words| words.contains(text)).count()
    };
    assert!(says("batch -> memcached: ") > 0, "no core went to the service");
    assert!(says("memcached -> batch: ") > 0, "no core went to batch work");
}

#[test]
fn recordings_of_make_have_children_or_only_four_events() {
    let own = Content::of("make-j4");
    assert_eq!(own.origin, Some(Origin::Recorder));
    for kind in ["fork", "exec", "exit", "woken new", "migrate"] {
        assert!(own.count(kind) > 10, "{kind}: {:?}", own.kinds);
    }
    assert!(own.runs("cc1") > 10, "{:?}", own.names);
    let text = Content::of("make-j4-ftrace");
    assert_eq!(text.origin, Some(Origin::Ftrace));
    let kinds: Vec<_> = text.kinds.keys().copied().collect();
    for kind in ["switch", "waking", "woken", "migrate"] {
        assert!(text.count(kind) > 10, "{kind}: {:?}", text.kinds);
    }
    for kind in ["fork", "exec", "exit", "woken new", "allowed"] {
        assert!(!kinds.contains(&kind), "{kind} is there: {:?}", text.kinds);
    }
    assert!(text.runs("cc1") > 10, "{:?}", text.names);
}

/// Without `sched_wakeup_new`, most threads of a build appear with a switch-in: nothing says that they waited before.
#[test]
fn recording_of_make_without_new_threads_has_no_phantom_waiters() {
    let (meta, events) = read(&recorded::named("make-j4-ftrace"));
    let mut host = HostState::new(&meta);
    let mut most = 0;
    for event in &events {
        host.push(event, &mut ());
        most = most.max(host.cores().iter().map(|core| core.waiting).sum());
    }
    assert!((4..=40).contains(&most), "{most} threads wait at once");
    let What::Keyframe(first) = &events[0].what else { panic!("{:?}", events[0]) };
    let waits = |one: &&quell_model::ThreadState| one.state == Activity::Waiting;
    assert_eq!(first.threads.iter().filter(waits).count(), 0);
}

#[test]
fn recording_of_fork_storm_has_short_lived_threads() {
    let content = Content::of("fork-storm");
    for kind in ["fork", "exit"] {
        assert!(content.count(kind) > 300, "{kind}: {:?}", content.kinds);
    }
}

#[test]
fn recording_of_lane_has_slices_of_each_member() {
    let content = Content::of("lane");
    for member in ["member-a", "member-b", "member-c"] {
        assert!(content.runs(member) > 50, "{member}: {:?}", content.names);
    }
}

#[test]
fn recording_with_small_ring_has_losses_and_gaps() {
    let (_, events) = read(&recorded::named("overflow"));
    let mut lost: BTreeMap<CoreId, u64> = BTreeMap::new();
    for event in &events {
        if let What::Lost { count } = event.what {
            *lost.entry(event.core).or_default() += count;
        }
    }
    assert!(lost.values().sum::<u64>() > 1_000, "{lost:?}");
    let keyframe = |event: &&Event| matches!(event.what, What::Keyframe(_));
    assert!(events.iter().filter(keyframe).count() >= 3, "nothing is known again");
}

#[test]
fn recordings_of_guest_have_hotplug_and_wasted_core() {
    let content = Content::of("hotplug");
    assert_eq!(content.cores, 4);
    assert!(content.count("online") >= 4, "{:?}", content.kinds);
    let (meta, events) = read(&recorded::named("violation"));
    let mut checker = Checker::new(&meta, check::Options::default());
    events.iter().for_each(|event| checker.event(event));
    let report = checker.finish(events.last().unwrap().at);
    assert_eq!(report.verdict, check::Verdict::Violated, "{}", report.verdict_reason);
    let wasted: Vec<_> = report.violations.iter().map(|found| (found.core, found.idle)).collect();
    assert_eq!(wasted, [(CoreId(2), CoreSet::of(CoreId(3)))]);
}

#[test]
fn recordings_cover_each_source_and_many_cores() {
    for (name, origin) in [
        ("trace-cmd", Origin::Ftrace),
        ("perf-sched", Origin::Perf),
        ("wasted-cores", Origin::WastedCores),
        ("sim-64-cores", Origin::Simulator),
    ] {
        assert_eq!(Content::of(name).origin, Some(origin), "{name}");
    }
    for name in ["sim-64-cores", "sim-64-cores-static", "planted-64-cores", "wasted-cores"] {
        assert_eq!(Content::of(name).cores, 64, "{name}");
    }
    for name in ["planted-64-cores", "planted-6-cores"] {
        let planted = Content::of(name);
        for kind in ["considered", "migrate", "load", "violation"] {
            assert!(planted.count(kind) > 0, "{name}: {kind}: {:?}", planted.kinds);
        }
    }
    assert!(Content::of("planted-64-cores").count("lost") > 0);
    assert_eq!(Content::of("planted-6-cores").count("lost"), 0);
}

/// Files of today's format stay readable. Fewer events would be read if a kind were dropped.
#[test]
fn perfetto_recordings_open_without_remarks() {
    let mut perfetto_files = 0;
    for recording in recorded::all() {
        if !perfetto::is_perfetto(&recording.bytes()) {
            continue;
        }
        perfetto_files += 1;
        let mut source = recording.open();
        let events = source.by_ref().map(Result::unwrap).count();
        assert!(events > 100, "{}: {events} events", recording.name);
        assert_eq!(source.remarks(), Vec::<String>::new(), "{}", recording.name);
    }
    assert!(perfetto_files >= 5, "{perfetto_files} Perfetto files");
}
