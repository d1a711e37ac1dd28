//! Hand-made records with known answers, and any record at all.

use proptest::prelude::*;
use quell_model::{
    CoreId, Event, Left, Meta, Nanos, Rank, Runner, Source, ThreadName, Topology, What,
};

use super::*;

pub(super) const SERVICE: i32 = 10;
pub(super) const CORE: CoreId = CoreId(1);

pub(super) fn runner(thread: i32, rank: Rank, name: &str) -> Runner {
    Runner { thread, process: thread, rank, name: ThreadName::new(name.as_bytes()) }
}

pub(super) fn service() -> Runner {
    runner(SERVICE, Rank::realtime(10), "service")
}

pub(super) fn batch() -> Runner {
    runner(20, Rank::BENEATH, "batch")
}

pub(super) fn hog() -> Runner {
    runner(30, Rank::realtime(50), "hog")
}

pub(super) fn idle() -> Runner {
    runner(0, Rank::NOBODY, "swapper")
}

pub(super) fn meta(source: Source, hooks: &[&str]) -> Meta {
    Meta {
        source,
        topology: Topology::regular(1, 8, 1).unwrap(),
        kernel: String::new(),
        host: String::new(),
        hooks: hooks.iter().map(|hook| (*hook).to_owned()).collect(),
        absent: vec![],
        wall_offset_ns: 0,
    }
}

/// Of a recorder with all that `why` needs.
pub(super) fn full() -> Meta {
    meta(Source::Recorder, &["sched_switch", "softirq_entry", "irq_handler_entry"])
}

/// What a core does at a time.
pub(super) type Step = (Nanos, CoreId, What);

/// The events that a recorder gives for these steps, with one of another core at either end.
pub(super) fn events_of(steps: &[Step], end: Nanos) -> Vec<Event> {
    let mark = |at| (at, CoreId(7), What::Exit { thread: 99 });
    let mut sorted = steps.to_vec();
    sorted.sort_by_key(|(at, ..)| *at);
    let mut numbers = [0; 8];
    let all = [mark(Nanos::ZERO)].into_iter().chain(sorted).chain([mark(end)]);
    all.map(|(at, core, what)| {
        let next = &mut numbers[core.index()];
        let sequence = *next;
        *next += 1;
        Event { at, core, sequence, what }
    })
    .collect()
}

/// What the service did in a record up to a time.
pub(super) fn timeline(steps: &[Step], end: Nanos) -> Timeline {
    let mut collector = Collector::new(&full(), Follow::processes([SERVICE]), Window::ALL);
    events_of(steps, end).iter().for_each(|event| collector.push(event));
    collector.finish().timeline
}

/// A record of one core, in microseconds.
#[derive(Default)]
struct Script(Vec<Step>);

impl Script {
    fn push(mut self, at: u64, what: What) -> Script {
        self.0.push((Nanos::from_micros(at), CORE, what));
        self
    }

    fn switch(self, at: u64, next: Runner, left: Runner, how: Left) -> Script {
        self.push(at, What::Switch { next, left: left.thread, how, stolen: Nanos::ZERO })
    }

    fn stolen(mut self, us: u64) -> Script {
        if let Some((.., What::Switch { stolen, .. })) = self.0.last_mut() {
            *stolen = Nanos::from_micros(us);
        }
        self
    }

    fn wake(self, at: u64) -> Script {
        self.push(at, What::Waking { thread: service(), by: 0, target: CORE })
    }

    fn timeline(self) -> Timeline {
        timeline(&self.0, Nanos::from_secs(1))
    }

    fn inquiry(self) -> Inquiry {
        Inquiry::new(self.timeline(), Vec::new(), Vec::new())
    }

    fn request(self, from: u64, to: u64) -> Blame {
        self.inquiry().request(Nanos::from_micros(from), Nanos::from_micros(to))
    }
}

/// A gap of the load generator, in microseconds.
fn gap(from: u64, to: u64, switched: bool) -> Gap {
    let (from, to) = (Nanos::from_micros(from), Nanos::from_micros(to));
    Gap { core: CoreId(0), from, to, switched }
}

fn us(blame: &Blame, cause: Cause) -> u64 {
    blame.of(cause).as_micros()
}

#[test]
fn a_switch_that_was_not_told_is_put_where_the_wake_up_preempts() {
    // The batch work's switch to the service is missing.
    let script = Script::default()
        .switch(0, service(), idle(), Left::Sleeping)
        .switch(10, batch(), service(), Left::Sleeping)
        .wake(40)
        .switch(100, batch(), service(), Left::Sleeping)
        .wake(200)
        .switch(205, service(), batch(), Left::Preempted)
        .switch(300, idle(), service(), Left::Sleeping);
    let inquiry = script.inquiry();
    let blame = inquiry.request(Nanos::from_micros(40), Nanos::from_micros(100));
    assert_eq!((us(&blame, Cause::Service), blame.of(Cause::Unexplained)), (60, Nanos::ZERO));
    // With the wake-up missing too, it had the core for all it knows.
    let script = Script::default()
        .switch(0, service(), idle(), Left::Sleeping)
        .switch(10, batch(), service(), Left::Sleeping)
        .switch(100, batch(), service(), Left::Sleeping);
    let blame = script.request(40, 100);
    assert_eq!((us(&blame, Cause::Service), blame.of(Cause::Unexplained)), (60, Nanos::ZERO));
}

#[test]
fn waiting_is_charged_to_hogs_and_kernel_sections() {
    for (who, cause) in [
        (hog(), Cause::Behind(hog().name)),
        (batch(), Cause::KernelSection(batch().name)),
        (idle(), Cause::IdleCore),
    ] {
        let blame = Script::default()
            .switch(0, who, idle(), Left::Sleeping)
            .wake(100)
            .switch(900, service(), who, Left::Preempted)
            .switch(950, who, service(), Left::Sleeping)
            .request(90, 960);
        assert_eq!(us(&blame, cause), 800, "{blame:?}");
        assert_eq!(us(&blame, Cause::Service), 50);
        assert_eq!(us(&blame, Cause::Unexplained), 20);
        assert_eq!(blame.main(), cause);
        assert_eq!(blame.total(), Nanos::from_micros(870));
    }
}

#[test]
fn request_behind_a_backlog_is_charged_to_its_cause() {
    let blame = Script::default()
        .switch(0, hog(), idle(), Left::Sleeping)
        .wake(100)
        .switch(5_100, service(), hog(), Left::Sleeping)
        .switch(7_000, idle(), service(), Left::Sleeping)
        .request(5_200, 6_900);
    assert_eq!(us(&blame, Cause::Behind(hog().name)), 1_700, "{blame:?}");
    assert_eq!(us(&blame, Cause::Service), 0);
}

#[test]
fn a_long_request_of_the_service_is_its_own() {
    let blame = Script::default()
        .switch(0, idle(), batch(), Left::Sleeping)
        .wake(100)
        .switch(105, service(), idle(), Left::Sleeping)
        .switch(2_000, idle(), service(), Left::Sleeping)
        .request(90, 2_010);
    assert_eq!((blame.main(), us(&blame, Cause::Service)), (Cause::Service, 1_895));
}

#[test]
fn softirqs_stops_and_stolen_time_have_their_own_names() {
    let blame = Script::default()
        .switch(0, idle(), batch(), Left::Sleeping)
        .wake(100)
        .switch(110, service(), idle(), Left::Sleeping)
        .push(200, What::Softirq { vector: 3, begins: true })
        .push(900, What::Softirq { vector: 3, begins: false })
        .switch(1_000, idle(), service(), Left::Stopped)
        .wake(1_500)
        .switch(1_510, service(), idle(), Left::Sleeping)
        .switch(1_700, idle(), service(), Left::Sleeping)
        .stolen(90)
        .request(100, 1_700);
    assert_eq!(us(&blame, Cause::Softirq), 700, "{blame:?}");
    assert_eq!(us(&blame, Cause::Stopped), 500);
    assert_eq!(us(&blame, Cause::Hypervisor), 90);
    assert_eq!(us(&blame, Cause::IdleCore), 20);
    assert_eq!(us(&blame, Cause::Service), 290);
}

#[test]
fn gap_of_the_load_generator_explains_a_late_request() {
    let script = Script::default()
        .switch(0, idle(), batch(), Left::Sleeping)
        .wake(1_000)
        .switch(1_010, service(), idle(), Left::Sleeping)
        .switch(1_020, idle(), service(), Left::Sleeping);
    let timeline = script.timeline();
    let client = vec![gap(100, 400, true), gap(500, 990, false)];
    let inquiry = Inquiry::new(timeline, Vec::new(), client);
    let blame = inquiry.request(Nanos::from_micros(100), Nanos::from_micros(1_025));
    assert_eq!(us(&blame, Cause::Generator), 300, "{blame:?}");
    assert_eq!(us(&blame, Cause::Hypervisor), 490);
    assert_eq!(us(&blame, Cause::Unexplained), 115);
}

#[test]
fn stopped_machine_is_not_charged_to_the_kernel() {
    let script = Script::default().switch(0, batch(), idle(), Left::Sleeping).wake(100).switch(
        1_100,
        service(),
        batch(),
        Left::Preempted,
    );
    let timeline = script.timeline();
    let client = vec![gap(200, 1_000, false), gap(1_000, 1_050, true)];
    let inquiry = Inquiry::new(timeline, Vec::new(), client);
    let blame = inquiry.request(Nanos::from_micros(100), Nanos::from_micros(1_100));
    assert_eq!(us(&blame, Cause::Hypervisor), 800, "{blame:?}");
    assert_eq!(us(&blame, Cause::KernelSection(batch().name)), 200);
}

#[test]
fn a_wake_up_that_meets_the_falling_asleep_is_a_wait() {
    let inquiry = Script::default()
        .switch(0, service(), idle(), Left::Sleeping)
        .wake(99)
        .switch(100, batch(), service(), Left::Sleeping)
        .switch(400, service(), batch(), Left::Preempted)
        .inquiry();
    let waits = inquiry.waits(Nanos::from_micros(200));
    assert_eq!(waits.len(), 1);
    assert_eq!(waits[0].2.main(), Cause::KernelSection(batch().name));
}

#[test]
fn the_report_counts_the_slow_ones_by_main_cause() {
    let inquiry = Script::default()
        .switch(0, hog(), idle(), Left::Sleeping)
        .wake(100)
        .switch(900, service(), hog(), Left::Sleeping)
        .switch(950, idle(), service(), Left::Sleeping)
        .inquiry();
    let at = Nanos::from_micros;
    let requests = vec![(at(90), at(960)), (at(890), at(940)), (at(2_000_000), at(3_000_000))];
    let slow = Report::of_requests(&inquiry, requests.clone(), Bound::AtLeast(at(500)), 5, 0);
    assert_eq!((slow.all, slow.slow, slow.outside), (2, 1, 1), "one is not in the record");
    assert!(slow.to_string().contains("at 0.000090 s"), "{slow}");
    assert!(slow.to_string().contains("1 more requests lie outside"), "{slow}");
    assert_eq!(slow.share_of("behind"), 1.0);
    assert!(slow.to_string().contains("waiting behind hog"), "{slow}");
    let half = Report::of_requests(&inquiry, requests, Bound::Slowest(0.5), 5, 3);
    assert_eq!((half.slow, half.bound_us), (1, 870.0));
    assert!(half.to_string().contains("3 events were lost"));
}

pub(super) fn any_step() -> impl Strategy<Value = Step> {
    let thread = prop_oneof![Just(service()), Just(batch()), Just(hog()), Just(idle())];
    let how = prop_oneof![
        Just(Left::Preempted),
        Just(Left::Sleeping),
        Just(Left::Blocked),
        Just(Left::Stopped),
        Just(Left::Dead)
    ];
    let core = || (0..2u16).prop_map(CoreId);
    let what = prop_oneof![
        (thread.clone(), thread.clone(), how, 0..5_000u64).prop_map(|(next, left, how, stolen)| {
            What::Switch { next, left: left.thread, how, stolen: Nanos(stolen) }
        }),
        (thread, core()).prop_map(|(thread, target)| What::Waking { thread, by: 0, target }),
        any::<bool>().prop_map(|begins| What::Softirq { vector: 3, begins }),
        any::<bool>().prop_map(|begins| What::Interrupt { irq: 25, begins }),
    ];
    (0..1_000_000u64, core(), what).prop_map(|(at, core, what)| (Nanos(at), core, what))
}

/// Spans of a line follow each other without overlap.
fn are_ordered(spans: impl Iterator<Item = super::timeline::Span>) -> bool {
    let spans: Vec<_> = spans.collect();
    spans.iter().all(|span| span.from <= span.to)
        && spans.windows(2).all(|pair| pair[0].to <= pair[1].from)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_window_is_charged_in_full_and_no_more(
        record in proptest::collection::vec(any_step(), 0..200),
        windows in proptest::collection::vec((0..1_000_000u64, 1..500_000u64), 1..8),
    ) {
        let timeline = timeline(&record, Nanos(1_000_000));
        for line in timeline.cores.values() {
            prop_assert!(are_ordered(line.runs.iter().map(|run| run.span)));
            prop_assert!(are_ordered(line.softirqs.iter().copied()));
            prop_assert!(are_ordered(line.interrupts.iter().copied()));
        }
        for stretches in timeline.threads.values() {
            prop_assert!(are_ordered(stretches.iter().map(|one| one.span)));
        }
        let inquiry = Inquiry::new(timeline, Vec::new(), Vec::new());
        for (from, length) in windows {
            let blame = inquiry.request(Nanos(from), Nanos(from + length));
            prop_assert_eq!(blame.total(), Nanos(length), "{:?}", blame);
        }
    }
}
