//! Keyframes of this host, with real threads. Needs the right to use BPF.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use quell_model::Rank;

use super::*;
use crate::workers::{Worker, crowded, pin};
use quell_os::ThreadRef;
use quell_testkit::{host_lock, kernel};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn read_until(reader: &mut KeyframeReader, what: &str, holds: impl Fn(&Keyframe) -> bool) {
    let start = Instant::now();
    while !holds(&reader.read().unwrap().1) {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
    }
}

fn find(keyframe: &Keyframe, thread: ThreadRef) -> Option<&ThreadState> {
    keyframe.threads.iter().find(|state| state.thread.thread == thread.tid.0)
}

fn does(keyframe: &Keyframe, thread: ThreadRef) -> Option<Activity> {
    find(keyframe, thread).map(|state| state.state)
}

#[test]
fn of_two_threads_kept_on_one_core_one_runs_and_one_waits_there() {
    let _lock = host_lock().unwrap();
    let core = crowded();
    let pair = [Worker::spinner(core), Worker::spinner(core)];
    let mut reader = KeyframeReader::open().unwrap();
    read_until(&mut reader, "one runs, one waits", |keyframe| {
        let states = pair.each_ref().map(|worker| find(keyframe, worker.thread).unwrap());
        for state in states {
            assert_eq!((state.core, state.allowed, state.bound), (core, CoreSet::of(core), false));
            assert_eq!(state.thread.process, std::process::id() as i32);
            assert_eq!(state.thread.rank, Rank::FAIR);
        }
        let on = keyframe.cores.iter().find(|state| state.core == core).unwrap();
        let mut activities = states.map(|state| state.state);
        activities.sort();
        activities == [Activity::Running, Activity::Waiting]
            && states.iter().any(|state| state.thread.thread == on.running)
            && on.runnable >= 2
            && on.queued >= on.runnable
            && on.weight > 0
            && on.average > 0
    });
}

#[test]
fn a_sleeper_is_told_only_where_sleepers_are_asked_for() {
    let _lock = host_lock().unwrap();
    let sleeper = Worker::sleeper(crowded());
    let mut reader = KeyframeReader::open().unwrap();
    read_until(&mut reader, "the sleeper sleeps", |keyframe| {
        find(keyframe, sleeper.thread).is_none()
    });
    let (_, keyframe) = reader.read_all().unwrap();
    let state = find(&keyframe, sleeper.thread).unwrap();
    assert_eq!(state.state, Activity::Sleeping);
    assert_eq!(state.allowed, CoreSet::of(crowded()));
}

#[test]
fn the_reader_itself_runs_on_its_core() {
    let _lock = host_lock().unwrap();
    let core = crowded();
    pin(core);
    let own = ThreadRef::current().unwrap();
    let mut reader = KeyframeReader::open().unwrap();
    let before = clock::now();
    let (at, keyframe) = reader.read().unwrap();
    assert!(before <= at && at <= clock::now());
    assert_eq!(does(&keyframe, own), Some(Activity::Running));
    let on = keyframe.cores.iter().find(|state| state.core == core).unwrap();
    assert_eq!(on.running, own.tid.0);
}

#[test]
fn each_core_on_line_is_told_once_and_in_its_own_domain() {
    let _lock = host_lock().unwrap();
    let mut reader = KeyframeReader::open().unwrap();
    for _ in 0..50 {
        let (_, keyframe) = reader.read().unwrap();
        let cores: Vec<CoreId> = keyframe.cores.iter().map(|state| state.core).collect();
        assert_eq!(cores, topology::online().unwrap().iter().collect::<Vec<_>>());
        for state in &keyframe.cores {
            assert!(state.domain.contains(state.core), "{state:?}");
            assert!(state.domain.is_subset(&topology::possible().unwrap()), "{state:?}");
        }
    }
}

#[test]
fn kernel_threads_of_a_core_are_bound_to_it() {
    let _lock = host_lock().unwrap();
    let (_, keyframe) = KeyframeReader::open().unwrap().read_all().unwrap();
    for core in topology::online().unwrap().iter() {
        let name = format!("ksoftirqd/{core}");
        let mut named = keyframe.threads.iter().filter(|one| one.thread.name.to_string() == name);
        let state = named.next().unwrap();
        assert_eq!((state.core, state.allowed, state.bound), (core, CoreSet::of(core), true));
    }
}

#[test]
fn more_threads_than_fit_one_buffer_of_the_kernel_are_told_once_each() {
    let _lock = host_lock().unwrap();
    let sleepers: Vec<Worker> = (0..1_500).map(|_| Worker::sleeper(crowded())).collect();
    let mut reader = KeyframeReader::open().unwrap();
    let (_, keyframe) = reader.read_all().unwrap();
    let mut threads: Vec<i32> = keyframe.threads.iter().map(|one| one.thread.thread).collect();
    threads.sort_unstable();
    let all = threads.len();
    threads.dedup();
    assert_eq!(threads.len(), all);
    for sleeper in &sleepers {
        assert!(threads.binary_search(&sleeper.thread.tid.0).is_ok());
    }
    assert_eq!(keyframe.cores.len(), topology::online().unwrap().len());
}

#[test]
fn a_sleeper_that_is_still_queued_neither_waits_nor_counts_as_runnable() {
    if kernel() < (6, 12) {
        return;
    }
    let _lock = host_lock().unwrap();
    let core = crowded();
    let _hog = Worker::spinner(core);
    let nappers: [Worker; 4] =
        std::array::from_fn(|_| Worker::napper(core, Duration::from_micros(300)));
    let mut reader = KeyframeReader::open().unwrap();
    read_until(&mut reader, "a napper's dequeueing is delayed", |keyframe| {
        let delayed = nappers
            .iter()
            .filter(|napper| does(keyframe, napper.thread) == Some(Activity::Delayed))
            .count() as u32;
        let on = keyframe.cores.iter().find(|state| state.core == core).unwrap();
        delayed > 0 && on.queued > on.runnable
    });
}

/// A cgroup of this test alone, with a quota of a hundredth of a core.
struct Quota(PathBuf);

impl Quota {
    fn new() -> Quota {
        let name = format!("quell-test-keyframe-{}", std::process::id());
        let v1 = PathBuf::from("/sys/fs/cgroup/cpu");
        if v1.join("cpu.cfs_quota_us").exists() {
            let group = Quota(v1.join(name));
            fs::create_dir(&group.0).unwrap();
            fs::write(group.0.join("cpu.cfs_quota_us"), "1000").unwrap();
            return group;
        }
        let root = PathBuf::from("/sys/fs/cgroup");
        fs::write(root.join("cgroup.subtree_control"), "+cpu").unwrap();
        let group = Quota(root.join(name));
        fs::create_dir(&group.0).unwrap();
        fs::write(group.0.join("cpu.max"), "1000 100000").unwrap();
        group
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let start = Instant::now();
        while fs::remove_dir(&self.0).is_err() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A program that never sleeps, ended with the test.
struct Hog(Child);

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_thread_whose_group_used_up_its_quota_is_throttled() {
    let _lock = host_lock().unwrap();
    let quota = Quota::new();
    let hog = Hog(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    fs::write(quota.0.join("cgroup.procs"), hog.0.id().to_string()).unwrap();
    let mut reader = KeyframeReader::open().unwrap();
    read_until(&mut reader, "the hog is throttled", |keyframe| {
        let mut hogs = keyframe.threads.iter().filter(|one| one.thread.thread == hog.0.id() as i32);
        hogs.any(|one| one.state == Activity::Throttled)
    });
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..500),
        kind in 0u16..4,
        words in 1usize..=MASK_WORDS,
    ) {
        let mut bytes = bytes;
        if bytes.len() >= 2 {
            bytes[..2].copy_from_slice(&kind.to_ne_bytes());
        }
        let keyframe = parse(&bytes, words);
        prop_assert!(keyframe.cores.len() + keyframe.threads.len() <= bytes.len() / (HEAD_BYTES + 8 * words));
    }
}
