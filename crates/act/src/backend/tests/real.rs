//! What the back ends promise, on this host with real threads and processes.
//!
//! Threads that are raised only sleep. All changes are given back, and that is checked.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_model::{BeRung, Class, Outcome, Plan, Rung};

use super::fake::{give, info, plan, set, task};
use super::{elevation, lc_attr};
use crate::backend::*;
use crate::testing::executor;
use crate::{Policy, SchedAttr, Subject, host};
use quell_observe::ThreadView;
use quell_os::{ThreadRef, Tid};
use quell_testkit::host_lock;

/// A thread that sleeps until it is dropped, and can be told to do something first.
struct Sleeper {
    thread: ThreadRef,
    orders: Option<Sender<fn()>>,
    done: Receiver<()>,
    handle: Option<JoinHandle<()>>,
}

impl Sleeper {
    fn new() -> Sleeper {
        let (tell, told) = channel();
        let (orders, ordered) = channel::<fn()>();
        let (finish, done) = channel();
        let handle = std::thread::spawn(move || {
            tell.send(ThreadRef::current().unwrap()).unwrap();
            for order in ordered {
                order();
                finish.send(()).unwrap();
            }
        });
        let thread = told.recv().unwrap();
        Sleeper { thread, orders: Some(orders), done, handle: Some(handle) }
    }

    fn order(&self, order: fn()) {
        self.orders.as_ref().unwrap().send(order).unwrap();
        self.done.recv().unwrap();
    }

    fn view(&self, of: u32) -> ThreadView {
        view_of(self.thread, of)
    }

    fn shows(&self) -> (SchedAttr, String) {
        shows(&self.thread)
    }

    fn end(&mut self) {
        self.orders = None;
        if let Some(handle) = self.handle.take() {
            handle.join().unwrap();
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn view_of(thread: ThreadRef, of: u32) -> ThreadView {
    ThreadView { thread, ..super::fake::view(thread.tid.0, of) }
}

fn shows(thread: &ThreadRef) -> (SchedAttr, String) {
    (quell_os::sched::attr(thread.tid).unwrap(), host::allowed(thread).unwrap().to_string())
}

/// LC (task 0) over BE (task 1) on core 1.
fn pair_plan() -> Plan {
    let mut plan = plan(1);
    give(&mut plan, Class::LatencyCritical, Rung::Lc, "1", "");
    give(&mut plan, Class::BestEffort, Rung::SchedIdle, "", "1");
    plan
}

fn admitted() -> Elevation {
    let mut back = elevation(BeRung::SchedIdle);
    back.admit(info(0, "lc"));
    back.admit(info(1, "be"));
    back
}

fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn threads_show_the_plan_then_nothing_moves_then_they_are_as_found() {
    let sleepers: Vec<Sleeper> = (0..4).map(|_| Sleeper::new()).collect();
    let before: Vec<_> = sleepers.iter().map(Sleeper::shows).collect();
    let views: Vec<_> = sleepers.iter().enumerate().map(|(at, s)| s.view(at as u32 % 2)).collect();
    let (mut back, mut exec, plan) = (admitted(), executor(), pair_plan());

    let report = back.apply(&plan, &views, &mut *exec);
    assert_eq!((report.raised, report.lowered, report.moved), (2, 2, 4));
    for (at, sleeper) in sleepers.iter().enumerate() {
        let (sched, cores) = sleeper.shows();
        match at % 2 {
            0 => assert!(sched.same_effect(&lc_attr()), "{sched}"),
            _ => assert_eq!(sched.policy, Policy::Idle),
        }
        assert_eq!(cores, "1");
    }
    assert_eq!(back.outcomes()[1].outcome, Outcome::Done);
    for _ in 0..50 {
        let report = back.apply(&plan, &views, &mut *exec);
        assert_eq!((report.writes(), report.refused, report.changed_by_task), (0, 0, 0));
    }
    assert!(exec.verify().is_empty());

    assert!(back.release(task(0), &mut *exec).is_complete());
    assert!(back.release(task(1), &mut *exec).is_complete());
    assert_eq!(sleepers.iter().map(Sleeper::shows).collect::<Vec<_>>(), before);
    assert!(exec.changes().is_empty());
}

#[test]
fn a_child_of_an_elevated_thread_is_given_back_as_its_parent_was() {
    let mut parent = Sleeper::new();
    let before = parent.shows();
    let (mut back, mut exec, plan) = (admitted(), executor(), pair_plan());
    back.apply(&plan, &[parent.view(0)], &mut *exec);
    // Born with the affinity that Quell gave its parent.
    static CHILD: std::sync::Mutex<Option<Sleeper>> = std::sync::Mutex::new(None);
    parent.order(|| *CHILD.lock().unwrap() = Some(Sleeper::new()));
    let child = CHILD.lock().unwrap().take().unwrap();
    assert_eq!(child.shows().1, "1");
    assert_eq!(child.shows().0.policy, Policy::Other, "the reset on fork held");

    back.forked(&parent.thread, &child.thread, true, &mut *exec);
    let views = [parent.view(0), child.view(0)];
    assert_eq!(back.apply(&plan, &views, &mut *exec).raised, 1);
    assert!(child.shows().0.same_effect(&lc_attr()));
    // Another one that is to be left alone is so at once.
    parent.order(|| *CHILD.lock().unwrap() = Some(Sleeper::new()));
    let other = CHILD.lock().unwrap().take().unwrap();
    assert_eq!(other.shows().1, "1");
    back.forked(&parent.thread, &other.thread, false, &mut *exec);
    assert_eq!(other.shows(), before);

    back.release(task(0), &mut *exec);
    assert_eq!((parent.shows(), child.shows()), (before.clone(), before));
    parent.end();
}

#[test]
fn a_thread_that_exits_between_the_plan_and_its_turn_holds_nobody_up() {
    let (mut gone, stays) = (Sleeper::new(), Sleeper::new());
    let views = [gone.view(0), stays.view(0)];
    gone.end();
    eventually("the thread is gone", || ThreadRef::of(gone.thread.tgid, gone.thread.tid).is_err());
    let (mut back, mut exec) = (admitted(), executor());
    let report = back.apply(&pair_plan(), &views, &mut *exec);
    assert_eq!((report.gone, report.raised), (1, 1));
    assert_eq!(back.outcomes()[1].outcome, Outcome::Done);
    back.release(task(0), &mut *exec);
}

#[test]
fn a_thread_that_moves_itself_stays_where_it_went() {
    let sleeper = Sleeper::new();
    let (mut back, mut exec, mut plan) = (admitted(), executor(), pair_plan());
    let views = [sleeper.view(0)];
    back.apply(&plan, &views, &mut *exec);
    sleeper.order(|| {
        let me = ThreadRef::current().unwrap().tid;
        crate::sched::set_affinity(me, &set("0")).unwrap();
    });
    // A write that meets the change before the slow read-back does, does not undo it either.
    plan.cores[1].owner = None;
    plan.tasks[0].rung = Rung::LcOverflow;
    eventually("noticed", || {
        back.apply(&plan, &views, &mut *exec);
        back.status(task(0)).unwrap().changed_by_task == 1
    });
    assert_eq!(sleeper.shows().1, "0");
    back.release(task(0), &mut *exec);
    assert_eq!(sleeper.shows().1, "0");
    assert_eq!(sleeper.shows().0.policy, Policy::Other);
}

/// A process group of a shell with two children, all asleep.
fn family() -> Child {
    Command::new("sh")
        .args(["-c", "sleep 60 & sleep 60 & wait"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn end(mut child: Child, members: &[i32]) {
    for pid in members {
        // SAFETY: a signal to processes that this test started and has not waited for.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
    }
    child.kill().ok();
    child.wait().unwrap();
}

fn pids_in(dir: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn a_launched_task_without_a_core_freezes_and_thaws_and_its_group_goes() {
    let layout = Layout::detect(Path::new("/")).unwrap();
    let groups = Groups::below(layout, &format!("quell-test-freeze-{}", std::process::id()));
    let mut exec = executor();
    let made = groups.make("be/../x y", GroupUse::Freeze, &mut exec).unwrap();
    let dir = made.freezer.clone().expect("this host has a freezer");
    let child = family();
    let leader = Tid(child.id() as i32);
    groups.admit(&made, leader, &mut exec).unwrap();
    // Children that the shell started before it was moved are moved here by hand.
    eventually("the shell has its children", || {
        let list = format!("/proc/{leader}/task/{leader}/children");
        let children = std::fs::read_to_string(list).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).for_each(|pid| {
            let _ = groups.admit(&made, Tid(pid), &mut exec);
        });
        pids_in(&dir).len() == 3
    });

    let mut back = elevation(BeRung::SchedIdle);
    let mut consenting = info(0, "be");
    consenting.may_freeze = true;
    consenting.groups = made.clone();
    back.admit(consenting);
    let mut off = plan(1);
    give(&mut off, Class::BestEffort, Rung::SchedIdle, "", "");
    let mut on = plan(1);
    give(&mut on, Class::BestEffort, Rung::SchedIdle, "", "1");
    let members = pids_in(&dir);
    let threads: Vec<ThreadView> =
        members.iter().map(|&pid| view_of(ThreadRef::of(Tid(pid), Tid(pid)).unwrap(), 0)).collect();
    let state = || std::fs::read_to_string(dir.join("freezer.state")).unwrap_or_default();

    assert_eq!(back.apply(&off, &threads, &mut *exec).frozen, 1);
    eventually("frozen", || state().trim() == "FROZEN");
    let report = back.apply(&on, &threads, &mut *exec);
    assert_eq!(report.thawed, 1);
    eventually("thawed", || state().trim() == "THAWED");

    // Frozen again, and released from there.
    back.apply(&off, &threads, &mut *exec);
    back.release(task(0), &mut *exec);
    assert!(groups.remove(&made, &mut exec).is_complete());
    assert!(!dir.exists(), "{}", dir.display());
    assert!(members.iter().all(|&pid| Path::new(&format!("/proc/{pid}")).exists()));
    exec.undo_all();
    assert!(!dir.parent().unwrap().exists());
    end(child, &members);
}

#[test]
fn a_cgroup_that_forbids_realtime_costs_its_task_the_rung_and_nobody_else() {
    let Some(cpu) = Layout::detect(Path::new("/")).unwrap().cpu else { return };
    if !cpu.mount.join("cpu.rt_runtime_us").exists() {
        return;
    }
    let _quiet = host_lock().unwrap();
    let limit = std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
    assert_ne!(limit.trim(), "-1", "the host's limit has to be finite for this test");
    let dir = cpu.mount.join(format!("quell-test-rt-{}", std::process::id()));
    let mut exec = executor();
    exec.create_cgroup(&dir).unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let tid = Tid(child.id() as i32);
    exec.join_cgroup(&dir, tid).unwrap();

    let sleeper = Sleeper::new();
    let poor = ThreadRef::of(tid, tid).unwrap();
    let mut back = admitted();
    let mut plan = plan(1);
    give(&mut plan, Class::LatencyCritical, Rung::Lc, "1", "");
    give(&mut plan, Class::LatencyCritical, Rung::LcOverflow, "", "1");
    let views = [view_of(poor, 0), ThreadView { lc: true, ..sleeper.view(1) }];
    let report = back.apply(&plan, &views, &mut *exec);
    assert_eq!((report.refused, report.raised, report.moved), (1, 1, 2));
    assert_eq!(back.outcomes()[1].outcome, Outcome::Refused { errno: libc::EPERM });
    assert_eq!(shows(&poor), (quell_os::sched::attr(poor.tid).unwrap(), "1".into()));
    assert_eq!(shows(&poor).0.policy, Policy::Other);
    back.release(task(0), &mut *exec);
    back.release(task(1), &mut *exec);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the group is empty", || pids_in(&dir).is_empty());
    assert!(exec.undo_all().is_complete());
    assert!(!dir.exists());
}

#[test]
fn the_groups_of_tasks_that_come_and_go_leave_nothing_in_the_journal() {
    let layout = Layout::detect(Path::new("/")).unwrap();
    let groups = Groups::below(layout, &format!("quell-test-churn-{}", std::process::id()));
    let mut exec = executor();
    // The directory above them stays.
    let mut before = None;
    for _ in 0..3 {
        let made = groups.make("job", GroupUse::Yield, &mut exec).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        groups.admit(&made, Tid(child.id() as i32), &mut exec).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        made.dismantle().unwrap();
        assert!(groups.remove(&made, &mut exec).is_complete());
        let left = exec.changes();
        assert_eq!(*before.get_or_insert(left.len()), left.len(), "{left:?}");
        assert!(left.iter().all(|change| !matches!(change.what, Subject::Member { .. })));
    }
    exec.undo_all();
}

#[test]
fn a_launched_task_is_confined_by_its_cpuset_and_leaves_it_as_it_came() {
    let layout = Layout::detect(Path::new("/")).unwrap();
    if layout.cpuset.as_ref().is_none_or(|cpuset| cpuset.version == Version::V2) {
        return;
    }
    let groups = Groups::below(layout, &format!("quell-test-cpuset-{}", std::process::id()));
    let mut exec = executor();
    let made = groups.make("tasks", GroupUse::Confine, &mut exec).unwrap();
    let (cpuset, weight) = (made.cpuset.clone().unwrap(), made.weight.clone().unwrap());
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Tid(child.id() as i32);
    let thread = ThreadRef::of(pid, pid).unwrap();
    let before = shows(&thread);
    let came_from = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    groups.admit(&made, pid, &mut exec).unwrap();

    let mut back = Cpusets::new(true, groups.can_freeze());
    let mut own = info(0, "tasks");
    own.groups = made.clone();
    back.admit(own);
    let mut plan = plan(1);
    give(&mut plan, Class::BestEffort, Rung::SchedIdle, "", "1");
    let views = [view_of(thread, 0)];
    back.apply(&plan, &views, &mut *exec);
    let text = |file: &Path| std::fs::read_to_string(file).unwrap().trim().to_owned();
    assert_eq!(text(&cpuset.join("cpuset.cpus")), "1");
    assert_eq!(text(&weight), "1");
    assert_eq!((shows(&thread).0.policy, shows(&thread).1), (Policy::Idle, "1".into()));
    assert_eq!(back.outcomes()[1].outcome, Outcome::Done);
    assert_eq!(back.apply(&plan, &views, &mut *exec).writes(), 0);

    back.release(task(0), &mut *exec);
    assert!(exec.undo_all().is_complete());
    assert!(!cpuset.exists() && !cpuset.parent().unwrap().exists());
    assert_eq!(shows(&thread), before);
    assert_eq!(std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap(), came_from);
    child.kill().unwrap();
    child.wait().unwrap();
}
