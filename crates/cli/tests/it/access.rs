//! Who may do what over the control socket, and that nobody there delays a tick; with real users.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::common::{Daemon, Ground, Program, QUELL, copy_program, eventually};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit};

/// A group that every Debian host has and no daemon uses, and the number of `nobody`.
const GROUP: &str = "games";
const NOBODY: &str = "65534";

const BATCH: &str = "[[task]]\nname = \"batch\"\nclass = \"be\"\n";

fn config(pid: i32) -> String {
    format!("[host]\ncontrol_group = \"{GROUP}\"\n{BATCH}pid = {pid}\n")
}

/// The program where everybody can run it: it may have been built where only root can read.
struct Shared(tempfile::TempDir);

impl Shared {
    fn new() -> Shared {
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o755);
        copy_program(QUELL, &dir.path().join("quell"));
        Shared(dir)
    }

    fn program(&self) -> PathBuf {
        self.0.path().join("quell")
    }

    /// `quell` as `nobody` with these groups.
    fn quell(&self, ground: &Ground, groups: &[&str], args: &[&str]) -> Output {
        Command::new("setpriv")
            .args([&format!("--reuid={NOBODY}"), "--no-new-privs"])
            .args(groups)
            .arg(self.program())
            .args(args)
            .env("QUELL_RUN_DIR", ground.path())
            .output()
            .unwrap()
    }
}

/// By supplementary group, by primary group, and not at all.
const MEMBERS: [&[&str]; 2] =
    [&["--regid=65534", "--groups=games"], &["--regid=games", "--clear-groups"]];
const STRANGER: &[&str] = &["--regid=65534", "--clear-groups"];

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_reader_sees_everything_and_changes_nothing() {
    let (ground, shared) = (Ground::new(), Shared::new());
    let victim = Program::start("sleep", &["60"]);
    set_mode(ground.path(), 0o700);
    let daemon = ground.run(&config(victim.pid()));
    assert_eq!(fs::metadata(ground.path()).unwrap().mode() & 0o777, 0o710, "through, but no list");
    let socket = fs::metadata(ground.path().join("control.sock")).unwrap();
    assert_eq!(socket.mode() & 0o777, 0o660);
    let file = shared.0.path().join("empty.toml");
    fs::write(&file, "version = 1\n").unwrap();
    let file = file.to_str().unwrap();
    for groups in MEMBERS {
        let seen = shared.quell(&ground, groups, &["status", "--json"]);
        assert!(seen.status.success(), "{}", said(&seen));
        assert!(String::from_utf8_lossy(&seen.stdout).contains("\"batch\""));
        let why = shared.quell(&ground, groups, &["status", "--explain", "batch"]);
        assert!(why.status.success(), "{}", said(&why));
        for args in
            [&["remove", "batch"][..], &["stop"], &["apply", file], &["apply", "--dry-run", file]]
        {
            let out = shared.quell(&ground, groups, args);
            assert_eq!(out.status.code(), Some(2), "{args:?}");
            let wanted =
                format!("user {NOBODY} may read but change nothing: `{}` needs root", args[0]);
            assert!(said(&out).contains(&wanted), "{args:?}: {}", said(&out));
        }
    }
    assert_eq!(daemon.task("batch")["threads"], 1);
    daemon.stop();
}

#[test]
fn who_is_in_no_group_cannot_connect_and_a_wrong_mode_gives_no_right_to_change() {
    let (ground, shared) = (Ground::new(), Shared::new());
    let victim = Program::start("sleep", &["60"]);
    let daemon = ground.run(&config(victim.pid()));
    let refused = shared.quell(&ground, STRANGER, &["status"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("Permission denied"), "{}", said(&refused));
    // Somebody opens everything by hand.
    let socket = ground.path().join("control.sock");
    set_mode(ground.path(), 0o711);
    set_mode(&socket, 0o666);
    assert!(shared.quell(&ground, STRANGER, &["status"]).status.success());
    let refused = shared.quell(&ground, STRANGER, &["stop"]);
    assert!(said(&refused).contains("may read but change nothing"), "{}", said(&refused));
    assert_eq!(daemon.task("batch")["threads"], 1);
    daemon.stop();
}

#[test]
fn without_a_group_the_socket_is_roots_and_an_unknown_group_is_refused_by_line() {
    let (ground, shared) = (Ground::new(), Shared::new());
    let refused = ground.refused("version = 1\n[host]\ncontrol_group = \"no-such-group\"\n");
    assert!(
        refused.contains("quell.toml:3: `control_group`: this host has no group `no-such-group`"),
        "{refused}"
    );
    assert!(refused.contains("groupadd"), "{refused}");
    set_mode(ground.path(), 0o700);
    let daemon = ground.run("version = 1\n");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&ground.path().join("control.sock")), 0o600);
    assert_eq!(mode(ground.path()), 0o700, "nobody was let through");
    assert!(!shared.quell(&ground, MEMBERS[0], &["status"]).status.success());
    daemon.stop();
}

#[test]
fn a_run_directory_of_others_is_refused() {
    let ground = Ground::new();
    set_mode(ground.path(), 0o777);
    let refused = ground.refused("version = 1\n");
    assert!(refused.contains("others may write to it"), "{refused}");
    set_mode(ground.path(), 0o700);
}

fn ticks(daemon: &Daemon) -> u64 {
    daemon.status()["counters"]["ticks"].as_u64().unwrap()
}

/// Clients of every bad kind, held open.
fn thousand_clients(socket: &Path) -> Vec<UnixStream> {
    (0..1_000)
        .filter_map(|nth| {
            let mut client = UnixStream::connect(socket).ok()?;
            client.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            // One that is refused is closed already, so that writing fails.
            let _ = match nth % 4 {
                0 => Ok(()),
                1 => client.write_all(&[0xff; 200]),
                2 => client.write_all(&vec![b'['; 100_000]),
                // Asks and asks, and never reads an answer.
                _ => client.write_all("{\"v\":2,\"call\":\"status\"}\n".repeat(500).as_bytes()),
            };
            Some(client)
        })
        .collect()
}

/// A shell that obeys its standard input, ended with all that it created.
struct Shell(Child);

impl Shell {
    fn start(program: &Path) -> Shell {
        Shell(Command::new(program).stdin(Stdio::piped()).process_group(0).spawn().unwrap())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

#[test]
fn a_thousand_connections_garbage_and_slow_readers_hold_up_nothing() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let ground = Ground::new();
    // A name of our own, so that nobody else's processes are adopted.
    let program = ground.path().join("quell-flooded");
    copy_program("/bin/sh", &program);
    let text = format!(
        "[host]\ntick_us = 1000\ntick_on_events = false\n{BATCH}match = \"quell-flooded\"\n"
    );
    let daemon = ground.run(&text);
    let socket = ground.path().join("control.sock");
    // Connected before the flood, as an operator who watches.
    let mut watcher = BufReader::new(UnixStream::connect(&socket).unwrap());
    let mut ask = || -> serde_json::Value {
        watcher.get_mut().write_all(b"{\"v\":2,\"call\":\"status\"}\n").unwrap();
        let mut line = String::new();
        watcher.read_line(&mut line).unwrap();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()["reply"]["status"].clone()
    };
    assert_eq!(ask()["guardians"], 2);
    let flood = thousand_clients(&socket);
    assert!(flood.len() > 900, "{} connections", flood.len());
    let before = ask()["counters"]["ticks"].as_u64().unwrap();
    // The daemon goes on: it ticks, sees what happens on the host, and beats.
    let mut shell = Shell::start(&program);
    eventually("a new process is adopted meanwhile", || ask()["tasks"][0]["threads"] == 1);
    shell.0.stdin.as_mut().unwrap().write_all(b"sleep 60 &\n").unwrap();
    eventually("so is what it creates, by the kernel's event", || {
        ask()["tasks"][0]["threads"] == 2
    });
    eventually("it ticks meanwhile", || {
        ask()["counters"]["ticks"].as_u64().unwrap() > before + 500
    });
    let status = ask();
    assert_eq!(status["guardians"], 2);
    assert_eq!(status["pid"], daemon.child.id());
    drop(shell);
    drop(flood);
    eventually("there is room for others again", || {
        ground.quell(&["status", "--json"]).status.success()
    });
    let after = ticks(&daemon);
    eventually("it goes on", || ticks(&daemon) > after);
    daemon.stop();
}
