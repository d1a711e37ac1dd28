//! The tutorials of docs/ do what they say: `quell` accepts each of their commands, and `make test-all` runs them in order.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{Ground, QUELL};
use quell_model::CoreId;
use quell_testkit::{Balanced, Quiet, skipped};
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

/// The arguments of each `quell` command in a page's `sh` blocks. Variables of the shell become 1.
fn commands(text: &str) -> Vec<Vec<String>> {
    let (mut commands, mut runs, mut heredoc) = (Vec::new(), false, None);
    for line in text.lines() {
        if let Some(language) = line.strip_prefix("```") {
            runs = language == "sh";
            continue;
        }
        if let Some(end) = &heredoc {
            heredoc = (line != end).then(|| String::clone(end));
            continue;
        }
        if !runs {
            continue;
        }
        heredoc = line.split_once("<<").map(|(_, end)| end.trim_matches('\'').to_owned());
        let mut words = line.split_whitespace().skip_while(|word| *word != "quell");
        if words.next().is_some() {
            let ends = |word: &str| ["&", "|", "&&", ";"].contains(&word) || word.contains('>');
            let arguments = words.take_while(|word| !ends(word));
            let known = |word: &str| if word.starts_with('$') { "1" } else { word }.to_owned();
            commands.push(arguments.map(known).collect());
        }
    }
    commands
}

/// Whether `quell` accepts these arguments: it reads them up to `--help`, and prints that.
fn is_accepted(arguments: &[String]) -> bool {
    Command::new(QUELL).args(arguments).arg("--help").output().unwrap().status.success()
}

#[test]
fn quell_accepts_each_command_of_the_tutorials() {
    for page in [
        include_str!("../../../../docs/guide/tutorial.md"),
        include_str!("../../../../docs/guide/find-a-wasted-core.md"),
    ] {
        let commands = commands(page);
        assert!(commands.len() > 10, "{commands:?}");
        for arguments in commands {
            assert!(is_accepted(&arguments), "quell {}", arguments.join(" "));
        }
    }
    for wrong in ["status --no-such-option", "no-such-command", "check --mode wrong"] {
        let wrong: Vec<String> = wrong.split(' ').map(str::to_owned).collect();
        assert!(!is_accepted(&wrong), "{wrong:?}");
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
#[ignore = "test-all: needs a quiet host"]
fn every_command_of_the_tutorial_succeeds() {
    let page = Page {
        name: "tutorial.md",
        text: include_str!("../../../../docs/guide/tutorial.md"),
        // A client that had no core to itself says so. On a busy machine that is no fault of the page.
        answer: "load1",
    };
    page.run(&Ground::new());
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn every_command_of_find_a_wasted_core_succeeds_and_its_verdicts_are_those_of_the_page() {
    let page = Page {
        name: "find-a-wasted-core.md",
        text: include_str!("../../../../docs/guide/find-a-wasted-core.md"),
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
