//! Writes the commit into the library: both programs name the one that they were built of, and so do results.

use std::process::Command;

/// What a change of makes the program another one.
const SOURCES: [&str; 4] = ["crates", "bpf", "Cargo.toml", "Cargo.lock"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Figures of a debug build are no evidence, and looking at all sources would build too much again.
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = if is_release { commit() } else { "unknown-debug-build".to_owned() };
    println!("cargo:rustc-env=QUELL_COMMIT={commit}");
}

fn commit() -> String {
    let Some(root) = git(&["rev-parse", "--show-toplevel"]) else { return "unknown".to_owned() };
    for source in SOURCES {
        println!("cargo:rerun-if-changed={root}/{source}");
    }
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        let log = std::path::absolute(log).unwrap_or_default();
        println!("cargo:rerun-if-changed={}", log.display());
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changes = git(&[&["-C", &root, "status", "--porcelain", "--"], &SOURCES[..]].concat());
    if changes.as_deref() == Some("") { commit } else { format!("{commit}-dirty") }
}

fn git(arguments: &[&str]) -> Option<String> {
    let out = Command::new("git").args(arguments).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
