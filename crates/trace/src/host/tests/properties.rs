//! What holds of every stream.

use proptest::collection::vec;
use proptest::prelude::*;

use super::matching::{is_matchable, lowest};
use super::reference::{RefRunning, Reference};
use super::toy::{self, Damage, Truth};
use super::*;

const CORES: u16 = 3;

/// Any event about a few threads and cores, and some that no kernel gives.
pub(super) fn anything() -> impl Strategy<Value = What> {
    let core = || prop_oneof![12 => 0..CORES, 1 => Just(9)].prop_map(CoreId);
    let tid = || prop_oneof![12 => 0..6i32, 1 => Just(-1)];
    let prio = prop_oneof![
        4 => Just(Rank::FAIR),
        1 => Just(Rank::BENEATH),
        1 => Just(Rank::realtime(5)),
    ];
    let who = (tid(), prio).prop_map(|(tid, prio)| runner(tid, prio));
    let how = prop_oneof![
        3 => Just(Left::Preempted),
        2 => Just(Left::Sleeping),
        1 => Just(Left::Blocked),
        1 => Just(Left::Stopped),
        1 => Just(Left::Dead),
    ];
    let set = || (0..8u64).prop_map(|mask| CoreSet::from_words(&[mask]));
    prop_oneof![
        6 => (who.clone(), tid(), how)
            .prop_map(|(next, left, how)| What::Switch { next, left, how, stolen: Nanos::ZERO }),
        3 => (who.clone(), core()).prop_map(|(thread, target)| What::Waking { thread, by: 0, target }),
        4 => (who.clone(), core(), prop::bool::weighted(0.2))
            .prop_map(|(thread, on, is_new)| What::Woken { thread, on, is_new }),
        3 => (tid(), core(), core()).prop_map(|(thread, from, to)| What::Migrate {
            thread, from, to, cause: MoveCause::Unknown
        }),
        1 => (tid(), who.clone()).prop_map(|(parent, child)| What::Fork { parent, child }),
        1 => tid().prop_map(|thread| What::Exit { thread }),
        2 => (tid(), set()).prop_map(|(thread, cores)| What::Allowed { thread, cores: cores.into() }),
        2 => (core(), 0..4u32)
            .prop_map(|(of, runnable)| What::Queue { of, queued: runnable, runnable }),
        1 => (core(), any::<bool>()).prop_map(|(of, online)| What::Online { of, online }),
        1 => (0..4u64).prop_map(|count| What::Lost { count }),
        1 => frames(),
    ]
}

fn frames() -> impl Strategy<Value = What> {
    let core = (0..CORES + 1, -1..6i32, 0..4u32, prop::bool::weighted(0.1)).prop_map(
        |(core, running, runnable, wake_pending)| CoreState {
            core: CoreId(core),
            running,
            queued: runnable,
            runnable,
            weight: 0,
            average: 0,
            wake_pending,
            domain: CoreSet::EMPTY,
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
    let thread = (0..6i32, 0..CORES, state, 0..8u64, prop::bool::weighted(0.2)).prop_map(
        |(tid, core, state, mask, bound)| {
            let allowed = CoreSet::from_words(&[mask]);
            Entry { bound, ..entry_of(fair(tid), core, state, allowed) }
        },
    );
    (vec(core, 0..4), vec(thread, 0..6))
        .prop_map(|(cores, threads)| What::Keyframe(Arc::new(Keyframe { cores, threads })))
}

pub(crate) fn streams() -> impl Strategy<Value = Vec<Event>> {
    let event = (0..60_000u64, 0..CORES, prop::bool::weighted(0.03), anything());
    vec(event, 0..120).prop_map(|events| {
        let (mut now, mut sequence) = (1_000, [0; CORES as usize]);
        let number = |(later, core, skips, what): (u64, u16, bool, What)| {
            // Half of the events are simultaneous with their predecessor.
            now += if later % 2 == 0 { 0 } else { later };
            let next = &mut sequence[usize::from(core)];
            *next += u64::from(skips);
            let event = Event { at: Nanos(now), core: CoreId(core), sequence: *next, what };
            *next += match event.what {
                What::Lost { count } => count.max(1),
                _ => 1,
            };
            event
        };
        events.into_iter().map(number).collect()
    })
}

/// What both say of a host.
fn compare(host: &HostState, reference: &Reference) -> Result<(), TestCaseError> {
    for (index, core) in reference.cores.iter().enumerate() {
        let running = match host.occupant(index) {
            Occupant::Unknown => RefRunning::Unknown,
            Occupant::Idle => RefRunning::Idle,
            Occupant::Thread(thread) => RefRunning::Tid(thread.tid()),
        };
        prop_assert_eq!(running, core.running, "core {}", index);
        prop_assert_eq!(host.cores()[index].waiting as usize, reference.waiting(index));
        prop_assert_eq!(host.cores()[index].is_online, core.online);
        prop_assert_eq!(host.cores()[index].is_lost, core.lost);
    }
    let mut states: Vec<_> =
        host.threads().map(|one| (one.tid(), one.state, one.core, one.prio())).collect();
    states.sort_by_key(|state| state.0);
    let wanted = reference.threads.iter();
    let wanted: Vec<_> = wanted.map(|(tid, one)| (*tid, one.state, one.core, one.prio)).collect();
    prop_assert_eq!(states, wanted);
    prop_assert_eq!(host.idle(), &reference.idle());
    prop_assert_eq!(host.contended(), &reference.contended());
    Ok(())
}

/// The rate and cores of an instant by brute force.
fn compare_wasted(wasted: &WastedTime, reference: &Reference) -> Result<(), TestCaseError> {
    let idle = reference.idle();
    let claims = reference.claims();
    let of = |layer: usize| claims.iter().map(|claim| claim[layer]).collect::<Vec<_>>();
    let first = lowest(&idle, &of(0), &CoreSet::EMPTY);
    let both = lowest(&idle, &of(1), &first);
    prop_assert_eq!(wasted.cores().wasted, first);
    prop_assert_eq!(wasted.cores().allowed_by_policy, both.difference(&first));
    let rate = wasted.rate();
    prop_assert_eq!(rate.wasted.thread_ns as usize, first.len());
    prop_assert_eq!(rate.total().thread_ns as usize, both.len());
    prop_assert_eq!(rate.wasted.wall_ns, u64::from(!first.is_empty()));
    prop_assert!(rate.total().core_ns <= rate.total().thread_ns);
    prop_assert!(rate.wasted.core_ns >= rate.wasted.wall_ns);
    let numbers: Vec<u16> = first.iter().map(|core| core.0).collect();
    prop_assert!(is_matchable(&numbers, &mut of(0)));
    Ok(())
}

/// Spans of each thread and core follow each other without overlap.
#[derive(Default)]
struct Spans {
    threads: std::collections::HashMap<u32, Nanos>,
    cores: std::collections::HashMap<usize, Nanos>,
    matched: u64,
}

impl HostVisitor for Spans {
    const TRACKS_DELAYS: bool = true;
    const TRACKS_PLACEMENT: bool = true;

    fn thread_span(&mut self, thread: &HostThread, until: Nanos) {
        let end = self.threads.insert(thread.serial, until).unwrap_or_default();
        assert!(end <= thread.since && thread.since < until, "{thread:?} until {until:?}");
    }
    fn core_span(&mut self, core: &HostCore, _: Occupant<'_>, from: Nanos, to: Nanos, _: Nanos) {
        let end = self.cores.insert(core.index, to);
        assert!(end.is_none_or(|end| end == from) && from < to, "{core:?} {from:?}-{to:?}");
    }
    fn delayed(&mut self, thread: &HostThread, by: &HostThread, from: Nanos, to: Nanos) {
        assert!(from < to && by.index != thread.index);
        self.matched += to.since(from).0;
    }
}

fn sources() -> impl Strategy<Value = Source> {
    prop_oneof![Just(Source::Recorder), Just(Source::Ftrace), Just(Source::Simulator)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn state_and_waste_equal_the_reference(source in sources(), events in streams()) {
        let meta = meta(source, CORES);
        let (mut host, mut reference) = (HostState::new(&meta), Reference::new(&meta));
        let mut wasted = WastedTime::default();
        let mut marked = 0;
        for event in &events {
            let time = event.at.since(host.now()).0;
            wasted.advance(&host, event.at);
            if time > 0 && host.origin().is_some() {
                compare_wasted(&wasted, &reference)?;
                let WastedCores { wasted, allowed_by_policy } = wasted.cores();
                marked += time * (wasted.len() + allowed_by_policy.len()) as u64;
            }
            host.push(event, &mut ());
            reference.event(event);
            prop_assert_eq!(host.validate(), Ok(()));
            compare(&host, &reference)?;
        }
        // The sums are the integral over the marked cores, wherever something was lost.
        prop_assert_eq!(wasted.total().total().thread_ns, marked);
        wasted.finish(&host);
        let mut parts = *wasted.judged();
        parts.add(wasted.unjudged());
        prop_assert_eq!(parts, wasted.total());
    }

    #[test]
    fn spans_of_a_stream_neither_overlap_nor_leave_a_gap_of_a_core(
        source in sources(),
        events in streams(),
        cuts in vec(any::<bool>(), 120),
    ) {
        let mut host = HostState::new(&meta(source, CORES));
        let mut spans = Spans::default();
        for (event, cut) in events.iter().zip(cuts) {
            host.push(event, &mut spans);
            if cut {
                host.cut(&mut spans);
            }
        }
        host.finish(&mut spans);
        let length = host.now().since(host.origin().unwrap_or_default());
        let ends = spans.cores.values().all(|end| *end == host.now());
        prop_assert!(ends && (length == Nanos::ZERO || spans.cores.len() == usize::from(CORES)));
    }

    #[test]
    fn visitor_and_plans_change_no_state(events in streams(), own in 0..6i32) {
        let meta = meta(Source::Recorder, CORES);
        let (mut plain, mut watched) = (HostState::new(&meta), HostState::new(&meta));
        plain.set_own([own], &mut ());
        let plan = PlanCores { planned: cores("0"), original: cores("0-1") };
        for (at, event) in events.iter().enumerate() {
            plain.push(event, &mut ());
            watched.push(event, &mut Spans::default());
            if at == events.len() / 2 {
                watched.set_own([own], &mut ());
                watched.set_plans([(1, plan)], [(2, plan)], &mut ());
            }
            prop_assert_eq!(watched.validate(), Ok(()));
        }
        if !events.is_empty() {
            prop_assert_eq!((plain.idle(), plain.contended()), (watched.idle(), watched.contended()));
        }
    }
}

/// Random runs of a small kernel.
const STREAMS: u64 = 2_500;

#[test]
fn undamaged_record_gives_the_true_state() {
    for seed in 0..STREAMS {
        let recorded = toy::record(seed, Source::Recorder, Damage::None);
        let mut host = HostState::new(&recorded.meta);
        for (at, (event, truth)) in recorded.events.iter().zip(&recorded.truths).enumerate() {
            host.push(event, &mut ());
            host.validate().unwrap();
            // Within an instant the kernel's steps are recorded one after the other.
            if recorded.events.get(at + 1).is_some_and(|next| next.at == event.at) {
                continue;
            }
            for (tid, truth) in truth {
                let thread = host.thread_by_tid(*tid).unwrap();
                let state = (thread.state, thread.core);
                let is_true = match truth {
                    Truth::Running(core) => state == (ThreadState::Running, *core),
                    Truth::Waiting(core) => state == (ThreadState::Waiting, *core),
                    Truth::Waking(core) => {
                        // A keyframe lists it as waiting.
                        thread.state.is_listed() && thread.core == *core
                    }
                    Truth::Sleeping(_) => !thread.state.is_placed(),
                };
                assert!(is_true, "seed {seed}: {thread:?} is {truth:?} after {event:?}");
            }
            assert_eq!(host.threads().count(), truth.len(), "seed {seed}");
        }
    }
}
