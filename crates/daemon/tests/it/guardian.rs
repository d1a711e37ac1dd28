//! The daemon's side of the guardians. Here the test is the daemon.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use quell_act::{ActError, Applied, Executor, Journal, JournalFile, Mode, recover_stale};
use quell_daemon::guardian::{Config, Guardians, SpawnError, Until};
use quell_model::Nanos;
use quell_os::clock;
use quell_os::sched::SchedAttr;
use quell_os::{ThreadRef, Tid};
use rustix::process::{Pid, Signal, kill_process};

struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("60").spawn().unwrap())
    }

    fn thread(&self) -> ThreadRef {
        let pid = Tid(self.0.id() as i32);
        ThreadRef::of(pid, pid).unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn config() -> Config {
    Config {
        program: env!("CARGO_BIN_EXE_quell-rig").into(),
        // A debugger or a slow machine may stop this test; nobody shall kill it for that.
        stale_after: Nanos::from_secs(60),
        ..Config::default()
    }
}

fn tick_until(guardians: &mut Guardians, what: &str, mut is_so: impl FnMut(&Guardians) -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so(guardians) {
        assert!(Instant::now() < until, "{what}");
        guardians.tick(clock::now());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn nothing_is_changed_while_a_guardian_is_missing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let sleeper = Sleeper::start();
    let thread = sleeper.thread();
    let mut executor = Executor::open(Journal::create(dir.path()).unwrap(), Mode::Live).unwrap();
    let before_them = executor.set_sched(&thread, SchedAttr::IDLE);
    assert!(matches!(before_them, Err(ActError::Unguarded)));

    let mut guardians =
        Guardians::spawn_with(executor.journal(), executor.gate(), config()).unwrap();
    assert_eq!((guardians.alive(), guardians.healthy()), (2, true));
    assert_eq!(executor.set_sched(&thread, SchedAttr::IDLE).unwrap(), Applied::Changed);
    // The next command does not take a journal from a daemon that lives.
    assert_eq!(recover_stale(dir.path()).unwrap(), None);

    let first = guardians.pids();
    kill_process(Pid::from_raw(first[0] as i32).unwrap(), Signal::KILL).unwrap();
    tick_until(&mut guardians, "its death is noticed", |guardians| !guardians.healthy());
    let unguarded = executor.set_sched(&thread, SchedAttr::OTHER);
    assert!(matches!(unguarded, Err(ActError::Unguarded)));
    tick_until(&mut guardians, "it is replaced", Guardians::healthy);
    assert_ne!(guardians.pids(), first);
    assert_eq!(executor.set_sched(&thread, SchedAttr::OTHER).unwrap(), Applied::Changed);

    executor.set_sched(&thread, SchedAttr::IDLE).unwrap();
    let report = executor.close().unwrap();
    assert_eq!(report.restored.len(), 1);
    assert_eq!(guardians.dismiss(), Until::Left);
    assert!(!JournalFile::path_in(dir.path()).exists());
}

#[test]
fn guardians_hold_what_they_are_given_those_that_come_later_too() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let executor = Executor::open(Journal::create(dir.path()).unwrap(), Mode::Live).unwrap();
    let mut guardians =
        Guardians::spawn_with(executor.journal(), executor.gate(), config()).unwrap();
    let held = dir.path().join("held");
    let file: OwnedFd = std::fs::File::create(&held).unwrap().into();
    guardians.hold("slots", vec![file]).unwrap();
    let holds = |pid: u32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        fds.into_iter().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|file| file == held))
    };
    tick_until(&mut guardians, "both hold it", |guardians| guardians.pids().into_iter().all(holds));
    let first = guardians.pids()[0];
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::KILL).unwrap();
    tick_until(&mut guardians, "its death is noticed", |guardians| !guardians.healthy());
    tick_until(&mut guardians, "its successor holds it", |guardians| {
        guardians.healthy() && guardians.pids().into_iter().all(holds)
    });
    assert_eq!(guardians.dismiss(), Until::Left);
}

#[test]
fn what_cannot_work_is_refused_with_a_reason() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let executor = Executor::open(Journal::create(dir.path()).unwrap(), Mode::Live).unwrap();
    let spawn = |config| Guardians::spawn_with(executor.journal(), executor.gate(), config).err();
    let hasty = Config { stale_after: Nanos::from_millis(100), ..config() };
    assert!(matches!(spawn(hasty), Some(SpawnError::StaleTooShort(_))));
    let missing = spawn(Config { program: "/no/such/program".into(), ..config() }).unwrap();
    assert!(missing.to_string().contains("/no/such/program"), "{missing}");
    assert!(!executor.gate().is_open());
}

#[test]
fn a_guardian_is_not_for_people() {
    let started = Command::new(env!("CARGO_BIN_EXE_quell-rig")).args(["guardian", "x"]).output();
    let started = started.unwrap();
    assert!(!started.status.success());
    assert!(String::from_utf8_lossy(&started.stderr).contains("the daemon starts guardians"));
}
