//! What tests of whole benchmarks share.

use std::path::PathBuf;
use std::process::Command;

/// The `quell` and `quell-antagonist` programs. Cargo builds only this crate's own for this test.
pub fn programs() -> (PathBuf, PathBuf) {
    let own = std::env::current_exe().unwrap();
    let folder = own.ancestors().nth(2).unwrap().to_owned();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", "quell", "-p", "quell-load", "--bins"]);
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    (folder.join("quell"), folder.join("quell-antagonist"))
}
