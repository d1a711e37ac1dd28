//! Lanes: members in slots, changes, and a ring for each.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::bpf::{LaneReader, LaneThread};

const OTHER: TaskId = TaskId { index: 2, generation: 0 };

/// What the scheduler of a lane knows of all threads that the observer sees under its task.
fn known(observer: &mut BpfObserver, task: TaskId) -> Vec<LaneThread> {
    observer.refresh();
    let of_task = observer.threads().iter().enumerate().filter(|(_, view)| view.task == task);
    let known = of_task.map(|(at, view)| {
        LaneThread::new(view.thread, observer.slot_place(at).expect("a thread that is seen"))
    });
    known.collect()
}

fn runnable(reader: &LaneReader, threads: &mut [LaneThread]) -> usize {
    threads.iter_mut().for_each(|thread| assert!(reader.update(thread)));
    threads.iter().filter(|thread| thread.runnable).count()
}

fn is_readable(reader: &LaneReader) -> bool {
    let fd = reader.fd();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).unwrap() > 0
}

#[test]
fn lane_reader_sees_its_own_threads_alone() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let (mut mine, mut other) =
        (observer.open_lane(BE).unwrap(), observer.open_lane(OTHER).unwrap());
    let sleeper = Worker::sleeper(crowded());
    let stranger = Worker::sleeper(crowded());
    observer.watch_member(sleeper.thread, BE, 3, false, Children::Adopt).unwrap();
    observer.watch_member(stranger.thread, OTHER, 0, false, Children::Adopt).unwrap();
    let mut threads = known(&mut observer, BE);
    assert_eq!(threads.len(), 1);
    assert_eq!(find(&observer, sleeper.thread).map(|view| view.member), Some(3));
    eventually("it sleeps", || runnable(&mine, &mut threads) == 0);

    // Nothing was asked for: nothing wakes the scheduler, but changes are counted.
    let before = mine.changes();
    sleeper.wake();
    eventually("its wake-up is counted", || mine.changes() > before);
    assert!(!is_readable(&mine));
    eventually("it sleeps again", || runnable(&mine, &mut threads) == 0);

    // A wake-up of the lane wakes its scheduler, once, and no other one.
    mine.wake_on(false, true);
    other.wake_on(true, true);
    sleeper.wake();
    eventually("the scheduler is woken", || is_readable(&mine));
    assert_eq!(mine.drain(), 1);
    assert!(!is_readable(&mine) && !is_readable(&other));
    stranger.wake();
    eventually("the other one is woken", || is_readable(&other));
    assert!(other.drain() > 0 && !is_readable(&mine));

    // A lane that is closed counts and wakes nothing.
    observer.close_lane(BE);
    let closed = mine.changes();
    mine.wake_on(true, true);
    sleeper.wake();
    eventually("it ran", || known(&mut observer, BE).len() == 1);
    assert_eq!(mine.changes(), closed);
}

#[test]
fn new_threads_are_of_their_creators_member() {
    if no_bpf() {
        return;
    }
    let mut observer = observer();
    let reader = observer.open_lane(BE).unwrap();
    let mut shell = told("(sleep 60 & sleep 60 & wait)");
    let first = procs::thread(shell.pid()).unwrap();
    observer.watch_member(first, BE, 5, false, Children::Adopt).unwrap();
    let before = reader.changes();
    shell.tell();
    eventually("all descendants are there", || {
        observer.refresh();
        observer.threads().len() >= 4
    });
    assert!(observer.threads().iter().all(|view| view.member == 5), "{:?}", observer.threads());
    assert!(reader.changes() > before);
    let pids: Vec<Tid> = observer.threads().iter().map(|view| view.thread.tgid).collect();
    let mut threads = known(&mut observer, BE);
    for pid in pids {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
    }
    drop(shell);
    eventually("none is left", || runnable(&reader, &mut threads) == 0);
}

#[test]
fn rings_of_lanes_are_bounded_and_reused() {
    if no_bpf() {
        return;
    }
    let mut observer =
        BpfObserver::new(&BpfConfig { max_threads: 64, max_tasks: 65, ..BpfConfig::default() })
            .unwrap();
    let task = |index| TaskId { index, generation: 0 };
    let readers: Vec<LaneReader> =
        (0..64).map(|index| observer.open_lane(task(index)).unwrap()).collect();
    assert!(observer.open_lane(task(64)).is_err());
    observer.close_lane(task(7));
    observer.open_lane(task(64)).unwrap();
    drop(readers);
}
