use std::io::{BufReader, Cursor, Read};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use quell_model::{
    Activity, Class, CoreDecision, CoreDomains, CoreId, CoreMode, CoreSet, Domain, DomainGroup,
    DomainTrees, Event, GroupKind, Keyframe, Left, Meta, MoveCause, Nanos, Pass, PassEntry,
    PassGroup, PassOutcome, PlanReason, Planned, Rank, Reason, Runner, Skipped, Source as Origin,
    TaskId, TaskInfo, ThreadName, ThreadState, Topology, What,
};

use super::any::{self, CORES};
use super::wire::{PACKET_TAG, Packet, Private};
use super::write::{packed, timed};
use super::{Reader, TEXT_MAX, Writer, balance};
use crate::stream::{ReadError, Sink, Source};

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

/// Any events whose passes and domains have cores of the topology only.
fn any_events() -> impl Strategy<Value = Vec<Event>> {
    any::any_events().prop_map(|mut events| {
        events.iter_mut().for_each(|event| fit(&mut event.what));
        events
    })
}

fn fit(what: &mut What) {
    let fit = |set: &mut CoreSet| *set = set.iter().map(|core| CoreId(core.0 % CORES)).collect();
    match what {
        What::Pass(pass) => pass.groups.iter_mut().for_each(|group| fit(&mut group.cores)),
        What::Domains(trees) => {
            let mut cores = trees.cores().to_vec();
            for tree in &mut cores {
                tree.root.iter_mut().for_each(fit);
                for domain in &mut tree.domains {
                    fit(&mut domain.span);
                    for group in &mut domain.groups {
                        fit(&mut group.cores);
                        fit(&mut group.balance);
                    }
                }
            }
            *trees = Arc::new(DomainTrees::new(cores, trees.isolated).unwrap());
        }
        _ => {}
    }
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

fn pass_of(core: CoreId) -> Pass {
    Pass {
        core,
        level: 1,
        entry: PassEntry::Nohz,
        groups: Vec::new(),
        outcome: PassOutcome::Kept,
        moved: 0,
        skipped: Skipped { running: 77, ..Skipped::default() },
    }
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
        What::Pass(Box::new(pass_of(CoreId(9)))),
        What::Domains(Arc::new(
            DomainTrees::new(
                vec![CoreDomains { core: CoreId(9), root: None, domains: Vec::new() }],
                CoreSet::EMPTY,
            )
            .unwrap(),
        )),
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
fn set_with_a_core_that_the_topology_lacks_is_refused_when_written_and_read() {
    let strange: CoreSet = "1,9".parse().unwrap();
    let known: CoreSet = "0-3".parse().unwrap();
    let of_domain = |span, cores, balance| {
        let domain = Domain { span, groups: vec![DomainGroup { cores, balance }], ..domain_of(0) };
        trees_of(vec![CoreDomains { core: CoreId(0), root: None, domains: vec![domain] }])
    };
    let root = CoreDomains { core: CoreId(0), root: Some(strange), domains: Vec::new() };
    for what in [
        pass_with(vec![PassGroup { cores: strange, ..GROUP }]),
        of_domain(strange, known, known),
        of_domain(known, strange, known),
        of_domain(known, known, strange),
        trees_of(vec![root]),
    ] {
        let mut writer = Writer::new(Vec::new());
        writer.meta(&meta()).unwrap();
        let event = Event { at: Nanos(1), core: CoreId(0), sequence: 0, what: what.clone() };
        let err = writer.event(&event).unwrap_err();
        assert!(err.to_string().contains("core 9"), "{err}");
        let (events, error) = read(&in_one_group(&[what]));
        let err = error.unwrap().to_string();
        assert!(events.is_empty() && err.ends_with("that the topology does not have"), "{err}");
    }
    // Isolated cores may be ones that the host lacks.
    let isolated = What::Domains(Arc::new(DomainTrees::new(Vec::new(), strange).unwrap()));
    let isolated = [isolated];
    assert_eq!(back(&in_one_group(&isolated)), isolated);
}

const GROUP: PassGroup = PassGroup {
    cores: CoreSet::EMPTY,
    sum: 0,
    mean: 0,
    minimum: 0,
    queued: 0,
    idle: 0,
    kind: GroupKind::HasSpare,
};

fn pass_with(groups: Vec<PassGroup>) -> What {
    What::Pass(Box::new(Pass { groups, ..pass_of(CoreId(0)) }))
}

fn trees_of(cores: Vec<CoreDomains>) -> What {
    What::Domains(Arc::new(DomainTrees::new(cores, CoreSet::EMPTY).unwrap()))
}

fn domain_of(groups: usize) -> Domain {
    Domain {
        name: String::new(),
        span: CoreSet::EMPTY,
        groups: vec![DomainGroup::default(); groups],
        flags: None,
        balance: None,
    }
}

/// Domain trees of all cores, each with so many domains of so many groups.
fn domains(domains: usize, groups: usize) -> What {
    let tree = |core| CoreDomains {
        core: CoreId(core),
        root: None,
        domains: vec![domain_of(groups); domains],
    };
    trees_of((0..CORES).map(tree).collect())
}

/// A trace with these passes and domains in one group of events, whatever a writer would do.
fn in_one_group(events: &[What]) -> Vec<u8> {
    let mut bytes = written(&[]);
    let mut put = |packet: Packet| {
        bytes.push(PACKET_TAG);
        packet.encode_length_delimited(&mut bytes).unwrap();
    };
    let group = Private { group: Some(events.len() as u32), ..Private::default() };
    put(Packet { private: Some(group), ..timed(Nanos(1)) });
    for (sequence, what) in (0..).zip(events) {
        let mut private = Private { core: Some(0), sequence: Some(sequence), ..Private::default() };
        let shown = match what {
            What::Pass(pass) => balance::put_pass(pass, &mut private),
            What::Domains(trees) => balance::put_trees(trees, &mut private),
            _ => panic!("neither a pass nor domains"),
        };
        let track_event = packed(&shown);
        put(Packet { track_event, private: Some(private), ..timed(Nanos(1)) });
    }
    bytes
}

/// What is read back, all of it.
fn back(bytes: &[u8]) -> Vec<What> {
    let (events, error) = read(bytes);
    assert!(error.is_none(), "{error:?}");
    events.into_iter().map(|event| event.what).collect()
}

/// The most of one event that a group of events may hold, and one more than that.
fn too_much() -> [(Vec<What>, What); 5] {
    const GROUPS: usize = 1 << 18;
    let of_64 = || pass_with(vec![GROUP; 64]);
    [
        (vec![domains(1, GROUPS / 4)], domains(1, 1)),
        (vec![domains(1, GROUPS / 4)], pass_with(vec![GROUP])),
        (vec![of_64(); GROUPS / 64], pass_with(vec![GROUP])),
        // 256 domains and four cores: 16,384 of each at most.
        (vec![domains(64, 0); 64], domains(1, 0)),
        (vec![domains(0, 0); 4096], domains(0, 0)),
    ]
}

#[test]
fn group_of_events_with_more_than_the_largest_trees_is_refused() {
    for (mut events, more) in too_much() {
        assert_eq!(back(&in_one_group(&events)).len(), events.len());
        events.push(more);
        let (read, error) = read(&in_one_group(&events));
        let err = error.unwrap().to_string();
        assert!(read.is_empty() && err.starts_with("damaged at byte "), "{err}");
        assert!(err.contains("groups of domains and passes, than one may have"), "{err}");
    }
}

#[test]
fn many_domains_in_a_row_are_written_in_groups_that_can_be_read() {
    for (mut all, more) in too_much() {
        let last = all[all.len() - 1].clone();
        all.extend([more, last.clone(), What::Exit { thread: 1 }, last]);
        let event = |(sequence, what)| Event { at: Nanos(1), core: CoreId(0), sequence, what };
        let events: Vec<Event> = (0..).zip(all).map(event).collect();
        let (back, error) = read(&written(&events));
        assert!(error.is_none() && back == events, "{error:?}");
    }
}

#[test]
fn domains_end_their_group_of_events() {
    let exit = |thread| What::Exit { thread };
    let all = [exit(1), domains(1, 2), domains(2, 1), exit(2)];
    let event = |(sequence, what)| Event { at: Nanos(1), core: CoreId(0), sequence, what };
    let events: Vec<Event> = (0..).zip(all).map(event).collect();
    let mut writer = Writer::new(Vec::new());
    writer.meta(&meta()).unwrap();
    for (at, whole) in [(0, 0), (1, 2), (2, 3), (3, 3)] {
        writer.event(&events[at]).unwrap();
        assert_eq!(read(writer.get_ref()).0, events[..whole]);
    }
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
fn pass_out_of_bounds_is_refused_with_position() {
    let pass = || What::Pass(Box::new(pass_of(CoreId(2))));
    // Fields 3 (entry 1), 4 (outcome 11) and 6 (77 running).
    for (to, what) in [
        ([24, 4, 32, 11, 48, 77], "a pass of no known entry"),
        ([24, 1, 32, 12, 48, 77], "a pass of no known outcome"),
        // Field 1 comes again: of two the last one counts.
        ([24, 1, 32, 11, 8, 9], "an event of a core that the topology does not have"),
        // A group longer than what is left.
        ([24, 1, 32, 11, 82, 77], "a pass of the balancer that is none"),
    ] {
        let err = patched(pass(), &[24, 1, 32, 11, 48, 77], &to);
        assert!(err.to_string().starts_with("damaged at byte "), "{err}");
        assert!(err.to_string().ends_with(what), "{err}, not {what}");
    }
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
