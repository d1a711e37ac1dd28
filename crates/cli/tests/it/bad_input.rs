//! Bad input: one clear line of error, and nothing changed on the host.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{Ground, OTHER, Program, QUELL, copy_program, scheduling};

const BATCH: &str = "[[task]]\nname = \"batch\"\nclass = \"be\"\n";

/// One line, starting with `error:` and the file where a file is at fault.
fn assert_one_line(said: &str, wanted: &str) {
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    assert!(errors[0].contains(wanted), "wanted `{wanted}` in: {said}");
}

#[test]
fn files_that_make_no_sense_are_refused_by_line() {
    let ground = Ground::new();
    let victim = Program::start("sleep", &["60"]);
    let adopt = format!("{BATCH}pid = {}\n", victim.pid());
    let cases = [
        (format!("[host]\nmanagd = \"1\"\n{adopt}"), "quell.toml:2: unknown field `managd`"),
        (
            adopt.replace("\"be\"", "\"vip\""),
            "quell.toml:3: unknown variant `vip`, expected `lc` or `be`",
        ),
        (format!("{adopt}guaranteed = 7\n"), "guaranteed"),
        (format!("[host]\nmanaged = \"77\"\n{adopt}"), "names core 77"),
        (
            format!("{BATCH}command = [\"no-such-program\"]\n"),
            "there is no program `no-such-program`",
        ),
        (
            format!("{}[task.latency]\ncommand = [\"no-such-probe\"]\n", adopt.replace("be", "lc")),
            "task `batch`: its latency: there is no program `no-such-probe`",
        ),
        (format!("{adopt}{adopt}"), "two tasks are named `batch`"),
        ("not toml at all".to_owned(), "quell.toml:1"),
        (format!("[host]\npolicy = \"magic\"\n{adopt}"), "there is no policy `magic`"),
    ];
    let before = scheduling(victim.pid());
    for (text, wanted) in cases {
        assert_one_line(&ground.refused(&text), wanted);
        assert_eq!(scheduling(victim.pid()), before, "{text}");
        assert!(!ground.path().join("control.sock").exists());
    }
}

#[test]
fn processes_that_can_never_be_tasks_are_refused_by_name() {
    let ground = Ground::new();
    let mut gone = Command::new("true").spawn().unwrap();
    let gone_pid = gone.id();
    gone.wait().unwrap();
    let kernel_thread = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .find(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() == "ksoftirqd/0")
        })
        .unwrap();
    let cases = [
        (gone_pid as i32, "there is no process"),
        (kernel_thread, "is a kernel thread"),
        (1, "process 1 can never be a task"),
        (std::process::id() as i32, "is Quell itself or a parent of it"),
    ];
    for (pid, wanted) in cases {
        assert_one_line(&ground.refused(&format!("{BATCH}pid = {pid}\n")), wanted);
    }
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let ground = Ground::new();
    let daemon = ground.run("version = 1\n");
    assert_one_line(&ground.refused("version = 1\n"), "a Quell daemon runs already");
    assert_eq!(daemon.status()["guardians"], 2);
    daemon.stop();
}

#[test]
fn without_root_it_says_so() {
    let ground = Ground::new();
    let path = ground.config("version = 1\n");
    // The program may lie where only root can read it: run a copy.
    let copy = std::env::temp_dir().join(format!("quell-copy-{}", std::process::id()));
    copy_program(QUELL, &copy);
    let shared = std::env::temp_dir().join(format!("quell-config-{}.toml", std::process::id()));
    fs::copy(&path, &shared).unwrap();
    let out = Command::new(&copy).arg("run").arg(&shared).uid(65_534).gid(65_534).output().unwrap();
    fs::remove_file(&copy).unwrap();
    fs::remove_file(&shared).unwrap();
    assert!(!out.status.success());
    assert_one_line(&String::from_utf8_lossy(&out.stderr), "this needs root");
}

#[test]
fn without_bpf_it_runs_on_proc_and_says_that_this_is_coarser() {
    let ground = Ground::new();
    let victim = Program::start("sleep", &["60"]);
    let text = format!("[host]\nobserver = \"proc\"\n{BATCH}pid = {}\n", victim.pid());
    let daemon = ground.run(&text);
    let status = daemon.status();
    assert_eq!(status["observer"], "proc");
    assert_eq!(status["counters"]["idle_while_lc_waits_us"], serde_json::Value::Null);
    assert_eq!(daemon.task("batch")["threads"], 1);
    let said = status["degraded"].to_string();
    assert!(said.contains("/proc"), "{said}");
    daemon.stop();
}

#[test]
fn garbage_on_the_control_socket_changes_nothing() {
    let ground = Ground::new();
    let victim = Program::start("sleep", &["60"]);
    let daemon = ground.run(&format!("{BATCH}pid = {}\n", victim.pid()));
    let socket = ground.path().join("control.sock");
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream
        .write_all(
            b"\x00garbage\n{\"v\":2,\"call\":{\"remove\":{}}}\n{\"v\":1,\"call\":\"status\"}\n",
        )
        .unwrap();
    let mut answers = BufReader::new(stream).lines();
    for wanted in ["not a request", "not a request", "unsupported protocol version 1, expected 2"] {
        let answer = answers.next().unwrap().unwrap();
        assert!(answer.contains(wanted), "{answer}");
    }
    let mut binary = UnixStream::connect(&socket).unwrap();
    binary.write_all(&[0xff; 4096]).unwrap();
    drop(binary);
    assert_eq!(daemon.task("batch")["threads"], 1);
    let out = ground.quell(&["remove", "nobody"]);
    assert_one_line(
        &String::from_utf8_lossy(&out.stderr),
        "there is no task `nobody`; tasks are: batch",
    );
    daemon.stop();
}

/// A cgroup of version 1 without real-time budget, on a host that enforces it: set up here, put back
/// whatever happens.
struct NoBudget {
    group: &'static str,
    limit: String,
}

const LIMIT: &str = "/proc/sys/kernel/sched_rt_runtime_us";

impl NoBudget {
    /// `None` where the host has no such thing.
    fn make() -> Option<NoBudget> {
        let group = "/sys/fs/cgroup/cpu/quell-test-no-budget";
        if !fs::exists("/sys/fs/cgroup/cpu/cpu.rt_runtime_us").unwrap() {
            return None;
        }
        let limit = fs::read_to_string(LIMIT).unwrap().trim().to_owned();
        fs::create_dir(group).unwrap();
        let made = NoBudget { group, limit };
        fs::write(LIMIT, "950000").unwrap();
        Some(made)
    }
}

impl Drop for NoBudget {
    fn drop(&mut self) {
        let _ = fs::write(LIMIT, &self.limit);
        let _ = fs::remove_dir(self.group);
    }
}

#[test]
fn a_cgroup_that_forbids_real_time_is_refused_by_name() {
    let ground = Ground::new();
    let Some(no_budget) = NoBudget::make() else {
        // Without RT_GROUP_SCHED and cgroup version 1 no group can forbid it (Debian's kernels).
        eprintln!("this host has no cgroup that could forbid real-time priority: not tested");
        return;
    };
    let victim = Program::start("sleep", &["60"]);
    fs::write(format!("{}/cgroup.procs", no_budget.group), victim.pid().to_string()).unwrap();
    for throttling in ["auto", "leave"] {
        let text = format!(
            "[host]\nrt_throttling = \"{throttling}\"\n[[task]]\nname = \"web\"\nclass = \"lc\"\npid = {}\nguaranteed = 1\n",
            victim.pid()
        );
        let said = ground.refused(&text);
        assert_one_line(&said, "quell-test-no-budget has no real-time budget");
        assert!(said.contains("rt_throttling = \"off\""), "the remedy is missing: {said}");
    }
    assert_eq!(scheduling(victim.pid())[0].0, OTHER);
    assert_eq!(fs::read_to_string(LIMIT).unwrap().trim(), "950000");
    fs::write("/sys/fs/cgroup/cpu/cgroup.procs", victim.pid().to_string()).unwrap();
}
