//! States, waits and waste of threads that are watched.

use std::sync::atomic::Ordering;

use super::super::Health;

use super::*;

#[test]
fn of_two_spinners_on_one_core_one_runs_and_one_waits() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    // On their core the reader would find neither running: it had the core itself.
    if let Some(other) = topology::online().unwrap().iter().find(|core| *core != crowded()) {
        pin(other);
    }
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
    sleeper.wake();
    eventually("it ran and sleeps again", || {
        let state = state(&mut observer, sleeper.thread);
        let now = find(&observer, sleeper.thread).unwrap();
        // Woken, ran, sleeps.
        state == Some(ThreadState::Sleeping) && now.transitions >= before.transitions + 3
    });
    let after = find(&observer, sleeper.thread).unwrap();
    assert!(after.ran > before.ran && after.waited > before.waited && after.since > before.since);
    assert_eq!(observer.wake_to_run(LC).count(), 1);
    assert_eq!(observer.recent_wake_to_run(LC).count(), 1);
    assert_eq!(observer.health().missed_wakes, 0);
}

/// A core remembers the slots of threads that it had lately.
#[test]
fn a_thread_that_is_watched_anew_is_not_taken_for_what_had_its_slot() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    let [first, second] = [(); 2].map(|()| Worker::sleeper(crowded()));
    let wake = |observer: &mut BpfObserver, worker: &Worker| {
        let sleeps = |observer: &mut BpfObserver| {
            state(observer, worker.thread) == Some(ThreadState::Sleeping)
        };
        eventually("it sleeps", || sleeps(observer));
        let before = find(observer, worker.thread).unwrap();
        worker.wake();
        eventually("it ran and sleeps again", || {
            sleeps(observer) && find(observer, worker.thread).unwrap().ran > before.ran
        });
    };
    observer.watch(first.thread, LC, true, Children::Adopt).unwrap();
    wake(&mut observer, &first);
    // The slot goes from one thread to the other and back.
    for (gone, next) in [(&first, &second), (&second, &first)] {
        observer.unwatch(gone.thread);
        gone.wake();
        observer.watch(next.thread, LC, true, Children::Adopt).unwrap();
        wake(&mut observer, next);
        wake(&mut observer, next);
    }
    assert_eq!((observer.health().watched, observer.health().missed_wakes), (1, 0));
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
    // In this order: what is caused meanwhile is among its own.
    let caused = observer.delays_caused(BE);
    let own = observer.wake_to_run(LC);
    assert!(caused.quantile(999) <= own.quantile(1000));
    assert_eq!(observer.delays_caused(LC).count(), 0);
    assert_eq!(observer.wake_to_run(BE).count(), 0);
}

#[test]
fn the_time_on_each_core_is_counted_and_outlives_its_threads() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let spinner = Worker::spinner(crowded());
    observer.watch(spinner.thread, BE, false, Children::Adopt).unwrap();
    let ran = |observer: &BpfObserver| observer.task_times(BE).ran_on[crowded().index()];
    eventually("the stretch in progress counts", || ran(&observer) > Nanos::from_millis(1));
    let before = ran(&observer);
    drop(spinner);
    eventually("it is gone", || {
        observer.read(&mut snapshot());
        observer.threads().is_empty()
    });
    assert!(ran(&observer) >= before);
    let times = observer.task_times(BE);
    let elsewhere = times.ran_on.iter().enumerate().filter(|(at, _)| *at != crowded().index());
    assert!(elsewhere.into_iter().all(|(_, &ran)| ran == Nanos::ZERO), "{times:?}");
    assert!(observer.task_times(LC).ran_on.iter().all(|&ran| ran == Nanos::ZERO));
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
fn what_is_read_under_heavy_switching_is_coherent() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let (_, health) = read_under_heavy_switching(100, Duration::ZERO);
    assert_eq!(health.recursion_misses, 0, "{health:?}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn reads_under_heavy_switching_are_rarely_torn() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let (changes, health) = read_under_heavy_switching(100, Duration::from_secs(2));
    assert_eq!((health.contended, health.recursion_misses), (0, 0), "{health:?}");
    // A hypervisor may stop a writer while it holds a slot.
    assert!(health.torn * 20 < changes, "{changes} changes, {health:?}");
}

/// Reads two threads that wake each other, until so many of their transitions were seen and so much time has passed.
/// Whatever is read is coherent.
fn read_under_heavy_switching(enough: u64, time: Duration) -> (u64, Health) {
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
    while changes <= enough || start.elapsed() < time {
        assert!(start.elapsed() < PATIENCE, "they did not switch: {changes} changes");
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
    (changes, observer.health())
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
fn a_wait_of_lc_without_a_core_is_told_although_no_lc_runs() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    let core = crowded();
    observer.manage(&CoreSet::of(core));
    let napper = Worker::napper(core, Duration::from_millis(1));
    observer.watch(napper.thread, LC, true, Children::Adopt).unwrap();
    observer.wake_on_events(true);
    events(&mut observer);
    std::thread::sleep(Duration::from_millis(20));
    assert!(!events(&mut observer).contains(&HostEvent::LcQueued(LC)), "its core is its own");
    observer.note_unserved(LC, true);
    eventually("its wait is told", || events(&mut observer).contains(&HostEvent::LcQueued(LC)));
    observer.wake_on_events(false);
}

#[test]
fn the_scheduler_of_a_lane_is_told_once_what_it_waits_for_and_nothing_else() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    let sleeper = Worker::sleeper(crowded());
    observer.watch(sleeper.thread, BE, false, Children::Adopt).unwrap();
    let mut lane = observer.open_lane(BE).unwrap();
    let rings = |lane: &mut crate::bpf::LaneReader| lane.drain() > 0;
    // Each time it wakes up, it goes to sleep again.
    let wake = |observer: &mut BpfObserver| {
        let before = find(observer, sleeper.thread).map_or(0, |view| view.transitions);
        sleeper.wake();
        eventually("it woke up and sleeps again", || {
            observer.refresh();
            find(observer, sleeper.thread).is_some_and(|view| {
                view.state == ThreadState::Sleeping && view.transitions > before
            })
        });
    };
    eventually("it sleeps", || {
        observer.refresh();
        find(&observer, sleeper.thread).is_some_and(|view| view.state == ThreadState::Sleeping)
    });
    wake(&mut observer);
    assert!(!rings(&mut lane), "nobody asked");
    for (sleeps, wakes) in [(true, false), (false, true), (true, true)] {
        let before = lane.changes();
        lane.wake_on(sleeps, wakes);
        assert_eq!(lane.changes(), before, "nothing happened before it was asked");
        wake(&mut observer);
        assert!(rings(&mut lane));
        wake(&mut observer);
        assert!(!rings(&mut lane), "it has to be asked for again");
    }
    let mut other = observer.open_lane(LC).unwrap();
    other.wake_on(true, true);
    wake(&mut observer);
    assert!(!rings(&mut other) && !rings(&mut lane), "another lane's threads are no news");
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
fn no_wake_up_is_lost_between_a_thread_that_falls_asleep_and_its_waker_elsewhere() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let cores = topology::read().unwrap();
    let Some(other) = cores.cores().iter().map(|core| core.id).find(|core| *core != crowded())
    else {
        return quell_testkit::skipped("it takes two cores");
    };
    let mut observer = observer();
    // Each message may find the other one awake, asleep, or on its way there.
    let (to_sleeper, messages) = mpsc::channel::<()>();
    let (done, all_done) = mpsc::channel::<usize>();
    let mut received = 0;
    let sleeper = Worker::start(crowded(), move || {
        if messages.recv_timeout(Duration::from_millis(20)).is_ok() {
            received += 1;
            let _ = done.send(received);
        }
    });
    observer.watch(sleeper.thread, LC, true, Children::Adopt).unwrap();
    let count = 20_000;
    let waker = Worker::start(other, {
        let mut sent = 0;
        move || {
            if sent < count {
                sent += 1;
                let _ = to_sleeper.send(());
                (0..sent % 400).for_each(|_| std::hint::spin_loop());
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut seen = 0;
    while seen < count {
        seen = all_done.recv_timeout(PATIENCE).unwrap();
    }
    // A program gives up on a slot whose holder the hypervisor stopped.
    let health = observer.health();
    assert!(health.missed_wakes <= health.contended, "of {count} wake-ups, {health:?}");
    drop(waker);
}

/// Says of a thread that it waits since the clock's beginning, and of its core that another has it.
fn miss_its_switch(observer: &mut BpfObserver, thread: ThreadRef) {
    let core = find(observer, thread).unwrap().core;
    let slots = observer.programs.slots.iter();
    let slot = slots
        .enumerate()
        .find(|(_, slot)| slot.read().0.and_then(|copy| copy.thread) == Some(thread));
    let (at, slot) = slot.unwrap();
    observer.programs.cores[core.index()].plant_stranger();
    slot.plant_wait(Nanos(1));
    observer.programs.dirty[at / 64].fetch_or(1 << (at % 64), Ordering::Relaxed);
}

#[test]
fn a_sleeper_that_a_missed_switch_left_waiting_is_found_asleep() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let sleeper = Worker::sleeper(crowded());
    observer.watch(sleeper.thread, LC, true, Children::Adopt).unwrap();
    eventually("it sleeps", || state(&mut observer, sleeper.thread) == Some(ThreadState::Sleeping));
    miss_its_switch(&mut observer, sleeper.thread);
    let mut seen = snapshot();
    observer.read(&mut seen);
    assert_eq!(seen.tasks[0].waiting, 1, "it is said to wait");
    eventually("it is found asleep", || {
        events(&mut observer);
        state(&mut observer, sleeper.thread) == Some(ThreadState::Sleeping)
    });
    sleeper.wake();
    eventually("its next run is seen", || {
        observer.read(&mut seen);
        observer.wake_to_run(LC).count() == 1
    });
}

#[test]
fn a_runner_that_a_missed_switch_left_waiting_is_found_running_or_seen_as_it_leaves() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    let spinner = Worker::spinner(crowded());
    observer.watch(spinner.thread, LC, true, Children::Adopt).unwrap();
    // Where this thread has the same core, it waits.
    let awake = [Some(ThreadState::Running), Some(ThreadState::Waiting)];
    eventually("it is awake", || awake.contains(&state(&mut observer, spinner.thread)));
    for _ in 0..20 {
        miss_its_switch(&mut observer, spinner.thread);
        eventually("what was missed is made good", || {
            events(&mut observer);
            let state = state(&mut observer, spinner.thread);
            let view = find(&observer, spinner.thread).unwrap();
            // Where this thread has the same core, it waits: since its last switch.
            state == Some(ThreadState::Running) || view.since > Nanos(1)
        });
    }
}
