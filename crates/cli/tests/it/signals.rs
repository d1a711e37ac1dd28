//! What a service hints and what a file tells of memory traffic reach a running daemon, and what is wrong with them
//! is said.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Ground, eventually};
use serde_json::Value;

/// The service of the guest tests, by the header that services include.
fn hinting(dir: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = dir.join("hinting");
    let out = Command::new("cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"])
        .args([&root.join("crates/shm/include"), Path::new("-o"), &program])
        .arg(root.join("tests/vm/hinting.c"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

#[test]
fn a_launched_service_hints_what_it_serves_and_a_broken_page_is_said() {
    let ground = Ground::new();
    let (page, request) = (ground.path().join("page"), ground.path().join("request"));
    let text = format!(
        "[host]\nmanaged = \"1\"\npolicy = \"caladan\"\n[host.memory]\nsource = \"none\"\n\
         [[task]]\nname = \"served\"\nclass = \"lc\"\nguaranteed = 1\nrunaway_ms = 0\n\
         sibling_idle_after_us = 500\nhints = \"{}\"\ncommand = [\"{}\", \"\", \"{}\"]\n",
        page.display(),
        hinting(ground.path()).display(),
        request.display(),
    );
    let daemon = ground.run(&text);
    let hints = || daemon.task("served")["hints"].clone();
    eventually("the page that it was told is read", || hints()["threads"] == 1);
    assert_eq!((&hints()["serving"], &hints()["problem"]), (&0.into(), &Value::Null));
    assert_eq!(hints()["page"], page.to_str().unwrap());

    let on_core = || daemon.status()["cores"][1]["request_age_us"].as_f64();
    assert_eq!(on_core(), None);
    fs::write(&request, "").unwrap();
    eventually("the request is seen on its core", || on_core().is_some_and(|us| us > 0.0));
    eventually("and among the task's", || hints()["serving"] == 1);
    fs::remove_file(&request).unwrap();
    eventually("its end is seen", || on_core().is_none() && hints()["serving"] == 0);

    // Made anew by somebody: the old one is no longer read.
    fs::remove_file(&page).unwrap();
    eventually("a missing page is said", || hints()["problem"] == "its service has not made it");
    fs::write(&page, "no page").unwrap();
    eventually("so is one that is none", || {
        hints()["problem"].as_str().is_some_and(|what| what.contains("shorter"))
    });
    let words = String::from_utf8(ground.quell(&["status"]).stdout).unwrap();
    assert!(words.contains("task served: hints in "), "{words}");
    assert!(words.contains("caladan without bandwidth"), "{words}");
    assert!(!words.contains("without quantum"), "{words}");
    daemon.stop();
}

#[test]
fn memory_traffic_is_read_from_a_file_and_what_is_wrong_with_it_is_said() {
    let ground = Ground::new();
    let traffic = ground.path().join("traffic");
    let text = format!(
        "[host]\nmanaged = \"1\"\npolicy = \"caladan\"\n[host.memory]\nsource = \"file:{}\"\n\
         [[task]]\nname = \"web\"\nclass = \"lc\"\nguaranteed = 1\ncommand = [\"sleep\", \"600\"]\n",
        traffic.display()
    );
    let daemon = ground.run(&text);
    let memory = || daemon.status()["memory"].clone();
    eventually("a missing file is said", || memory()["problem"].is_string());
    assert_eq!(memory()["provenance"], "absent: nothing supplies it");
    let write = |total: u64| {
        let new = ground.path().join("new");
        fs::write(&new, format!("total {total}\ncore 1 {}\n", total / 2)).unwrap();
        fs::rename(&new, &traffic).unwrap();
    };
    let mut total = 0;
    eventually("traffic is known, in total and on the core", || {
        total += 50_000_000;
        write(total);
        let memory = memory();
        memory["total_mb_s"].as_f64().is_some_and(|rate| rate > 0.0) && memory["cores"] == 1
    });
    assert_eq!(memory()["problem"], Value::Null);
    fs::write(&traffic, "total much\n").unwrap();
    eventually("nonsense is said, and soon nothing is known", || {
        let memory = memory();
        memory["problem"].as_str().is_some_and(|what| what.contains("line 1"))
            && memory["provenance"] == "absent: the last reading is too old"
            && memory["total_mb_s"].is_null()
    });
    let degraded = daemon.status()["degraded"].to_string();
    assert!(!degraded.contains("without bandwidth"), "{degraded}");
    daemon.stop();
}
