//! `quell sim` as a user calls it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn quell(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quell")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn examples() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sim");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

const FILE: &str = "version = 1\nlength_ms = 5\n[machine]\npreset = \"caladan\"\n[[task]]\nname = \"cache\"\n\
                    model = \"memcached\"\nrate = 200000\nguaranteed = 4\n[[task]]\nname = \"batch\"\nmodel = \"x264\"\n";

fn written(folder: &Path) -> String {
    let file = folder.join("small.toml");
    std::fs::write(&file, FILE).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn every_example_runs_for_a_while_without_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    for file in examples() {
        let file = shortened(&file, folder.path(), 3);
        let out = file.with_extension("jsonl");
        let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
        let sets = ["--set", "sample_us=1000"];
        let ran = quell(&[&["sim", "sweep", file, "--out", out], &sets[..]].concat());
        assert_eq!(
            ran.status.code(),
            Some(0),
            "{file}: {}{}",
            text(&ran.stdout),
            text(&ran.stderr)
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path());
    let json = |seed: &str| {
        let out = quell(&["sim", &file, "--seed", seed, "--json", "-"]);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    assert_eq!(json("3"), json("3"));
    assert_ne!(json("3"), json("4"));
    let value: serde_json::Value = serde_json::from_str(&json("3")).unwrap();
    assert_eq!((&value["bench"], &value["scenario"]), (&"sim".into(), &"small".into()));
    let rows = value["rows"].as_array().unwrap();
    let served = rows.iter().find(|row| row["case"] == "cache" && row["metric"] == "served_rps");
    assert!(served.unwrap()["median"].as_f64().unwrap() > 150_000.0);
}

#[test]
fn a_trace_is_read_like_any_other_and_a_plot_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path());
    let [trace, plot] = ["trace.pftrace", "plot.svg"].map(|name| folder.path().join(name));
    let (trace, plot) = (trace.to_str().unwrap(), plot.to_str().unwrap());
    let ran = quell(&["sim", &file, "--trace", trace, "--plot", plot]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    assert!(text(&ran.stdout).contains("memcached") || text(&ran.stdout).contains("cache"));
    assert!(std::fs::read_to_string(plot).unwrap().contains("memory traffic"));
    let stats = quell(&["stats", trace, "--json"]);
    assert_eq!(stats.status.code(), Some(0), "{}", text(&stats.stderr));
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
    assert_eq!(stats["cores"], 24);
    assert!(!stats["wakeups"].as_array().unwrap().is_empty());
}

/// A dozen busy services for minutes are too much in a build for tests: a tenth of their load is enough for the checker.
fn calmed(table: &mut toml::Table) {
    for task in table.get_mut("task").and_then(toml::Value::as_array_mut).unwrap() {
        if let Some(rate) = task.get("rate").and_then(toml::Value::as_integer) {
            task.as_table_mut().unwrap().insert("rate".into(), (rate / 10).into());
        }
    }
}

/// The example for so many milliseconds, without what would change after them.
fn shortened(file: &Path, folder: &Path, length_ms: i64) -> PathBuf {
    let mut table: toml::Table = toml::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    table.insert("length_ms".into(), length_ms.into());
    if let Some(changes) = table.get_mut("change").and_then(toml::Value::as_array_mut) {
        changes.retain(|change| change["at_ms"].as_integer().unwrap() <= length_ms);
    }
    table.insert("warm_up_ms".into(), 0.into());
    if file.ends_with("many-services.toml") {
        calmed(&mut table);
    }
    let costs = table.get_mut("host").and_then(|host| host.get_mut("costs"));
    if let Some(name) = costs.and_then(|costs| costs.get_mut("mechanism")) {
        let path = file.parent().unwrap().join(name.as_str().unwrap());
        *name = path.to_str().unwrap().into();
    }
    for task in table.get_mut("task").and_then(toml::Value::as_array_mut).unwrap() {
        if let Some(trace) = task.get_mut("trace") {
            let path = file.parent().unwrap().join(trace.as_str().unwrap());
            *trace = path.to_str().unwrap().into();
        }
    }
    let short = folder.join(file.file_name().unwrap());
    std::fs::write(&short, toml::to_string(&table).unwrap()).unwrap();
    short
}

#[test]
fn the_checker_finds_no_waste_in_any_example_live_or_in_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.pftrace");
    let trace = trace.to_str().unwrap();
    // A thousand cores for a tenth of a second are a matter of minutes; the other test has them for milliseconds.
    let long = |file: &PathBuf| file.ends_with("many-cores.toml");
    // These have kernels that waste cores.
    let wastes = |file: &PathBuf| {
        file.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with("wasted-cores"))
    };
    for file in examples().into_iter().filter(|file| !long(file) && !wastes(file)) {
        // So that the checker's window fits in.
        let short = shortened(&file, folder.path(), 120);
        let ran = quell(&["sim", short.to_str().unwrap(), "--trace", trace, "--json", "-"]);
        assert_eq!(
            ran.status.code(),
            Some(0),
            "{short:?}: {}{}",
            text(&ran.stdout),
            text(&ran.stderr)
        );
        let live: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        let read = quell(&["check", trace, "--json"]);
        let read: serde_json::Value = serde_json::from_slice(&read.stdout).unwrap();
        assert_eq!(live["check"]["verdict"], "clean", "{short:?}: {}", live["check"]);
        for answer in ["verdict", "verdict_reason"] {
            assert_eq!(live["check"][answer], read[answer], "{short:?}");
        }
    }
}

#[test]
fn what_is_wrong_is_one_line_with_file_line_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path());
    let refused = |args: &[&str], parts: &[&str]| {
        let out = quell(args);
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(
        &["sim", &file, "--policy", "best"],
        &["small.toml: `--policy best`: there is no policy", "quell"],
    );
    refused(&["sim", &file, "--policy", "oracle"], &["use `quell sim oracle FILE`"]);
    refused(&["sim", &file, "--policy", "perfiso"], &["small.toml", "set `cores = \"shared\"`"]);
    refused(&["sim", &file, "--set", "length_ms=3,4"], &["takes one value"]);
    refused(&["sim", &file, "--set", "seed=3"], &["use --seed"]);
    refused(&["sim", "oracle", &file, "--target", "batch=5"], &["the services are: cache"]);
    refused(&["sim", "no-such.toml"], &["no-such.toml", "examples/sim"]);
    refused(&["sim", "fuzz", "--policy", "best"], &["no policy `best`"]);
    let set = |set| ["sim", "sweep", &file, "--out", "/dev/null", "--set", set].map(str::to_owned);
    for (typed, part) in [
        ("rate", "write it like"),
        ("task.cache.rate=-1", "with task.cache.rate=-1"),
        ("seed=4,5", "use --seeds"),
    ] {
        let args = set(typed);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), &[part]);
    }
    std::fs::write(&file, FILE.replace("200000", "\"many\"")).unwrap();
    refused(&["sim", &file], &["small.toml:8:", "docs/lab/sim.md"]);
}

#[test]
fn the_search_says_what_a_seed_is_and_replays_it() {
    let out = quell(&["sim", "fuzz", "--seed", "5"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("cores"), "{}", text(&out.stdout));
    assert_eq!(out.stdout, quell(&["sim", "fuzz", "--seed", "5"]).stdout);
}

#[test]
fn a_key_can_be_set_for_one_run_and_the_checker_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path());
    let json = |args: &[&str]| -> serde_json::Value {
        let out = quell(&[&["sim", &file, "--json", "-"], args].concat());
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let plain = json(&[]);
    assert!(plain["check"]["verdict"].is_string(), "{plain}");
    assert!(json(&["--no-check"]).get("check").is_none());
    let set =
        json(&["--set", "task.cache.load=[[0, 1000], [2, 2000]]", "--set", "host.policy=static"]);
    assert_eq!(set["policy"], "static");
    assert_ne!(set["digest"], plain["digest"]);
    let blind = json(&["--policy", "parties-star"]);
    let notes = blind["notes"].to_string();
    assert!(notes.contains("report_interval_ms") && notes.contains("latency_target_us"), "{notes}");
}

#[test]
fn the_oracle_prints_the_best_division_beside_the_policy_and_tries_none_twice() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path());
    let out = folder.path().join("tried.jsonl");
    let search = || {
        let out = out.to_str().unwrap();
        let ran = quell(&["sim", "oracle", &file, "--seed", "2", "--out", out, "--json", "-"]);
        assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
        text(&ran.stdout)
    };
    let first = search();
    let found: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(
        (&found["exhaustive"], &found["tried"], &found["seed"]),
        (&true.into(), &10.into(), &2.into())
    );
    let cores: u64 = found["division"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["physical_cores"].as_u64().unwrap())
        .sum();
    assert_eq!(cores, 11);
    let systems: std::collections::BTreeSet<&str> = found["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["system"].as_str().unwrap())
        .collect();
    assert_eq!(systems.into_iter().collect::<Vec<_>>(), ["oracle", "quell"]);
    assert_eq!(search(), first);
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 10);
    let ran = quell(&["sim", "oracle", &file]);
    assert!(
        text(&ran.stdout).contains("the best of all 10 divisions of 11 physical cores"),
        "{}",
        text(&ran.stdout)
    );
}

#[test]
fn a_search_that_is_interrupted_says_so() {
    let mut search = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["sim", "fuzz", "--policy", "static", "--time", "60s", "--no-check"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Its first word about progress comes when signals are heard.
    let (mut said, mut error) = (String::new(), String::new());
    let mut progress = BufReader::new(search.stderr.take().unwrap());
    progress.read_line(&mut error).unwrap();
    let pid = rustix::process::Pid::from_child(&search);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    search.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    progress.read_to_string(&mut error).unwrap();
    assert_eq!(search.wait().unwrap().code(), Some(2), "{said}{error}");
    assert!(said.contains(" scenarios") && error.contains("interrupted"), "{said}{error}");
}
