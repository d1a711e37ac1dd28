//! The tutorials of docs/ do what they say: their commands run in order, and none fails.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Ground, QUELL};
use quell_linux::testing::{Balanced, Quiet, skipped};
use quell_model::CoreId;
use rustix::process::{Pid, Signal, kill_process_group};

/// A page whose commands can be run.
struct Page {
    /// Below docs/.
    name: &'static str,
    text: &'static str,
    /// The command and exit status that is an answer rather than a failure.
    answer: &'static str,
}

impl Page {
    /// The page with everything blanked but its `sh` blocks, so that bash tells the page's own line numbers.
    fn script(&self) -> String {
        let Page { answer, .. } = self;
        // A check that could not tell, on a host that is too busy, is made again.
        let mut script = format!(
            "quell() {{ for _ in 1 2 3 4; do command quell \"$@\" && return; said=$1$?; \
             [ $said = check2 ] || break; done; [ $said = {answer} ]; }}; set -eux;"
        );
        let mut runs = false;
        for line in self.text.lines() {
            match line.strip_prefix("```") {
                Some(language) => runs = language == "sh",
                None if runs => script.push_str(line),
                None => {}
            }
            script.push('\n');
        }
        script
    }

    /// Runs the commands; what they said.
    fn run(&self, ground: &Ground) -> String {
        let script = self.script();
        assert!(script.lines().filter(|line| line.starts_with("quell ")).count() > 10, "{script}");
        let path = ground.path().join(self.name);
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
        let mut shell = Shell { ground, child };
        let status = shell.child.wait().unwrap();
        let said = fs::read_to_string(said).unwrap();
        let name = self.name;
        assert!(
            status.success(),
            "{status} after (line numbers are those of docs/{name}):\n{said}"
        );
        println!("{said}");
        said
    }
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
    let page = Page {
        name: "tutorial.md",
        text: include_str!("../../../docs/tutorial.md"),
        // A client that had no core to itself says so. On a busy machine that is no fault of the page.
        answer: "load1",
    };
    page.run(&Ground::new());
}

#[test]
fn every_command_of_find_a_wasted_core_succeeds_and_its_verdicts_are_those_of_the_page() {
    let page = Page {
        name: "find-a-wasted-core.md",
        text: include_str!("../../../docs/find-a-wasted-core.md"),
        // Violated.
        answer: "check1",
    };
    let ground = Ground::new();
    let quiet = Quiet::on(CoreId(0), &ground.lock).unwrap();
    // The page puts back what it changes; should it be killed, this does.
    let Some(_after) = quiet.zip(Balanced::after(&ground.lock).unwrap()) else {
        return skipped("this host has no cpusets of cgroup v1, or a kernel before Linux 6.2");
    };
    let said = page.run(&ground);
    let verdict = |line: &str| {
        let line = line.strip_prefix("this host: ").unwrap_or(line);
        let verdicts = ["clean", "violated"];
        verdicts.into_iter().find(|verdict| line.starts_with(&format!("{verdict}: ")))
    };
    let verdicts: Vec<&str> = said.lines().filter_map(verdict).collect();
    let clean = ["clean"; 2];
    assert_eq!(verdicts, [&clean[..], &["violated"; 4], &clean].concat(), "{said}");
}
