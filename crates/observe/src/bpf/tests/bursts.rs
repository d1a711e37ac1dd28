//! Bursts of LC threads beyond their budgets, and proofs of demoted threads.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use quell_model::{Burst, BurstState, INPUT_WEIGHT, Role, ThreadId};

use super::*;
use quell_os::sched::SchedAttr;
use quell_testkit::HostLock;

/// What was reported of bursts since the last call.
pub(super) fn bursts(observer: &mut BpfObserver) -> Vec<Burst> {
    let mut seen = snapshot();
    observer.drain_events(&mut |_| {});
    observer.read(&mut seen);
    seen.bursts
}

fn id(observer: &mut BpfObserver, thread: ThreadRef) -> ThreadId {
    observer.read(&mut snapshot());
    find(observer, thread).unwrap().id
}

/// An observer with one managed core, [`crowded`], which the reader leaves: so it finds others running there.
pub(super) struct CrowdedCore {
    pub observer: BpfObserver,
    /// The other tests of this host wait: their threads on this core would change its bursts.
    _lock: HostLock,
}

impl CrowdedCore {
    /// `None` where this host has no BPF.
    pub fn new() -> Option<CrowdedCore> {
        if no_bpf() {
            return None;
        }
        let _lock = host_lock().unwrap();
        if let Some(other) = topology::online().unwrap().iter().find(|core| *core != crowded()) {
            pin(other);
        }
        let mut observer = observer();
        observer.manage(&CoreSet::of(crowded()));
        Some(CrowdedCore { observer, _lock })
    }

    /// An LC thread that never sleeps on this core.
    pub fn spinner(&mut self) -> (Worker, ThreadId) {
        watched(&mut self.observer, Worker::spinner(crowded()))
    }
}

/// Watches a worker as a thread of the LC task. Reads, so bursts reported before are dropped.
pub(super) fn watched(observer: &mut BpfObserver, worker: Worker) -> (Worker, ThreadId) {
    observer.watch(worker.thread, LC, true, Children::Adopt).unwrap();
    let id = id(observer, worker.thread);
    (worker, id)
}

/// An observer and an LC thread that sleeps until it is woken; `None` where this host has no BPF.
fn watched_sleeper() -> Option<(BpfObserver, Worker, ThreadId)> {
    if no_bpf() {
        return None;
    }
    let mut observer = observer();
    let (sleeper, id) = watched(&mut observer, Worker::sleeper(crowded()));
    eventually("it sleeps", || state(&mut observer, sleeper.thread) == Some(ThreadState::Sleeping));
    Some((observer, sleeper, id))
}

#[test]
fn burst_is_reported_only_while_an_lc_thread_waits_behind_it() {
    let Some(mut scene) = CrowdedCore::new() else { return };
    let (_first, first) = scene.spinner();
    std::thread::sleep(Duration::from_millis(50));
    let no_lc_waits = |burst: &Burst| burst.state == BurstState::Overran(None);
    assert!(bursts(&mut scene.observer).iter().all(no_lc_waits), "it delays no LC thread");
    let (_second, second) = scene.spinner();
    let pair = [first, second];
    let mut reported = [false; 2];
    eventually("each is reported while the other waits", || {
        for burst in bursts(&mut scene.observer) {
            // `None`: a kernel thread of that core woke up.
            let BurstState::Overran(waiter) = burst.state else { panic!("{burst:?}") };
            let Some(waiter) = waiter else { continue };
            assert!(waiter.same_process, "both are threads of this test");
            let at = pair.iter().position(|id| *id == burst.thread).unwrap();
            assert_eq!((waiter.thread, waiter.task), (pair[1 - at], LC));
            assert!(burst.length >= Role::Event.budget().unwrap(), "{burst:?}");
            reported[at] = true;
        }
        reported == [true; 2]
    });
}

#[test]
fn yielding_does_not_end_a_burst() {
    let Some(mut scene) = CrowdedCore::new() else { return };
    let mut raised = false;
    // No other thread has its priority: it goes on after each yield, before the other thread.
    let (_yielder, yielder) = watched(
        &mut scene.observer,
        Worker::start(crowded(), move || {
            if !std::mem::replace(&mut raised, true) {
                quell_os::own::set_attr(&SchedAttr::fifo(1)).unwrap();
            }
            std::thread::yield_now();
        }),
    );
    let _spinner = scene.spinner();
    eventually("its burst is over the budget, however often it yields", || {
        bursts(&mut scene.observer).iter().any(|burst| {
            let over = burst.length >= Role::Event.budget().unwrap();
            let waited_for = matches!(burst.state, BurstState::Overran(Some(_)));
            burst.thread == yielder && over && waited_for
        })
    });
}

#[test]
fn burst_of_a_thread_that_receives_is_as_long_as_a_stretch_between_two_inputs() {
    let Some(mut scene) = CrowdedCore::new() else { return };
    let (near, far) = UnixStream::pair().unwrap();
    let (mut sent, mut received) = (near, far);
    // It never sleeps: each byte is there before it is read.
    let receiver = Worker::start(crowded(), move || {
        sent.write_all(&[1]).unwrap();
        received.read_exact(&mut [0]).unwrap();
    });
    let (receiver, receives) = watched(&mut scene.observer, receiver);
    let (spinner, _) = scene.spinner();
    let mut lengths = |thread: ThreadRef| {
        scene.observer.read(&mut snapshot());
        let view = find(&scene.observer, thread).unwrap();
        (view.burst, view.ran)
    };
    let budget = Role::Event.budget().unwrap();
    eventually("it ran for long, in short stretches", || {
        let (burst, ran) = lengths(receiver.thread);
        ran.0 > budget.0 * INPUT_WEIGHT / 2 && burst < budget
    });
    eventually("one without inputs has a burst as long as it ran", || {
        let (burst, ran) = lengths(spinner.thread);
        ran > budget && burst == ran
    });
    eventually("a thread that receives without end holds up the others at last", || {
        bursts(&mut scene.observer).iter().any(|burst| {
            let waited_for = matches!(burst.state, BurstState::Overran(Some(_)));
            burst.thread == receives && waited_for && burst.length >= budget
        })
    });
}

#[test]
fn bursts_of_background_threads_are_not_reported() {
    let Some(mut scene) = CrowdedCore::new() else { return };
    let pair = [scene.spinner(), scene.spinner()];
    for (_, id) in &pair {
        scene.observer.set_role(*id, LC, Role::Background, 0);
    }
    // What was sent before both had their role.
    std::thread::sleep(Duration::from_millis(50));
    bursts(&mut scene.observer);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(bursts(&mut scene.observer), []);
}

#[test]
fn demoted_thread_proves_itself_by_as_many_short_bursts_as_it_needs() {
    let Some((mut observer, sleeper, id)) = watched_sleeper() else { return };
    let sleeps_again = |observer: &mut BpfObserver, before: u64| {
        eventually("it ran and sleeps again", || {
            let state = state(observer, sleeper.thread);
            let now = find(observer, sleeper.thread).unwrap();
            state == Some(ThreadState::Sleeping) && now.transitions > before
        });
    };
    assert!(!observer.set_role(id, LC, Role::Background, 3), "it has to prove itself first");
    for burst in 1..=3 {
        assert_eq!(bursts(&mut observer), [], "before burst {burst}");
        let before = find(&observer, sleeper.thread).unwrap().transitions;
        sleeper.wake();
        sleeps_again(&mut observer, before);
    }
    let proved = bursts(&mut observer);
    assert_eq!(proved.len(), 1, "{proved:?}");
    assert_eq!((proved[0].thread, proved[0].state), (id, BurstState::Proved));
    // The burst that cost the role ended before the observer had the role.
    assert!(observer.set_role(id, LC, Role::LongEvent, 0));
    assert_eq!(bursts(&mut observer).len(), 1);
}

#[test]
fn exit_of_a_demoted_thread_is_reported() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let mut program = Program::start(Command::new("sleep").arg("1000"));
    let thread = procs::thread(program.pid()).unwrap();
    observer.watch(thread, LC, true, Children::Adopt).unwrap();
    let id = id(&mut observer, thread);
    observer.set_role(id, LC, Role::Background, 7);
    observer.read(&mut snapshot());
    program.0.kill().unwrap();
    program.0.wait().unwrap();
    let mut reported = Vec::new();
    eventually("its exit", || {
        reported.extend(bursts(&mut observer));
        !reported.is_empty()
    });
    assert_eq!((reported[0].thread, reported[0].state), (id, BurstState::Exited));
}

#[test]
fn role_survives_a_second_watch_and_ends_with_the_task() {
    let Some((mut observer, sleeper, id)) = watched_sleeper() else { return };
    observer.set_role(id, LC, Role::Background, 7);
    observer.watch(sleeper.thread, LC, true, Children::Adopt).unwrap();
    assert_eq!(bursts(&mut observer), []);
    assert!(observer.has_role(id, Role::Background));
    observer.watch(sleeper.thread, BE, true, Children::Adopt).unwrap();
    let left = bursts(&mut observer);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!((left[0].thread, left[0].task, left[0].state), (id, LC, BurstState::Exited));
    assert!(observer.has_role(id, Role::Event));
}

#[test]
fn core_follows_the_role_of_its_running_thread_without_a_switch() {
    let Some(mut scene) = CrowdedCore::new() else { return };
    let (_spinner, id) = scene.spinner();
    let observer = &mut scene.observer;
    let burst = |observer: &mut BpfObserver| {
        let mut seen = snapshot();
        observer.read(&mut seen);
        seen.cores.iter().find(|core| core.id == crowded()).unwrap().burst
    };
    eventually("its burst is the core's", || {
        burst(observer).is_some_and(|(thread, _)| thread == id)
    });
    observer.set_role(id, LC, Role::Fair, 0);
    eventually("a thread in the fair class has none", || burst(observer).is_none());
    observer.set_role(id, LC, Role::Event, 0);
    eventually("it has one again", || burst(observer).is_some());
    observer.set_role(id, LC, Role::Background, 0);
    eventually("a background thread is in the fair class", || burst(observer).is_none());
    observer.note_elevated_background(true);
    observer.set_role(id, LC, Role::Background, 1);
    eventually("unless it is elevated", || burst(observer).is_some());
}

#[test]
fn programs_without_roles_report_no_bursts_and_still_see_threads() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let config = BpfConfig { max_threads: 64, max_tasks: 8, roles: false, ..BpfConfig::default() };
    let mut observer = BpfObserver::new(&config).unwrap();
    observer.manage(&CoreSet::of(crowded()));
    let pair = [Worker::spinner(crowded()), Worker::spinner(crowded())];
    for worker in &pair {
        observer.watch(worker.thread, LC, true, Children::Adopt).unwrap();
    }
    for worker in &pair {
        eventually("it waits behind the other", || {
            state(&mut observer, worker.thread) == Some(ThreadState::Waiting)
        });
    }
    assert_eq!(bursts(&mut observer), []);
}
