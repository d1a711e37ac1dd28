//! packaging/quell.service and packaging/quell.toml, as far as they can be tested where systemd does not run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{FIFO, Ground, Program, QUELL, eventually, scheduling};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const UNIT: &str = include_str!("../../../../packaging/quell.service");
const EXAMPLE: &str = include_str!("../../../../packaging/quell.toml");

/// All values of a key, in order.
fn values(key: &str) -> Vec<&'static str> {
    let value = |line: &'static str| line.strip_prefix(key)?.strip_prefix('=');
    UNIT.lines().filter_map(value).collect()
}

/// A command of the unit, for a shell: with the program under test, and its configuration.
fn command(key: &str, config: &Path) -> String {
    let [line] = values(key)[..] else { panic!("one {key} in:\n{UNIT}") };
    line.replace("/usr/bin/quell", QUELL).replace("/etc/quell/quell.toml", config.to_str().unwrap())
}

fn shell(line: &str, ground: &Ground) -> Output {
    Command::new("sh").args(["-c", line]).env("QUELL_RUN_DIR", ground.path()).output().unwrap()
}

/// What a daemon changes on a host besides its tasks: settings, and the softirq threads of managed cores.
fn host() -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |path: &str| {
        found.push(format!("{path} {}", fs::read_to_string(path).unwrap_or_default().trim()));
    };
    note("/proc/sys/kernel/sched_rt_runtime_us");
    for irq in fs::read_dir("/proc/irq").unwrap().flatten() {
        note(&format!("{}/smp_affinity_list", irq.path().display()));
    }
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        let pid = process.file_name().to_string_lossy().parse();
        if let (true, Ok(pid)) = (name.starts_with("ksoftirqd/"), pid) {
            found.push(format!("{} {:?}", name.trim(), scheduling(pid)));
        }
    }
    found.sort();
    found
}

/// The processes whose parent is this one.
fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// What `systemd-analyze` says of the unit, with the program under test; `None` where there is no systemd.
fn analyze(args: &[&str]) -> Option<Output> {
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("quell.service");
    fs::write(&unit, UNIT.replace("/usr/bin/quell", QUELL)).unwrap();
    match Command::new("systemd-analyze").args(args).arg(&unit).output() {
        Ok(said) => Some(said),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not tested: there is no systemd-analyze");
            None
        }
        Err(err) => panic!("{err}"),
    }
}

#[test]
fn systemd_finds_no_fault_with_the_unit() {
    if let Some(said) = analyze(&["verify", "--man=no"]) {
        assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
    }
}

#[test]
fn the_units_exposure_is_rated_ok() {
    // In tenths. From 5.0 on systemd calls it medium, from 7.0 on exposed.
    if let Some(said) = analyze(&["security", "--offline=true", "--threshold=49"]) {
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    }
}

#[test]
fn the_stop_hook_restores_what_a_daemon_killed_with_its_guardians_left() {
    let ground = Ground::new();
    let lc = Program::start("sleep", &["600"]);
    let be = Program::start("stress-ng", &["--cpu", "1", "--quiet"]);
    let config = ground.config(&format!(
        "[[task]]\nname = \"web\"\nclass = \"lc\"\npid = {}\nguaranteed = 1\n\
         [[task]]\nname = \"batch\"\nclass = \"be\"\npid = {}\n",
        lc.pid(),
        be.pid()
    ));
    let before = (host(), scheduling(lc.pid()), scheduling(be.pid()));
    assert!(shell(&command("ExecCondition", &config), &ground).status.success());

    // With no capability but the unit's.
    let bounds: Vec<String> = values("CapabilityBoundingSet")
        .iter()
        .flat_map(|line| line.split(' '))
        .map(|cap| format!("+{}", cap.strip_prefix("CAP_").unwrap().to_lowercase()))
        .collect();
    let start = format!(
        "exec setpriv --no-new-privs --bounding-set=-all,{} {}",
        bounds.join(","),
        command("ExecStart", &config)
    );
    let mut daemon = Command::new("sh")
        .args(["-c", &start])
        .env("QUELL_RUN_DIR", ground.path())
        .stdin(Stdio::null())
        .stderr(fs::File::create(ground.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    eventually("LC is on its rung", || {
        assert!(
            daemon.try_wait().unwrap().is_none(),
            "the daemon ended: {}",
            fs::read_to_string(ground.path().join("log")).unwrap()
        );
        scheduling(lc.pid())[0].0 == FIFO
    });
    let status = ground.quell(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["observer"], &status["guardians"]), (&"bpf".into(), &2.into()));

    let mut all = children(daemon.id());
    assert_eq!(all.len(), 2, "the guardians");
    all.push(daemon.id());
    // Stopped first, so that none acts for another.
    all.iter().for_each(|pid| signal(*pid, Signal::STOP));
    all.iter().for_each(|pid| signal(*pid, Signal::KILL));
    daemon.wait().unwrap();
    eventually("all three are gone", || {
        all.iter().all(|pid| {
            let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        })
    });
    assert_eq!(scheduling(lc.pid())[0].0, FIFO, "nobody is left to restore");
    assert_ne!(host(), before.0);

    let hook = shell(&command("ExecStopPost", &config), &ground);
    assert!(hook.status.success(), "{hook:?}");
    assert_eq!((host(), scheduling(lc.pid()), scheduling(be.pid())), before);
    // And once more, as after a stop in order.
    assert!(shell(&command("ExecStopPost", &config), &ground).status.success());
}

#[test]
fn the_service_does_not_start_before_there_is_a_task() {
    let ground = Ground::new();
    let condition = |text: &str| {
        let config = ground.config(text);
        shell(&command("ExecCondition", &config), &ground).status.code()
    };
    assert_eq!(condition(EXAMPLE), Some(1), "as installed");
    assert_eq!(condition("version = 1\n  [[ task ]]\n"), Some(0));
}

#[test]
fn what_the_installed_file_shows_is_a_configuration() {
    let ground = Ground::new();
    let dry_run = |text: &str| {
        let config = ground.config(text);
        let out = ground.quell(&["run", "--dry-run", config.to_str().unwrap()]);
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(dry_run(EXAMPLE).contains("would change 0 things"));
    let uncommented: Vec<&str> = EXAMPLE
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with('[') || rest.split(' ').nth(1) == Some("=") => rest,
            _ => line,
        })
        .collect();
    let said = dry_run(&uncommented.join("\n"));
    assert!(said.contains("task web") && said.contains("task batch"), "{said}");
}
