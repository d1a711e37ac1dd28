//! Batch work counts for least in the fair class, also in a cgroup of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ground, Program, eventually};
use quell_testkit::{Undo, skipped};

const CPU: &str = "/sys/fs/cgroup/cpu";

/// A new cgroup has no real-time budget on kernels with RT_GROUP_SCHED, and a service in it is refused otherwise.
const UNTHROTTLED: &str = "rt_throttling = \"off\"\n";

/// A cgroup of the v1 cpu controller that has `cpu.idle`.
struct Group {
    directory: PathBuf,
    _undo: Undo,
}

impl Group {
    fn new(name: &str) -> Option<Group> {
        let directory = Path::new(CPU).join(format!("quell-{name}-{}", std::process::id()));
        let shown = directory.display();
        let remove = format!("for i in $(seq 100); do rmdir {shown} && exit; sleep 0.1; done");
        let undo = Path::new(CPU).join("cgroup.procs").exists().then(|| Undo::with(&remove))?;
        fs::create_dir(&directory).unwrap();
        let group = Group { directory, _undo: undo.unwrap() };
        group.directory.join("cpu.idle").exists().then_some(group)
    }

    fn start(&self, command: &str) -> Program {
        let program = Program::start("sh", &["-c", command]);
        fs::write(self.directory.join("cgroup.procs"), program.pid().to_string()).unwrap();
        program
    }

    fn is_idle(&self) -> bool {
        fs::read_to_string(self.directory.join("cpu.idle")).unwrap().trim() == "1"
    }
}

/// Every thread of the service is in the background.
const BACKGROUND: &str = "[[task.threads]]\nname = \"*\"\nrole = \"background\"\n";

const SCHED_OTHER: u32 = 0;
const SCHED_RR: u32 = 2;

/// Field 41 of the first thread's stat.
fn policy(program: &Program) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(38).unwrap().parse().unwrap()
}

fn config(class: &str, name: &str, program: &Program) -> String {
    format!("[[task]]\nname = \"{name}\"\nclass = \"{class}\"\npid = {}\n", program.pid())
}

#[test]
fn a_cgroup_of_batch_work_counts_for_least_until_something_else_is_in_it() {
    let (Some(service), Some(batch)) = (Group::new("service"), Group::new("batch")) else {
        return skipped("this host has no cpu controller of cgroup v1 with cpu.idle");
    };
    let ground = Ground::new();
    let web = service.start("exec sleep 100");
    let job = batch.start("exec sleep 100");
    let text = format!(
        "[host]\nmanaged = \"1\"\n{UNTHROTTLED}{}guaranteed = 1\n{BACKGROUND}{}",
        config("lc", "web", &web),
        config("be", "job", &job)
    );
    let daemon = ground.run(&text);
    eventually("the cgroup of the batch work counts for least", || batch.is_idle());
    assert!(!service.is_idle());
    eventually("so its background threads are in the fair class", || policy(&web) == SCHED_OTHER);

    let other = batch.start("exec sleep 100");
    eventually("not while another program is in it", || !batch.is_idle());
    let problems = || daemon.task("job")["problems"].to_string();
    eventually("and the status names it", || {
        problems().contains(&format!("process {} is in {}", other.pid(), batch.directory.display()))
    });
    eventually("above which background threads are now", || policy(&web) == SCHED_RR);
    drop(other);
    eventually("again when that is gone", || batch.is_idle() && problems() == "[]");

    eventually("and the fair class suffices", || policy(&web) == SCHED_OTHER);

    daemon.stop();
    assert!(!batch.is_idle(), "restored");
}

#[test]
fn background_threads_are_above_batch_work_of_another_session() {
    const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let is_top = |line: &str| line.contains(":cpu") && !line.ends_with(":/");
    if fs::read_to_string(AUTOGROUP).map_or(true, |on| on.trim() != "1") || own.lines().any(is_top)
    {
        return skipped("sessions are no scheduling groups here");
    }
    let ground = Ground::new();
    let web = Program::start("sleep", &["100"]);
    let job = Program::start("setsid", &["sleep", "100"]);
    let text = format!(
        "[host]\nmanaged = \"1\"\n{}guaranteed = 1\n{BACKGROUND}{}",
        config("lc", "web", &web),
        config("be", "job", &job)
    );
    let daemon = ground.run(&text);
    eventually("background threads have a real-time rung", || policy(&web) == SCHED_RR);
    let problems = daemon.task("job")["problems"].to_string();
    assert!(problems.contains("another session"), "{problems}");
    daemon.stop();
    assert_eq!(policy(&web), SCHED_OTHER, "restored");
}

#[test]
fn background_threads_are_above_batch_work_with_a_real_time_rung() {
    let ground = Ground::new();
    let web = Program::start("sleep", &["100"]);
    let web_config = config("lc", "web", &web);
    let text = format!(
        "[host]\nmanaged = \"1\"\nbe_rung = \"fifo-low\"\n{web_config}guaranteed = 1\n{BACKGROUND}"
    );
    let daemon = ground.run(&text);
    eventually("they have a real-time rung", || policy(&web) == SCHED_RR);
    daemon.stop();
}

#[test]
fn shares_of_a_cgroup_of_batch_work_are_given_back() {
    let (Some(service), Some(batch)) = (Group::new("service-2"), Group::new("batch-2")) else {
        return skipped("this host has no cpu controller of cgroup v1 with cpu.idle");
    };
    let shares = batch.directory.join("cpu.shares");
    let read = || fs::read_to_string(&shares).unwrap().trim().to_owned();
    fs::write(&shares, "512").unwrap();
    let ground = Ground::new();
    let (web, job) = (service.start("exec sleep 100"), batch.start("exec sleep 100"));
    let text = format!(
        "[host]\nmanaged = \"1\"\n{UNTHROTTLED}{}guaranteed = 1\n{}",
        config("lc", "web", &web),
        config("be", "job", &job)
    );
    let daemon = ground.run(&text);
    eventually("the cgroup counts for least", || read() == "2");
    fs::write(&shares, "700").unwrap();
    eventually("again after another wrote its shares", || read() == "2");
    daemon.stop();
    assert_eq!(read(), "700", "what was found last");
    assert!(!batch.is_idle());
}

#[test]
fn launched_batch_work_has_a_cgroup_that_counts_for_least() {
    if !Path::new(CPU).join("cgroup.procs").exists() {
        return skipped("this host has no cpu controller of cgroup v1");
    }
    let ground = Ground::new();
    let text = "[host]\nmanaged = \"1\"\n[[task]]\nname = \"launched-weight\"\nclass = \"be\"\n\
                command = [\"sleep\", \"100\"]\n";
    let daemon = ground.run(text);
    let group = Path::new(CPU).join("quell/launched-weight");
    let read = |file: &str| fs::read_to_string(group.join(file)).unwrap();
    assert!(!read("cgroup.procs").is_empty());
    assert!(read("cpu.idle").trim() == "1" || read("cpu.shares").trim() == "2");
    daemon.stop();
    assert!(!group.exists(), "the cgroup stays");
}
