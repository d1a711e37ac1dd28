//! The executor on what only a whole host has: cgroups, settings, and programs that replace themselves.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quell_act::{ActError, Applied, Executor, Journal, Mode, Setting, Subject};
use quell_model::CoreSet;
use quell_os::sched::{Policy, SchedAttr};
use quell_os::{ThreadRef, Tid};
use quell_testkit::{host_lock, skipped};

/// A program that is killed when the test is over.
struct Program(Child);

impl Program {
    fn start(command: &str) -> Program {
        Program(Command::new("sh").args(["-c", command]).spawn().unwrap())
    }

    fn pid(&self) -> Tid {
        Tid(self.0.id() as i32)
    }

    fn thread(&self) -> ThreadRef {
        ThreadRef::of(self.pid(), self.pid()).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a setting back when the test is over, however it ends.
struct PutBack(PathBuf, String);

impl Drop for PutBack {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.0, &self.1);
    }
}

fn executor() -> Executor {
    let executor = Executor::open(Journal::scratch().unwrap(), Mode::Live).unwrap();
    executor.gate().set(true);
    executor
}

fn wait_for<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(result) = happened() {
            return result;
        }
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A group of this test's own in a v1 hierarchy, if this host has it.
fn group(hierarchy: &str, file: &str) -> Option<PathBuf> {
    let root = Path::new("/sys/fs/cgroup").join(hierarchy);
    if !root.join(file).exists() {
        skipped(format_args!("{} has no {file}", root.display()));
        return None;
    }
    Some(root.join(format!("quell-test-{}", std::process::id())))
}

fn groups_of(program: &Program) -> String {
    std::fs::read_to_string(format!("/proc/{}/cgroup", program.pid())).unwrap()
}

#[test]
fn a_group_without_realtime_is_named_with_the_remedy() {
    let _lock = host_lock().unwrap();
    let Some(dir) = group("cpu", "cpu.rt_runtime_us") else { return };
    let program = Program::start("exec sleep 60");
    let mut executor = executor();
    assert_eq!(executor.create_cgroup(&dir).unwrap(), Applied::Changed);
    assert_eq!(executor.join_cgroup(&dir, program.pid()).unwrap(), Applied::Changed);
    let refused = executor.set_sched(&program.thread(), SchedAttr::fifo(3)).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::EPERM));
    let text = refused.to_string();
    let names = text.contains(dir.to_str().unwrap()) && text.contains("cpu.rt_runtime_us");
    assert!(names && text.contains("kernel.sched_rt_runtime_us"), "{text}");
    assert_eq!(executor.read_sched(&program.thread()).unwrap().policy, Policy::Other);
    assert!(executor.undo_all().is_complete());
    assert!(!dir.exists());
}

#[test]
fn a_frozen_process_is_thawed_and_leaves_its_group() {
    let _lock = host_lock().unwrap();
    let Some(dir) = group("freezer", "cgroup.procs") else { return };
    let program = Program::start("while :; do sleep 0.01; done");
    let before = groups_of(&program);
    let mut executor = executor();
    executor.create_cgroup(&dir.join("inner")).unwrap();
    executor.join_cgroup(&dir.join("inner"), program.pid()).unwrap();
    assert_eq!(
        executor.join_cgroup(&dir.join("inner"), program.pid()).unwrap(),
        Applied::AlreadySo
    );
    executor.freeze(&dir.join("inner"), true).unwrap();
    wait_for("it freezes", || {
        let state = std::fs::read_to_string(dir.join("inner/freezer.state")).unwrap();
        (state.trim() == "FROZEN").then_some(())
    });
    assert_ne!(groups_of(&program), before);
    let report = executor.undo_all();
    assert!(report.is_complete(), "{report}");
    assert_eq!(groups_of(&program), before);
    assert!(!dir.exists());
}

#[test]
fn a_process_comes_back_at_each_step_of_its_move_into_a_group() {
    let _lock = host_lock().unwrap();
    let Some(dir) = group("freezer", "cgroup.procs") else { return };
    let program = Program::start("exec sleep 60");
    let before = groups_of(&program);
    for is_carried_out in [false, true] {
        let mut executor = executor();
        executor.create_cgroup(&dir).unwrap();
        let joining = executor.begin_join(&dir, program.pid()).unwrap().unwrap();
        assert_eq!(groups_of(&program), before, "it is not moved by the thread that records it");
        if is_carried_out {
            std::thread::scope(|scope| {
                scope.spawn(|| joining.carry_out().unwrap());
            });
            assert_ne!(groups_of(&program), before);
        }
        // The executor ends without `end_join`.
        let report = executor.undo_all();
        assert!(report.is_complete(), "{report}");
        assert_eq!(groups_of(&program), before);
        assert!(!dir.exists());
    }
}

#[test]
fn a_setting_is_given_back_unless_somebody_else_changed_it() {
    let _lock = host_lock().unwrap();
    let rr = Setting::Sysctl("kernel.sched_rr_timeslice_ms".into());
    let mut executor = executor();
    let before = executor.read_setting(&rr).unwrap();
    let _put_back = PutBack(rr.path(), before.clone());
    let other = |than: &str| if than == "60" { "70" } else { "60" };

    assert_eq!(executor.write_setting(&rr, other(&before)).unwrap(), Applied::Changed);
    assert_eq!(executor.write_setting(&rr, other(&before)).unwrap(), Applied::AlreadySo);
    assert_eq!(executor.verify(), []);
    assert_eq!(executor.undo_all().restored.len(), 1);
    assert_eq!(executor.read_setting(&rr).unwrap(), before);

    executor.write_setting(&rr, other(&before)).unwrap();
    std::fs::write(rr.path(), "90").unwrap();
    let raced = executor.write_setting(&rr, other(&before));
    assert!(matches!(raced, Err(ActError::Raced { .. })), "{raced:?}");
    let report = executor.undo_all();
    assert_eq!(executor.read_setting(&rr).unwrap(), "90", "{report:?}");
}

#[test]
fn a_setting_that_does_not_exist_is_refused_by_name() {
    let nonsense = Setting::Sysctl("kernel.no_such_thing".into());
    let refused = executor().write_setting(&nonsense, "1").unwrap_err();
    assert!(refused.to_string().contains("/proc/sys/kernel/no_such_thing"), "{refused}");
}

/// Not a test: the program that replaces itself from a thread that is not its first. `make test-all` skips modules of
/// this name.
mod helper {
    use super::*;

    #[test]
    #[ignore = "helper: run by the test below"]
    fn victim_of_exec() {
        let go = std::env::var("QUELL_TEST_GO").unwrap();
        let runner = std::thread::spawn(move || -> io::Error {
            std::fs::write(format!("{go}.ready"), "").unwrap();
            while !Path::new(&go).exists() {
                std::thread::sleep(Duration::from_millis(2));
            }
            Command::new("sleep").arg("60").exec()
        });
        panic!("{}", runner.join().unwrap());
    }
}

#[test]
fn exec_by_another_thread_than_the_first_does_not_keep_quells_values() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "executor_host::helper::victim_of_exec", "--nocapture"])
        .env("QUELL_TEST_GO", &go)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let program = Program(child);
    // All of them are there once the last one says so: one that started later would have its own affinity.
    wait_for("its threads start", || go.with_extension("ready").exists().then_some(()));
    let threads = ThreadRef::all_of(program.pid()).unwrap();
    assert!(threads.len() >= 2, "{threads:?}");
    let mut executor = executor();
    let cores: Vec<CoreSet> = executor.possible_cores().iter().map(CoreSet::of).collect();
    let [first, .., last] = cores.as_slice() else { return };
    let affinity = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid())).unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.unwrap().trim().parse::<CoreSet>().unwrap()
    };
    let before = affinity();
    for thread in &threads {
        let is_first = thread.tid == thread.tgid;
        executor.set_affinity(thread, if is_first { first } else { last }).unwrap();
    }
    std::fs::write(&go, "").unwrap();
    wait_for("it replaces itself", || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", program.pid())).unwrap();
        (name == "sleep\n").then_some(())
    });
    // The thread that called exec has the number of the first now, and its own affinity still.
    assert_eq!(affinity(), *last);
    let report = executor.undo_all();
    assert_eq!(affinity(), before, "{report:?}");
    let restored = |change: &quell_act::Change| matches!(&change.what, Subject::Affinity(thread) if thread.tid == program.pid());
    assert!(report.restored.iter().any(restored));
}
