//! What `quell run --record-decisions` promises, with real programs: every decision under load and churn can be made again.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::common::{Ground, Program, eventually};
use serde_json::Value;

fn task(name: &str, class: &str, command: &str) -> String {
    let command: Vec<String> = command.split(' ').map(|word| format!("\"{word}\"")).collect();
    format!(
        "[[task]]\nname = \"{name}\"\nclass = \"{class}\"\ncommand = [{}]\n",
        command.join(", ")
    )
}

fn json(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap()
}

fn replay(ground: &Ground, file: &Path, args: &[&str]) -> Output {
    ground.quell(&[&["replay", file.to_str().unwrap()], args].concat())
}

#[test]
fn a_recording_under_fork_storms_and_changing_tasks_is_replayed_byte_for_byte() {
    let ground = Ground::new();
    let file = ground.path().join("decisions");
    let lc = Program::start("stress-ng", &["--pipe", "1", "--quiet"]);
    let web =
        format!("[[task]]\nname = \"web\"\nclass = \"lc\"\npid = {}\nguaranteed = 1\n", lc.pid());
    let storm = task("storm", "be", "stress-ng --fork 2 --pthread 1 --pthread-max 32 --quiet");
    let batch = task("batch", "be", "stress-ng --cpu 2 --quiet");
    let second = task("second", "lc", "stress-ng --pipe 1 --quiet");
    let args = ["--record-decisions", file.to_str().unwrap()];
    let daemon = ground.run_with(&format!("{web}{storm}"), &args);
    let sets = [
        format!("{web}{storm}{batch}"),
        format!("{web}{batch}{second}"),
        format!("{web}guaranteed = 0\n{storm}").replacen("guaranteed = 1\n", "", 1),
        web.clone(),
    ];
    let end = Instant::now() + Duration::from_secs(8);
    for set in sets.iter().cycle() {
        if Instant::now() > end {
            break;
        }
        let path = ground.config(set);
        let out = ground.quell(&["apply", path.to_str().unwrap()]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        std::thread::sleep(Duration::from_millis(300));
    }
    let said = daemon.stop();
    assert!(said.contains("decisions, 0 left out"), "{said}");

    let out = replay(&ground, &file, &["--json"]);
    let told = json(&out);
    assert!(out.status.success(), "{told:#}");
    assert!(told["replayed"]["decisions"].as_u64().unwrap() > 100, "{told:#}");
    assert_eq!(told["replayed"]["differing"], 0);
    let words = String::from_utf8(replay(&ground, &file, &[]).stdout).unwrap();
    assert!(words.contains("every plan reproduced") && words.contains("an hour"), "{words}");

    let listed = String::from_utf8(replay(&ground, &file, &["--list"]).stdout).unwrap();
    for name in ["web ", "storm ", "batch ", "second "] {
        assert!(listed.contains(name), "{name} in {listed}");
    }
    let other = json(&replay(&ground, &file, &["--policy", "static", "--json"]));
    assert_eq!(other["decisions"], told["replayed"]["decisions"]);
    assert!(
        other["tasks"].as_array().unwrap().iter().any(|task| task["task"] == "web"),
        "{other:#}"
    );

    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&file, bytes).unwrap();
    let out = replay(&ground, &file, &[]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("damaged at byte"), "{out:?}");
}

#[test]
fn the_recording_of_a_killed_daemon_is_replayed_up_to_its_end() {
    let ground = Ground::new();
    let file = ground.path().join("ring");
    let args = ["--record-decisions", file.to_str().unwrap(), "--record-decisions-max-size", "1M"];
    // Adopted: nobody would end what a killed daemon had launched.
    let be = Program::start("stress-ng", &["--cpu", "1", "--quiet"]);
    let batch = format!("[[task]]\nname = \"batch\"\nclass = \"be\"\npid = {}\n", be.pid());
    let mut daemon = ground.run_with(&batch, &args);
    let decisions = || {
        let out = replay(&ground, &file, &["--json"]);
        out.status.success().then(|| json(&out)["replayed"]["decisions"].as_u64().unwrap())
    };
    eventually("some decisions are in the file", || decisions().is_some_and(|count| count > 10));
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(decisions().is_some_and(|count| count > 10));
}

#[test]
fn what_is_no_recording_is_refused_in_one_line() {
    let ground = Ground::new();
    let file = ground.config("version = 1\n");
    let refused = |args: &[&str], wanted: &str| {
        let out = ground.quell(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(wanted), "wanted `{wanted}` in: {said}");
    };
    let file = file.to_str().unwrap();
    refused(
        &["replay", file],
        "this is not a recording of decisions; `quell run --record-decisions FILE`",
    );
    refused(&["replay", "/no/such/file"], "/no/such/file");
    let text = task("batch", "be", "sleep 60");
    let config = ground.path().join("batch.toml");
    fs::write(&config, text).unwrap();
    let run = ["run", config.to_str().unwrap(), "--record-decisions", file];
    refused(&run, "exists and is not a recording; name another file");
    refused(
        &[&run[..], &["--record-decisions-max-size", "7"]].concat(),
        "give it at least 1048576",
    );
    refused(&[&run[..], &["--record-decisions-max-size", "lots"]].concat(), "write it like");
}
