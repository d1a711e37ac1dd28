//! docs/tutorial.md does what it says: its commands run in order, and none fails.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Ground, QUELL};
use rustix::process::{Pid, Signal, kill_process_group};

const PAGE: &str = include_str!("../../../docs/tutorial.md");

/// The page with everything blanked but its `sh` blocks, so that bash tells the page's own line numbers.
fn script() -> String {
    // A client that had no core to itself says so with status 1. On a busy machine that is no fault of the page.
    let mut script =
        "quell() { command quell \"$@\" || [ \"$1$?\" = load1 ]; }; set -eux;".to_owned();
    let mut runs = false;
    for line in PAGE.lines() {
        match line.strip_prefix("```") {
            Some(language) => runs = language == "sh",
            None if runs => script.push_str(line),
            None => {}
        }
        script.push('\n');
    }
    script
}

/// The shell, and all that the page leaves running.
struct Shell<'a> {
    ground: &'a Ground,
    child: Child,
}

impl Drop for Shell<'_> {
    fn drop(&mut self) {
        // Without a daemon it fails, and there is nothing to stop.
        self.ground.quell(&["stop"]);
        let group = Pid::from_raw(self.child.id() as i32).unwrap();
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

#[test]
fn every_command_of_the_tutorial_succeeds() {
    let ground = Ground::new();
    let script = script();
    assert!(script.lines().filter(|line| line.starts_with("quell ")).count() > 10, "{script}");
    let path = ground.path().join("tutorial.md");
    fs::write(&path, script).unwrap();
    let said = ground.path().join("said");
    let out = fs::File::create(&said).unwrap();
    let beside = Path::new(QUELL).parent().unwrap().display();
    let child = Command::new("bash")
        .arg(&path)
        .env("PATH", format!("{beside}:{}", std::env::var("PATH").unwrap()))
        .env("QUELL_RUN_DIR", ground.path())
        .current_dir(ground.path())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .unwrap();
    let mut shell = Shell { ground: &ground, child };
    let status = shell.child.wait().unwrap();
    let said = fs::read_to_string(said).unwrap();
    assert!(
        status.success(),
        "{status} after (line numbers are those of docs/tutorial.md):\n{said}"
    );
    println!("{said}");
}
