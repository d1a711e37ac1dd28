//! Background threads that wait while threads sleep whose sleeps they end.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_model::{BurstState, CoreId, Role, ThreadId};

use super::bursts::{CrowdedCore, bursts, watched};
use super::*;

/// Where BPF knows the numbers of system calls (`is_in_futex`).
const IS_KNOWN: bool = cfg!(target_arch = "x86_64");

/// State changes of a thread that waits for its core in between: some hundred milliseconds of sharing it.
const CHANGES: u64 = 60;

/// For the sleeping threads: not the crowded core, where there is another.
fn quiet() -> CoreId {
    topology::online().unwrap().iter().next().unwrap()
}

/// A thread on the crowded core that does this, again and again, and computes in between.
fn busy(mut act: impl FnMut() + Send + 'static) -> Worker {
    Worker::start(crowded(), move || {
        act();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
    })
}

/// A background thread as [`busy`] that waits behind an LC thread now and then.
struct Scene {
    core: CrowdedCore,
    waker: Worker,
    id: ThreadId,
    _spinner: Worker,
}

impl Scene {
    fn new(mut core: CrowdedCore, act: impl FnMut() + Send + 'static) -> Scene {
        let (waker, id) = watched(&mut core.observer, busy(act));
        core.observer.set_role(id, LC, Role::Background, 1 << 14);
        let (_spinner, _) = core.spinner();
        Scene { core, waker, id, _spinner }
    }

    /// Whether it was reported since the last call.
    fn is_reported(&mut self) -> bool {
        let bursts = bursts(&mut self.core.observer);
        bursts.iter().any(|burst| burst.thread == self.id && burst.state == BurstState::EndsSleep)
    }

    fn transitions(&mut self) -> u64 {
        self.core.observer.read(&mut snapshot());
        find(&self.core.observer, self.waker.thread).unwrap().transitions
    }

    fn is_not_reported(&mut self, why: &str) {
        let before = self.transitions();
        eventually("it waits for its core now and then", || {
            assert!(!self.is_reported(), "{why}");
            self.transitions() > before + CHANGES
        });
    }
}

#[test]
fn background_thread_is_reported_while_one_that_it_wakes_sleeps_in_futex() {
    let Some(mut core) = CrowdedCore::new() else { return };
    let is_napping = Arc::new(AtomicBool::new(false));
    let (naps, naps_now) = (Arc::new(AtomicBool::new(false)), Arc::clone(&is_napping));
    let naps_next = Arc::clone(&naps);
    let sleeper = Worker::start(quiet(), move || match naps_next.load(Ordering::Relaxed) {
        false => std::thread::park_timeout(PATIENCE),
        true => {
            naps_now.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let (sleeper, _) = watched(&mut core.observer, sleeper);
    let wakes = sleeper.waker();
    let mut scene = Scene::new(core, move || wakes.unpark());
    eventually("it waits while the other sleeps", || scene.is_reported() || !IS_KNOWN);

    naps.store(true, Ordering::Relaxed);
    eventually("the other naps", || is_napping.load(Ordering::Acquire));
    scene.is_reported();
    scene.is_not_reported("a nap ends by itself");
}

#[test]
fn thread_whose_sleeps_end_for_others_is_depended_on_too() {
    let Some(mut core) = CrowdedCore::new() else { return };
    let (server, _) = watched(&mut core.observer, Worker::sleeper(quiet()));
    let wakes = server.waker();
    // It ends a pause of the server, for which it needs the busy thread.
    let collector = Worker::start(quiet(), move || {
        std::thread::park_timeout(PATIENCE);
        wakes.unpark();
    });
    let (collector, id) = watched(&mut core.observer, collector);
    core.observer.set_role(id, LC, Role::Background, 1 << 14);
    let wakes = collector.waker();
    let mut scene = Scene::new(core, move || wakes.unpark());
    eventually("it waits while the collector sleeps", || scene.is_reported() || !IS_KNOWN);
}

#[test]
fn background_threads_that_wake_each_other_alone_are_not_reported() {
    let Some(mut core) = CrowdedCore::new() else { return };
    let (helper, id) = watched(&mut core.observer, Worker::sleeper(quiet()));
    core.observer.set_role(id, LC, Role::Background, 1 << 14);
    let wakes = helper.waker();
    Scene::new(core, move || wakes.unpark()).is_not_reported("no event thread needs it");
}

#[test]
fn sleep_outside_futex_that_a_background_thread_ends_is_not_reported() {
    let Some(mut core) = CrowdedCore::new() else { return };
    let (mut from, mut to) = std::io::pipe().unwrap();
    // The end of the file, once the writer is gone.
    let reader = Worker::start(quiet(), move || {
        let _bytes = from.read(&mut [0; 64]).unwrap();
    });
    let (_reader, _) = watched(&mut core.observer, reader);
    let mut scene = Scene::new(core, move || to.write_all(&[1]).unwrap());
    scene.is_not_reported("a request may come from anywhere");
}

#[test]
fn timer_that_ends_a_sleep_while_a_background_thread_runs_makes_it_no_waker() {
    let Some(mut core) = CrowdedCore::new() else { return };
    let nap = Duration::from_millis(1);
    let (_sleeper, _) = watched(
        &mut core.observer,
        Worker::start(crowded(), move || std::thread::park_timeout(nap)),
    );
    Scene::new(core, || {}).is_not_reported("it ended no sleep");
}
