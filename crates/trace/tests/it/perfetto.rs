//! The encoding of one event of each kind, byte for byte. `peers/perfetto` decodes the same file with the messages that are
//! generated from Perfetto's own definitions (`make test-all`).
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::sync::Arc;

use quell_model::{
    Activity, Class, CoreDecision, CoreId, CoreMode, CoreSet, CoreState, DomainRules, DomainTrees,
    Event, GroupKind, Keyframe, Left, Meta, MoveCause, Nanos, Pass, PassEntry, PassGroup,
    PassOutcome, Rank, Reason, Runner, Skipped, Source, TaskId, TaskInfo, ThreadName, ThreadState,
    Topology, Violation, What,
};
use quell_trace::perfetto::{Reader, Writer};
use quell_trace::stream::{Sink as _, Source as _};

const WEB: TaskId = TaskId { index: 0, generation: 0 };

fn runner(thread: i32, rank: Rank, name: &str) -> Runner {
    Runner { thread, process: 40, rank, name: ThreadName::new(name.as_bytes()) }
}

fn keyframe() -> Keyframe {
    let thread = |thread, core, state| ThreadState {
        thread,
        core: CoreId(core),
        state,
        allowed: "0-3".parse().unwrap(),
        bound: false,
    };
    let core = |core| CoreState {
        core: CoreId(core),
        running: if core == 1 { 41 } else { 0 },
        queued: 1,
        runnable: 1,
        weight: 1024,
        average: 900,
        wake_pending: false,
        domain: CoreSet::EMPTY,
    };
    Keyframe {
        cores: (0..4).map(core).collect(),
        threads: vec![thread(runner(41, Rank::FAIR, "worker"), 1, Activity::Running)],
    }
}

/// Two threads that waited on a core.
fn violation(core: u16, from: u64, until: u64) -> Arc<Violation> {
    Arc::new(Violation {
        core: CoreId(core),
        from: Nanos(from),
        until: Nanos(until),
        waiters: vec![41, 42],
        idle: "0,3".parse().unwrap(),
        text: format!("core {core}: worker (41) waited").into(),
    })
}

/// A pass that found the own group busier.
fn pass() -> Pass {
    let group = |cores: &str, minimum, queued, kind| PassGroup {
        cores: cores.parse().unwrap(),
        sum: 1200,
        mean: 600,
        minimum,
        queued,
        idle: u16::from(minimum == 0),
        kind,
    };
    Pass {
        core: CoreId(1),
        level: 1,
        entry: PassEntry::Nohz,
        groups: vec![
            group("0-1", 0, 1, GroupKind::HasSpare),
            group("2-3", 300, 4, GroupKind::Overloaded),
        ],
        outcome: PassOutcome::LocalIsBusier,
        moved: 0,
        skipped: Skipped { running: 1, ..Skipped::default() },
    }
}

/// One event of each kind, on core 1.
fn events() -> Vec<Event> {
    let service = runner(42, Rank::realtime(10), "service");
    let cores: CoreSet = "0,2-3".parse().unwrap();
    let kinds = [
        What::Keyframe(Arc::new(keyframe())),
        What::Waking { thread: service, by: 41, target: CoreId(2) },
        What::Woken { thread: service, on: CoreId(1), is_new: false },
        What::Queue { of: CoreId(1), queued: 3, runnable: 2 },
        What::Load { of: CoreId(1), weight: 2048, average: 1500 },
        What::Switch { next: service, left: 41, how: Left::Preempted, stolen: Nanos(5) },
        What::Migrate { thread: 41, from: CoreId(1), to: CoreId(2), cause: MoveCause::NewIdle },
        What::Softirq { vector: What::BALANCER, begins: true },
        What::Softirq { vector: What::BALANCER, begins: false },
        What::Interrupt { irq: 25, begins: true },
        What::Interrupt { irq: 25, begins: false },
        What::Task(Arc::new(TaskInfo {
            id: WEB,
            name: "web".to_owned(),
            class: Class::LatencyCritical,
            processes: vec![40],
        })),
        What::Decision(CoreDecision {
            core: CoreId(1),
            from: None,
            to: Some(WEB),
            mode: CoreMode::Kernel,
            reason: Reason::Guaranteed,
        }),
        What::Fork { parent: 42, child: runner(43, Rank::FAIR, "child") },
        What::Woken { thread: runner(43, Rank::FAIR, "child"), on: CoreId(3), is_new: true },
        What::Exec { thread: runner(43, Rank::FAIR, "other") },
        What::Exit { thread: 43 },
        What::Allowed { thread: 42, cores: cores.into() },
        What::Lost { count: 7 },
        What::Violation(violation(1, 1_004_000, 1_009_000)),
        What::Violation(violation(2, 1_006_000, 1_012_000)),
        What::Pass(Box::new(pass())),
        What::Domains(Arc::new(DomainTrees::build(
            &meta().topology,
            &meta().topology.all(),
            &DomainRules::LINUX_6_7,
        ))),
    ];
    let event = |(sequence, what)| {
        let at = Nanos(1_000_000 + sequence * 1000);
        Event { at, core: CoreId(1), sequence, what }
    };
    (0..).zip(kinds).map(event).collect()
}

fn meta() -> Meta {
    Meta {
        source: Source::Recorder,
        topology: Topology::regular(1, 4, 1).unwrap(),
        kernel: "6.18.0".to_owned(),
        host: "box".to_owned(),
        hooks: vec![],
        absent: vec![],
        wall_offset_ns: 1_000_000_000,
    }
}

fn encoded() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    writer.meta(&meta()).unwrap();
    events().iter().for_each(|event| writer.event(event).unwrap());
    writer.finish().unwrap();
    writer.into_inner()
}

/// Written anew with `QUELL_WRITE_GOLDEN=1`; `make test-all` then shows whether Perfetto still reads it.
fn golden() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/one-of-each-kind.pftrace");
    if std::env::var_os("QUELL_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, encoded()).unwrap();
    }
    std::fs::read(path).unwrap()
}

#[test]
fn one_event_of_each_kind_is_encoded_as_committed() {
    assert!(encoded() == golden(), "the encoding changed: see golden() for how to write it anew");
}

#[test]
fn the_committed_encoding_is_read_back_as_written() {
    let golden = golden();
    let reader = Reader::new(golden.as_slice()).unwrap();
    assert_eq!(*reader.meta(), meta());
    let read: Vec<Event> = reader.map(Result::unwrap).collect();
    assert_eq!(read, events());
}
