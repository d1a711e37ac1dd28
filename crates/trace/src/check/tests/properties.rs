//! What holds of every stream.

use std::sync::Arc;

use proptest::prelude::*;
use quell_model::{
    Activity, CoreId, CoreSet, CoreState, Event, Keyframe, Left, MoveCause, Nanos, Permille, Rank,
    ThreadState, What,
};

use super::super::*;
use super::stream::{Stream, fair, ms, nobody, on, runner};

const CORES: u16 = 4;
const THREADS: usize = 6;

/// What a random scheduler does next.
#[derive(Clone, Copy, Debug)]
enum Act {
    Wake { thread: usize, core: u16 },
    Sleep { core: u16 },
    Turn { core: u16 },
    Steal { from: u16, to: u16 },
}

fn act() -> impl Strategy<Value = (u64, Act)> {
    let core = 0..CORES;
    let act = prop_oneof![
        4 => (0..THREADS, core.clone()).prop_map(|(thread, core)| Act::Wake { thread, core }),
        2 => core.clone().prop_map(|core| Act::Sleep { core }),
        2 => core.clone().prop_map(|core| Act::Turn { core }),
        1 => (core.clone(), core).prop_map(|(from, to)| Act::Steal { from, to }),
    ];
    (0..60_u64, act)
}

/// A host with a scheduler that does as it is told, within affinities.
struct Toy {
    stream: Stream,
    allowed: Vec<CoreSet>,
    running: Vec<Option<usize>>,
    queues: Vec<Vec<usize>>,
}

impl Toy {
    fn new(masks: &[u16]) -> Toy {
        let core = |mask: u16| (0..CORES).filter(|at| mask >> at & 1 == 1).map(CoreId).collect();
        let mut toy = Toy {
            stream: Stream::of(CORES),
            allowed: masks.iter().map(|mask| core(*mask)).collect(),
            running: vec![None; usize::from(CORES)],
            queues: vec![Vec::new(); usize::from(CORES)],
        };
        toy.keyframe();
        toy
    }

    fn number(thread: usize) -> i32 {
        10 + thread as i32
    }

    fn is_awake(&self, thread: usize) -> bool {
        self.running.contains(&Some(thread)) || self.queues.iter().flatten().any(|t| *t == thread)
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Wake { thread, core } => {
                if !self.is_awake(thread) && self.allowed[thread].contains(on(core)) {
                    self.stream.woken(Toy::number(thread), core);
                    self.queues[usize::from(core)].push(thread);
                    self.start(core);
                }
            }
            Act::Sleep { core } => self.next(core, Left::Sleeping),
            Act::Turn { core } => self.next(core, Left::Preempted),
            Act::Steal { from, to } => self.steal(from, to),
        }
    }

    fn start(&mut self, core: u16) {
        let at = usize::from(core);
        if self.running[at].is_none() && !self.queues[at].is_empty() {
            let next = self.queues[at].remove(0);
            self.running[at] = Some(next);
            self.stream.switch(core, fair(Toy::number(next), "toy"), 0, Left::Sleeping);
        }
    }

    fn next(&mut self, core: u16, how: Left) {
        let at = usize::from(core);
        let Some(left) = self.running[at].take() else { return };
        if how == Left::Preempted {
            self.queues[at].push(left);
        }
        self.running[at] =
            if self.queues[at].is_empty() { None } else { Some(self.queues[at].remove(0)) };
        let next = self.running[at].map_or(nobody(), |next| fair(Toy::number(next), "toy"));
        self.stream.switch(core, next, Toy::number(left), how);
    }

    fn steal(&mut self, from: u16, to: u16) {
        let movable = |thread: &usize| self.allowed[*thread].contains(on(to));
        let Some(at) = self.queues[usize::from(from)].iter().position(movable) else { return };
        if from == to {
            return;
        }
        let thread = self.queues[usize::from(from)].remove(at);
        self.queues[usize::from(to)].push(thread);
        self.stream.migrate(Toy::number(thread), from, to, MoveCause::Periodic);
        self.start(to);
    }

    /// Gives every idle core a waiter that may use it, while there is one.
    fn conserve(&mut self) {
        for to in 0..CORES {
            for from in 0..CORES {
                if self.running[usize::from(to)].is_none() {
                    self.steal(from, to);
                }
            }
        }
    }

    fn keyframe(&mut self) {
        let all: CoreSet = (0..CORES).map(CoreId).collect();
        let cores = (0..CORES).map(|core| {
            let at = usize::from(core);
            let running = self.running[at].map_or(0, Toy::number);
            let runnable = self.queues[at].len() as u32 + u32::from(running != 0);
            CoreState {
                core: on(core),
                running,
                queued: runnable,
                runnable,
                weight: 0,
                average: 0,
                wake_pending: false,
                domain: all,
            }
        });
        let threads = (0..self.allowed.len()).map(|thread| {
            let runs = self.running.iter().position(|running| *running == Some(thread));
            let waits = self.queues.iter().position(|queue| queue.contains(&thread));
            let (core, state) = match (runs, waits) {
                (Some(core), _) => (core, Activity::Running),
                (_, Some(core)) => (core, Activity::Waiting),
                _ => (0, Activity::Sleeping),
            };
            ThreadState {
                thread: fair(Toy::number(thread), "toy"),
                core: on(core as u16),
                state,
                allowed: self.allowed[thread],
                bound: false,
            }
        });
        self.stream.shown = Keyframe { cores: cores.collect(), threads: threads.collect() };
        self.stream.keyframe();
    }
}

fn masks() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(1..(1_u16 << CORES), THREADS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn nothing_is_reported_where_all_allowed_cores_are_busy(
        masks in masks(),
        acts in prop::collection::vec(act(), 1..200),
    ) {
        let mut toy = Toy::new(&masks);
        for (time, act) in acts {
            toy.stream.after(time);
            toy.act(act);
            toy.conserve();
        }
        let report = toy.stream.check();
        prop_assert!(report.violations.is_empty(), "{report}");
        prop_assert_eq!(report.waste, Waste::default());
    }

    #[test]
    fn waiter_beside_an_idle_core_past_the_window_is_reported(
        waits in 101..400_u64,
        noise in prop::collection::vec((0..5_u64, 2..CORES, 30..40_i32), 0..300),
        threshold in 1..=1000_u16,
    ) {
        let mut stream = Stream::of(CORES);
        stream.hog_and_waiter(1, "0-1");
        let until = stream.now + ms(waits);
        for (time, core, thread) in noise {
            if stream.now + ms(2 * time) < until {
                stream.after(time).switch(core, fair(thread, "noise"), 0, Left::Sleeping);
                stream.after(time).switch(core, nobody(), thread, Left::Sleeping);
            }
        }
        stream.now = until;
        let options = Options { share: Permille(threshold), ..Options::default() };
        let report = stream.check_with(options);
        prop_assert_eq!(report.verdict, Verdict::Violated);
        prop_assert!(report.violations.iter().any(|found| found.waiters[0].thread == 12));
    }

    #[test]
    fn findings_a_window_after_a_keyframe_ignore_the_past(
        masks in masks(),
        acts in prop::collection::vec(act(), 20..200),
        cut in 1..8_usize,
    ) {
        let mut toy = Toy::new(&masks);
        for (at, (time, act)) in acts.iter().enumerate() {
            toy.stream.after(*time);
            toy.act(*act);
            if at % 20 == 10 {
                toy.keyframe();
            }
        }
        let whole = toy.stream.check();
        let keyframes = toy.stream.events.iter().enumerate();
        let Some((begin, first)) =
            keyframes.filter(|(_, event)| matches!(event.what, What::Keyframe(_))).nth(cut)
        else {
            return Ok(());
        };
        let mut rest = toy.stream.clone();
        rest.events.drain(..begin);
        let rest = rest.check();
        for found in &whole.violations {
            let shares: f64 = found.causes.iter().map(|share| share.share_percent).sum();
            let rounded = 0.05 * found.causes.len() as f64 + 1e-6;
            prop_assert!((shares - 100.0).abs() <= rounded, "{found:?}");
            let causes = found.causes.iter().map(|share| share.cause);
            prop_assert!(causes.collect::<std::collections::BTreeSet<_>>().len() == found.causes.len());
        }
        let key = |found: &WastedWait| {
            let waiters: Vec<i32> = found.waiters.iter().map(|waiter| waiter.thread).collect();
            (found.core, found.from_ns, found.until_ns, found.wasted_ms.to_bits(), waiters)
        };
        for found in &whole.violations {
            if found.from_ns >= (first.at + ms(100)).0 {
                prop_assert!(rest.violations.iter().any(|other| key(other) == key(found)));
            }
        }
        for found in &rest.violations {
            let covers = |other: &&WastedWait| {
                other.core == found.core
                    && other.from_ns <= found.until_ns
                    && other.until_ns >= found.from_ns
            };
            prop_assert!(whole.violations.iter().any(|other| covers(&other)));
        }
    }

    #[test]
    fn garbage_harms_nobody(events in prop::collection::vec(garbage(), 0..400), managed in any::<bool>()) {
        let stream = Stream::of(CORES);
        let mut checker = Checker::new(&stream.meta(), Options::default());
        if managed {
            let all: CoreSet = (0..CORES).map(CoreId).collect();
            let plan = |thread| {
                (thread, ManagedThread { original: all, planned: CoreSet::of(on(1)), reason: String::new() })
            };
            let threads = (0..4).map(plan).collect();
            checker.set_managed(Managed { threads, ..Managed::default() });
        }
        for event in &events {
            checker.event(event);
        }
        let report = checker.finish(Nanos::MAX);
        let _ = report.to_string();
    }
}

/// Any event at any time about any core and a few threads.
fn garbage() -> impl Strategy<Value = Event> {
    let core = || prop_oneof![4 => 0..CORES, 1 => any::<u16>()].prop_map(CoreId);
    let thread = || prop_oneof![4 => 0..5_i32, 1 => any::<i32>()];
    let rank = prop_oneof![Just(Rank::FAIR), Just(Rank::BENEATH), Just(Rank::realtime(5))];
    let who = (thread(), rank).prop_map(|(thread, rank)| runner(thread, "any", rank));
    let how = prop_oneof![
        Just(Left::Preempted),
        Just(Left::Sleeping),
        Just(Left::Blocked),
        Just(Left::Dead)
    ];
    let set = || prop::collection::vec(core(), 0..4).prop_map(CoreSet::from_iter);
    let what = prop_oneof![
        4 => (who.clone(), thread(), how, any::<u64>()).prop_map(|(next, left, how, stolen)| {
            What::Switch { next, left, how, stolen: Nanos(stolen) }
        }),
        2 => (who.clone(), core()).prop_map(|(thread, on)| What::Woken { thread, on, is_new: false }),
        1 => (who.clone(), core()).prop_map(|(thread, target)| What::Waking { thread, by: 0, target }),
        2 => (thread(), core(), core()).prop_map(|(thread, from, to)| {
            What::Migrate { thread, from, to, cause: MoveCause::Unknown }
        }),
        1 => thread().prop_map(|thread| What::Exit { thread }),
        2 => (thread(), set()).prop_map(|(thread, cores)| What::Allowed { thread, cores: cores.into() }),
        1 => (core(), any::<u32>()).prop_map(|(of, runnable)| What::Queue { of, queued: 0, runnable }),
        1 => (core(), any::<u64>()).prop_map(|(of, average)| What::Load { of, weight: 0, average }),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(vector, begins)| What::Softirq { vector, begins }),
        1 => (core(), any::<bool>()).prop_map(|(of, online)| What::Online { of, online }),
        1 => any::<u64>().prop_map(|count| What::Lost { count }),
        2 => keyframe().prop_map(|keyframe| What::Keyframe(Arc::new(keyframe))),
    ];
    let at = prop_oneof![8 => 0..10_000_000_000_u64, 1 => any::<u64>()].prop_map(Nanos);
    let sequence = prop_oneof![9 => Just(0_u64), 1 => any::<u64>()];
    (at, core(), sequence, what).prop_map(|(at, core, sequence, what)| Event {
        at,
        core,
        sequence,
        what,
    })
}

fn keyframe() -> impl Strategy<Value = Keyframe> {
    let core = (any::<u16>(), 0..5_i32, any::<u32>(), any::<u64>(), any::<bool>()).prop_map(
        |(core, running, runnable, average, wake_pending)| CoreState {
            core: on(core % 6),
            running,
            queued: runnable,
            runnable,
            weight: average,
            average,
            wake_pending,
            domain: CoreSet::of(on(core % 3)),
        },
    );
    let state = prop_oneof![
        Just(Activity::Running),
        Just(Activity::Waiting),
        Just(Activity::Throttled),
        Just(Activity::Moving)
    ];
    let thread =
        (0..5_i32, 0..6_u16, state, any::<bool>()).prop_map(|(thread, core, state, bound)| {
            ThreadState {
                thread: fair(thread, "any"),
                core: on(core),
                state,
                allowed: CoreSet::of(on(core)).union(&CoreSet::of(on(0))),
                bound,
            }
        });
    (prop::collection::vec(core, 0..6), prop::collection::vec(thread, 0..6))
        .prop_map(|(cores, threads)| Keyframe { cores, threads })
}
