//! What events mean.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::sync::Arc;

use proptest::prelude::*;
use quell_model::{
    Activity, CoreId, CoreSet, CoreState, Event, Keyframe, Left, Meta, MoveCause, Nanos, Rank,
    Runner, Source, ThreadName, ThreadState, Topology, What,
};
use quell_view::{Builder, LOST, Range, Replay, ThreadIndex, WASTED, Wait, Watch};

fn meta(source: Source, cores: u16) -> Meta {
    Meta {
        source,
        topology: Topology::regular(1, cores, 1).unwrap(),
        kernel: String::new(),
        host: String::new(),
        hooks: Vec::new(),
        absent: Vec::new(),
        wall_offset_ns: 0,
    }
}

fn runner(thread: i32) -> Runner {
    let name = ThreadName::new(format!("t{thread}").as_bytes());
    Runner { thread, process: thread, rank: Rank::FAIR, name }
}

/// What was told, a line each; threads by their order of appearance.
#[derive(Default)]
struct Told(Vec<String>);

impl Watch for Told {
    fn marks(&mut self, core: usize, at: u64, marks: u8) {
        let name = |bit, name| if marks & bit != 0 { name } else { "" };
        self.0.push(format!("{at} core {core}: {}{}", name(WASTED, "wasted"), name(LOST, "lost")));
    }
    fn waited(&mut self, wait: &Wait) {
        let Wait { thread, core, from, to } = wait;
        self.0.push(format!("{thread} waited on {core} {from}-{to}"));
    }
    fn latency(&mut self, thread: ThreadIndex, _at: u64, ns: u64) {
        self.0.push(format!("{thread} was late by {ns}"));
    }
    fn delayed(&mut self, thread: ThreadIndex, by: ThreadIndex, from: u64, to: u64) {
        self.0.push(format!("{thread} delayed by {by} {from}-{to}"));
    }
    fn bad_wakeup(&mut self, at: u64, thread: ThreadIndex, onto: usize, idle: usize) {
        self.0.push(format!("{at} {thread} woken onto {onto}, {idle} idled"));
    }
    fn gap(&mut self, core: usize, from: u64, to: u64) {
        self.0.push(format!("core {core} unknown {from}-{to}"));
    }
}

/// Events as (time, core, what), numbered as a recorder does.
fn told(meta: &Meta, events: Vec<(u64, u16, What)>) -> Vec<String> {
    let mut sequences = [0; 8];
    let (mut replay, mut told) = (Replay::new(meta), Told::default());
    for (at, core, what) in events {
        let sequence = sequences[usize::from(core)];
        sequences[usize::from(core)] += 1;
        replay
            .push(&Event { at: Nanos(1_000 + at), core: CoreId(core), sequence, what }, &mut told);
    }
    replay.finish(&mut told);
    told.0
}

fn switch(next: i32, left: i32, how: Left) -> What {
    What::Switch { next: runner(next), left, how, stolen: Nanos::ZERO }
}

fn waking(thread: i32, target: u16) -> What {
    What::Waking { thread: runner(thread), by: 0, target: CoreId(target) }
}

fn woken(thread: i32, on: u16) -> What {
    What::Woken { thread: runner(thread), on: CoreId(on), is_new: false }
}

fn queue(of: u16, size: u32) -> What {
    What::Queue { of: CoreId(of), queued: size, runnable: size }
}

fn recorder(cores: u16) -> Meta {
    meta(Source::Recorder, cores)
}

#[test]
fn a_wakeup_is_late_from_its_waking_until_it_runs() {
    let events = vec![
        (0, 0, switch(0, 9, Left::Sleeping)),
        (10, 0, waking(1, 0)),
        (14, 0, woken(1, 0)),
        (40, 0, switch(1, 0, Left::Preempted)),
        (50, 0, switch(0, 1, Left::Sleeping)),
    ];
    // It is in no queue before `sched_wakeup`; the latency starts at `sched_waking`.
    assert_eq!(told(&recorder(1), events), ["1 was late by 30", "1 waited on 0 14-40"]);
}

#[test]
fn a_moved_wait_is_two_pieces_and_one_latency() {
    let moved =
        What::Migrate { thread: 1, from: CoreId(0), to: CoreId(1), cause: MoveCause::NewIdle };
    let events = vec![
        (0, 0, waking(1, 0)),
        (2, 0, woken(1, 0)),
        (20, 1, moved),
        (30, 1, switch(1, 0, Left::Preempted)),
    ];
    let wanted = ["1 waited on 0 2-20", "1 was late by 30", "1 waited on 1 20-30"];
    assert_eq!(told(&recorder(2), events), wanted);
}

#[test]
fn whoever_runs_meanwhile_delays() {
    let events = vec![
        (0, 0, switch(1, 0, Left::Preempted)),
        (10, 0, woken(2, 0)),
        (30, 0, switch(3, 1, Left::Sleeping)),
        (50, 0, switch(2, 3, Left::Sleeping)),
    ];
    let told = told(&recorder(1), events);
    let delays: Vec<_> = told.iter().filter(|line| line.contains("delayed")).collect();
    assert_eq!(delays, ["2 delayed by 1 10-30", "2 delayed by 3 30-50"]);
}

#[test]
fn a_wakeup_onto_a_busy_core_is_bad_only_while_an_allowed_one_idles() {
    let until_pinned = |cores: &str| {
        let events = vec![
            (0, 1, switch(0, 9, Left::Sleeping)),
            (0, 0, switch(1, 0, Left::Preempted)),
            (1, 0, queue(0, 1)),
            (2, 0, What::Fork { parent: 1, child: runner(2) }),
            (3, 0, What::Allowed { thread: 2, cores: Box::new(cores.parse().unwrap()) }),
            (5, 0, woken(2, 0)),
        ];
        let told = told(&recorder(2), events);
        told.into_iter().filter(|line| line.contains("woken onto")).collect::<Vec<_>>()
    };
    assert_eq!(until_pinned("0-1"), ["5 2 woken onto 0, 1 idled"]);
    assert_eq!(until_pinned("0"), [""; 0]);
}

#[test]
fn a_core_is_wasted_while_somebody_waits_behind_another() {
    let events = vec![
        (0, 1, switch(0, 9, Left::Sleeping)),
        (0, 0, switch(1, 0, Left::Preempted)),
        (0, 0, queue(0, 1)),
        (9, 0, waking(2, 0)),
        (9, 0, What::Allowed { thread: 2, cores: Box::new("0-1".parse().unwrap()) }),
        (10, 0, woken(2, 0)),
        (11, 0, queue(0, 2)),
        (20, 1, queue(1, 1)),
        (30, 1, queue(1, 0)),
        (40, 0, switch(2, 1, Left::Sleeping)),
        (40, 0, queue(0, 1)),
        (50, 0, queue(0, 0)),
    ];
    let told = told(&recorder(2), events);
    let marks: Vec<_> = told.iter().filter(|line| line.contains("core 1")).collect();
    assert_eq!(marks, ["10 core 1: wasted", "20 core 1: ", "30 core 1: wasted", "40 core 1: "]);
}

#[test]
fn sizes_alone_tell_waste_where_no_thread_is_known() {
    let events = vec![
        (0, 1, queue(1, 0)),
        (0, 0, queue(0, 1)),
        (5, 0, queue(0, 2)),
        (9, 0, queue(0, 1)),
        (10, 0, queue(0, 0)),
    ];
    let told = told(&meta(Source::WastedCores, 2), events);
    assert_eq!(told, ["5 core 1: wasted", "9 core 1: "]);
}

#[test]
fn nothing_is_said_of_a_core_whose_events_were_lost() {
    let events = vec![
        (0, 0, queue(0, 2)),
        (10, 0, What::Lost { count: 3 }),
        // A size does not say what runs there; a keyframe does.
        (20, 0, queue(0, 1)),
        (25, 0, frame(1, &[])),
    ];
    let wanted = ["core 0 unknown 0-10", "10 core 0: lost", "25 core 0: "];
    assert_eq!(told(&recorder(2), events), wanted);
}

#[test]
fn a_gap_in_the_numbers_is_a_loss() {
    let (mut replay, mut told) = (Replay::new(&recorder(1)), Told::default());
    for (sequence, at) in [(0, 0), (1, 10), (5, 20)] {
        let event = Event { at: Nanos(at), core: CoreId(0), sequence, what: waking(1, 0) };
        replay.push(&event, &mut told);
    }
    assert!(told.0.contains(&"core 0 unknown 10-20".to_owned()), "{:?}", told.0);
}

#[test]
fn a_number_used_again_is_another_thread() {
    let events = vec![
        (0, 0, waking(5, 0)),
        (1, 0, switch(5, 0, Left::Preempted)),
        (2, 0, switch(0, 5, Left::Dead)),
        (2, 0, What::Exit { thread: 5 }),
        (3, 0, waking(5, 0)),
        (7, 0, switch(5, 0, Left::Preempted)),
    ];
    let told = told(&recorder(1), events);
    assert!(told.contains(&"1 was late by 1".into()) && told.contains(&"2 was late by 4".into()));
}

/// A keyframe in which core 0 runs one thread while others wait, and core 1 idles.
fn frame(running: i32, waits: &[i32]) -> What {
    let size = waits.len() as u32 + 1;
    let core = |core, running, size| CoreState {
        core: CoreId(core),
        running,
        queued: size,
        runnable: size,
        weight: u64::from(size) * 1024,
        average: 0,
        wake_pending: false,
        domain: CoreSet::EMPTY,
    };
    let state = |thread, state| ThreadState {
        thread: runner(thread),
        core: CoreId(0),
        state,
        allowed: "0-1".parse().unwrap(),
        bound: false,
    };
    let waits = waits.iter().map(|thread| state(*thread, Activity::Waiting));
    let threads = waits.chain([state(running, Activity::Running)]).collect();
    let cores = vec![core(0, running, size), core(1, 0, 0)];
    What::Keyframe(Arc::new(Keyframe { cores, threads }))
}

#[test]
fn a_keyframe_corrects_what_went_unseen() {
    let events = vec![(0, 0, frame(1, &[2])), (10, 0, frame(2, &[3])), (30, 0, queue(0, 2))];
    let told = told(&recorder(2), events);
    assert!(told.contains(&"0 core 1: wasted".into()), "{told:?}");
    assert!(told.contains(&"1 waited on 0 0-10".into()), "the first one known waited: {told:?}");
    assert!(told.iter().any(|line| line.ends_with("waited on 0 10-30")), "{told:?}");
}

prop_compose! {
    /// Events that no scheduler would make, with cores that are not there.
    fn nonsense()(kind in 0..12, thread in -1..4i32, other in 0..4i32, core in 0u16..4, to in 0u16..4, size in 0u32..9) -> What {
        match kind {
            0 => switch(thread, other, Left::Preempted),
            1 => switch(thread, other, Left::Sleeping),
            2 => waking(thread, to),
            3 => woken(thread, to),
            4 => What::Migrate { thread, from: CoreId(core), to: CoreId(to), cause: MoveCause::Unknown },
            5 => What::Exit { thread },
            6 => What::Fork { parent: other, child: runner(thread) },
            7 => What::Allowed { thread, cores: CoreSet::of(CoreId(to)).into() },
            8 => queue(to, size),
            9 => What::Lost { count: 1 },
            10 => What::Online { of: CoreId(to), online: size % 2 == 0 },
            _ => What::Keyframe(Arc::new(Keyframe::default())),
        }
    }
}

proptest! {
    #[test]
    fn no_stream_of_events_panics_and_time_is_kept(
        events in proptest::collection::vec((0u64..1_000_000, 0u16..4, nonsense()), 0..300),
        from in 0u64..50_000_000,
    ) {
        let range = Range { from: Nanos(from), to: Nanos(from + 40_000_000) };
        let mut builder = Builder::new(recorder(3), range).unwrap();
        let mut now = 0;
        for (sequence, (later, core, what)) in events.into_iter().enumerate() {
            now += later;
            let event = Event { at: Nanos(now), core: CoreId(core), sequence: sequence as u64, what };
            builder.push(&event).unwrap();
        }
        let picture = builder.finish().unwrap();
        prop_assert!(picture.index.span_ns <= 40_000_000);
        prop_assert!(picture.index.wasted_ns <= 3 * picture.index.span_ns);
    }
}
