//! The /proc observer on this host, with real threads.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use quell_model::{
    Children, Class, CoreId, CoreView, Limits, Nanos, Signal, Snapshot, TaskId, TaskView,
    TimeLimits,
};

use super::ProcObserver;
use crate::{HostEvent, Observer, ThreadState, procs, topology};
use quell_os::ThreadRef;
use quell_testkit::host_lock;

const TASK: TaskId = TaskId { index: 0, generation: 3 };

fn snapshot() -> Snapshot {
    let core = |core: &quell_model::Core| CoreView::new(core.id);
    let task = TaskView::new(
        TASK,
        Limits {
            class: Class::LatencyCritical,
            guaranteed: 1,
            max: 1,
            times: TimeLimits::default(),
            ..Limits::NONE
        },
    );
    Snapshot {
        cores: topology::read().unwrap().cores().iter().map(core).collect(),
        tasks: vec![task],
        ..Snapshot::default()
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "not seen: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn of_two_spinners_on_one_core_one_runs_and_one_waits() {
    let _lock = host_lock().unwrap();
    let core = topology::online().unwrap().iter().last().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let pair = [0, 1].map(|_| {
        let (stop, tell) = (Arc::clone(&stop), tell.clone());
        std::thread::spawn(move || {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core.index());
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            tell.send(ThreadRef::current().unwrap()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    });
    let mut observer = ProcObserver::new();
    let pair_refs = [told.recv().unwrap(), told.recv().unwrap()];
    for thread in pair_refs {
        observer.watch(thread, TASK, true, Children::Leave).unwrap();
    }
    let mut seen = snapshot();
    eventually("one runs, one waits, on one core", || {
        observer.read(&mut seen);
        let views = observer.threads().iter().filter(|view| pair_refs.contains(&view.thread));
        let mut states: Vec<_> = views.map(|view| (view.core, view.state)).collect();
        states.sort_by_key(|&(_, state)| state == ThreadState::Waiting);
        let task = &seen.tasks[0];
        states == [(core, ThreadState::Running), (core, ThreadState::Waiting)]
            && task.running_on.contains(core)
            && matches!(task.queueing_delay, Signal::Estimated { value, .. } if value > Nanos::ZERO)
    });
    let view = seen.cores.iter().find(|view| view.id == core).unwrap();
    assert_eq!((view.running, view.idle_since), (Some(TASK), None));
    eventually("the core is busy with LC work", || {
        observer.read(&mut seen);
        let view = seen.cores.iter().find(|view| view.id == core).unwrap();
        view.lc_busy.value().is_some_and(|share| share.0 > 0)
    });
    assert!(matches!(seen.tasks[0].delay_caused, Signal::Absent(_)));
    stop.store(true, Ordering::Relaxed);
    pair.into_iter().for_each(|thread| thread.join().unwrap());
    let mut ended = Vec::new();
    eventually("both ended", || {
        observer.read(&mut seen);
        observer.drain_events(&mut |event| match event {
            HostEvent::Exited(thread) if pair_refs.contains(&thread) => ended.push(thread),
            _ => {}
        });
        ended.len() == 2
    });
    assert!(observer.threads().iter().all(|view| !pair_refs.contains(&view.thread)));
}

#[test]
fn children_are_found_and_treated_as_asked() {
    for (children, expected) in [(Children::Adopt, 2), (Children::Be, 2), (Children::Leave, 1)] {
        let mut shell = Command::new("sh").args(["-c", "sleep 60; :"]).spawn().unwrap();
        let first = procs::thread(shell.id() as i32).unwrap();
        let mut observer = ProcObserver::new();
        observer.watch(first, TASK, true, children).unwrap();
        let mut seen = snapshot();
        eventually("its child was looked for", || {
            observer.read(&mut seen);
            let looked = observer.sweeps > 2 * super::PROCESS_SWEEPS;
            looked
                && !procs::descendants(first.tid.0).is_empty()
                && observer.threads().len() == expected
        });
        let mut forks = Vec::new();
        observer.drain_events(&mut |event| forks.push(event));
        assert_eq!(forks.len(), expected - 1, "{forks:?}");
        let guests = observer.threads().iter().filter(|view| !view.lc).count();
        assert_eq!(guests, usize::from(children == Children::Be));
        let own = seen.tasks[0].sleeping + seen.tasks[0].waiting + seen.tasks[0].running;
        assert_eq!(own as usize, expected - guests);
        for pid in procs::descendants(first.tid.0).into_iter().chain([first.tid.0]) {
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
        shell.wait().unwrap();
    }
}

#[test]
fn a_thread_that_is_gone_or_another_one_is_refused() {
    let mut observer = ProcObserver::new();
    let me = ThreadRef::current().unwrap();
    let other = ThreadRef { start_ticks: me.start_ticks + 1, ..me };
    assert!(observer.watch(other, TASK, true, Children::Adopt).is_err());
    observer.watch(me, TASK, true, Children::Leave).unwrap();
    observer.unwatch(me);
    assert!(observer.threads().is_empty());
}

#[test]
fn who_reads_runs() {
    let mut observer = ProcObserver::new();
    let me = ThreadRef::current().unwrap();
    observer.watch(me, TASK, true, Children::Leave).unwrap();
    let mut seen = snapshot();
    observer.read(&mut seen);
    let view = observer.threads()[0];
    assert_ne!(view.state, ThreadState::Sleeping);
    assert!(view.core < CoreId(1024) && observer.interval() >= Nanos::from_millis(10));
}
