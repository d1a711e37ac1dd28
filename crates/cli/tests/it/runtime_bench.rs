//! `quell bench runtime` on this host: real programs of all systems, real tasks and sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const QUELL: &str = env!("CARGO_BIN_EXE_quell");
/// Systems that every host has; Go may be missing.
const SYSTEMS: [&str; 5] = ["quell", "tokio", "tokio-current-thread", "may", "pthreads"];

/// The programs of the peers and of batch work. Cargo builds only this crate's own for this test.
fn build_peers() {
    let folder = Path::new(QUELL).parent().unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", "quell-bench-peers", "-p", "quell-load", "--bins"]);
    // Of the runner that reports times; cargo would build all anew for it.
    build.env_remove("RUSTC_BOOTSTRAP");
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
}

/// A quick run of a benchmark, as JSON.
fn bench(folder: &Path, name: &str, more: &[&str]) -> Value {
    let file = folder.join("report.json");
    // It waits by itself until nobody else changes this host.
    let out = Command::new(QUELL)
        .args(["bench", name, "--quick", "--rounds", "1", "--json"])
        .arg(&file)
        .args(more)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn every_case_has_a_row_of_every_system_that_is_there_or_a_note_why_not() {
    build_peers();
    let folder = tempfile::tempdir().unwrap();
    let report = bench(folder.path(), "runtime", &["--duration", "30ms"]);
    let rows = report["rows"].as_array().unwrap();
    let notes: Vec<&str> =
        report["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let is = |row: &Value, key: &str, value: &str| row[key].as_str() == Some(value);
    let mut cases: Vec<&str> = rows.iter().filter_map(|row| row["case"].as_str()).collect();
    cases.retain(|case| !case.starts_with("floor"));
    cases.dedup();
    assert_eq!(cases.len(), 13, "{cases:?}");
    let missing_go = notes.iter().any(|note| note.starts_with("go: n/a"));
    for case in cases {
        for system in SYSTEMS.into_iter().chain((!missing_go).then_some("go")) {
            let of = rows.iter().filter(|row| is(row, "case", case) && is(row, "system", system));
            let medians: Vec<f64> = of.filter_map(|row| row["median"].as_f64()).collect();
            // With one thread there is nobody to steal.
            if system == "tokio-current-thread" && case.starts_with("steal") {
                assert!(medians.is_empty());
                assert!(
                    notes
                        .contains(&format!("{system}, {case}: n/a: it has no such thing").as_str())
                );
                continue;
            }
            assert!(!medians.is_empty(), "{case}: no row of {system}: {notes:?}");
            assert!(medians.iter().all(|median| *median >= 0.0), "{case}, {system}: {medians:?}");
        }
        let has_floor = rows.iter().any(|row| is(row, "case", case) && is(row, "system", "floor"));
        assert!(has_floor, "{case} has no floor");
        let ratios = report["ratios"].as_array().unwrap();
        assert!(
            ratios.iter().any(|ratio| is(ratio, "case", case) && is(ratio, "against", "tokio"))
        );
    }
    assert!(notes.iter().any(|note| note.starts_with("goal")), "{notes:?}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn grants_and_a_quantum_are_measured_beside_what_they_are_compared_with() {
    build_peers();
    let folder = tempfile::tempdir().unwrap();
    let only = ["--duration", "200ms", "--only", "grant,bimodal"];
    let report = bench(folder.path(), "runtime-colocate", &only);
    let ratios = report["ratios"].as_array().unwrap();
    let has = |system: &str, against: &str| {
        let is = |ratio: &Value| ratio["system"] == system && ratio["against"] == against;
        ratios.iter().filter(|ratio| is(ratio)).all(|ratio| ratio["median"].as_f64() > Some(0.0))
            && ratios.iter().any(is)
    };
    assert!(has("runtime-alone", "futex"), "{ratios:?}");
    assert!(has("runtime-under-daemon", "futex"), "{ratios:?}");
    assert!(has("quantum of 100 us", "no quantum"), "{ratios:?}");
    assert!(has("asynchronous quantum of 100 us", "no quantum"), "{ratios:?}");
}

#[test]
fn a_case_that_does_not_exist_is_refused_by_name() {
    let out = Command::new(QUELL).args(["bench", "runtime", "--only", "nap"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("no case begins with nap"), "{said}");
}
