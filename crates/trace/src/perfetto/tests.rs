use std::io::{BufReader, Cursor, Read};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use quell_model::{
    Activity, Certainty, Class, CoreDecision, CoreId, CoreMode, CoreSet, CoreState, Event,
    Keyframe, Left, Meta, MoveCause, Nanos, PlanReason, Planned, Rank, Reason, Runner, Search,
    Source as Origin, TaskId, TaskInfo, TaskReason, ThreadName, ThreadState, Topology, Violation,
    What,
};

use super::{Reader, TEXT_MAX, Writer};
use crate::stream::{ReadError, Sink, Source};

const CORES: u16 = 4;

fn meta() -> Meta {
    Meta {
        source: Origin::Recorder,
        topology: Topology::regular(2, 1, 2).unwrap(),
        kernel: "6.18.0".to_owned(),
        host: "rök".to_owned(),
        hooks: vec!["sched_switch".to_owned()],
        absent: vec![],
        wall_offset_ns: 1_700_000_000_000_000_000,
    }
}

fn any_core() -> impl Strategy<Value = CoreId> {
    (0..CORES).prop_map(CoreId)
}

fn any_cores() -> impl Strategy<Value = CoreSet> {
    vec((0..1024u16).prop_map(CoreId), 0..8).prop_map(CoreSet::from_iter)
}

fn any_rank() -> impl Strategy<Value = Rank> {
    prop_oneof![
        Just(Rank::DEADLINE),
        (1..=99u8).prop_map(Rank::realtime),
        Just(Rank::FAIR),
        Just(Rank::BENEATH),
        Just(Rank::NOBODY),
    ]
}

fn any_runner() -> impl Strategy<Value = Runner> {
    let name = vec(any::<u8>(), 0..20).prop_map(|bytes| ThreadName::new(&bytes));
    (any::<i32>(), option::of(any::<i32>()), any_rank(), name).prop_map(
        |(thread, process, rank, name)| Runner {
            thread,
            process: process.unwrap_or(thread),
            rank,
            name,
        },
    )
}

fn any_keyframe() -> impl Strategy<Value = Keyframe> {
    let core =
        (any_core(), any::<[u32; 2]>(), any::<[u64; 2]>(), any::<(i32, bool)>(), any_cores())
            .prop_map(
                |(core, [queued, runnable], [weight, average], (running, wake_pending), domain)| {
                    CoreState {
                        core,
                        running,
                        queued,
                        runnable,
                        weight,
                        average,
                        wake_pending,
                        domain,
                    }
                },
            );
    let state = prop_oneof![
        Just(Activity::Running),
        Just(Activity::Waiting),
        Just(Activity::Throttled),
        Just(Activity::Delayed),
        Just(Activity::Moving),
        Just(Activity::Sleeping),
    ];
    let thread = (any_runner(), any_core(), state, any_cores(), any::<bool>()).prop_map(
        |(thread, core, state, allowed, bound)| ThreadState { thread, core, state, allowed, bound },
    );
    (vec(core, 0..5), vec(thread, 0..8)).prop_map(|(cores, threads)| Keyframe { cores, threads })
}

fn any_cause() -> impl Strategy<Value = MoveCause> {
    prop::sample::select(vec![
        MoveCause::Wakeup,
        MoveCause::Fork,
        MoveCause::Exec,
        MoveCause::NewIdle,
        MoveCause::Periodic,
        MoveCause::Active,
        MoveCause::Affinity,
        MoveCause::Numa,
        MoveCause::Realtime,
        MoveCause::Hotplug,
        MoveCause::Unknown,
    ])
}

fn any_search() -> impl Strategy<Value = Search> {
    prop_oneof![
        Just(Search::IdleSibling),
        Just(Search::Idlest),
        Just(Search::GroupStatistics),
        Just(Search::BusiestQueue),
    ]
}

fn any_left() -> impl Strategy<Value = Left> {
    prop_oneof![
        Just(Left::Preempted),
        Just(Left::Sleeping),
        Just(Left::Blocked),
        Just(Left::Stopped),
        Just(Left::Dead),
    ]
}

/// What tracepoints tell.
fn any_traced() -> impl Strategy<Value = What> {
    prop_oneof![
        4 => (any_runner(), any::<i32>(), any_left(), any::<u64>()).prop_map(
            |(next, left, how, stolen)| What::Switch { next, left, how, stolen: Nanos(stolen) }
        ),
        1 => (any_runner(), any::<i32>(), any_core())
            .prop_map(|(thread, by, target)| What::Waking { thread, by, target }),
        1 => (any_runner(), any_core(), any::<bool>())
            .prop_map(|(thread, on, is_new)| What::Woken { thread, on, is_new }),
        1 => (any::<i32>(), any_core(), any_core(), any_cause())
            .prop_map(|(thread, from, to, cause)| What::Migrate { thread, from, to, cause }),
        1 => (any::<i32>(), any_runner()).prop_map(|(parent, child)| What::Fork { parent, child }),
        1 => any_runner().prop_map(|thread| What::Exec { thread }),
        1 => any::<i32>().prop_map(|thread| What::Exit { thread }),
        1 => (any::<u8>(), any::<bool>())
            .prop_map(|(vector, begins)| What::Softirq { vector, begins }),
        1 => (0..=i32::MAX as u32, any::<bool>())
            .prop_map(|(irq, begins)| What::Interrupt { irq, begins }),
    ]
}

/// What they do not.
fn any_told() -> impl Strategy<Value = What> {
    let certainty = prop_oneof![Just(Certainty::Observed), Just(Certainty::Inferred)];
    prop_oneof![
        (any::<i32>(), any_cores())
            .prop_map(|(thread, cores)| What::Allowed { thread, cores: cores.into() }),
        (any_core(), any::<u32>(), any::<u32>()).prop_map(|(of, queued, runnable)| What::Queue {
            of,
            queued,
            runnable
        }),
        (any_core(), any::<u64>(), any::<u64>()).prop_map(|(of, weight, average)| What::Load {
            of,
            weight,
            average
        }),
        (any_core(), any_search(), any_cores(), certainty).prop_map(
            |(by, search, cores, certainty)| What::Considered {
                by,
                search,
                cores: cores.into(),
                certainty
            }
        ),
        (any_core(), any::<bool>()).prop_map(|(of, online)| What::Online { of, online }),
        any::<u64>().prop_map(|count| What::Lost { count }),
        any_keyframe().prop_map(|keyframe| What::Keyframe(Arc::new(keyframe))),
        ".{0,40}".prop_map(|text| What::Annotation(text.into())),
        any_task().prop_map(|task| What::Task(Arc::new(task))),
        any_decision().prop_map(What::Decision),
        any_violation().prop_map(|violation| What::Violation(Arc::new(violation))),
        (any::<i32>(), any_cores(), any_cores(), any_plan_reason()).prop_map(
            |(process, original, cores, reason)| {
                What::Planned(Arc::new(Planned { process, original, cores, reason }))
            }
        ),
    ]
}

fn any_id() -> impl Strategy<Value = TaskId> {
    any::<(u32, u32)>().prop_map(|(index, generation)| TaskId { index, generation })
}

fn any_task() -> impl Strategy<Value = TaskInfo> {
    let class = prop_oneof![Just(Class::LatencyCritical), Just(Class::BestEffort)];
    let processes = vec(any::<i32>(), 0..6);
    (any_id(), ".{0,16}", class, processes).prop_map(|(id, name, class, processes)| TaskInfo {
        id,
        name,
        class,
        processes,
    })
}

/// Times that the file can hold.
fn any_time() -> impl Strategy<Value = Nanos> {
    (0..=i64::MAX as u64).prop_map(Nanos)
}

fn any_decision() -> impl Strategy<Value = CoreDecision> {
    let mode = prop::sample::select(vec![
        CoreMode::Kernel,
        CoreMode::Lane,
        CoreMode::Runtime,
        CoreMode::Idled,
        CoreMode::Unmanaged,
    ]);
    let plain = prop::sample::select(vec![
        Reason::Unmanaged,
        Reason::Offline,
        Reason::Guaranteed,
        Reason::Kept,
        Reason::HandedOver,
        Reason::Leftover,
        Reason::Unwanted,
        Reason::Capped,
    ]);
    let reason = prop_oneof![
        plain,
        any_time().prop_map(Reason::Congested),
        any_core().prop_map(Reason::BannedFor),
        any_core().prop_map(Reason::InsteadOf),
        any::<i32>().prop_map(Reason::Refused),
    ];
    (any_core(), option::of(any_id()), option::of(any_id()), mode, reason)
        .prop_map(|(core, from, to, mode, reason)| CoreDecision { core, from, to, mode, reason })
}

fn any_plan_reason() -> impl Strategy<Value = PlanReason> {
    let plain = prop::sample::select(vec![
        TaskReason::Configured,
        TaskReason::Owner,
        TaskReason::Guest,
        TaskReason::Capped,
        TaskReason::Banned,
        TaskReason::NoCore,
        TaskReason::Hyperthread,
    ]);
    let reason = prop_oneof![
        plain,
        any_time().prop_map(TaskReason::RanAway),
        any_time().prop_map(TaskReason::DelaysLc),
    ];
    prop_oneof![
        (any_id(), reason).prop_map(|(task, reason)| PlanReason::Task { task, reason }),
        ".{0,40}".prop_map(|text| PlanReason::Text(text.into())),
    ]
}

fn any_violation() -> impl Strategy<Value = Violation> {
    (any_core(), any::<[u64; 2]>(), vec(any::<i32>(), 0..4), any_cores(), ".{0,40}").prop_map(
        |(core, [from, until], waiters, idle, text)| Violation {
            core,
            from: Nanos(from),
            until: Nanos(until),
            waiters,
            idle,
            text: text.into(),
        },
    )
}

/// Events in the order of time; numbers of a core mostly follow each other.
fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![3 => 0..3u64, 1 => 0..400_000_000u64];
    let gap = prop_oneof![9 => Just(0u64), 1 => any::<u64>()];
    vec((step, any_core(), gap, prop_oneof![any_traced(), any_told()]), 0..80).prop_map(|events| {
        let (mut at, mut next) = (0, [0u64; CORES as usize]);
        let of_parts = |(step, core, gap, what): (u64, CoreId, u64, What)| {
            at += step;
            let sequence = next[core.index()].wrapping_add(gap);
            next[core.index()] = sequence.wrapping_add(1);
            Event { at: Nanos(at), core, sequence, what }
        };
        events.into_iter().map(of_parts).collect()
    })
}

fn written(events: &[Event]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    writer.meta(&meta()).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.finish().unwrap();
    writer.into_inner()
}

/// The events before the first error, and that.
fn read(bytes: &[u8]) -> (Vec<Event>, Option<ReadError>) {
    let reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(err) => return (Vec::new(), Some(err)),
    };
    let (mut events, mut error) = (Vec::new(), None);
    for event in reader {
        assert!(error.is_none(), "nothing comes after an error");
        match event {
            Ok(event) => events.push(event),
            Err(err) => error = Some(err),
        }
    }
    (events, error)
}

/// Switches of two threads, and a keyframe each second.
fn busy(seconds: u64) -> Vec<Event> {
    let runner =
        |thread| Runner { thread, process: 7, rank: Rank::FAIR, name: ThreadName::new(b"worker") };
    let mut sequences = [0; CORES as usize];
    let mut events = Vec::new();
    for tick in 0..seconds * 20_000 {
        let core = CoreId((tick % u64::from(CORES)) as u16);
        let (next, left) = if tick / 4 % 2 == 0 { (8, 9) } else { (9, 8) };
        let what = match tick % 20_000 {
            0 => What::Keyframe(Arc::new(Keyframe {
                cores: Vec::new(),
                threads: vec![ThreadState {
                    thread: runner(9),
                    core,
                    state: Activity::Running,
                    allowed: CoreSet::of(core),
                    bound: false,
                }],
            })),
            _ => {
                What::Switch { next: runner(next), left, how: Left::Sleeping, stolen: Nanos::ZERO }
            }
        };
        let sequence = sequences[core.index()];
        sequences[core.index()] += 1;
        events.push(Event { at: Nanos(tick * 50_000), core, sequence, what });
    }
    events
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(events in any_events()) {
        let bytes = written(&events);
        let reader = Reader::new(&bytes[..]).unwrap();
        prop_assert_eq!(reader.meta(), &meta());
        let (back, error) = read(&bytes);
        prop_assert!(error.is_none(), "{:?}", error);
        prop_assert_eq!(back, events);
    }

    #[test]
    fn a_cut_trace_gives_what_came_before(events in any_events(), cut in any::<prop::sample::Index>()) {
        let bytes = written(&events);
        let (back, _) = read(&bytes[..cut.index(bytes.len())]);
        prop_assert_eq!(&events[..back.len()], &back[..]);
    }

    #[test]
    fn a_changed_byte_is_an_error_or_another_event_and_never_a_panic(
        events in any_events(),
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let mut bytes = written(&events);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let _ = read(&bytes);
    }

    #[test]
    fn garbage_is_refused(bytes in vec(any::<u8>(), 0..400)) {
        prop_assert!(read(&bytes).1.is_some());
    }
}

#[test]
fn a_trace_without_events_is_one() {
    let (events, error) = read(&written(&[]));
    assert!(events.is_empty() && error.is_none());
}

#[test]
fn reading_can_begin_at_any_keyframe() {
    let events = busy(4);
    let bytes = written(&events);
    for from in [0, bytes.len() / 7, bytes.len() / 2, bytes.len() * 2 / 3] {
        let mut file = BufReader::new(Cursor::new(&bytes[from..]));
        let reader = Reader::resume(&mut file, from as u64).unwrap();
        let back: Vec<Event> = reader.map(Result::unwrap).collect();
        assert!(matches!(back[0].what, What::Keyframe(_)));
        assert_eq!(back[..], events[events.len() - back.len()..]);
    }
    let last = bytes.len() - 100;
    let err = Reader::resume(&bytes[last..], last as u64).unwrap_err();
    assert!(err.to_string().contains("no segment"), "{err}");
}

#[test]
fn traces_one_behind_the_other_are_one() {
    let events = busy(2);
    let (first, second) = events.split_at(20_000);
    let bytes = [written(first), written(second)].concat();
    let (back, error) = read(&bytes);
    assert!(error.is_none() && back == events);
}

#[test]
fn a_writer_holds_back_little() {
    let events = busy(2);
    let mut writer = Writer::new(Vec::new());
    writer.meta(&meta()).unwrap();
    for event in &events {
        writer.event(event).unwrap();
    }
    let (back, _) = read(writer.get_ref());
    let missing = events.last().unwrap().at.since(back.last().unwrap().at);
    assert!(missing <= Nanos::from_millis(251), "{missing:?}");
}

#[test]
fn a_keyframe_of_many_threads_is_whole() {
    let thread = |number| ThreadState {
        thread: Runner {
            thread: number,
            process: 1,
            rank: Rank::BENEATH,
            name: ThreadName::new(&[0xff, b'x']),
        },
        core: CoreId(3),
        state: Activity::Sleeping,
        allowed: CoreSet::of(CoreId(1023)),
        bound: true,
    };
    let keyframe = Keyframe { cores: Vec::new(), threads: (1..40_000).map(thread).collect() };
    let what = What::Keyframe(Arc::new(keyframe));
    let events = [Event { at: Nanos(5), core: CoreId(1), sequence: 3, what }];
    let (back, error) = read(&written(&events));
    assert!(error.is_none() && back == events);
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let text: String = "ü".repeat(TEXT_MAX);
    let what = What::Annotation(text.as_str().into());
    let (back, error) =
        read(&written(&[Event { at: Nanos(1), core: CoreId(0), sequence: 0, what }]));
    assert!(error.is_none());
    let What::Annotation(back) = &back[0].what else { panic!("{back:?}") };
    assert!(back.len() <= TEXT_MAX && text.starts_with(&**back));
}

#[test]
fn a_core_that_the_topology_lacks_is_refused() {
    let mut writer = Writer::new(Vec::new());
    let event = |core, what| Event { at: Nanos(1), core: CoreId(core), sequence: 0, what };
    assert!(writer.event(&event(0, What::Exit { thread: 1 })).is_err(), "before Meta");
    writer.meta(&meta()).unwrap();
    for what in [
        What::Online { of: CoreId(9), online: true },
        What::Migrate { thread: 1, from: CoreId(0), to: CoreId(9), cause: MoveCause::Unknown },
        What::Decision(CoreDecision {
            core: CoreId(9),
            from: None,
            to: None,
            mode: CoreMode::Kernel,
            reason: Reason::Unwanted,
        }),
    ] {
        let err = writer.event(&event(0, what)).unwrap_err();
        assert!(err.to_string().contains("core 9"), "{err}");
    }
    assert!(writer.event(&event(9, What::Exit { thread: 1 })).is_err());
}

#[test]
fn a_length_that_lies_is_found_out() {
    for (last, what) in [(0x7f, "longer than any"), (0x01, "ends within a packet")] {
        let mut bytes = written(&busy(1)[..10]);
        bytes.extend([0x0a, 0xff, 0xff, 0xff, last]);
        let (back, error) = read(&bytes);
        assert_eq!(back.len(), 10);
        assert!(error.unwrap().to_string().contains(what));
    }
}

#[test]
fn a_foreign_trace_is_told_from_a_damaged_one() {
    let foreign: Vec<u8> = [0x0a, 2, 0x40, 1].repeat(40);
    assert!(matches!(Reader::new(&foreign[..]), Err(ReadError::NotATrace(_))));
    let mut bytes = written(&busy(1));
    let middle = bytes.len() / 2;
    bytes[middle..middle + 200].fill(0xee);
    let (back, error) = read(&bytes);
    assert!(matches!(error, Some(ReadError::Damaged { .. })));
    assert!(!back.is_empty());
}

#[test]
fn an_unreadable_input_says_where() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is gone"))
        }
    }
    let bytes = written(&busy(1));
    let half = &bytes[..bytes.len() / 2];
    let reader = Reader::new(BufReader::new(half.chain(Broken))).unwrap();
    let last = reader.last().unwrap().unwrap_err();
    assert!(last.to_string().starts_with("reading at byte"), "{last}");
}

/// A trace with one event, and the same with these bytes replaced by others of the same length.
fn patched(what: What, from: &[u8], to: &[u8]) -> ReadError {
    let mut bytes = written(&[Event { at: Nanos(1), core: CoreId(0), sequence: 0, what }]);
    let at = bytes.windows(from.len()).rposition(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    read(&bytes).1.unwrap()
}

#[test]
fn typed_values_out_of_bounds_are_refused_with_position() {
    // Field 1 of a softirq (`vec`), 300 as varint.
    let err = patched(What::Softirq { vector: 200, begins: true }, &[8, 200, 1], &[8, 172, 2]);
    assert_eq!(err.to_string().rsplit(": ").next(), Some("a softirq vector past 255"));
    assert!(err.to_string().starts_with("damaged at byte "), "{err}");
    let decision = CoreDecision {
        core: CoreId(2),
        from: None,
        to: None,
        mode: CoreMode::Idled,
        reason: Reason::Refused(99),
    };
    // Mode 3 and a reason of kind 10.
    let err = patched(What::Decision(decision), &[32, 3], &[32, 9]);
    assert!(err.to_string().ends_with("a decision of no known mode"), "{err}");
    let err = patched(What::Decision(decision), &[8, 10, 16], &[8, 99, 16]);
    assert!(err.to_string().ends_with("a reason that is none"), "{err}");
}

#[test]
fn long_task_is_cut_to_its_bounds() {
    let id = TaskId { index: 1, generation: 0 };
    let name = "ü".repeat(TaskInfo::NAME_MAX);
    let processes: Vec<i32> =
        (0..TaskInfo::PROCESSES_MAX as i32 + 9).map(|n| i32::MAX - n).collect();
    let task = TaskInfo { id, name, class: Class::BestEffort, processes: processes.clone() };
    let what = What::Task(Arc::new(task));
    let (back, error) =
        read(&written(&[Event { at: Nanos(1), core: CoreId(0), sequence: 0, what }]));
    assert!(error.is_none(), "{error:?}");
    let What::Task(back) = &back[0].what else { panic!("{back:?}") };
    assert_eq!(back.name, "ü".repeat(TaskInfo::NAME_MAX / 2));
    assert_eq!(back.processes, processes[..TaskInfo::PROCESSES_MAX]);
}

#[test]
fn file_of_older_version_opens_with_its_texts_as_annotations() {
    let bytes = include_bytes!("../../tests/data/old.pftrace");
    let (events, error) = read(bytes);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(events.len(), 20);
    let text = "core 2: batch -> web: its owner had waited 12 us";
    assert_eq!(events[1].what, What::Annotation(text.into()));
    let plan = Planned {
        process: 40,
        original: "0-3".parse().unwrap(),
        cores: "1-2".parse().unwrap(),
        reason: PlanReason::Text("web: owns a core".into()),
    };
    assert_eq!(events[2].what, What::Planned(Arc::new(plan)));
    for (at, begins) in [(9, true), (11, false)] {
        assert_eq!(events[at].what, What::Softirq { vector: What::BALANCER, begins });
    }
    // What is read is written again and read the same.
    let mut writer = Writer::new(Vec::new());
    writer.meta(Reader::new(&bytes[..]).unwrap().meta()).unwrap();
    events.iter().for_each(|event| writer.event(event).unwrap());
    writer.finish().unwrap();
    assert_eq!(read(&writer.into_inner()).0, events);
}
