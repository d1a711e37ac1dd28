//! Traces as another program sees them: decoded with the messages that are generated from Perfetto's own
//! definitions.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::BTreeMap;

use perfetto_protos::ftrace_event::ftrace_event::Event as Ftrace;
use perfetto_protos::trace::Trace;
use perfetto_protos::trace_packet::TracePacket;
use perfetto_protos::trace_packet::trace_packet::Data;
use perfetto_protos::track_event::track_event::Type;
use protobuf::Message;

/// What `crates/trace` writes for one event of each kind; its tests hold the writer to these bytes.
const TRACE: &[u8] = include_bytes!("../../../crates/trace/tests/data/one-of-each-kind.pftrace");

fn packets() -> Vec<TracePacket> {
    Trace::parse_from_bytes(TRACE).unwrap().packet
}

/// What the tracks are called, by their numbers; a core's own track behind its parent's.
fn track_name(packets: &[TracePacket], uuid: u64) -> String {
    let descriptors = packets.iter().filter_map(|packet| match &packet.data {
        Some(Data::TrackDescriptor(track)) => Some(track),
        _ => None,
    });
    let track = descriptors.clone().find(|track| track.uuid() == uuid).unwrap();
    match track.parent_uuid {
        Some(parent) => format!("{}/{}", track_name(packets, parent), track.name()),
        None => track.name().to_owned(),
    }
}

#[test]
fn the_schedulers_tracks_are_ftrace_events_of_their_core() {
    let packets = packets();
    let bundles: Vec<_> = packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::FtraceEvents(bundle)) => Some(bundle),
            _ => None,
        })
        .collect();
    assert_eq!(bundles.len(), 1);
    assert_eq!((bundles[0].cpu(), bundles[0].lost_events()), (1, true));
    let events = &bundles[0].event;
    let times: Vec<u64> = events.iter().map(|event| event.timestamp()).collect();
    assert!(times.is_sorted() && times[0] == 1_001_000, "{times:?}");

    let kinds: Vec<&Ftrace> = events.iter().filter_map(|event| event.event.as_ref()).collect();
    let Ftrace::SchedWaking(waking) = kinds[0] else { panic!("{:?}", kinds[0]) };
    assert_eq!(
        (waking.comm(), waking.pid(), waking.prio(), waking.target_cpu()),
        ("service", 42, 89, 2)
    );
    assert_eq!(events[0].pid(), 41);
    let Ftrace::SchedWakeup(wakeup) = kinds[1] else { panic!("{:?}", kinds[1]) };
    assert_eq!((wakeup.pid(), wakeup.target_cpu()), (42, 1));
    let Ftrace::SchedSwitch(switch) = kinds[2] else { panic!("{:?}", kinds[2]) };
    assert_eq!((switch.prev_comm(), switch.prev_pid(), switch.prev_prio()), ("worker", 41, 120));
    assert_eq!(switch.prev_state(), 0);
    assert_eq!((switch.next_comm(), switch.next_pid(), switch.next_prio()), ("service", 42, 89));
    let Ftrace::SchedMigrateTask(moved) = kinds[3] else { panic!("{:?}", kinds[3]) };
    assert_eq!((moved.pid(), moved.orig_cpu(), moved.dest_cpu()), (41, 1, 2));
    assert!(matches!(kinds[4], Ftrace::SoftirqEntry(softirq) if softirq.vec() == 7));
    assert!(matches!(kinds[5], Ftrace::SoftirqExit(softirq) if softirq.vec() == 7));
    let Ftrace::IrqHandlerEntry(entry) = kinds[6] else { panic!("{:?}", kinds[6]) };
    assert_eq!((entry.irq(), entry.name()), (25, "25"));
    assert!(matches!(kinds[7], Ftrace::IrqHandlerExit(exit) if exit.irq() == 25));
    let Ftrace::SchedProcessFork(fork) = kinds[8] else { panic!("{:?}", kinds[8]) };
    assert_eq!((fork.parent_pid(), fork.child_pid(), fork.child_comm()), (42, 43, "child"));
    assert!(matches!(kinds[9], Ftrace::SchedWakeupNew(new) if new.target_cpu() == 3));
    assert!(matches!(kinds[10], Ftrace::SchedProcessExec(exec) if exec.filename() == "other"));
    assert!(matches!(kinds[11], Ftrace::SchedProcessExit(exit) if exit.pid() == 43));
    assert_eq!(kinds.len(), 12);
}

#[test]
fn queues_and_loads_are_counters_violations_slices_and_the_rest_instants_on_named_tracks() {
    let packets = packets();
    let told: Vec<(String, Type, i64)> = packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::TrackEvent(event)) => {
                assert!(packet.has_timestamp() && packet.trusted_packet_sequence_id() != 0);
                let track = track_name(&packets, event.track_uuid());
                Some((track, event.type_(), event.counter_value()))
            }
            _ => None,
        })
        .collect();
    let expected = [
        ("Keyframes", Type::TYPE_INSTANT, 0),
        ("Threads that want the core/core 1", Type::TYPE_COUNTER, 2),
        ("Load/core 1", Type::TYPE_COUNTER, 2048),
        ("Tasks of Quell", Type::TYPE_INSTANT, 0),
        ("Decisions of Quell", Type::TYPE_INSTANT, 0),
        ("Affinity", Type::TYPE_INSTANT, 0),
        ("Losses", Type::TYPE_INSTANT, 0),
        ("Violations/core 1", Type::TYPE_SLICE_BEGIN, 0),
        ("Violations/core 1", Type::TYPE_SLICE_END, 0),
        ("Violations/core 2", Type::TYPE_SLICE_BEGIN, 0),
        ("Violations/core 2", Type::TYPE_SLICE_END, 0),
        ("Balancer passes", Type::TYPE_INSTANT, 0),
        ("Scheduling domains", Type::TYPE_INSTANT, 0),
    ];
    assert_eq!(told, expected.map(|(track, kind, value)| (track.to_owned(), kind, value)));
}

#[test]
fn violations_are_slices_with_their_waiters_and_cores_on_tracks_of_their_own() {
    let packets = packets();
    let slices = packets.iter().filter_map(|packet| match &packet.data {
        Some(Data::TrackEvent(event)) if event.type_() != Type::TYPE_INSTANT => {
            Some((packet.timestamp(), event))
        }
        _ => None,
    });
    let (mut begun, mut whole) = (BTreeMap::new(), Vec::new());
    for (at, event) in slices {
        match event.type_() {
            Type::TYPE_SLICE_BEGIN => {
                assert!(begun.insert(event.track_uuid(), (at, event)).is_none(), "one a track");
            }
            Type::TYPE_SLICE_END => {
                let (from, begin) = begun.remove(&event.track_uuid()).unwrap();
                whole.push((from, at - from, begin));
            }
            _ => {}
        }
    }
    assert!(begun.is_empty());
    let spans: Vec<(u64, u64)> = whole.iter().map(|(from, length, _)| (*from, *length)).collect();
    assert_eq!(spans, [(1_004_000, 5_000), (1_006_000, 6_000)]);
    let notes = &whole[0].2.debug_annotations;
    let notes: Vec<(&str, i64, &str)> =
        notes.iter().map(|note| (note.name(), note.int_value(), note.string_value())).collect();
    let text = "core 1: worker (41) waited";
    assert_eq!(whole[0].2.name(), text);
    let expected =
        [("text", 0, text), ("core", 1, ""), ("waiters", 0, "41,42"), ("cores", 0, "0,3")];
    assert_eq!(notes, expected);
}

#[test]
fn pass_of_the_balancer_has_its_outcome_and_groups_as_arguments() {
    let packets = packets();
    let pass = packets.iter().find_map(|packet| match &packet.data {
        Some(Data::TrackEvent(event)) if event.name().contains("local-is-busier") => Some(event),
        _ => None,
    });
    let pass = pass.unwrap();
    assert_eq!(pass.name(), "core 1, level 1, nohz: local-is-busier (skipped 1 running)");
    let notes = pass.debug_annotations.iter();
    let notes: Vec<(&str, i64, &str)> =
        notes.map(|note| (note.name(), note.int_value(), note.string_value())).collect();
    let groups = [
        "{0-1}: sum 1200, mean 600, minimum 0, 1 queued, 1 idle, has-spare",
        "{2-3}: sum 1200, mean 600, minimum 300, 4 queued, 0 idle, overloaded",
    ];
    let expected = [
        ("level", 1, ""),
        ("entry", 0, "nohz"),
        ("outcome", 0, "local-is-busier"),
        ("skipped", 0, "1 running"),
        ("own group", 0, groups[0]),
        ("group 1", 0, groups[1]),
    ];
    assert_eq!(notes, expected);
}

#[test]
fn the_clock_is_named_and_threads_have_their_process() {
    let packets = packets();
    let clocks = packets.iter().find_map(|packet| match &packet.data {
        Some(Data::ClockSnapshot(clocks)) => Some(clocks),
        _ => None,
    });
    let clocks: Vec<(u32, u64)> =
        clocks.unwrap().clocks.iter().map(|clock| (clock.clock_id(), clock.timestamp())).collect();
    // MONOTONIC, BOOTTIME, REALTIME.
    assert_eq!(clocks, [(3, 1_000_000), (6, 1_000_000), (1, 1_001_000_000)]);
    let timed = packets.iter().filter(|packet| packet.has_timestamp());
    assert!(timed.clone().count() > 5);
    assert!(timed.into_iter().all(|packet| packet.timestamp_clock_id() == 3));
    let threads: Vec<(i32, i32)> = packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ProcessTree(tree)) => Some(&tree.threads),
            _ => None,
        })
        .flatten()
        .map(|thread| (thread.tid(), thread.tgid()))
        .collect();
    assert!(threads.contains(&(41, 40)) && threads.contains(&(43, 40)), "{threads:?}");
}
