//! The BPF observer on this host, with real threads. Needs the right to use BPF: these tests fail without
//! it, unless QUELL_NO_BPF=1 says that this host is known to have none.

use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_model::{
    Class, CoreId, CoreSet, CoreView, Limits, Nanos, Outcome, Signal, Snapshot, TaskId, TaskView,
};

use super::{BpfConfig, BpfObserver, lineage};
use crate::observe::{Children, HostEvent, Observer, ThreadState, ThreadView, procs, topology};
use crate::testing::host_lock;
use crate::{ThreadRef, Tid};

const LC: TaskId = TaskId { index: 0, generation: 1 };
const BE: TaskId = TaskId { index: 1, generation: 1 };

/// Longer than anything here takes on a busy machine; only a broken observer reaches it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether this host is said to have no BPF.
fn no_bpf() -> bool {
    std::env::var_os("QUELL_NO_BPF").is_some_and(|value| value == "1")
}

fn observer() -> BpfObserver {
    observer_for(4_096)
}

fn observer_for(max_threads: usize) -> BpfObserver {
    BpfObserver::new(&BpfConfig { max_threads, max_tasks: 8, ..BpfConfig::default() }).unwrap()
}

fn snapshot() -> Snapshot {
    let core = |core: &quell_model::Core| CoreView {
        id: core.id,
        managed: true,
        online: true,
        running: None,
        idle_since: None,
        lc_busy: Signal::default(),
        outcome: Outcome::Done,
    };
    let task = |id, class| TaskView {
        id,
        alive: true,
        limits: Limits {
            class,
            guaranteed: 1,
            max: 1,
            delay_target: Nanos::from_micros(10),
            runaway_after: Nanos::ZERO,
            allowed: CoreSet::EMPTY,
        },
        running: 0,
        waiting: 0,
        sleeping: 0,
        running_on: CoreSet::EMPTY,
        queueing_delay: Signal::default(),
        longest_run: Signal::default(),
        delay_caused: Signal::default(),
        latency: Signal::default(),
        load: Signal::default(),
        bandwidth: Signal::default(),
        request_start: Signal::default(),
    };
    Snapshot {
        cores: topology::read().unwrap().cores().iter().map(core).collect(),
        tasks: vec![task(LC, Class::LatencyCritical), task(BE, Class::BestEffort)],
        ..Snapshot::default()
    }
}

/// The last online core: the one that tests crowd.
fn crowded() -> CoreId {
    topology::online().unwrap().iter().last().unwrap()
}

fn pin(core: CoreId) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core.index());
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// A thread that runs until told to end.
struct Worker {
    thread: ThreadRef,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(core: CoreId, mut step: impl FnMut() + Send + 'static) -> Worker {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (tell, told) = mpsc::channel();
        let handle = std::thread::spawn(move || {
            pin(core);
            tell.send(ThreadRef::current().unwrap()).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                step();
            }
        });
        Worker { thread: told.recv().unwrap(), stop, handle: Some(handle) }
    }

    fn spinner(core: CoreId) -> Worker {
        Worker::start(core, std::hint::spin_loop)
    }

    fn sleeper(core: CoreId) -> Worker {
        Worker::start(core, || std::thread::park_timeout(Duration::from_secs(60)))
    }

    fn napper(core: CoreId, nap: Duration) -> Worker {
        Worker::start(core, move || std::thread::sleep(nap))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.take() {
            handle.thread().unpark();
            handle.join().unwrap();
        }
    }
}

/// A program that is ended with the test.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Program {
        Program(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn find(observer: &BpfObserver, thread: ThreadRef) -> Option<ThreadView> {
    observer.threads().iter().find(|view| view.thread == thread).copied()
}

fn state(observer: &mut BpfObserver, thread: ThreadRef) -> Option<ThreadState> {
    observer.read(&mut snapshot());
    find(observer, thread).map(|view| view.state)
}

fn events(observer: &mut BpfObserver) -> Vec<HostEvent> {
    let mut events = Vec::new();
    observer.drain_events(&mut |event| events.push(event));
    events
}

#[test]
fn of_two_spinners_on_one_core_one_runs_and_one_waits() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    let pair = [Worker::spinner(crowded()), Worker::spinner(crowded())];
    for worker in &pair {
        observer.watch(worker.thread, BE, false, Children::Adopt).unwrap();
    }
    let mut seen = snapshot();
    let mut both_ran = [false; 2];
    eventually("each runs while the other waits", || {
        observer.read(&mut seen);
        let states = pair.each_ref().map(|worker| find(&observer, worker.thread).unwrap().state);
        for (ran, state) in both_ran.iter_mut().zip(states) {
            *ran |= state == ThreadState::Running;
        }
        // Something else may have the core for a moment.
        let waiting = states.iter().filter(|&&state| state == ThreadState::Waiting).count();
        assert!((1..=2).contains(&waiting), "{states:?}");
        assert_eq!(u32::try_from(waiting).unwrap(), seen.tasks[1].waiting);
        assert_eq!(seen.tasks[1].running + seen.tasks[1].waiting, 2);
        assert!(seen.tasks[1].queueing_delay.value().is_some());
        both_ran == [true; 2]
    });
    eventually("the core shows the task", || {
        observer.read(&mut seen);
        let core = seen.cores.iter().find(|core| core.id == crowded()).unwrap();
        core.running == Some(BE) && seen.tasks[1].running_on == CoreSet::of(crowded())
    });
}

#[test]
fn a_thread_that_waits_for_a_futex_sleeps_and_one_that_is_woken_runs() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let sleeper = Worker::sleeper(crowded());
    observer.watch(sleeper.thread, LC, true, Children::Adopt).unwrap();
    eventually("it sleeps", || state(&mut observer, sleeper.thread) == Some(ThreadState::Sleeping));
    let before = find(&observer, sleeper.thread).unwrap();
    sleeper.handle.as_ref().unwrap().thread().unpark();
    eventually("it ran and sleeps again", || {
        let state = state(&mut observer, sleeper.thread);
        let now = find(&observer, sleeper.thread).unwrap();
        // Woken, ran, sleeps.
        state == Some(ThreadState::Sleeping) && now.transitions >= before.transitions + 3
    });
    let after = find(&observer, sleeper.thread).unwrap();
    assert!(after.ran > before.ran && after.waited > before.waited && after.since > before.since);
    assert_eq!(observer.wake_to_run(LC).count(), 1);
    assert_eq!(observer.health().missed_wakes, 0);
}

#[test]
fn a_watched_thread_that_runs_is_known_to_run_at_once() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let me = ThreadRef::current().unwrap();
    observer.watch(me, LC, true, Children::Leave).unwrap();
    assert_eq!(state(&mut observer, me), Some(ThreadState::Running));
    // Another class at once shows on the core as well.
    observer.watch(me, BE, false, Children::Leave).unwrap();
    let mut seen = snapshot();
    observer.read(&mut seen);
    let view = find(&observer, me).unwrap();
    assert_eq!((view.task, view.lc, seen.tasks[1].running), (BE, false, 1));
    observer.unwatch(me);
    observer.read(&mut seen);
    assert!(observer.threads().is_empty());
    assert!(seen.cores.iter().all(|core| core.running.is_none()));
    assert_eq!(observer.health().watched, 0);
}

#[test]
fn the_wait_of_an_lc_thread_is_charged_to_the_be_task_that_had_its_core() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    let hog = Worker::spinner(crowded());
    let napper = Worker::napper(crowded(), Duration::from_millis(2));
    observer.watch(hog.thread, BE, false, Children::Adopt).unwrap();
    observer.watch(napper.thread, LC, true, Children::Adopt).unwrap();
    let mut seen = snapshot();
    eventually("delays are charged", || {
        observer.read(&mut seen);
        seen.tasks[1].delay_caused.value().is_some()
    });
    eventually("more waits", || observer.delays_caused(BE).count() > 20);
    let (own, caused) = (observer.wake_to_run(LC), observer.delays_caused(BE));
    assert!(caused.quantile(999) <= own.quantile(1000));
    assert_eq!(observer.delays_caused(LC).count(), 0);
    assert_eq!(observer.wake_to_run(BE).count(), 0);
}

#[test]
fn an_idle_core_counts_as_waste_only_while_lc_waits() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    let others: CoreSet = topology::online().unwrap().difference(&CoreSet::of(crowded()));
    // Nothing is managed: nothing counts.
    let mut hogs = vec![Worker::spinner(crowded()), Worker::spinner(crowded())];
    for hog in &hogs {
        observer.watch(hog.thread, LC, true, Children::Adopt).unwrap();
    }
    assert_eq!(observer.idle_while_lc_waits(), Nanos::ZERO);
    // They crowd one core while others are managed, allowed, and idle at times.
    observer.manage(&topology::online().unwrap());
    let mut last = observer.idle_while_lc_waits();
    if let Some(other) = others.first() {
        // On a busy machine the other core may never be idle: then there is no waste either.
        let idle = |observer: &BpfObserver| observer.core_times(other).unwrap()[2];
        let before = idle(&observer);
        let start = Instant::now();
        while idle(&observer) == before && start.elapsed() < PATIENCE / 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if idle(&observer) > before {
            eventually("waste is counted", || observer.idle_while_lc_waits() > Nanos::ZERO);
        }
        last = observer.idle_while_lc_waits();
    }
    // Allowed only where they run: the core is never idle while they wait.
    observer.allow(LC, &CoreSet::of(crowded()));
    hogs.clear();
    hogs.extend([Worker::spinner(crowded()), Worker::spinner(crowded())]);
    for hog in &hogs {
        observer.watch(hog.thread, LC, true, Children::Adopt).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    let before = observer.idle_while_lc_waits();
    assert!(before >= last);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(observer.idle_while_lc_waits(), before);
}

#[test]
fn children_are_followed_through_fork_and_exec() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let shell =
        Program::start(Command::new("sh").args(["-c", "sleep 0.3; (sleep 60 & sleep 60 & wait)"]));
    let first = procs::thread(shell.pid()).unwrap();
    observer.watch(first, BE, false, Children::Adopt).unwrap();
    let mut sleeping = Vec::new();
    eventually("both grandchildren run sleep", || {
        observer.read(&mut snapshot());
        let pids = observer.threads().iter().map(|view| view.thread.tgid.0);
        sleeping = pids.filter(|&pid| procs::by_name("sleep").unwrap().contains(&pid)).collect();
        sleeping.len() == 2
    });
    let seen = events(&mut observer);
    for pid in &sleeping {
        let forked = seen.iter().any(|event| {
            matches!(event, HostEvent::Forked { child, new_process: true, watched: true, task: BE, .. }
                if child.tid.0 == *pid)
        });
        assert!(forked, "no fork of {pid} among {seen:?}");
        let thread = procs::thread(*pid).unwrap();
        assert!(seen.contains(&HostEvent::Execed(thread)), "no exec of {pid} among {seen:?}");
    }
    // A guardian sees the same from the slots alone.
    let descent = lineage(observer.held_fds()[0]).unwrap();
    for pid in &sleeping {
        assert!(descent.iter().any(|(thread, parent)| thread.tid.0 == *pid && parent.0 != 0));
    }
    assert!(descent.contains(&(first, Tid(0))));
    for pid in sleeping {
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::Signal::TERM,
        )
        .unwrap();
    }
    eventually("all are gone", || {
        observer.read(&mut snapshot());
        observer.threads().is_empty()
    });
    assert!(events(&mut observer).contains(&HostEvent::Exited(first)));
    assert_eq!(observer.health().watched, 0);
}

#[test]
fn new_processes_of_an_lc_task_are_treated_as_asked() {
    if no_bpf() {
        return;
    }
    for (children, watched) in [(Children::BestEffort, true), (Children::Leave, false)] {
        let mut observer = observer();
        let shell =
            Program::start(Command::new("sh").args(["-c", "sleep 0.2; sleep 0.2; sleep 60; :"]));
        let thread = procs::thread(shell.pid()).unwrap();
        observer.watch(thread, LC, true, children).unwrap();
        let mut forks = Vec::new();
        eventually("it forks", || {
            let new = events(&mut observer).into_iter();
            forks.extend(new.filter(|event| matches!(event, HostEvent::Forked { .. })));
            forks.len() >= 2
        });
        let as_asked = |event: &HostEvent| matches!(event, HostEvent::Forked { watched: w, new_process: true, .. } if *w == watched);
        assert!(forks.iter().all(as_asked), "{forks:?}");
        let mut seen = snapshot();
        observer.read(&mut seen);
        let guests = observer.threads().iter().filter(|view| !view.lc).count();
        assert!(if watched { guests >= 1 } else { guests == 0 });
        // Guests are not the LC task's own threads.
        assert_eq!(seen.tasks[0].running + seen.tasks[0].waiting + seen.tasks[0].sleeping, 1);
        for child in procs::descendants(shell.pid()) {
            let _ = Command::new("kill").arg(child.to_string()).status();
        }
    }
}

#[test]
fn thousands_of_short_threads_are_all_seen_and_all_given_back() {
    if no_bpf() {
        return;
    }
    const THREADS: usize = 3_000;
    let mut observer = observer();
    let (go, wait) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let bomb = std::thread::spawn(move || {
        tell.send(ThreadRef::current().unwrap()).unwrap();
        wait.recv().unwrap();
        let mut tids = Vec::with_capacity(THREADS);
        while tids.len() < THREADS {
            let batch: Vec<_> = (0..50)
                .map(|_| std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get()))
                .collect();
            tids.extend(batch.into_iter().map(|thread| thread.join().unwrap()));
        }
        tids
    });
    observer.watch(told.recv().unwrap(), LC, true, Children::Adopt).unwrap();
    go.send(()).unwrap();
    let (mut forked, mut exited) = (Vec::new(), Vec::new());
    let mut look = |observer: &mut BpfObserver| {
        for event in events(observer) {
            match event {
                HostEvent::Forked { child, watched: true, new_process: false, .. } => {
                    forked.push(child.tid.0)
                }
                HostEvent::Exited(thread) => exited.push(thread.tid.0),
                other => panic!("{other:?}"),
            }
        }
        observer.read(&mut snapshot());
    };
    while !bomb.is_finished() {
        look(&mut observer);
        std::thread::sleep(Duration::from_millis(1));
    }
    let tids = bomb.join().unwrap();
    eventually("every slot is free again", || {
        look(&mut observer);
        observer.health().watched == 0 && observer.threads().is_empty()
    });
    assert_eq!(forked, tids);
    assert_eq!(exited.len(), THREADS + 1, "the creator ends as well");
    assert_eq!(
        observer.wake_to_run(LC).count() as usize,
        observer.wake_to_run(LC).count() as usize
    );
    assert!(observer.wake_to_run(LC).count() as usize >= THREADS);
    let health = observer.health();
    assert_eq!((health.table_full, health.storage_failed, health.events_dropped), (0, 0, 0));
    assert!(lineage(observer.held_fds()[0]).unwrap().is_empty());
}

#[test]
fn a_full_table_is_reported_and_harms_nobody_else() {
    if no_bpf() {
        return;
    }
    let mut observer = observer_for(64);
    let sleepers: Vec<Worker> = (0..70).map(|_| Worker::sleeper(crowded())).collect();
    let (fit, over) = sleepers.split_at(64);
    for sleeper in fit {
        observer.watch(sleeper.thread, LC, true, Children::Adopt).unwrap();
    }
    for sleeper in over {
        let error = observer.watch(sleeper.thread, LC, true, Children::Adopt).unwrap_err();
        assert!(error.to_string().contains("max_threads"), "{error}");
    }
    assert_eq!(observer.health().table_full, 6);
    assert!(events(&mut observer).contains(&HostEvent::Lost(6)));
    eventually("the others are seen", || {
        fit.iter()
            .all(|sleeper| state(&mut observer, sleeper.thread) == Some(ThreadState::Sleeping))
    });
    // A place that is given back can be taken.
    observer.unwatch(fit[0].thread);
    observer.watch(over[0].thread, LC, true, Children::Adopt).unwrap();
    assert_eq!(state(&mut observer, over[0].thread), Some(ThreadState::Sleeping));
    assert_eq!(state(&mut observer, fit[0].thread), None);
}

#[test]
fn what_is_read_under_heavy_switching_is_coherent() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    let (to_second, second_in) = mpsc::channel::<()>();
    let (to_first, first_in) = mpsc::channel::<()>();
    let core = crowded();
    let kick = to_second.clone();
    let first = Worker::start(core, move || {
        if first_in.recv_timeout(Duration::from_millis(20)).is_ok() {
            let _ = to_second.send(());
        }
    });
    let second = Worker::start(core, move || {
        if second_in.recv_timeout(Duration::from_millis(20)).is_ok() {
            let _ = to_first.send(());
        }
    });
    for worker in [&first, &second] {
        observer.watch(worker.thread, BE, false, Children::Adopt).unwrap();
    }
    kick.send(()).unwrap();
    let mut seen = snapshot();
    let mut last: Vec<ThreadView> = Vec::new();
    let start = Instant::now();
    let mut changes = 0;
    while start.elapsed() < Duration::from_secs(2) {
        observer.read(&mut seen);
        for view in observer.threads() {
            assert!(
                view.since <= seen.now && view.awake_since <= seen.now,
                "{view:?} at {:?}",
                seen.now
            );
            if let Some(before) = last.iter().find(|before| before.thread == view.thread) {
                assert!(view.transitions >= before.transitions, "{before:?} {view:?}");
                assert!(view.since >= before.since || view.transitions == before.transitions);
                changes += u64::from(view.transitions != before.transitions);
            }
            // Time runs, waits and sleeps within the time that it is watched.
            let total = view.ran + view.waited;
            assert!(total <= seen.now, "{view:?}");
        }
        last.clear();
        last.extend_from_slice(observer.threads());
    }
    assert!(changes > 100, "they did not switch");
    let health = observer.health();
    assert_eq!((health.torn, health.contended, health.recursion_misses), (0, 0, 0), "{health:?}");
}

#[test]
fn a_fork_wakes_the_observer_and_switches_do_not() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let napper = Worker::napper(crowded(), Duration::from_millis(1));
    observer.watch(napper.thread, BE, false, Children::Adopt).unwrap();
    observer.watch(ThreadRef::current().unwrap(), BE, false, Children::Adopt).unwrap();
    let readable = |observer: &BpfObserver, timeout: Duration| {
        let fd = observer.wake_fd().unwrap();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0
    };
    for _ in 0..3 {
        let _ = events(&mut observer);
        assert!(!readable(&observer, Duration::from_millis(30)));
        std::thread::spawn(|| {}).join().unwrap();
        assert!(readable(&observer, PATIENCE));
        let seen = events(&mut observer);
        assert!(seen.iter().any(|event| matches!(event, HostEvent::Forked { .. })), "{seen:?}");
        // The end of the thread may be told after the creator has waited for it.
        eventually("it ended", || {
            let more = events(&mut observer);
            let ended = |event: &HostEvent| matches!(event, HostEvent::Exited(_));
            more.iter().any(ended) || seen.iter().any(ended)
        });
    }
}

#[test]
fn lc_that_queues_behind_lc_is_told_and_only_when_asked_for() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    observer.manage(&CoreSet::of(crowded()));
    let pair = [Worker::spinner(crowded()), Worker::spinner(crowded())];
    for worker in &pair {
        observer.watch(worker.thread, LC, true, Children::Adopt).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(!events(&mut observer).contains(&HostEvent::LcQueued(LC)));
    observer.wake_on_events(true);
    for _ in 0..3 {
        eventually("LC queues", || events(&mut observer).contains(&HostEvent::LcQueued(LC)));
    }
    observer.wake_on_events(false);
}

#[test]
fn the_cost_of_the_programs_is_measured_while_asked_for() {
    if no_bpf() {
        return;
    }
    let observer = observer();
    assert!(observer.cost().iter().all(|cost| cost.runs == 0));
    let measurement = observer.measure().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    drop(measurement);
    let switch = observer.cost().into_iter().find(|cost| cost.event == "sched_switch").unwrap();
    assert!(switch.runs > 0 && !switch.time.is_zero());
}

#[test]
fn memcached_is_followed_thread_by_thread() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let user = ["-u", "root", "-p", "0", "-U", "0", "-s"];
    let socket = std::env::temp_dir().join(format!("quell-observe-{}.sock", std::process::id()));
    let memcached =
        Program::start(Command::new("memcached").args(user).arg(&socket).args(["-t", "4"]));
    observer.watch(procs::thread(memcached.pid()).unwrap(), LC, true, Children::Adopt).unwrap();
    eventually("its threads are those that /proc shows", || {
        for thread in procs::threads(memcached.pid()).unwrap() {
            // Those that were there before it was watched.
            observer.watch(thread, LC, true, Children::Adopt).unwrap();
        }
        observer.read(&mut snapshot());
        let mut shown: Vec<_> = procs::threads(memcached.pid()).unwrap();
        let mut watched: Vec<_> = observer.threads().iter().map(|view| view.thread).collect();
        shown.sort_by_key(|thread| thread.tid);
        watched.sort_by_key(|thread| thread.tid);
        shown == watched && shown.len() >= 5
    });
    drop(memcached);
    eventually("all are gone", || {
        observer.read(&mut snapshot());
        observer.threads().is_empty()
    });
    let _ = std::fs::remove_file(socket);
}

#[test]
fn links_held_elsewhere_keep_tracking() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let sleeper = Program::start(Command::new("sh").args(["-c", "sleep 0.4; sleep 60; :"]));
    observer.watch(procs::thread(sleeper.pid()).unwrap(), BE, false, Children::Adopt).unwrap();
    let held: Vec<_> =
        observer.held_fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    drop(observer);
    eventually("a child that was born after the observer's end", || {
        let descent = lineage(held[0].as_fd()).unwrap();
        descent.iter().any(|&(_, parent)| parent.0 == sleeper.pid())
    });
    for child in procs::descendants(sleeper.pid()) {
        let _ = Command::new("kill").arg(child.to_string()).status();
    }
    assert!(lineage(held[1].as_fd()).is_err(), "a link is not the map of the slots");
}

#[test]
fn without_the_right_to_bpf_the_error_says_what_it_takes() {
    // Capabilities belong to a thread: this one gives up its own.
    let refused = std::thread::spawn(|| {
        let none = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).unwrap();
        BpfObserver::new(&BpfConfig::default()).map(|_| ())
    });
    let error = refused.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("CAP_BPF"), "{error}");
    assert!(matches!(error, crate::observe::ObserveError::Kernel { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied));
}
