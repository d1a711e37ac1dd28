//! Causes of events, and what events lack is unknown.

use std::sync::Arc;

use proptest::prelude::*;
use quell_model::{
    Activity, Class, CoreId, CoreState, Event, Keyframe, Left, Meta, Nanos, Runner, Source, TaskId,
    TaskInfo, ThreadState, What,
};

use super::from_events::{Collector, Evidence, Follow, Window};
use super::tests::{
    CORE, SERVICE, any_step, batch, events_of, full, hog, idle, meta, runner, service,
};
use super::{Blame, Cause, Inquiry};

fn collected(meta: &Meta, follow: Follow, window: Window, events: &[Event]) -> Evidence {
    let mut collector = Collector::new(meta, follow, window);
    events.iter().for_each(|event| collector.push(event));
    collector.finish()
}

fn inquiry(evidence: Evidence) -> Inquiry {
    Inquiry::new(evidence.timeline, Vec::new(), Vec::new())
}

/// Numbers events as a recorder does.
#[derive(Default)]
struct Stream {
    events: Vec<Event>,
    next: [u64; 8],
}

impl Stream {
    fn at(mut self, us: u64, core: CoreId, what: What) -> Stream {
        self.push(Nanos::from_micros(us), core, what);
        self
    }

    fn push(&mut self, at: Nanos, core: CoreId, what: What) {
        let next = &mut self.next[core.index()];
        let sequence = *next;
        *next += if let What::Lost { count } = what { count } else { 1 };
        self.events.push(Event { at, core, sequence, what });
    }

    fn switch(self, us: u64, next: Runner, left: Runner, how: Left) -> Stream {
        let what = What::Switch { next, left: left.thread, how, stolen: Nanos::ZERO };
        self.at(us, CORE, what)
    }

    fn wake(self, us: u64) -> Stream {
        self.at(us, CORE, What::Waking { thread: service(), by: 0, target: CORE })
    }

    fn softirq(self, us: u64, begins: bool) -> Stream {
        self.at(us, CORE, What::Softirq { vector: 3, begins })
    }

    fn request(self, meta: &Meta, from: u64, to: u64) -> Blame {
        let evidence = collected(meta, Follow::processes([SERVICE]), Window::ALL, &self.events);
        inquiry(evidence).request(Nanos::from_micros(from), Nanos::from_micros(to))
    }
}

fn us(blame: &Blame, cause: Cause) -> u64 {
    blame.of(cause).as_micros()
}

fn keyframe(running: Runner, waiting: &[Runner]) -> What {
    let thread = |thread, state| ThreadState {
        thread,
        core: CORE,
        state,
        allowed: "0-7".parse().unwrap(),
        bound: false,
    };
    let mut threads = vec![thread(running, Activity::Running)];
    threads.extend(waiting.iter().map(|one| thread(*one, Activity::Waiting)));
    let core = CoreState {
        core: CORE,
        running: running.thread,
        queued: 0,
        runnable: 0,
        weight: 0,
        average: 0,
        wake_pending: false,
        domain: "0-7".parse().unwrap(),
    };
    What::Keyframe(Arc::new(Keyframe { cores: vec![core], threads }))
}

/// A hog keeps the service from its core for 800 us; then the service runs for 100.
fn stolen_core() -> Stream {
    Stream::default()
        .switch(0, hog(), idle(), Left::Sleeping)
        .wake(100)
        .switch(900, service(), hog(), Left::Sleeping)
        .switch(1_000, idle(), service(), Left::Sleeping)
        .at(2_000, CORE, What::Exit { thread: 99 })
}

#[test]
fn trace_without_softirqs_leaves_running_time_unknown() {
    let known = stolen_core().request(&full(), 100, 1_000);
    assert_eq!((us(&known, Cause::Behind(hog().name)), us(&known, Cause::Service)), (800, 100));
    let old = meta(Source::Recorder, &["sched_switch", "softirq_entry"]);
    let text = meta(Source::Ftrace, &[]);
    for meta in [old, text.clone()] {
        let blame = stolen_core().request(&meta, 100, 1_000);
        assert_eq!(us(&blame, Cause::Behind(hog().name)), 800, "{blame:?}");
        assert_eq!((us(&blame, Cause::Unknown), us(&blame, Cause::Service)), (100, 0));
    }
    // A simulated core has none, and a text with both kinds has them all.
    let simulated = stolen_core().request(&meta(Source::Simulator, &[]), 100, 1_000);
    assert_eq!(us(&simulated, Cause::Service), 100);
    let with_both = stolen_core().softirq(3_000, true).at(
        3_001,
        CORE,
        What::Interrupt { irq: 25, begins: true },
    );
    assert_eq!(us(&with_both.request(&text, 100, 1_000), Cause::Service), 100);
}

#[test]
fn waiting_for_an_outranked_thread_is_unknown_without_softirqs() {
    let stream = |meta: &Meta| {
        Stream::default()
            .switch(0, batch(), idle(), Left::Sleeping)
            .wake(100)
            .switch(900, service(), batch(), Left::Preempted)
            .switch(950, idle(), service(), Left::Sleeping)
            .request(meta, 100, 950)
    };
    assert_eq!(us(&stream(&full()), Cause::KernelSection(batch().name)), 800);
    assert_eq!(us(&stream(&meta(Source::Perf, &[])), Cause::Unknown), 850);
}

#[test]
fn lost_events_are_unknown_up_to_the_next_keyframe() {
    // The service runs from 50 on as far as is known; events between 200 and 600 are lost, a keyframe comes at 700.
    let stream = || {
        Stream::default()
            .switch(0, idle(), batch(), Left::Sleeping)
            .switch(50, service(), idle(), Left::Sleeping)
            .softirq(190, true)
            .softirq(200, false)
            .at(600, CORE, What::Lost { count: 3 })
            .switch(650, service(), hog(), Left::Sleeping)
            .at(700, CORE, keyframe(service(), &[]))
            .switch(900, idle(), service(), Left::Sleeping)
    };
    let blame = stream().request(&full(), 50, 900);
    assert_eq!(us(&blame, Cause::Unknown), 500, "{blame:?}");
    assert_eq!((us(&blame, Cause::Service), us(&blame, Cause::Softirq)), (340, 10));
    let evidence = collected(&full(), Follow::processes([SERVICE]), Window::ALL, &stream().events);
    assert_eq!(evidence.lost, 3);
    // A gap in the numbers is a loss, too.
    let mut gap = stream();
    gap.events.retain(|event| !matches!(event.what, What::Lost { .. }));
    let blame = gap.request(&full(), 50, 900);
    // It is seen with the event behind it, and lasts from the one before it.
    assert_eq!(us(&blame, Cause::Unknown), 500, "{blame:?}");
    // Without a keyframe nothing behind the loss is known.
    let mut open = stream();
    open.events.retain(|event| !matches!(event.what, What::Keyframe(_)));
    let blame = open.request(&full(), 50, 900);
    assert_eq!((us(&blame, Cause::Unknown), us(&blame, Cause::Service)), (700, 140), "{blame:?}");
}

#[test]
fn softirq_whose_end_is_lost_ends_with_the_loss() {
    let blame = Stream::default()
        .switch(0, service(), idle(), Left::Sleeping)
        .softirq(100, true)
        .at(400, CORE, What::Lost { count: 1 })
        .at(500, CORE, keyframe(service(), &[]))
        .switch(900, idle(), service(), Left::Sleeping)
        .request(&full(), 0, 900);
    assert_eq!(us(&blame, Cause::Unknown), 400, "{blame:?}");
    assert_eq!((us(&blame, Cause::Service), us(&blame, Cause::Softirq)), (500, 0));
}

#[test]
fn window_begins_with_the_keyframe_before_it() {
    let second = 1_000_000;
    let mut stream = Stream::default();
    // Losses and a service that was never seen to stop lie long before.
    stream =
        stream.switch(0, service(), idle(), Left::Sleeping).at(10, CORE, What::Lost { count: 9 });
    for at in 1..5 {
        stream = stream.at(at * second, CORE, keyframe(hog(), &[service()]));
    }
    let end = 4 * second + 700_000;
    stream = stream
        .switch(end, service(), hog(), Left::Sleeping)
        .switch(end + 50, idle(), service(), Left::Sleeping)
        .at(end + 100, CORE, What::Exit { thread: 99 });
    let window = Window { from: Nanos::from_micros(4 * second + 500_000), to: Nanos::MAX };
    let evidence = collected(&full(), Follow::processes([SERVICE]), window, &stream.events);
    let inquiry = inquiry(evidence);
    assert_eq!(inquiry.recorded().0, window.from);
    let waits = inquiry.waits(Nanos::from_millis(1));
    assert_eq!(waits.len(), 1);
    assert_eq!(waits[0].2.main(), Cause::Behind(hog().name));
    assert_eq!(waits[0].0, Nanos::from_secs(4));
    let blame = inquiry.request(window.from, Nanos::from_micros(end + 50));
    assert_eq!(us(&blame, Cause::Behind(hog().name)) + us(&blame, Cause::Service), 200_050);
}

#[test]
fn threads_are_chosen_by_process_name_task_or_parent() {
    let follows = |follow: Follow, more: Option<What>| {
        let mut stream = Stream::default();
        more.into_iter().for_each(|what| stream.push(Nanos(1), CORE, what));
        let events = stream
            .wake(100)
            .switch(150, service(), idle(), Left::Sleeping)
            .switch(200, idle(), service(), Left::Sleeping)
            .events;
        collected(&full(), follow, Window::ALL, &events).is_found
    };
    assert!(follows(Follow::processes([SERVICE]), None));
    assert!(!follows(Follow::processes([SERVICE + 1]), None));
    assert!(follows(Follow::comm("service"), None));
    assert!(!follows(Follow::comm("serv"), None));
    let task = |name: &str| TaskInfo {
        id: TaskId { index: 0, generation: 0 },
        name: name.to_owned(),
        class: Class::LatencyCritical,
        processes: vec![SERVICE],
    };
    assert!(follows(Follow::task("web"), Some(What::Task(Arc::new(task("web"))))));
    assert!(!follows(Follow::task("web"), Some(What::Task(Arc::new(task("batch"))))));
    assert!(!follows(Follow::task("web"), None));
    // The parent has to have been seen.
    let parent = runner(77, service().rank, "parent");
    let fork = |stream: Stream| stream.at(60, CORE, What::Fork { parent: 77, child: service() });
    let events = fork(Stream::default().switch(50, parent, idle(), Left::Sleeping))
        .switch(150, service(), parent, Left::Sleeping)
        .switch(200, idle(), service(), Left::Sleeping)
        .events;
    let evidence = collected(&full(), Follow::processes([77]), Window::ALL, &events);
    assert!(evidence.timeline.threads.contains_key(&SERVICE));
}

#[test]
fn queueing_counts_as_wake_up_where_no_waking_is_recorded() {
    let blame = Stream::default()
        .switch(0, hog(), idle(), Left::Sleeping)
        .at(100, CORE, What::Woken { thread: service(), on: CORE, is_new: false })
        .switch(900, service(), hog(), Left::Sleeping)
        .switch(1_000, idle(), service(), Left::Sleeping)
        .request(&full(), 100, 1_000);
    assert_eq!(us(&blame, Cause::Behind(hog().name)), 800, "{blame:?}");
}

/// A stream that has `sched_waking` alone, as `quell why` records it live.
#[test]
fn wakeup_of_running_thread_is_no_wait_at_its_next_sleep() {
    let stream = Stream::default()
        .switch(0, service(), idle(), Left::Sleeping)
        .wake(100)
        .switch(1_000, idle(), service(), Left::Sleeping)
        .wake(5_000)
        .switch(5_010, service(), idle(), Left::Sleeping)
        .at(6_000, CORE, What::Exit { thread: 99 });
    let evidence = collected(&full(), Follow::processes([SERVICE]), Window::ALL, &stream.events);
    let waits = inquiry(evidence).waits(Nanos::ZERO);
    let spans: Vec<_> =
        waits.iter().map(|(from, to, _)| (from.as_micros(), to.as_micros())).collect();
    assert_eq!(spans, [(5_000, 5_010)]);
}

#[test]
fn wait_is_one_however_often_the_thread_is_moved() {
    let other = CoreId(2);
    let to = |from, to| What::Migrate {
        thread: SERVICE,
        from,
        to,
        cause: quell_model::MoveCause::Unknown,
    };
    let stream = Stream::default()
        .switch(0, hog(), idle(), Left::Sleeping)
        .wake(100)
        .at(150, CORE, What::Woken { thread: service(), on: CORE, is_new: false })
        .at(200, other, to(CORE, other))
        .at(300, CORE, to(other, CORE))
        .switch(400, service(), hog(), Left::Sleeping)
        .at(400, CORE, What::Exit { thread: 99 });
    let evidence = collected(&full(), Follow::processes([SERVICE]), Window::ALL, &stream.events);
    let waits = inquiry(evidence).waits(Nanos::ZERO);
    assert_eq!(waits.len(), 1);
    assert_eq!((waits[0].0.as_micros(), waits[0].1.as_micros()), (100, 400));
    assert_eq!(us(&waits[0].2, Cause::Behind(hog().name)), 300);
}

#[test]
fn thread_that_contradicting_events_lose_is_unknown() {
    // The hog is switched away on the service's core, but nothing shows when it came.
    let blame = Stream::default()
        .switch(0, service(), idle(), Left::Sleeping)
        .switch(400, batch(), hog(), Left::Sleeping)
        .wake(900)
        .switch(1_000, service(), batch(), Left::Preempted)
        .at(1_100, CORE, What::Exit { thread: 99 })
        .request(&full(), 0, 1_100);
    assert_eq!((us(&blame, Cause::Service), us(&blame, Cause::Unknown)), (500, 500), "{blame:?}");
    assert_eq!(us(&blame, Cause::KernelSection(batch().name)), 100);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn windows_with_losses_are_charged_but_not_to_the_service(
        record in proptest::collection::vec(any_step(), 0..100),
        lost in proptest::collection::vec((0..1_000_000u64, 0..2u16, 1..9u64), 1..4),
        from in 0..1_000_000u64,
        length in 1..500_000u64,
    ) {
        let end = Nanos(1_000_000);
        let mut events = events_of(&record, end);
        for (at, core, count) in &lost {
            let at = Nanos(*at);
            let place = events.partition_point(|event| event.at <= at);
            let what = What::Lost { count: *count };
            events.insert(place, Event { at, core: CoreId(*core), sequence: 0, what });
        }
        let mut next = [0; 8];
        for event in &mut events {
            let next: &mut u64 = &mut next[event.core.index()];
            event.sequence = *next;
            *next += if let What::Lost { count } = event.what { count } else { 1 };
        }
        let evidence = collected(&full(), Follow::processes([SERVICE]), Window::ALL, &events);
        prop_assert_eq!(evidence.lost, lost.iter().map(|(.., count)| count).sum::<u64>());
        let inquiry = inquiry(evidence);
        let blame = inquiry.request(Nanos(from), Nanos(from + length));
        prop_assert_eq!(blame.total(), Nanos(length), "{:?}", blame);
        // No keyframe ends a loss: from then on nothing of that core is known.
        let since = |core| lost.iter().filter(|(_, on, _)| *on == core).map(|(at, ..)| *at).min();
        if let (Some(first), Some(second)) = (since(0), since(1))
            && from >= first.max(second)
        {
            prop_assert_eq!(blame.of(Cause::Service), Nanos::ZERO, "{:?}", blame);
        }
    }
}
