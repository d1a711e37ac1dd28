//! What `quell run` promises, with real programs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::common::{
    Daemon, FIFO, Ground, IDLE, OTHER, Program, copy_program, eventually, rt_limit, scheduling,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PORT: &str = "22322";

fn memcached() -> Program {
    let args = ["-u", "nobody", "-l", "127.0.0.1", "-p", PORT, "-t", "1"];
    let memcached = Program::start("memcached", &args);
    // It starts its threads before it listens.
    eventually("memcached listens", || {
        std::net::TcpStream::connect(format!("127.0.0.1:{PORT}")).is_ok()
    });
    memcached
}

fn two_tasks(lc: i32, be: i32) -> String {
    format!(
        "[[task]]\nname = \"web\"\nclass = \"lc\"\npid = {lc}\nguaranteed = 1\n\
         [[task]]\nname = \"batch\"\nclass = \"be\"\npid = {be}\n"
    )
}

fn all(pid: i32, policy: i32) -> bool {
    let threads = scheduling(pid);
    !threads.is_empty() && threads.iter().all(|(found, ..)| *found == policy)
}

fn changes(daemon: &Daemon) -> u64 {
    daemon.status()["counters"]["host_writes"].as_u64().unwrap()
}

#[test]
fn a_daemon_that_stands_still_counts_as_hung_when_the_configuration_says_so() {
    let ground = Ground::new();
    let web = |lc: i32, host: &str| {
        format!(
            "[host]\n{host}[[task]]\nname = \"web\"\nclass = \"lc\"\npid = {lc}\nguaranteed = 1\n"
        )
    };
    let lc = memcached();
    let daemon = ground.run(&web(lc.pid(), "watchdog_timeout_ms = 60000\n"));
    eventually("LC is on its rung", || all(lc.pid(), FIFO));
    let still = |daemon: &Daemon| {
        let pid = Pid::from_child(&daemon.child);
        kill_process(pid, Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        let _ = kill_process(pid, Signal::CONT);
    };
    still(&daemon);
    assert!(all(lc.pid(), FIFO), "two seconds are within its bound");
    daemon.stop();

    let mut daemon = ground.run(&web(lc.pid(), "watchdog_timeout_ms = 500\n"));
    eventually("LC is on its rung", || all(lc.pid(), FIFO));
    still(&daemon);
    eventually("its guardian ended it", || daemon.child.try_wait().unwrap().is_some());
    eventually("and gave back what it had", || all(lc.pid(), OTHER));
}

#[test]
fn lc_gets_its_rung_and_be_goes_beneath_and_both_are_given_back() {
    let ground = Ground::new();
    let (lc, be) = (memcached(), Program::start("stress-ng", &["--cpu", "2", "--quiet"]));
    let before = (scheduling(lc.pid()), scheduling(be.pid()));
    let daemon = ground.run(&two_tasks(lc.pid(), be.pid()));
    let managed = daemon.status()["managed"].as_str().unwrap().to_owned();
    eventually("LC is on its rung", || all(lc.pid(), FIFO));
    eventually("BE is beneath", || all(be.pid(), IDLE));
    // The children of stress-ng, which do the work, belong to the task as well.
    let processes = daemon.task("batch")["processes"].as_array().unwrap().len();
    assert!(processes >= 3, "{processes}");
    for (_, priority, cores) in scheduling(lc.pid()) {
        assert!(priority > 0);
        assert_eq!(cores, managed);
    }
    assert_eq!(daemon.task("web")["rung"], "lc");
    daemon.stop();
    assert_eq!((scheduling(lc.pid()), scheduling(be.pid())), before);
}

#[test]
fn applying_the_same_file_twice_changes_nothing() {
    let ground = Ground::new();
    let (lc, be) = (memcached(), Program::start("sleep", &["60"]));
    let text = two_tasks(lc.pid(), be.pid());
    let daemon = ground.run(&text);
    eventually("LC is on its rung", || all(lc.pid(), FIFO));
    let counted = changes(&daemon);
    let path = ground.config(&text);
    let out = ground.quell(&["apply", path.to_str().unwrap()]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "nothing to change\n");
    assert_eq!(changes(&daemon), counted);
    // A file without the BE task gives it back, and only it.
    let lc_only = text.split("[[task]]\nname = \"batch\"").next().unwrap().to_owned();
    let path = ground.config(&lc_only);
    assert!(ground.quell(&["apply", path.to_str().unwrap()]).status.success());
    assert!(all(be.pid(), OTHER) && all(lc.pid(), FIFO));
    daemon.stop();
}

#[test]
fn a_drained_task_is_as_it_was_and_a_launched_one_has_ended() {
    let ground = Ground::new();
    let daemon =
        ground.run("[[task]]\nname = \"batch\"\nclass = \"be\"\ncommand = [\"sleep\", \"600\"]\n");
    let pid = daemon.task("batch")["processes"][0].as_i64().unwrap() as i32;
    eventually("it is beneath", || all(pid, IDLE));
    let out = ground.quell(&["remove", "batch"]);
    assert!(
        String::from_utf8_lossy(&out.stdout).contains("program killed by signal 15"),
        "{out:?}"
    );
    assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
    assert_eq!(daemon.task("batch"), Value::Null);
    daemon.stop();
}

#[test]
fn kept_programs_run_on_as_if_no_daemon_had_started_them() {
    let ground = Ground::new();
    let mut daemon =
        ground.run("[[task]]\nname = \"batch\"\nclass = \"be\"\ncommand = [\"sleep\", \"600\"]\n");
    let processes = daemon.task("batch")["processes"].clone();
    let pid = processes[0].as_i64().expect("its program") as i32;
    eventually("BE is beneath", || all(pid, IDLE));
    let groups = |of: &str| fs::read_to_string(format!("/proc/{of}/cgroup")).unwrap();
    let own = groups("self");

    let out = ground.quell(&["stop", "--keep-programs"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    eventually("the daemon ends", || daemon.child.try_wait().unwrap().is_some());
    let said = String::from_utf8(out.stdout).unwrap();
    let program = Pid::from_raw(pid).expect("a process");
    let (is_given_back, found) = (all(pid, OTHER), groups(&pid.to_string()));
    kill_process(program, Signal::KILL).expect("it runs on");
    assert!(is_given_back, "{said}");
    assert_eq!(found, own, "{said}");
    assert!(said.contains(&format!("left running as process {pid}")), "{said}");
}

#[test]
fn a_dry_run_tells_everything_and_changes_nothing() {
    let ground = Ground::new();
    let (lc, be) = (memcached(), Program::start("sleep", &["60"]));
    let before = (scheduling(lc.pid()), scheduling(be.pid()));
    let path = ground.config(&two_tasks(lc.pid(), be.pid()));
    let out = ground.quell(&["run", "--dry-run", path.to_str().unwrap()]);
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for wanted in ["web", "batch", "rung lc", "nothing was changed"] {
        assert!(said.contains(wanted), "{wanted} in {said}");
    }
    assert!(!said.contains("would change 0 things"), "{said}");
    assert_eq!((scheduling(lc.pid()), scheduling(be.pid())), before);
    assert!(!ground.path().join("control.sock").exists());
}

#[test]
fn a_killed_daemon_leaves_the_host_as_it_was() {
    let ground = Ground::new();
    let (lc, be) = (memcached(), Program::start("stress-ng", &["--cpu", "1", "--quiet"]));
    let before = (scheduling(lc.pid()), scheduling(be.pid()));
    let limit = rt_limit();
    let text = format!("[host]\nrt_throttling = \"off\"\n{}", two_tasks(lc.pid(), be.pid()));
    let mut daemon = ground.run(&text);
    eventually("LC is on its rung", || all(lc.pid(), FIFO));
    assert_eq!(rt_limit(), "-1");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    eventually("all is as before", || (scheduling(lc.pid()), scheduling(be.pid())) == before);
    eventually("so is the sysctl", || rt_limit() == limit);
}

#[test]
fn rt_throttling_stays_as_found_without_lane_and_dedicated_scheduler() {
    let ground = Ground::new();
    let (lc, be) = (memcached(), Program::start("sleep", &["60"]));
    let limit = rt_limit();
    let daemon = ground.run(&two_tasks(lc.pid(), be.pid()));
    eventually("LC is on its rung", || all(lc.pid(), FIFO));
    assert_eq!(rt_limit(), limit);
    daemon.stop();
}

#[test]
fn new_processes_that_match_are_adopted() {
    let ground = Ground::new();
    // A name of our own, so that nobody else's processes are adopted.
    let program = ground.path().join("quell-victim");
    copy_program("/bin/sleep", &program);
    let daemon =
        ground.run("[[task]]\nname = \"batch\"\nclass = \"be\"\nmatch = \"quell-victim\"\n");
    assert_eq!(daemon.task("batch")["state"], "waiting for processes");
    let victim = Program::start(program.to_str().unwrap(), &["60"]);
    eventually("it is adopted", || all(victim.pid(), IDLE));
    daemon.stop();
    assert!(all(victim.pid(), OTHER));
}

#[test]
fn a_thread_that_changes_its_own_affinity_keeps_it() {
    let ground = Ground::new();
    let be = Program::start("sleep", &["60"]);
    let text = format!("[[task]]\nname = \"batch\"\nclass = \"be\"\npid = {}\n", be.pid());
    let daemon = ground.run(&text);
    eventually("it is beneath", || all(be.pid(), IDLE));
    let pid = be.pid().to_string();
    assert!(Command::new("taskset").args(["-pc", "0", &pid]).output().unwrap().status.success());
    eventually("it is told", || daemon.task("batch")["problems"].to_string().contains("affinity"));
    assert_eq!(scheduling(be.pid())[0].2, "0");
    daemon.stop();
    assert_eq!(scheduling(be.pid())[0].2, "0", "what the task changed itself stays");
}

#[test]
fn threads_by_the_hundred_are_followed_and_none_is_leaked() {
    let ground = Ground::new();
    let mut be =
        Program::start("stress-ng", &["--pthread", "2", "--pthread-max", "200", "--quiet"]);
    let lc = memcached();
    let daemon = ground.run(&two_tasks(lc.pid(), be.pid()));
    let threads = || daemon.task("batch")["threads"].as_u64().unwrap();
    eventually("more than fifty are watched at once", || threads() > 50);
    assert!(all(lc.pid(), FIFO), "the other task does not suffer");
    let pid = rustix::process::Pid::from_raw(be.pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    be.0.wait().unwrap();
    eventually("none is left", || threads() == 0);
    assert_eq!(daemon.task("batch")["state"], "exited");
    assert_eq!(daemon.status()["guardians"], 2);
    daemon.stop();
}

#[test]
fn why_explains_a_task_and_a_core() {
    let ground = Ground::new();
    let lc = memcached();
    let be = Program::start("sleep", &["60"]);
    let daemon = ground.run(&two_tasks(lc.pid(), be.pid()));
    let web = String::from_utf8(ground.quell(&["status", "--explain", "web"]).stdout).unwrap();
    assert!(web.contains("LC on rung lc"), "{web}");
    let core =
        daemon.status()["managed"].as_str().unwrap().split([',', '-']).next().unwrap().to_owned();
    let said = String::from_utf8(ground.quell(&["status", "--explain", &core]).stdout).unwrap();
    assert!(said.contains("web's") && said.contains("beneath"), "{said}");
    let nobody = ground.quell(&["status", "--explain", "nobody"]);
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("neither a task's name nor a core"));
    daemon.stop();
}
