//! `quell bench lanes` on this host: real lanes, a real server, real requests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::process::Command;

use serde_json::Value;

#[test]
#[ignore = "test-all: needs a quiet host"]
fn a_server_on_both_tables_is_measured_and_compared_by_its_tail() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lanes.json");
    let path = file.to_str().unwrap();
    let args = ["bench", "lanes", "--quick", "--duration", "1s", "--only", "table"];
    // It waits by itself until nobody else changes this host.
    let out = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(args)
        .args(["--json", path])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let ratios = report["ratios"].as_array().unwrap();
    let notes = report["notes"].as_array().unwrap();
    // An emulator may fail on a host that is too busy; what it says is told.
    let excused = |case: &str| {
        let mut notes = notes.iter().map(|note| note.as_str().unwrap());
        case.contains("vCPU")
            && notes.any(|note| note.starts_with(&format!("{case}: ")) && note.contains(": n/a: "))
    };
    let cases = [
        "table",
        "table: polling shared",
        "table: epoll shared",
        "table: epoll dedicated",
        "table: vCPU (TCG) polling shared",
        "table: vCPU (TCG) polling dedicated",
        "table: vCPU (TCG) halting shared",
        "table: vCPU (TCG) halting dedicated",
    ];
    for case in cases {
        let Some(ratio) = ratios.iter().find(|ratio| ratio["case"] == case) else {
            assert!(excused(case), "no ratio of {case}: {ratios:?} {notes:?}");
            continue;
        };
        let named = (&ratio["system"], &ratio["against"], &ratio["metric"]);
        assert_eq!(named, (&"A-B-A-C".into(), &"A-A-B-C".into(), &"p99_us".into()));
        assert!(ratio["median"].as_f64().unwrap() > 0.0);
    }
}
