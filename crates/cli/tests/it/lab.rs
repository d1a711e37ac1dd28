//! `quell bench`, `load` and `sim` execute a `quell-lab` of the same commit only.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::path::Path;
use std::process::{Command, Output};

use crate::common::copy_program;

const QUELL: &str = env!("CARGO_BIN_EXE_quell");

/// What `quell bench` does beside a `quell-lab` that answers the question for its commit by running this.
fn bench_beside(answer: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let quell = folder.path().join("quell");
    copy_program(QUELL, &quell);
    // By a shell: a file that this process has open for writing could be inherited by a child of another test.
    let script =
        format!("#!/bin/sh\n[ \"$1\" = commit ] || {{ echo \"ran $*\"; exit; }}\n{answer}\n");
    let write = "printf %s \"$1\" >\"$2\" && chmod 755 \"$2\"";
    let lab = folder.path().join("quell-lab");
    let written = Command::new("sh").args(["-c", write, "sh", &script]).arg(&lab).status();
    assert!(written.unwrap().success());
    Command::new(quell).args(["bench", "overhead", "--quick"]).output().unwrap()
}

fn commit_of(program: &Path) -> String {
    let out = Command::new(program).arg("commit").output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

#[test]
fn lab_of_the_same_commit_is_executed() {
    let own = commit_of(&Path::new(QUELL).with_file_name("quell-lab"));
    let out = bench_beside(&format!("echo {own}"));
    assert!(out.status.success(), "{out:?}");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "ran bench overhead --quick\n");
}

#[test]
fn lab_of_another_commit_is_refused_with_both_commits() {
    let own = commit_of(&Path::new(QUELL).with_file_name("quell-lab"));
    let older = "echo 'error: unrecognized subcommand' >&2; exit 2";
    for (answer, theirs) in [("echo 0123456789ab", "0123456789ab"), (older, "older than any")] {
        let out = bench_beside(answer);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(theirs) && said.contains(&own), "{said}");
        assert!(said.contains("make build"), "{said}");
        assert_eq!(out.stdout, b"", "it was not run");
    }
}
