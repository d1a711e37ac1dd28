//! What tests of whole benchmarks share.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One whole benchmark at a time: each counts this process's children, or judges the host.
static ONE: Mutex<()> = Mutex::new(());

pub fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The `quell` and `quell-antagonist` programs. Cargo builds only this crate's own for this test.
pub fn programs() -> (PathBuf, PathBuf) {
    let own = std::env::current_exe().unwrap();
    let folder = own.ancestors().nth(2).unwrap().to_owned();
    let programs = (folder.join("quell"), folder.join("quell-antagonist"));
    // `make test` has built them, with the features that the workspace's tests choose.
    if std::env::var_os("QUELL_TESTS_BUILT").is_some() {
        return programs;
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", "quell", "-p", "quell-load", "--bins"]);
    if folder.ends_with("release") {
        build.arg("--release");
    }
    // Of the runner that reports times; cargo would build all anew for it.
    build.env_remove("RUSTC_BOOTSTRAP");
    assert!(build.status().unwrap().success());
    programs
}
