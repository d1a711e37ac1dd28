//! Children, short threads and full tables: who is watched.

use super::*;

#[test]
fn children_are_followed_through_fork_and_exec() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let mut shell = told("(sleep 60 & sleep 60 & wait)");
    let first = procs::thread(shell.pid()).unwrap();
    observer.watch(first, BE, false, Children::Adopt).unwrap();
    shell.tell();
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
    for (children, watched) in [(Children::Be, true), (Children::Leave, false)] {
        let mut observer = observer();
        let mut shell = told("sleep 0.2; sleep 60; :");
        let thread = procs::thread(shell.pid()).unwrap();
        observer.watch(thread, LC, true, children).unwrap();
        shell.tell();
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
    let look = |observer: &mut BpfObserver, forked: &mut Vec<i32>, exited: &mut Vec<i32>| {
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
        look(&mut observer, &mut forked, &mut exited);
        std::thread::sleep(Duration::from_millis(1));
    }
    let tids = bomb.join().unwrap();
    // The event of an exit comes after its slot is free.
    eventually("every slot is free again, and every exit is told", || {
        look(&mut observer, &mut forked, &mut exited);
        observer.health().watched == 0 && observer.threads().is_empty() && exited.len() > THREADS
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
    let mut sleeper = told("sleep 60; :");
    observer.watch(procs::thread(sleeper.pid()).unwrap(), BE, false, Children::Adopt).unwrap();
    let held: Vec<_> =
        observer.held_fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    drop(observer);
    sleeper.tell();
    eventually("a child that was born after the observer's end", || {
        let descent = lineage(held[0].as_fd()).unwrap();
        descent.iter().any(|&(_, parent)| parent.0 == sleeper.pid())
    });
    for child in procs::descendants(sleeper.pid()) {
        let _ = Command::new("kill").arg(child.to_string()).status();
    }
    assert!(lineage(held[1].as_fd()).is_err(), "a link is not the map of the slots");
}
