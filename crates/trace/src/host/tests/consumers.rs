//! Readers report the times of [`WastedTime`], to the nanosecond.

use proptest::prelude::*;

use super::properties::streams;
use super::toy::{self, Damage};
use super::*;
use crate::check::{Checker, Options, WasteTimes};

/// What [`WastedTime`] says of a whole stream.
fn wasted(meta: &Meta, events: &[Event]) -> WastedSplit {
    let (mut host, mut wasted) = (HostState::new(meta), WastedTime::default());
    for event in events {
        wasted.advance(&host, event.at);
        host.push(event, &mut ());
    }
    wasted.finish(&host);
    let mut parts = *wasted.judged();
    parts.add(wasted.unjudged());
    assert_eq!(parts, wasted.total(), "something is neither judged nor unjudged");
    parts
}

fn in_ns(times: &WasteTimes) -> CoreTimes {
    let [wall_ns, core_ns, thread_ns] =
        [times.any_s, times.cores_s, times.threads_s].map(|seconds| (seconds * 1e9).round() as u64);
    CoreTimes { wall_ns, core_ns, thread_ns }
}

fn check_agrees(name: &str, meta: &Meta, events: &[Event]) {
    let mut checker = Checker::new(meta, Options::default());
    events.iter().for_each(|event| checker.event(event));
    let end = events.iter().map(|event| event.at).max().unwrap_or_default();
    let waste = checker.finish(end).waste;
    let found = WastedSplit {
        wasted: in_ns(&waste.wasted),
        allowed_by_policy: in_ns(&waste.allowed_by_policy),
        affinity_unknown: in_ns(&waste.affinity_unknown),
    };
    let wanted = wasted(meta, events);
    assert_eq!(found, wanted, "{name}");
    assert_eq!(found.total(), wanted.total(), "{name}");
}

#[test]
fn check_reports_wasted_time_of_recordings() {
    let (mut recordings, mut wasting) = (0, 0);
    for (name, meta, events) in recordings_of_tests() {
        check_agrees(&name, &meta, &events);
        recordings += 1;
        wasting += u32::from(wasted(&meta, &events).wasted.wall_ns > 0);
    }
    assert!(recordings >= 15 && wasting >= 5, "{recordings} recordings, {wasting} with waste");
}

#[test]
fn check_reports_wasted_time_of_random_runs() {
    let mut sum = WastedSplit::default();
    for damage in [Damage::None, Damage::Losses, Damage::Order, Damage::Missing] {
        for seed in 0..500 {
            let source = [Source::Recorder, Source::Ftrace][seed as usize % 2];
            let recorded = toy::record(seed, source, damage);
            check_agrees(&format!("{damage:?} {seed}"), &recorded.meta, &recorded.events);
            sum.add(&wasted(&recorded.meta, &recorded.events));
        }
    }
    assert!(sum.wasted.wall_ns > 0 && sum.affinity_unknown.wall_ns > 0, "too tame: {sum:?}");
}

proptest! {
    #[test]
    fn check_reports_wasted_time_of_any_stream(
        source in prop_oneof![
            Just(Source::Recorder),
            Just(Source::Perf),
            Just(Source::Simulator),
            Just(Source::WastedCores),
        ],
        events in streams(),
    ) {
        check_agrees("any", &meta(source, 3), &events);
    }
}
