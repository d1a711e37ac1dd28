use std::sync::Arc;

use quell_model::{
    Activity, CoreId, CoreSet, CoreState, Event, Keyframe, Left, Meta, MoveCause, Nanos, Rank,
    Runner, Source as Origin, ThreadName, ThreadState, Topology, What,
};

use proptest::prelude::*;

use super::depth::DEPTHS;
use super::{Collector, Distance, Report};
use crate::host::tests::{Damage, record, streams};
use crate::host::{HostState, WastedSplit, WastedTime};

fn meta(source: Origin) -> Meta {
    Meta {
        source,
        // Core 2 is core 0's sibling; cores 0 and 1 are nodes.
        topology: Topology::regular(2, 1, 2).unwrap(),
        kernel: "6.12".to_owned(),
        host: "box".to_owned(),
        hooks: vec![],
        absent: vec![],
        wall_offset_ns: 0,
    }
}

fn runner(thread: i32) -> Runner {
    Runner {
        thread,
        process: thread,
        rank: if thread == 0 { Rank::NOBODY } else { Rank::FAIR },
        name: ThreadName::new(format!("t{thread}").as_bytes()),
    }
}

fn thread(thread: i32, core: u16, state: Activity, allowed: &str) -> ThreadState {
    ThreadState {
        thread: runner(thread),
        core: CoreId(core),
        state,
        allowed: allowed.parse().unwrap(),
        bound: false,
    }
}

fn keyframe(threads: Vec<ThreadState>) -> What {
    let core = |core| {
        let here = || threads.iter().filter(|state| state.core == CoreId(core));
        let running = here().find(|state| state.state == Activity::Running);
        CoreState {
            core: CoreId(core),
            running: running.map_or(0, |state| state.thread.thread),
            queued: here().count() as u32,
            runnable: here().count() as u32,
            weight: 0,
            average: 0,
            wake_pending: false,
            domain: CoreSet::EMPTY,
        }
    };
    What::Keyframe(Arc::new(Keyframe { cores: (0..4).map(core).collect(), threads }))
}

fn switch(left: i32, how: Left, next: i32) -> What {
    What::Switch { next: runner(next), left, how, stolen: Nanos::ZERO }
}

/// Events at these times on these cores; numbers follow each other.
fn report(source: Origin, events: Vec<(u64, u16, What)>) -> Report {
    let meta = meta(source);
    let mut collector = Collector::new(&meta);
    let mut sequences = [0; 4];
    for (at, core, what) in events {
        let sequence = sequences[usize::from(core)];
        sequences[usize::from(core)] += 1;
        collector.event(&Event { at: Nanos(at), core: CoreId(core), sequence, what });
    }
    collector.finish(&meta)
}

fn end(at: u64) -> (u64, u16, What) {
    (at, 3, What::Annotation("end".into()))
}

#[test]
fn latency_lasts_from_waking_to_the_core() {
    let woken = |thread, on| What::Woken { thread: runner(thread), on: CoreId(on), is_new: false };
    let waking = What::Waking { thread: runner(5), by: 0, target: CoreId(0) };
    let report = report(
        Origin::Recorder,
        vec![
            (0, 0, keyframe(vec![])),
            (1_000, 0, waking.clone()),
            (3_000, 0, woken(5, 0)),
            (9_000, 0, switch(0, Left::Preempted, 5)),
            // Preempted and back: no wake-up.
            (10_000, 0, switch(5, Left::Preempted, 6)),
            (20_000, 0, switch(6, Left::Sleeping, 5)),
            // Woken while it runs, and goes on.
            (21_000, 1, waking.clone()),
            (21_500, 0, woken(5, 0)),
            (30_000, 0, switch(5, Left::Sleeping, 0)),
            // Woken on its way to sleep: it counts.
            (40_000, 0, waking.clone()),
            (41_000, 0, switch(0, Left::Preempted, 5)),
            (50_000, 1, waking),
            (50_100, 0, switch(5, Left::Sleeping, 0)),
            (53_000, 0, switch(0, Left::Preempted, 5)),
        ],
    );
    assert_eq!(report.wakeups.len(), 1);
    let latency = &report.wakeups[0];
    assert_eq!((latency.name.as_str(), latency.wakeups), ("t5", 3));
    assert!((8_000..8_100).contains(&latency.max_ns), "{latency:?}");
    assert!((3_000..3_050).contains(&latency.p50_ns), "{latency:?}");
}

#[test]
fn latency_of_new_thread_in_keyframe_starts_at_its_wakeup() {
    let woken = What::Woken { thread: runner(5), on: CoreId(0), is_new: true };
    let report = report(
        Origin::Simulator,
        vec![
            (0, 0, keyframe(vec![thread(5, 0, Activity::Waiting, "0-3")])),
            (0, 0, woken),
            (1_000, 1, switch(0, Left::Preempted, 5)),
        ],
    );
    assert_eq!((report.wakeups[0].wakeups, report.wakeups[0].max_ns), (1, 1_003));
    assert_eq!(report.data_loss.wakeups, 0);
}

#[test]
fn wakeup_whose_switch_is_missed_has_no_latency() {
    let waking = What::Waking { thread: runner(5), by: 0, target: CoreId(0) };
    let report = report(
        Origin::Ftrace,
        vec![
            (0, 0, switch(0, Left::Preempted, 6)),
            (1_000, 0, waking.clone()),
            // It ran, and nothing shows since when.
            (5_000, 0, switch(5, Left::Sleeping, 6)),
            (90_000, 0, waking),
            (91_000, 0, switch(6, Left::Preempted, 5)),
        ],
    );
    assert_eq!((report.wakeups[0].wakeups, report.wakeups[0].max_ns), (1, 1_003));
    assert_eq!(report.data_loss.wakeups, 1);
}

#[test]
fn a_wait_of_any_length_is_measured() {
    let waking = What::Waking { thread: runner(5), by: 0, target: CoreId(0) };
    let hour = 3_600_000_000_000;
    let events = vec![(0, 0, waking), (hour, 0, switch(0, Left::Preempted, 5))];
    let max = report(Origin::Recorder, events).wakeups[0].max_ns;
    assert!(max.abs_diff(hour) < hour / 100, "{max}");
}

#[test]
fn waste_counts_only_threads_that_may_use_the_idle_core() {
    let crowded = |allowed| {
        keyframe(vec![
            thread(5, 1, Activity::Running, "0-3"),
            thread(6, 1, Activity::Waiting, allowed),
            thread(7, 1, Activity::Waiting, allowed),
        ])
    };
    let wasted = |allowed| {
        let events = vec![(0, 0, crowded(allowed)), end(1_000)];
        report(Origin::Recorder, events).idle.wasted
    };
    let free = wasted("0-3");
    assert_eq!((free.wall_ns, free.core_ns, free.thread_ns), (1_000, 1_000, 2_000));
    let pinned = wasted("1");
    assert_eq!((pinned.wall_ns, pinned.core_ns, pinned.thread_ns), (0, 0, 0));
    let one = wasted("1-2");
    assert_eq!((one.wall_ns, one.core_ns, one.thread_ns), (1_000, 1_000, 1_000));
}

#[test]
fn report_separates_what_a_policy_allows() {
    let mut low = thread(6, 1, Activity::Waiting, "0-3");
    low.thread.rank = Rank::BENEATH;
    let fair = thread(7, 1, Activity::Waiting, "0-3");
    let threads = vec![thread(5, 1, Activity::Running, "0-3"), low, fair];
    let report = report(Origin::Recorder, vec![(0, 0, keyframe(threads)), end(1_000)]);
    let WastedSplit { wasted, allowed_by_policy, .. } = report.idle;
    assert_eq!((wasted.wall_ns, wasted.core_ns, wasted.thread_ns), (1_000, 1_000, 1_000));
    let allowed = allowed_by_policy;
    assert_eq!((allowed.wall_ns, allowed.core_ns, allowed.thread_ns), (0, 0, 1_000));
    let text = report.to_string();
    assert!(text.contains("ALLOWED BY POLICY") && !text.contains("AFFINITY UNKNOWN"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["wasted"]["thread_ns"], 1_000);
    assert_eq!(json["allowed_by_policy"]["thread_ns"], 1_000);
}

#[test]
fn report_has_column_for_unknown_affinity() {
    let woken = |thread, on| What::Woken { thread: runner(thread), on: CoreId(on), is_new: false };
    let threads = vec![thread(5, 1, Activity::Running, "0-3")];
    let events = vec![(0, 0, keyframe(threads)), (200, 1, woken(9, 1)), end(1_000)];
    let report = report(Origin::Recorder, events);
    assert_eq!(report.idle.affinity_unknown.wall_ns, 800);
    assert!(report.to_string().contains("AFFINITY UNKNOWN"));
}

#[test]
fn a_thread_on_its_way_to_a_free_core_is_no_waste() {
    let report = report(
        Origin::Recorder,
        vec![(0, 0, keyframe(vec![thread(6, 1, Activity::Waiting, "0-3")])), end(1_000)],
    );
    assert_eq!(report.idle.wasted.wall_ns, 0);
}

#[test]
fn waste_ends_with_the_move() {
    let report = report(
        Origin::Recorder,
        vec![
            (
                0,
                0,
                keyframe(vec![
                    thread(5, 1, Activity::Running, "0-3"),
                    thread(6, 1, Activity::Waiting, "0-3"),
                ]),
            ),
            (
                400,
                0,
                What::Migrate {
                    thread: 6,
                    from: CoreId(1),
                    to: CoreId(0),
                    cause: MoveCause::NewIdle,
                },
            ),
            (500, 0, switch(0, Left::Preempted, 6)),
            end(1_000),
        ],
    );
    assert_eq!(report.idle.wasted.wall_ns, 400);
    assert_eq!(report.migrations[0].distance, Distance::Further);
}

#[test]
fn distance_is_what_the_cores_share() {
    let host = Topology::regular(2, 2, 2).unwrap();
    let index = |core| host.position(CoreId(core)).unwrap();
    let far = |to| Distance::of(&host, index(0), index(to));
    assert_eq!([far(4), far(1), far(2)], [Distance::Sibling, Distance::Llc, Distance::Further]);
}

#[test]
fn depth_is_weighted_by_time() {
    let queue = |runnable| What::Queue { of: CoreId(0), queued: runnable, runnable };
    let report = report(
        Origin::Recorder,
        vec![
            (0, 0, keyframe(vec![])),
            (100, 0, queue(2)),
            (400, 0, queue(30)),
            (500, 0, queue(0)),
            end(1_000),
        ],
    );
    assert_eq!(report.depth_core_ns, [3_600, 0, 300, 0, 0, 0, 0, 0, 100]);
    assert_eq!(report.deepest, 30);
}

#[test]
fn nothing_is_concluded_across_a_loss() {
    let crowded = || {
        keyframe(vec![
            thread(5, 1, Activity::Running, "0-3"),
            thread(6, 1, Activity::Waiting, "0-3"),
        ])
    };
    let waking = What::Waking { thread: runner(8), by: 0, target: CoreId(0) };
    let report = report(
        Origin::Recorder,
        vec![
            (0, 0, crowded()),
            (100, 0, waking),
            (200, 1, What::Lost { count: 9 }),
            (300, 0, switch(0, Left::Preempted, 8)),
            (1_000, 0, crowded()),
            end(1_500),
        ],
    );
    assert_eq!((report.data_loss.lost_events, report.data_loss.wakeups), (9, 1));
    assert_eq!((report.data_loss.time_ns, report.idle.wasted.wall_ns), (1_000, 500));
    assert!(report.wakeups.is_empty());
    assert!(report.to_string().contains("lost: 9 events"));
}

#[test]
fn a_gap_in_the_numbers_is_a_loss() {
    let meta = meta(Origin::Recorder);
    let mut collector = Collector::new(&meta);
    let event = |at, sequence, what| Event { at: Nanos(at), core: CoreId(0), sequence, what };
    collector.event(&event(0, 0, keyframe(vec![])));
    collector.event(&event(100, 4, What::Exit { thread: 9 }));
    let report = collector.finish(&meta);
    assert_eq!((report.data_loss.gaps, report.data_loss.time_ns), (1, 100));
}

#[test]
fn sizes_of_queues_serve_where_threads_are_not_told() {
    let queue = |of, runnable| What::Queue { of: CoreId(of), queued: runnable, runnable };
    let report = report(
        Origin::WastedCores,
        vec![(0, 0, keyframe(vec![])), (0, 1, queue(1, 3)), end(1_000)],
    );
    assert_eq!((report.idle.wasted.core_ns, report.idle.wasted.thread_ns), (1_000, 2_000));
    assert!(!report.knows_affinity);
}

/// The same figures, with every core looked at before each event.
fn by_hand(meta: &Meta, events: &[Event]) -> (WastedSplit, Vec<u64>) {
    let (mut host, mut wasted) = (HostState::new(meta), WastedTime::default());
    let (mut pending, mut judged) = ([0; DEPTHS], [0; DEPTHS]);
    for event in events {
        let time = event.at.since(host.now()).0;
        for core in host.cores().iter().filter(|core| core.is_online) {
            let runnable = core.counts.map_or(0, |counts| counts.runnable) as usize;
            if host.origin().is_some() {
                pending[runnable.min(DEPTHS - 1)] += time;
            }
        }
        wasted.advance(&host, event.at);
        let interval = host.interval();
        host.push(event, &mut ());
        let is_last = std::ptr::eq(event, events.last().unwrap());
        if interval != host.interval() || is_last {
            if interval > 0 && host.last_incomplete_interval() != Some(interval) {
                judged.iter_mut().zip(pending).for_each(|(sum, more)| *sum += more);
            }
            pending = [0; DEPTHS];
        }
    }
    wasted.finish(&host);
    let used = judged.iter().rposition(|time| *time > 0).map_or(0, |last| last + 1);
    (*wasted.judged(), judged[..used].to_vec())
}

fn figures(meta: &Meta, events: &[Event]) -> (WastedSplit, Vec<u64>) {
    let mut collector = Collector::new(meta);
    events.iter().for_each(|event| collector.event(event));
    let report = collector.finish(meta);
    (report.idle, report.depth_core_ns)
}

#[test]
fn idle_and_depth_equal_reference_on_random_hosts() {
    let mut idle = WastedSplit::default();
    for seed in 0..400 {
        for damage in [Damage::None, Damage::Losses, Damage::Order, Damage::Missing] {
            let source = [Origin::Recorder, Origin::Ftrace, Origin::Simulator][seed as usize % 3];
            let recorded = record(seed, source, damage);
            let found = figures(&recorded.meta, &recorded.events);
            assert_eq!(found, by_hand(&recorded.meta, &recorded.events), "{damage:?} {seed}");
            idle.add(&found.0);
        }
    }
    assert!(idle.wasted.thread_ns > 0, "the hosts waste nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn idle_and_depth_equal_reference_on_any_events(events in streams()) {
        let meta = crate::host::tests::meta(Origin::Recorder, 3);
        prop_assert_eq!(figures(&meta, &events), by_hand(&meta, &events));
    }
}
