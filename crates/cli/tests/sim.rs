//! `quell sim` as a user calls it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

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
        let out = folder.path().join(file.file_name().unwrap());
        let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
        let sets = ["--set", "length_ms=3", "--set", "warm_up_ms=0", "--set", "sample_us=1000"];
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

/// The example for a tenth of a second and a bit, so that the checker's window fits in.
fn shortened(file: &Path, folder: &Path) -> PathBuf {
    let mut table: toml::Table = toml::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    table.insert("length_ms".into(), 120.into());
    table.insert("warm_up_ms".into(), 0.into());
    let costs = table.get_mut("host").and_then(|host| host.get_mut("costs"));
    if let Some(name) = costs.and_then(|costs| costs.get_mut("mechanism")) {
        let path = file.parent().unwrap().join(name.as_str().unwrap());
        *name = path.to_str().unwrap().into();
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
    // A thousand cores, or a dozen busy services, are a matter of minutes in a build for tests.
    let long = |file: &PathBuf| {
        ["many-cores.toml", "many-services.toml"].iter().any(|name| file.ends_with(name))
    };
    for file in examples().into_iter().filter(|file| !long(file)) {
        let short = shortened(&file, folder.path());
        let ran =
            quell(&["sim", short.to_str().unwrap(), "--check", "--trace", trace, "--json", "-"]);
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
        for answer in ["verdict", "because"] {
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
    refused(&["sim", &file, "--policy", "best"], &["no policy `best`", "quell"]);
    refused(&["sim", "no-such.toml"], &["no-such.toml", "examples/sim"]);
    refused(&["sim", "hunt", "--policy", "best"], &["no policy `best`"]);
    let set = |set| ["sim", "sweep", &file, "--out", "/dev/null", "--set", set].map(str::to_owned);
    for (typed, part) in
        [("rate", "write it like"), ("task.cache.rate=-1", "with task.cache.rate=-1")]
    {
        let args = set(typed);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), &[part]);
    }
    std::fs::write(&file, FILE.replace("200000", "\"many\"")).unwrap();
    refused(&["sim", &file], &["small.toml:8:", "docs/sim.md"]);
}

#[test]
fn the_search_says_what_a_seed_is_and_replays_it() {
    let out = quell(&["sim", "hunt", "--seed", "5"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("cores"), "{}", text(&out.stdout));
    assert_eq!(out.stdout, quell(&["sim", "hunt", "--seed", "5"]).stdout);
}
