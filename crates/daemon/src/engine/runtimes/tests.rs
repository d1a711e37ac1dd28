use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use quell_model::{
    Absence, Class, CoreMode, CorePlan, CoreView, Limits, Plan, Reason, Rung, TaskPlan, TaskReason,
    TaskView, ThreadId, TimeLimits, Topology,
};
use quell_os::Tid;
use quell_shm::runtime::Memory;

use super::*;

#[path = "../../../../policy/tests/counting/mod.rs"]
mod counting;

const TASK: TaskId = TaskId { index: 0, generation: 2 };
const PROCESS: Tid = Tid(500);

/// A runtime of three kernel threads on a host of four cores, and its own side of the memory.
struct Scene {
    runtimes: Runtimes,
    theirs: Memory,
    bells: Vec<OwnedFd>,
    _connection: UnixStream,
    threads: Vec<ThreadView>,
    seen: Snapshot,
    plan: Plan,
    topology: Topology,
    pins: Vec<(i32, Option<u16>)>,
    welcomed: Vec<i32>,
    now: Nanos,
}

fn thread(tid: i32) -> ThreadView {
    ThreadView {
        id: ThreadId { index: tid as u32, generation: 0 },
        thread: ThreadRef { tid: Tid(tid), tgid: PROCESS, start_ticks: 1 },
        task: TASK,
        member: 0,
        lc: true,
        state: ThreadState::Running,
        since: Nanos(1),
        awake_since: Nanos(1),
        core: CoreId(0),
        ran: Nanos::ZERO,
        waited: Nanos::ZERO,
        burst: Nanos::ZERO,
        burst_whole: Nanos::ZERO,
        transitions: 0,
    }
}

impl Scene {
    fn new() -> Scene {
        let (ours, connection) = UnixStream::pair().unwrap();
        let (contract, passed) = Contract::offer(3, PROCESS, &ours).unwrap();
        let mut fds = passed.fds().into_iter().map(|fd| fd.try_clone_to_owned().unwrap());
        let theirs = Memory::open(fds.next().unwrap(), 3).unwrap();
        let _asks = fds.next();
        let limits = Limits {
            class: Class::LatencyCritical,
            max: 3,
            times: TimeLimits::default(),
            ..Limits::NONE
        };
        let now = clock::now();
        let mut runtimes = Runtimes::new(Nanos::from_micros(100));
        runtimes.add(TASK, Box::new(contract), now - Nanos::from_secs(3));
        let core = |id| CorePlan {
            id: CoreId(id),
            owner: None,
            mode: CoreMode::Kernel,
            reason: Reason::Unwanted,
            yields: None,
        };
        let task = TaskPlan {
            id: TASK,
            class: Class::LatencyCritical,
            cap: 3,
            rung: Rung::Lc,
            shared_cores: CoreSet::EMPTY,
            llc_ways: None,
            reason: TaskReason::Configured,
        };
        let bells = fds.collect();
        Scene {
            runtimes,
            theirs,
            bells,
            _connection: connection,
            threads: (501..504).map(thread).collect(),
            seen: Snapshot {
                now,
                cores: (0..4).map(|core| CoreView::new(CoreId(core))).collect(),
                tasks: vec![TaskView::new(TASK, limits)],
                ..Snapshot::default()
            },
            plan: Plan { cores: (0..4).map(core).collect(), tasks: vec![task], ..Plan::default() },
            topology: Topology::regular(1, 2, 2).unwrap(),
            pins: Vec::new(),
            welcomed: Vec::new(),
            now,
        }
    }

    fn lines(&self, at: u32) -> &quell_shm::runtime::Kthread {
        self.theirs.kthread(at).unwrap()
    }

    fn begin(&self, at: u32, state: KthreadState) {
        let work = &self.lines(at).work;
        work.begin(501 + at as i32);
        work.set_state(state);
    }

    /// The cores that the Plan gives it.
    fn own(&mut self, cores: &[u16]) {
        for core in &mut self.plan.cores {
            core.owner = cores.contains(&core.id.0).then_some(TASK);
        }
    }

    fn tick(&mut self) {
        let view = &mut self.seen.tasks[0];
        view.waiting = 0;
        view.queueing_delay = Signal::Absent(Absence::NotApplicable);
        self.seen.now = clock::now();
        hints::clear(&mut self.seen);
        self.runtimes.fill(&mut self.seen, &self.threads);
        self.pins.clear();
        let (pins, welcomed) = (&mut self.pins, &mut self.welcomed);
        self.runtimes.assign(&self.plan, true, &self.topology, self.now, &mut |thread, pin| {
            let tid = thread.tid.0;
            match pin {
                Some(Pin::Core(core)) => pins.push((tid, Some(core.0))),
                // The first word on a thread tells that it is one.
                Some(Pin::Member) if !welcomed.contains(&tid) => welcomed.push(tid),
                _ => pins.push((tid, None)),
            }
            true
        });
        self.runtimes.finish(&self.seen, self.now);
    }

    fn heard(&self, at: usize) -> bool {
        rustix::io::read(&self.bells[at], &mut [0u8; 64]).is_ok()
    }

    fn granted(&self, at: u32) -> Option<u16> {
        self.lines(at).grant.valid().map(|(_, core)| core.0)
    }

    fn runtime(&self) -> &Runtime {
        &self.runtimes.list[0]
    }

    /// It acts under the grant that it has.
    fn run(&self, at: u32) {
        let (generation, _) = self.lines(at).grant.valid().unwrap();
        self.lines(at).work.set_generation(generation);
        self.lines(at).work.set_state(KthreadState::Running);
    }
}

#[test]
fn who_asks_gets_the_core_first_is_placed_before_its_bell_rings_and_keeps_it_asleep() {
    let mut scene = Scene::new();
    scene.begin(0, KthreadState::Parked);
    scene.begin(1, KthreadState::Asking);
    scene.own(&[2]);
    scene.tick();
    assert_eq!((scene.granted(0), scene.granted(1)), (None, Some(2)));
    assert_eq!(scene.pins, [(502, Some(2))]);
    assert!(scene.heard(1) && !scene.heard(0));
    scene.run(1);
    scene.tick();
    scene.lines(1).work.set_state(KthreadState::Parked);
    scene.tick();
    assert_eq!(scene.granted(1), Some(2), "it stands until somebody else gets the core");
    assert!(scene.pins.is_empty() && !scene.heard(1));
    assert_eq!(scene.theirs.header().told.cores(), 1);
}

#[test]
fn a_core_that_goes_is_revoked_left_in_order_and_granted_to_nobody_meanwhile() {
    let mut scene = Scene::new();
    scene.begin(0, KthreadState::Asking);
    scene.own(&[1]);
    scene.tick();
    scene.run(0);
    scene.own(&[]);
    scene.tick();
    assert!(scene.lines(0).is_core_revoked());
    assert_eq!(scene.pins, [], "it stays where it is until it has left");
    let wait = scene.runtimes.poll_every(scene.now, Nanos::from_millis(1));
    assert_eq!(wait, Some(Nanos::from_micros(100)), "looked at in time");
    scene.lines(0).work.set_state(KthreadState::Parked);
    scene.tick();
    assert_eq!(scene.pins, [(501, None)]);
    assert_eq!((scene.runtime().revokes, scene.runtime().overdue), (1, 0));
}

/// Takes a signal that waits for this thread, which blocks it; whether there was one.
fn take_signal(signal: i32) -> bool {
    // SAFETY: blocks one signal for the thread of this test, and takes it; the set and the time outlive the calls.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const none) == signal
    }
}

#[test]
fn a_revoke_is_signalled_to_the_thread_that_runs_and_to_none_that_sleeps() {
    let signal = libc::SIGRTMIN() + 7;
    assert!(!take_signal(signal));
    let me = ThreadRef::current().unwrap();
    if ThreadHandle::open(&me).is_err() {
        // Linux before 6.9 has no handles on threads: then it is moved when its time is over.
        return;
    }
    let mut scene = Scene::new();
    let runtime = &mut scene.runtimes.list[0];
    (runtime.contract.process, runtime.contract.signal) = (me.tgid, Some(signal));
    scene.threads[0].thread = me;
    for (state, signalled) in [(KthreadState::Running, true), (KthreadState::Parked, false)] {
        scene.lines(0).work.begin(me.tid.0);
        scene.lines(0).work.set_state(KthreadState::Asking);
        scene.own(&[1]);
        scene.tick();
        scene.run(0);
        scene.lines(0).work.set_state(state);
        scene.tick();
        assert!(!take_signal(signal), "it keeps its core");
        scene.own(&[]);
        scene.tick();
        assert_eq!(take_signal(signal), signalled, "{state:?}");
        scene.lines(0).work.set_state(KthreadState::Parked);
        scene.tick();
    }
}

#[test]
fn one_that_does_not_leave_is_moved_when_its_time_is_over_and_gets_nothing_before() {
    let mut scene = Scene::new();
    scene.begin(0, KthreadState::Asking);
    scene.own(&[1]);
    scene.tick();
    scene.run(0);
    scene.own(&[]);
    scene.tick();
    scene.own(&[3]);
    scene.tick();
    assert_eq!((scene.granted(0), scene.runtime().overdue), (None, 0));
    scene.now += Nanos::from_micros(100);
    scene.tick();
    assert_eq!(scene.runtime().overdue, 1);
    assert_eq!(scene.pins[0], (501, None));
    assert_eq!(scene.granted(0), Some(3), "then it may have another");
}

#[test]
fn one_that_was_moved_in_the_middle_of_a_uthread_gets_the_next_core_before_who_asks() {
    let mut scene = Scene::new();
    scene.begin(0, KthreadState::Asking);
    scene.own(&[1]);
    scene.tick();
    scene.run(0);
    scene.lines(0).work.set_uthread(Some(clock::now()));
    scene.own(&[]);
    scene.tick();
    scene.now += Nanos::from_micros(100);
    scene.tick();
    assert_eq!(scene.runtime().overdue, 1);
    scene.begin(1, KthreadState::Asking);
    scene.begin(2, KthreadState::Asking);
    scene.own(&[3]);
    scene.tick();
    assert_eq!([0, 1, 2].map(|at| scene.granted(at)), [Some(3), None, None]);
}

#[test]
fn one_that_starves_in_the_middle_of_a_uthread_changes_places_with_one_that_is_better_off() {
    for (better, second) in [(KthreadState::Parked, Some(2)), (KthreadState::Running, None)] {
        let mut scene = Scene::new();
        (0..2).for_each(|at| scene.begin(at, KthreadState::Asking));
        scene.own(&[1]);
        scene.plan.tasks[0].shared_cores = CoreSet::of(CoreId(2));
        scene.tick();
        assert_eq!((scene.granted(0), scene.granted(1)), (Some(1), Some(2)));
        (0..2).for_each(|at| scene.run(at));
        scene.lines(1).work.set_uthread(Some(clock::now()));
        scene.lines(0).work.set_state(better);
        scene.threads[1].state = ThreadState::Waiting;
        scene.threads[1].since = clock::now();
        scene.tick();
        assert_eq!((scene.granted(0), scene.granted(1)), (Some(1), Some(2)), "not for long");
        scene.threads[1].since = clock::now() - Nanos::from_millis(20);
        scene.now += Nanos::from_millis(20);
        scene.tick();
        assert_eq!((scene.granted(0), scene.granted(1)), (second, Some(1)), "{better:?}");
        assert_eq!(scene.runtime().overdue, 0);
        scene.tick();
        assert_eq!(scene.granted(1), Some(1), "once: its new core is its runtime's own");
    }
}

#[test]
fn a_sleeping_kthread_with_no_work_is_not_woken_for_a_core_and_one_with_work_is() {
    let mut scene = Scene::new();
    (0..2).for_each(|at| scene.begin(at, KthreadState::Parked));
    scene.own(&[0]);
    scene.tick();
    assert_eq!(scene.granted(0), Some(0));
    assert!(!scene.heard(0));
    scene.lines(0).work.set_ready(Some(clock::now()), 4);
    scene.own(&[0, 1]);
    scene.tick();
    assert_eq!(scene.granted(1), Some(1));
    assert!(scene.heard(1), "it may steal");
}

#[test]
fn delay_is_the_sum_over_queues_and_the_greatest_over_kthreads_and_asks_for_one_core_more() {
    let mut scene = Scene::new();
    (0..3).for_each(|at| scene.begin(at, KthreadState::Running));
    let ago = |us| Some(clock::now() - Nanos::from_micros(us));
    scene.lines(0).work.set_ready(ago(300), 2);
    scene.lines(1).work.set_ready(ago(200), 1);
    scene.lines(1).work.set_io(ago(200));
    scene.lines(1).work.set_timer(ago(100));
    scene.tick();
    let view = scene.seen.tasks[0];
    let Signal::Measured(delay) = view.queueing_delay else { panic!("not measured") };
    assert!(delay >= Nanos::from_micros(500), "{delay}");
    assert_eq!(view.waiting, 1);
    assert!(view.is_congested());
    assert_eq!(scene.theirs.header().told.queueing_delay(), delay);
    scene.own(&[0, 1, 2]);
    scene.tick();
    scene.tick();
    assert_eq!(scene.seen.tasks[0].waiting, 0, "each kthread has a core");
}

#[test]
fn who_asks_beside_a_sibling_with_a_core_waits_for_that_unless_it_takes_too_long() {
    let mut scene = Scene::new();
    scene.begin(0, KthreadState::Running);
    scene.begin(1, KthreadState::Asking);
    scene.own(&[0]);
    scene.tick();
    assert_eq!(scene.seen.tasks[0].waiting, 1, "nobody has a core");
    scene.tick();
    assert_eq!(scene.seen.tasks[0].waiting, 0);
    scene.lines(1).work.set_timer(Some(clock::now() - Nanos::from_micros(50)));
    scene.tick();
    assert_eq!(scene.seen.tasks[0].waiting, 1);
}

#[test]
fn threads_of_others_and_threads_claimed_twice_are_no_kthreads() {
    let mut scene = Scene::new();
    scene.begin(0, KthreadState::Asking);
    scene.lines(1).work.begin(501);
    scene.lines(2).work.begin(777);
    let mut foreign = thread(777);
    foreign.thread.tgid = Tid(700);
    scene.threads.push(foreign);
    scene.own(&[0, 1, 2, 3]);
    scene.tick();
    let pinned: Vec<i32> = scene.pins.iter().map(|(tid, _)| *tid).collect();
    assert_eq!(pinned, [501]);
    assert_eq!([1, 2].map(|at| scene.granted(at)), [None, None]);
    assert_eq!(scene.runtime().ignored, 2);
}

#[test]
fn a_quantum_ends_for_the_uthread_that_had_it_once_and_not_for_the_next() {
    let mut scene = Scene::new();
    scene.begin(0, KthreadState::Running);
    let start = clock::now() - Nanos::from_micros(400);
    scene.lines(0).work.set_uthread(Some(start));
    scene.tick();
    assert!(!scene.lines(0).grant.is_quantum_over(start), "nobody waits");
    scene.lines(0).work.set_ready(Some(clock::now()), 1);
    scene.tick();
    assert!(scene.lines(0).grant.is_quantum_over(start));
    let next = clock::now();
    scene.lines(0).work.set_uthread(Some(next));
    scene.tick();
    assert!(!scene.lines(0).grant.is_quantum_over(next));
}

#[test]
fn who_leaves_is_kept_to_no_core_and_its_signals_are_cleared() {
    let mut scene = Scene::new();
    scene.begin(0, KthreadState::Asking);
    scene.lines(0).work.set_request(Some(clock::now()));
    scene.own(&[0]);
    scene.tick();
    assert!(scene.seen.tasks[0].request_start.value().is_some());
    let mut pins = Vec::new();
    let contract = scene.runtimes.remove(TASK, &mut |thread, core| {
        pins.push((thread.tid.0, core));
        true
    });
    assert!(contract.is_some());
    assert_eq!(pins, [(501, None)]);
    assert!(scene.runtimes.is_active());
    scene.tick();
    assert_eq!(scene.seen.tasks[0].request_start.value(), None);
    assert!(!scene.runtimes.is_active() && scene.runtimes.status(TASK).is_none());
}

/// What runs, waits and asks differs each time, and so do the cores that the Plan leaves to it.
fn stir(scene: &mut Scene, tick: usize) {
    const CORES: [&[u16]; 5] = [&[0, 1], &[2], &[], &[1, 2, 3], &[3, 0]];
    for at in 0..3 {
        if scene.granted(at).is_some() && !(tick + at as usize).is_multiple_of(3) {
            scene.run(at);
        } else if (tick / 10).is_multiple_of(2) {
            // Else it does not leave, if it runs.
            let parked = (tick / 2 + at as usize).is_multiple_of(2);
            let state = if parked { KthreadState::Parked } else { KthreadState::Asking };
            scene.lines(at).work.set_state(state);
        }
        let ago = Nanos::from_micros((tick * 37 % 500) as u64);
        let work = &scene.lines(at).work;
        work.set_ready(Some(clock::now() - ago), tick as u64 % 4);
        work.set_timer(Some(clock::now() + ago));
        work.set_io((tick.is_multiple_of(2)).then(|| clock::now() - ago));
        work.set_uthread(Some(clock::now() - Nanos::from_micros(150)));
        work.set_request((tick % 5 < 3).then(|| clock::now() - ago));
    }
    scene.own(CORES[tick / 2 % CORES.len()]);
    scene.now += Nanos::from_micros(60);
}

#[test]
fn a_steady_state_allocates_nothing_while_cores_are_granted_and_revoked() {
    let mut scene = Scene::new();
    (0..3).for_each(|at| scene.begin(at, KthreadState::Asking));
    scene.own(&[0, 1, 2]);
    scene.tick();
    let before = scene.runtime();
    let (grants, revokes, overdue) = (before.grants, before.revokes, before.overdue);
    for tick in 0..400 {
        stir(&mut scene, tick);
        let before = counting::allocations();
        scene.runtimes.take_asks(scene.now);
        scene.tick();
        let _ = scene.runtimes.poll_every(scene.now, Nanos::from_millis(1));
        let allocations = counting::allocations() - before;
        // The first ones give the test's own list of pins its size.
        assert!(allocations == 0 || tick < 100, "{allocations} allocations in tick {tick}");
    }
    let after = scene.runtime();
    assert!(after.grants > grants + 50 && after.revokes > revokes + 50, "{}", after.grants);
    assert!(after.overdue > overdue + 10, "{}", after.overdue);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is in the memory: only threads of the process are kept to cores, one a core, and only cores of the Plan;
    /// no delay exceeds the time since the runtime is here.
    #[test]
    fn garbage_never_gets_more_than_the_plan_gives(
        pages in proptest::collection::vec(
            proptest::collection::vec(any::<u64>(), 96), 1..6),
        small in any::<bool>(),
        owned in proptest::collection::vec(0u16..4, 0..4),
    ) {
        let mut scene = Scene::new();
        scene.own(&owned);
        for page in pages {
            for (at, words) in page.chunks(32).enumerate() {
                let work = &scene.lines(at as u32).work;
                let small = |word: u64| if small { word % 600 } else { word };
                work.begin(small(words[0]) as i32);
                let states = [
                    KthreadState::Absent, KthreadState::Running, KthreadState::Parked,
                    KthreadState::Asking,
                ];
                work.set_state(states[words[1] as usize % 4]);
                work.set_ready(Some(Nanos(words[2])), words[3]);
                work.set_timer(Some(Nanos(words[4])));
                work.set_io(Some(Nanos(words[5])));
                work.set_uthread(Some(Nanos(words[6])));
                work.set_request(Some(Nanos(words[7])));
                work.set_generation(words[8]);
                // Even what the daemon writes there.
                scene.lines(at as u32).grant.revoke(words[9]);
            }
            scene.tick();
            let held: Vec<Held> =
                scene.runtime().kthreads.iter().filter_map(|it| it.held).collect();
            for held in &held {
                prop_assert!(owned.contains(&held.core.0));
            }
            let mut cores: Vec<u16> = held.iter().map(|held| held.core.0).collect();
            cores.sort_unstable();
            cores.dedup();
            prop_assert_eq!(cores.len(), held.len());
            for (tid, _) in &scene.pins {
                prop_assert!((501..504).contains(tid));
            }
            if let Some(delay) = scene.seen.tasks[0].queueing_delay.value() {
                prop_assert!(delay <= Nanos::from_secs(60));
            }
            let _ = scene.runtimes.status(TASK);
        }
    }
}
