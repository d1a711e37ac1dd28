//! What a lane promises, with real threads on a real core.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::common::{BATCH, CORE, FIFO, OTHER, eventually, ground, scheduling, succeed, tid};
use quell_act::{InUse, Ladder};
use quell_lane::{Expiry, Lane, LaneError, Level, Member, Preempted, Priorities};
use quell_model::Rung;
use quell_os::Tid;
use quell_testkit::skipped;

fn lane() -> Lane {
    Lane::open(CORE, Priorities::default()).unwrap()
}

/// Runs on a thread of its own, whose end is waited for.
fn on_a_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

#[test]
fn threads_have_their_level_and_their_core_and_get_back_what_they_had() {
    let Some(_lock) = ground() else { return };
    let lane = lane();
    on_a_thread(|| {
        let before = scheduling(tid());
        for level in Level::ALL {
            let entered = lane.enter(level).unwrap();
            let own = (FIFO, lane.priorities().of(level), CORE.to_string());
            assert_eq!(scheduling(tid()), own);
            entered.leave().unwrap();
            assert_eq!(scheduling(tid()), before);
        }
        // Something else than everybody has; and a guard that is dropped does as much.
        let me = tid().to_string();
        succeed(Command::new("chrt").args(["-b", "-p", "0", &me]));
        succeed(Command::new("renice").args(["-n", "7", "-p", &me]));
        succeed(Command::new("taskset").args(["-cp", "0", &me]));
        drop(lane.enter(Level::Parked).unwrap());
        assert_eq!(scheduling(tid()), (BATCH, 0, "0".to_owned()));
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert_eq!(stat.rsplit(')').next().unwrap().split_whitespace().nth(16), Some("7"));
    });
}

#[test]
fn what_a_thread_of_a_lane_starts_is_on_no_level() {
    let Some(_lock) = ground() else { return };
    let lane = lane();
    on_a_thread(|| {
        let _entered = lane.enter(Level::Running).unwrap();
        let (policy, priority, _) = on_a_thread(|| scheduling(tid()));
        assert_eq!((policy, priority), (OTHER, 0));
        let child = succeed(Command::new("chrt").args(["-p", "0"]));
        assert!(String::from_utf8(child.stdout).unwrap().contains("SCHED_OTHER"));
    });
}

#[test]
fn who_left_or_ended_is_changed_no_more() {
    let Some(_lock) = ground() else { return };
    let lane = lane();
    let left = on_a_thread(|| lane.enter(Level::Parked).unwrap().member());
    assert!(matches!(lane.set(&left, Level::Running), Err(LaneError::Gone)));
    // One that forgets to leave: the kernel has no thread of its number any more.
    let ended = on_a_thread(|| {
        let entered = lane.enter(Level::Parked).unwrap();
        let member = entered.member();
        std::mem::forget(entered);
        member
    });
    eventually("its number is free", || {
        matches!(lane.set(&ended, Level::Running), Err(LaneError::Gone))
    });
    assert!(matches!(lane.preempt(&left, Duration::ZERO), Err(LaneError::Gone)));
    on_a_thread(|| {
        // A turn that goes from somebody who is gone has still gone to the next.
        let next = lane.enter(Level::Parked).unwrap();
        lane.switch_to(&left, &next.member()).unwrap();
        assert_eq!(scheduling(tid()).1, lane.priorities().of(Level::Running));
        assert!(matches!(lane.switch_to(&next.member(), &left), Err(LaneError::Gone)));
        assert_eq!(scheduling(tid()).1, lane.priorities().of(Level::Running), "nothing changed");
    });
}

#[test]
fn priorities_of_the_programs_own_are_used() {
    let Some(_lock) = ground() else { return };
    let lane = Lane::open(CORE, Priorities::new([11, 12, 13, 14]).unwrap()).unwrap();
    on_a_thread(|| {
        let _entered = lane.enter(Level::Switcher).unwrap();
        assert_eq!(scheduling(tid()).1, 14);
    });
}

/// Workers that count for as long as they run.
struct Spinners {
    counts: [AtomicU64; 3],
    /// Before all are in they sleep: who spins lets nobody in.
    all_in: AtomicBool,
    end: AtomicBool,
}

impl Spinners {
    fn new() -> Spinners {
        Spinners {
            counts: Default::default(),
            all_in: AtomicBool::new(false),
            end: AtomicBool::new(false),
        }
    }

    /// Parked until it is raised.
    fn spin(&self, lane: &Lane, at: usize, ready: &Sender<Worker>) {
        let entered = lane.enter(Level::Parked).unwrap();
        ready.send((at, entered.member(), tid())).unwrap();
        // No lock: one that a parked thread holds would keep a raised one waiting.
        while !self.all_in.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        while !self.end.load(SeqCst) {
            self.counts[at].fetch_add(1, SeqCst);
        }
    }

    fn counts(&self) -> [u64; 3] {
        std::array::from_fn(|at| self.counts[at].load(SeqCst))
    }

    /// Only this one, and nobody else, got on since then. What another one had begun when it was stopped is not done.
    fn alone_since(&self, before: [u64; 3], at: usize) {
        let after = self.counts();
        let others = (0..3).filter(|other| *other != at);
        assert!(others.into_iter().all(|other| after[other] <= before[other] + 1), "{after:?}");
    }
}

/// A worker that has entered: its index, its member and its tid.
type Worker = (usize, Member, i32);

/// The workers in order, and their tids.
fn members_and_tids(ready: &Receiver<Worker>) -> (Vec<Member>, Vec<i32>) {
    let mut workers: Vec<Worker> = ready.iter().take(3).collect();
    workers.sort_by_key(|(at, ..)| *at);
    workers.into_iter().map(|(_, member, tid)| (member, tid)).unzip()
}

/// The workers, in their order.
fn members(ready: &Receiver<Worker>) -> Vec<Member> {
    members_and_tids(ready).0
}

/// Whether a thread of this process runs or waits for a core.
fn is_runnable(tid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('R')
}

#[test]
fn a_turn_that_is_handed_over_is_had_by_the_next_alone() {
    let Some(_lock) = ground() else { return };
    let (lane, spinners) = (lane(), Spinners::new());
    std::thread::scope(|scope| {
        let (ready, told) = channel();
        for at in 0..3 {
            let (lane, spinners, ready) = (&lane, &spinners, ready.clone());
            scope.spawn(move || spinners.spin(lane, at, &ready));
        }
        let members = members(&told);
        lane.set(&members[0], Level::Running).unwrap();
        spinners.all_in.store(true, SeqCst);
        eventually("the first runs", || spinners.counts()[0] > 0);
        for round in 0..30 {
            let (last, next) = (round % 3, (round + 1) % 3);
            let at = spinners.counts()[next];
            lane.switch_to(&members[last], &members[next]).unwrap();
            // The core hears of it by an interrupt, after the call: once the next one counts, the last one does not.
            eventually("the next runs", || spinners.counts()[next] > at);
            let before = spinners.counts();
            eventually("it goes on", || spinners.counts()[next] > before[next] + 1_000);
            spinners.alone_since(before, next);
        }
        spinners.end.store(true, SeqCst);
    });
}

#[test]
fn a_dispatcher_gives_turns_that_the_switcher_ends() {
    const TURN: Duration = Duration::from_millis(1);
    let Some(_lock) = ground() else { return };
    let (lane, spinners) = (lane(), Spinners::new());
    let current: Mutex<Option<Member>> = Mutex::new(None);
    let (ready, told) = channel();
    let preempted = std::thread::scope(|scope| {
        let switcher = scope.spawn(|| {
            let _entered = lane.enter(Level::Switcher).unwrap();
            let mut preempted = 0;
            while let Expiry::Slice(_) = lane.wait().unwrap() {
                let worker = current.lock().unwrap().clone().unwrap();
                preempted += u32::from(lane.preempt(&worker, TURN).unwrap() == Preempted::Parked);
            }
            preempted
        });
        for at in 0..3 {
            let (lane, spinners, ready) = (&lane, &spinners, ready.clone());
            scope.spawn(move || spinners.spin(lane, at, &ready));
        }
        let (lane, spinners, current) = (&lane, &spinners, &current);
        scope.spawn(move || {
            let _entered = lane.enter(Level::Dispatcher).unwrap();
            let (members, tids) = members_and_tids(&told);
            spinners.all_in.store(true, SeqCst);
            // A turn of one that still sleeps would be over at once.
            eventually("all workers are runnable", || tids.iter().all(|tid| is_runnable(*tid)));
            for round in 0..60 {
                let at = round % 3;
                *current.lock().unwrap() = Some(members[at].clone());
                let before = spinners.counts();
                lane.run(&members[at], Some(TURN)).unwrap();
                spinners.alone_since(before, at);
            }
            spinners.end.store(true, SeqCst);
            lane.stop().unwrap();
        });
        switcher.join().unwrap()
    });
    assert_eq!(preempted, 60, "each turn was ended once");
    assert!(spinners.counts().into_iter().all(|count| count > 0));
}

#[test]
fn a_turn_that_ended_in_time_ends_no_other() {
    let Some(_lock) = ground() else { return };
    let lane = lane();
    let over = AtomicBool::new(false);
    assert!(!lane.disarm(), "none is armed");
    std::thread::scope(|scope| {
        let switcher = scope.spawn(|| {
            let _entered = lane.enter(Level::Switcher).unwrap();
            let first = lane.wait().unwrap();
            over.store(true, SeqCst);
            (first, lane.wait().unwrap())
        });
        for _ in 0..20 {
            lane.arm(Duration::from_secs(1_000)).unwrap();
            assert!(lane.disarm());
        }
        lane.arm(Duration::from_millis(5)).unwrap();
        eventually("it is over", || over.load(SeqCst));
        assert!(!lane.disarm(), "it ended by its expiry");
        lane.stop().unwrap();
        let (first, second) = switcher.join().unwrap();
        assert!(matches!(first, Expiry::Slice(21..)), "{first:?}");
        assert_eq!(second, Expiry::Stopped);
    });
    assert_eq!(lane.wait().unwrap(), Expiry::Stopped, "and from then on");
}

#[test]
fn a_turn_that_expires_before_its_worker_is_raised_begins_anew() {
    let Some(_lock) = ground() else { return };
    let lane = lane();
    let (tell, told) = channel();
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let inside = &lane;
        scope.spawn(move || {
            let entered = inside.enter(Level::Parked).unwrap();
            tell.send(entered.member()).unwrap();
            let _ = ended.recv();
        });
        let worker = told.recv().unwrap();
        lane.arm(Duration::from_millis(1)).unwrap();
        assert_eq!(lane.wait().unwrap(), Expiry::Slice(1));
        let again = Duration::from_millis(1);
        assert_eq!(lane.preempt(&worker, again).unwrap(), Preempted::NotYetRaised);
        assert_eq!(lane.wait().unwrap(), Expiry::Slice(2), "it was armed again");
        lane.set(&worker, Level::Running).unwrap();
        assert_eq!(lane.preempt(&worker, again).unwrap(), Preempted::Parked);
        assert!(!lane.disarm(), "and no more");
        end.send(()).unwrap();
    });
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let _lock = quell_testkit::host_lock().unwrap();
    for core in [4_095, u32::MAX] {
        let refused = Lane::open(core, Priorities::default()).unwrap_err();
        assert!(matches!(refused, LaneError::NoCore(named) if named == core), "{refused}");
    }
}

#[test]
fn a_threads_own_affinity_is_no_obstacle_and_is_kept() {
    let Some(_lock) = ground() else { return };
    on_a_thread(|| {
        succeed(Command::new("taskset").args(["-cp", "0", &tid().to_string()]));
        drop(lane());
        assert_eq!(scheduling(tid()), (OTHER, 0, "0".to_owned()));
    });
}

/// Not tests: what the tests after it run in a child with other rights. `make test-all` skips modules of this name.
mod helper {
    use super::*;

    #[test]
    #[ignore = "helper: run by the test of the same rights"]
    fn refused_without_rights() {
        let before = scheduling(tid());
        let refused = Lane::open(CORE, Priorities::default()).unwrap_err();
        assert!(matches!(refused, LaneError::NoRight { priority: 7, limit: 0 }), "{refused:?}");
        for part in ["CAP_SYS_NICE", "RLIMIT_RTPRIO of 7", "ulimit -r 7", "(it is 0)"] {
            assert!(refused.to_string().contains(part), "{refused}");
        }
        assert_eq!(scheduling(tid()), before);
    }

    #[test]
    #[ignore = "helper: run by the test of the same rights"]
    fn with_a_limit_alone() {
        let before = scheduling(tid());
        let lane = lane();
        for _ in 0..2 {
            let entered = lane.enter(Level::Switcher).unwrap();
            assert_eq!(scheduling(tid()), (FIFO, 7, CORE.to_string()));
            entered.leave().unwrap();
            assert_eq!(scheduling(tid()), before);
        }
        let above = Priorities::new([4, 5, 6, 8]).unwrap();
        assert!(matches!(Lane::open(CORE, above), Err(LaneError::NoRight { limit: 7, .. })));
    }

    #[test]
    #[ignore = "helper: run by the test of the same rights"]
    fn refused_by_a_cgroup() {
        let refused = Lane::open(CORE, Priorities::default()).unwrap_err();
        assert!(matches!(refused, LaneError::NoBudget), "{refused:?}");
        assert!(refused.to_string().contains("cpu.rt_runtime_us"), "{refused}");
    }
}

/// Runs one of the helpers in a child with other rights.
fn as_somebody_else(prefix: &[&str], helper: &str) -> Output {
    // The test program may lie where nobody can reach it.
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("tests");
    // By another process: a child that a test beside this one forks could hold the copy open for writing.
    succeed(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program));
    for path in [directory.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let out = Command::new(prefix[0])
        .args(&prefix[1..])
        .arg(&program)
        .args(["--exact", &format!("lane::helper::{helper}"), "--ignored", "--nocapture"])
        .current_dir("/")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("1 passed"), "{said}");
    out
}

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

#[test]
fn without_rights_it_is_said_what_is_missing() {
    let Some(_lock) = ground() else { return };
    as_somebody_else(&[&["prlimit", "--rtprio=0"][..], &NOBODY].concat(), "refused_without_rights");
}

#[test]
fn a_limit_on_priorities_is_right_enough() {
    let Some(_lock) = ground() else { return };
    // A hard limit can only be lowered without CAP_SYS_RESOURCE.
    let raised = Command::new("prlimit").args(["--rtprio=7", "true"]).output().unwrap();
    if !raised.status.success() {
        return skipped(String::from_utf8_lossy(&raised.stderr));
    }
    as_somebody_else(&[&["prlimit", "--rtprio=7"][..], &NOBODY].concat(), "with_a_limit_alone");
}

#[test]
fn a_cgroup_without_a_budget_is_told_from_missing_rights() {
    let Some(_lock) = ground() else { return };
    let limit = fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
    let cpu = PathBuf::from("/sys/fs/cgroup/cpu");
    if !cpu.join("cpu.rt_runtime_us").exists() || limit.trim() == "-1" {
        return skipped("no cgroup of version 1 has a real-time budget here");
    }
    let group = cpu.join(format!("quell-test-lane-{}", std::process::id()));
    fs::create_dir(&group).unwrap();
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.display());
    let run = std::panic::catch_unwind(|| {
        as_somebody_else(&["sh", "-c", &enter, "sh"], "refused_by_a_cgroup")
    });
    eventually("the group is empty", || fs::remove_dir(&group).is_ok());
    run.unwrap();
}

#[test]
fn the_levels_are_between_two_rungs_of_quells_ladder() {
    let priorities = Level::ALL.map(|level| Priorities::default().of(level));
    let in_use = |priority| InUse { priority, tid: Tid(77), name: "worker".into(), kernel: false };
    let ladder = Ladder::fit(&priorities.map(in_use)).unwrap();
    assert_eq!(ladder, Ladder::default(), "no rung has to move for a lane in a program");
    let rung = |rung| ladder.priority(rung).unwrap();
    assert!(rung(Rung::FifoLow) < priorities[0] && priorities[3] < rung(Rung::Dispatcher));
    assert!(
        rung(Rung::Dispatcher) < rung(Rung::LcOverflow) && rung(Rung::LcOverflow) < rung(Rung::Lc)
    );
}
