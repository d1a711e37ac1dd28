//! Bursts of LC threads beyond their budgets, and proofs of demoted threads.

use quell_model::{Burst, BurstState, Role, ThreadId};

use super::*;

/// What is told of bursts since the last call.
fn bursts(observer: &mut BpfObserver) -> Vec<Burst> {
    let mut seen = snapshot();
    observer.drain_events(&mut |_| {});
    observer.read(&mut seen);
    seen.bursts
}

fn id(observer: &mut BpfObserver, thread: ThreadRef) -> ThreadId {
    observer.read(&mut snapshot());
    find(observer, thread).unwrap().id
}

/// A core on which the reader does not run, so that it finds others running there.
fn reader_elsewhere() {
    if let Some(other) = topology::online().unwrap().iter().find(|core| *core != crowded()) {
        pin(other);
    }
}

#[test]
fn burst_is_reported_only_while_an_lc_thread_waits_behind_it() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    reader_elsewhere();
    let mut observer = observer();
    observer.manage(&CoreSet::of(crowded()));
    let first = Worker::spinner(crowded());
    observer.watch(first.thread, LC, true, Children::Adopt).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(bursts(&mut observer), [], "it delays no LC thread");
    let second = Worker::spinner(crowded());
    observer.watch(second.thread, LC, true, Children::Adopt).unwrap();
    let pair = [id(&mut observer, first.thread), id(&mut observer, second.thread)];
    let mut reported = [false; 2];
    eventually("each is reported while the other waits", || {
        for burst in bursts(&mut observer) {
            let BurstState::Overran { waiter, waiter_task, same_process } = burst.state else {
                panic!("{burst:?}")
            };
            assert!(same_process, "both are threads of this test");
            let at = pair.iter().position(|id| *id == burst.thread).unwrap();
            assert_eq!((waiter, waiter_task), (pair[1 - at], LC));
            assert!(burst.length >= Role::Event.budget().unwrap(), "{burst:?}");
            reported[at] = true;
        }
        reported == [true; 2]
    });
}

#[test]
fn bursts_of_background_threads_are_not_reported() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    reader_elsewhere();
    let mut observer = observer();
    observer.manage(&CoreSet::of(crowded()));
    let pair = [Worker::spinner(crowded()), Worker::spinner(crowded())];
    for worker in &pair {
        observer.watch(worker.thread, LC, true, Children::Adopt).unwrap();
        let id = id(&mut observer, worker.thread);
        observer.set_role(id, Role::Background, 0);
    }
    // What was sent before both had their role.
    std::thread::sleep(Duration::from_millis(50));
    bursts(&mut observer);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(bursts(&mut observer), []);
}

#[test]
fn demoted_thread_proves_itself_by_as_many_short_bursts_as_it_needs() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let sleeper = Worker::sleeper(crowded());
    observer.watch(sleeper.thread, LC, true, Children::Adopt).unwrap();
    eventually("it sleeps", || state(&mut observer, sleeper.thread) == Some(ThreadState::Sleeping));
    let id = id(&mut observer, sleeper.thread);
    let sleeps_again = |observer: &mut BpfObserver, before: u64| {
        eventually("it ran and sleeps again", || {
            let state = state(observer, sleeper.thread);
            let now = find(observer, sleeper.thread).unwrap();
            state == Some(ThreadState::Sleeping) && now.transitions > before
        });
    };
    assert!(!observer.set_role(id, Role::Background, 3), "it has to prove itself first");
    for burst in 1..=3 {
        assert_eq!(bursts(&mut observer), [], "before burst {burst}");
        let before = find(&observer, sleeper.thread).unwrap().transitions;
        sleeper.wake();
        sleeps_again(&mut observer, before);
    }
    let proved = bursts(&mut observer);
    assert_eq!(proved.len(), 1, "{proved:?}");
    assert_eq!((proved[0].thread, proved[0].state), (id, BurstState::Proved));
    // The burst that cost the role ended before the observer was told of the role.
    assert!(observer.set_role(id, Role::LongEvent, 0));
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
    observer.set_role(id, Role::Background, 7);
    observer.read(&mut snapshot());
    program.0.kill().unwrap();
    program.0.wait().unwrap();
    let mut told = Vec::new();
    eventually("its exit", || {
        told.extend(bursts(&mut observer));
        !told.is_empty()
    });
    assert_eq!((told[0].thread, told[0].state), (id, BurstState::Exited));
}
