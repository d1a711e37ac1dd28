//! The executor against the real kernel, on threads of programs that these tests start.

use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use quell_model::{CoreId, CoreSet};

use super::*;
use crate::backend::Inspection;
use crate::testing::executor;
use crate::{Policy, SchedAttr, Setting};

/// A program that is killed when the test is over.
struct Program(Child);

impl Program {
    fn start(command: &str) -> Program {
        Program(Command::new("sh").args(["-c", command]).spawn().unwrap())
    }

    /// Its first thread.
    fn thread(&self) -> ThreadRef {
        let pid = Tid(self.0.id() as i32);
        ThreadRef::of(pid, pid).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeper() -> Program {
    Program::start("exec sleep 60")
}

fn one_core() -> CoreSet {
    CoreSet::of(CoreId(0))
}

#[test]
fn a_change_is_made_once_and_undone() {
    let program = sleeper();
    let thread = program.thread();
    let mut executor = executor();
    let before = (executor.read_sched(&thread).unwrap(), host::allowed(&thread).unwrap());

    let fifo = SchedAttr::fifo(3);
    assert_eq!(executor.set_sched(&thread, fifo).unwrap(), Applied::Changed);
    assert_eq!(executor.set_sched(&thread, fifo).unwrap(), Applied::AlreadySo);
    assert_eq!(executor.set_affinity(&thread, &one_core()).unwrap(), Applied::Changed);
    assert!(executor.read_sched(&thread).unwrap().same_effect(&fifo));
    assert_eq!(executor.read_affinity(&thread).unwrap(), one_core());
    assert_eq!(executor.changes().len(), 2);
    assert_eq!(executor.verify(), []);

    let report = executor.undo_all();
    assert_eq!((report.restored.len(), report.is_complete()), (2, true));
    let after = (executor.read_sched(&thread).unwrap(), host::allowed(&thread).unwrap());
    assert_eq!(before, after);
    assert_eq!(executor.changes(), []);
}

use crate::host;

#[test]
fn elevated_threads_always_reset_on_fork() {
    let program = sleeper();
    let mut executor = executor();
    let without = SchedAttr { reset_on_fork: false, ..SchedAttr::fifo(2) };
    executor.set_sched(&program.thread(), without).unwrap();
    assert!(executor.read_sched(&program.thread()).unwrap().reset_on_fork);
    executor.undo_all();
}

#[test]
fn a_nice_value_survives_every_policy() {
    let program = Program::start("exec nice -n 5 sleep 60");
    // `nice` execs as well; wait until it did.
    while std::fs::read_to_string(format!("/proc/{}/comm", program.0.id())).unwrap() != "sleep\n" {
        std::thread::yield_now();
    }
    let thread = program.thread();
    let mut executor = executor();
    let before = executor.read_sched(&thread).unwrap();
    assert_eq!(before.nice, 5);
    let batch = SchedAttr { policy: Policy::Batch, nice: 9, ..SchedAttr::OTHER };
    for attr in [SchedAttr::IDLE, SchedAttr::fifo(1), batch] {
        executor.set_sched(&thread, attr).unwrap();
    }
    executor.undo_thread(&thread);
    assert_eq!(executor.read_sched(&thread).unwrap(), before);
}

#[test]
fn a_realtime_threads_hidden_nice_value_is_given_back() {
    let program = sleeper();
    let thread = program.thread();
    crate::sched::set_nice(thread.tid, 4).unwrap();
    crate::sched::set_attr(thread.tid, &SchedAttr::fifo(1)).unwrap();
    let mut executor = executor();
    executor.set_sched(&thread, SchedAttr { nice: 0, ..SchedAttr::OTHER }).unwrap();
    executor.undo_all();
    assert!(executor.read_sched(&thread).unwrap().same_effect(&SchedAttr::fifo(1)));
    assert_eq!(quell_os::sched::nice(thread.tid).unwrap(), 4);
}

#[test]
fn a_closed_gate_lets_nothing_through() {
    let program = sleeper();
    let mut executor = executor();
    executor.gate().set(false);
    let refused = executor.set_sched(&program.thread(), SchedAttr::IDLE);
    assert!(matches!(refused, Err(ActError::Unguarded)));
    assert_eq!(executor.read_sched(&program.thread()).unwrap().policy, Policy::Other);
    let refused = executor.create_cgroup(std::path::Path::new("/sys/fs/cgroup/cpu/quell-gate"));
    assert!(matches!(refused, Err(ActError::Unguarded) | Err(ActError::Refused { .. })));
    assert!(!std::path::Path::new("/sys/fs/cgroup/cpu/quell-gate").exists());
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_it_would() {
    let program = sleeper();
    let thread = program.thread();
    let mut executor = Executor::open(Journal::scratch().unwrap(), Mode::DryRun).unwrap();
    let rt = Setting::Sysctl("kernel.sched_rt_runtime_us".into());
    let before = executor.read_setting(&rt).unwrap();
    assert_eq!(executor.set_sched(&thread, SchedAttr::IDLE).unwrap(), Applied::WouldChange);
    assert_eq!(executor.set_sched(&thread, SchedAttr::IDLE).unwrap(), Applied::AlreadySo);
    assert_eq!(executor.write_setting(&rt, "940000").unwrap(), Applied::WouldChange);
    assert_eq!(executor.changes().len(), 2);
    assert_eq!(executor.read_sched(&thread).unwrap().policy, Policy::Other);
    assert_eq!(executor.read_setting(&rt).unwrap(), before);
}

#[test]
fn a_foreign_change_is_noticed_and_becomes_what_is_given_back() {
    let program = sleeper();
    let thread = program.thread();
    let mut executor = executor();
    executor.set_sched(&thread, SchedAttr::fifo(3)).unwrap();
    let foreign = SchedAttr { nice: 11, ..SchedAttr::OTHER };
    crate::sched::set_attr(thread.tid, &foreign).unwrap();
    assert_eq!(executor.verify().len(), 1);
    let raced = executor.set_sched(&thread, SchedAttr::IDLE);
    assert!(matches!(raced, Err(ActError::Raced { .. })), "{raced:?}");
    assert!(executor.read_sched(&thread).unwrap().same_effect(&foreign));
    // The next attempt goes ahead.
    assert_eq!(executor.set_sched(&thread, SchedAttr::IDLE).unwrap(), Applied::Changed);
    executor.undo_all();
    assert!(executor.read_sched(&thread).unwrap().same_effect(&foreign));
}

#[test]
fn a_foreign_change_stays_at_the_end() {
    let program = sleeper();
    let thread = program.thread();
    let mut executor = executor();
    executor.set_sched(&thread, SchedAttr::fifo(3)).unwrap();
    let foreign = SchedAttr { nice: 11, ..SchedAttr::OTHER };
    crate::sched::set_attr(thread.tid, &foreign).unwrap();
    let report = executor.undo_all();
    assert_eq!((report.restored.len(), report.left.len()), (0, 1));
    assert!(executor.read_sched(&thread).unwrap().same_effect(&foreign));
}

#[test]
fn a_thread_that_is_gone_is_not_touched() {
    let mut program = sleeper();
    let thread = program.thread();
    let mut executor = executor();
    executor.set_sched(&thread, SchedAttr::fifo(3)).unwrap();
    program.0.kill().unwrap();
    program.0.wait().unwrap();
    let gone = executor.set_sched(&thread, SchedAttr::IDLE);
    assert!(matches!(gone, Err(ActError::Gone(_))));
    assert_eq!(executor.changes(), []);
    assert_eq!(executor.undo_all(), RestoreReport::default());
}

#[test]
fn another_thread_with_the_same_number_is_not_touched() {
    let program = sleeper();
    let earlier = ThreadRef { start_ticks: program.thread().start_ticks - 1, ..program.thread() };
    let gone = executor().set_sched(&earlier, SchedAttr::IDLE);
    assert!(matches!(gone, Err(ActError::Gone(_))));
}

/// A shell that starts a `sleep` when told to.
struct Parent {
    program: Program,
    dir: tempfile::TempDir,
}

impl Parent {
    fn start() -> Parent {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "cd {}; while [ ! -e go ]; do sleep 0.01; done; sleep 60 & echo $! > new; mv new pid; wait",
            dir.path().display()
        );
        Parent { program: Program::start(&script), dir }
    }

    fn fork(&self) -> Forked {
        std::fs::write(self.dir.path().join("go"), "").unwrap();
        let pid = self.dir.path().join("pid");
        while !pid.exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let child = Tid(std::fs::read_to_string(pid).unwrap().trim().parse().unwrap());
        Forked(ThreadRef::of(child, child).unwrap())
    }
}

struct Forked(ThreadRef);

impl Drop for Forked {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.0.tid.0).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn sweep(executor: &Executor) -> RestoreReport {
    restore::restore_journal(executor.journal().shared(), &mut Host::read().unwrap(), &[])
}

#[test]
fn children_get_their_forebears_original_back() {
    let shell = Parent::start();
    let parent = shell.program.thread();
    let mut executor = executor();
    let before = host::allowed(&parent).unwrap();
    executor.set_affinity(&parent, &one_core()).unwrap();
    executor.set_sched(&parent, SchedAttr::IDLE).unwrap();
    let forked = shell.fork();
    let child = forked.0;
    assert_eq!(host::allowed(&child).unwrap(), one_core());

    // Nobody told the executor: the sweep finds it.
    let report = sweep(&executor);
    assert!(report.restored.len() >= 4, "{report:?}");
    assert_eq!(host::allowed(&child).unwrap(), before);
    assert_eq!(executor.read_sched(&child).unwrap().policy, Policy::Other);

    // And where it is adopted, it counts as found as its parent was.
    executor.undo_all();
    let shell = Parent::start();
    let parent = shell.program.thread();
    executor.set_affinity(&parent, &one_core()).unwrap();
    let forked = shell.fork();
    let child = forked.0;
    executor.adopt(&child, &parent).unwrap();
    let report = executor.undo_thread(&child);
    assert_eq!(report.restored.len(), 1);
    assert_eq!(host::allowed(&child).unwrap(), before);
    executor.undo_all();
}

#[test]
fn a_child_born_while_its_parent_was_managed_again_gets_the_original_back() {
    let shell = Parent::start();
    let parent = shell.program.thread();
    let mut executor = executor();
    let before = host::allowed(&parent).unwrap();
    executor.set_affinity(&parent, &one_core()).unwrap();
    executor.undo_thread(&parent);
    // Births and returns are told apart by clock ticks of 10 ms.
    std::thread::sleep(std::time::Duration::from_millis(50));
    executor.set_affinity(&parent, &one_core()).unwrap();
    let child = shell.fork();
    executor.undo_thread(&parent);
    assert_eq!(host::allowed(&child.0).unwrap(), one_core());
    sweep(&executor);
    assert_eq!(host::allowed(&child.0).unwrap(), before);
    executor.undo_all();
}

#[test]
fn child_of_an_elevated_thread_has_its_creators_nice_value_as_original() {
    let shell = Parent::start();
    let parent = shell.program.thread();
    let own = SchedAttr { nice: 5, ..SchedAttr::OTHER };
    crate::sched::set_attr(parent.tid, &own).unwrap();
    let mut executor = executor();
    let fifo = SchedAttr { policy: Policy::Fifo, priority: 2, ..SchedAttr::OTHER };
    executor.set_sched(&parent, fifo).unwrap();
    executor.set_affinity(&parent, &one_core()).unwrap();
    let child = shell.fork();
    executor.adopt(&child.0, &parent).unwrap();
    // The kernel's reset on fork is no choice of the child's.
    let Inspection { present, original } = executor.inspect(&child.0).unwrap();
    assert!(present.sched.same_effect(&SchedAttr::OTHER), "{present:?}");
    assert!(original.sched.same_effect(&own), "{original:?}");
    assert_eq!((present.cores == one_core(), original.cores == one_core()), (true, false));
    let of_parent = executor.inspect(&parent).unwrap();
    assert_eq!(of_parent.present.sched.policy, Policy::Fifo);
    assert_eq!(of_parent.original.sched, original.sched);
    executor.undo_all();
    assert!(executor.read_sched(&child.0).unwrap().same_effect(&own));
    assert_eq!(host::allowed(&child.0).unwrap(), original.cores);
    assert_eq!(executor.inspect(&child.0).unwrap().present, original);
}

#[test]
fn each_change_is_audited() {
    let program = sleeper();
    let mut executor = executor();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    executor.set_audit(Box::new(move |what, before, after| {
        sink.lock().unwrap().push(format!("{what}: {before} -> {after}"));
    }));
    executor.set_sched(&program.thread(), SchedAttr::IDLE).unwrap();
    let tid = program.thread().tid;
    let wanted = format!("policy of thread {tid}: SCHED_OTHER nice 0 -> SCHED_IDLE");
    assert_eq!(*seen.lock().unwrap(), [wanted]);
    executor.undo_all();
}

#[test]
fn an_impossible_wish_names_thread_and_remedy() {
    let program = sleeper();
    let mut executor = executor();
    let refused = executor.set_sched(&program.thread(), SchedAttr::fifo(120)).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::EINVAL));
    let no_core = executor.set_affinity(&program.thread(), &CoreSet::EMPTY).unwrap_err();
    assert!(no_core.to_string().contains("cpuset"), "{no_core}");
    let outside = executor.write_setting(&Setting::File("/etc/hostname".into()), "x").unwrap_err();
    assert_eq!(outside.errno(), Some(libc::EINVAL));
    assert!(executor.undo_all().is_complete());
}

/// The two rungs of a lane's threads.
const RUNGS: [SchedAttr; 2] =
    [SchedAttr::fifo(2), SchedAttr { policy: Policy::Rr, ..SchedAttr::fifo(10) }];

fn journaled(executor: &Executor) -> Vec<Value> {
    let slots = executor.journal().shared().slots().0;
    slots.into_iter().flat_map(|(_, view)| view.wrote.into_iter().flatten()).collect()
}

#[test]
fn lent_thread_has_both_values_journaled_before_a_switch() {
    let program = sleeper();
    let thread = program.thread();
    let mut executor = executor();
    let before = executor.read_sched(&thread).unwrap();
    let mut handle = executor.lend(&thread, RUNGS).unwrap();
    let both = RUNGS.map(Value::Sched);
    assert!(both.iter().all(|value| journaled(&executor).contains(value)));
    for to in [1, 0, 1] {
        assert_eq!(handle.switch_to(to).unwrap(), Applied::Changed);
        assert!(executor.read_sched(&thread).unwrap().same_effect(&RUNGS[to]));
        assert_eq!((handle.switch_to(to).unwrap(), handle.shown()), (Applied::AlreadySo, to));
        assert_eq!(executor.verify(), [], "either value is Quell's");
    }
    assert!(both.iter().all(|value| journaled(&executor).contains(value)));
    executor.undo_thread(&thread);
    assert_eq!(executor.read_sched(&thread).unwrap(), before);
}

#[test]
fn revoked_handle_switches_nothing() {
    let program = sleeper();
    let thread = program.thread();
    let mut executor = executor();
    let before = executor.read_sched(&thread).unwrap();
    let mut handle = executor.lend(&thread, RUNGS).unwrap();
    assert!(matches!(executor.lend(&thread, RUNGS), Err(ActError::Lent(_))));
    assert!(matches!(executor.set_sched(&thread, SchedAttr::IDLE), Err(ActError::Lent(_))));
    handle.switch_to(1).unwrap();
    executor.revoke(&thread);
    assert!(!executor.is_lent(&thread));
    assert!(matches!(handle.switch_to(0), Err(ActError::Revoked(_))));
    // The executor knows what the last switch left, and goes on from there.
    assert_eq!(executor.set_sched(&thread, SchedAttr::IDLE).unwrap(), Applied::Changed);
    let mut again = executor.lend(&thread, RUNGS).unwrap();
    again.switch_to(1).unwrap();
    let report = executor.undo_all();
    assert_eq!((report.restored.len(), report.is_complete()), (1, true));
    assert!(matches!(again.switch_to(0), Err(ActError::Revoked(_))), "a restore revokes");
    assert_eq!(executor.read_sched(&thread).unwrap(), before);
}

#[test]
fn switch_leaves_what_somebody_else_set() {
    let program = sleeper();
    let thread = program.thread();
    let mut executor = executor();
    let mut handle = executor.lend(&thread, RUNGS).unwrap();
    let own = SchedAttr { policy: Policy::Batch, ..SchedAttr::OTHER };
    crate::sched::set_attr(thread.tid, &own).unwrap();
    assert!(matches!(handle.switch_to(1), Err(ActError::Raced { .. })));
    assert_eq!(executor.verify().len(), 1);
    executor.undo_thread(&thread);
    assert_eq!(executor.read_sched(&thread).unwrap().policy, Policy::Batch);
}

#[test]
fn switch_needs_a_guardian_and_a_thread() {
    let mut program = sleeper();
    let thread = program.thread();
    let mut executor = executor();
    let mut handle = executor.lend(&thread, RUNGS).unwrap();
    executor.gate().set(false);
    assert!(matches!(handle.switch_to(1), Err(ActError::Unguarded)));
    executor.gate().set(true);
    program.0.kill().unwrap();
    program.0.wait().unwrap();
    assert!(matches!(handle.switch_to(1), Err(ActError::Gone(_))));
    executor.forget(&thread);
    assert!(!executor.is_lent(&thread));
}

#[test]
fn thread_with_the_first_value_by_itself_is_lent_and_restored() {
    let program = sleeper();
    let thread = program.thread();
    crate::sched::set_attr(thread.tid, &RUNGS[0]).unwrap();
    let mut executor = executor();
    let mut handle = executor.lend(&thread, RUNGS).unwrap();
    handle.switch_to(1).unwrap();
    executor.undo_all();
    assert!(executor.read_sched(&thread).unwrap().same_effect(&RUNGS[0]));
}
