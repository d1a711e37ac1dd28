//! Directories of a benchmark in memory, and what one that was killed left in them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use quell_act::recover_stale;
use tempfile::TempDir;

/// How the names of all of them begin.
const PREFIX: &str = "quell-bench-";
/// A directory for what outlives a boot: on a disk everywhere.
const DISK: &str = "/var/tmp";

/// A new directory: in memory where the host has such, so that writing there is no disk traffic.
///
/// # Errors
/// When it cannot be made.
pub fn directory() -> Result<TempDir> {
    made_in(memory())
}

/// A new directory on a disk, for what a service keeps.
///
/// # Errors
/// When it cannot be made.
pub fn directory_on_disk() -> Result<TempDir> {
    made_in(Path::new(DISK))
}

fn made_in(base: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base);
    made.with_context(|| format!("make a directory in {}", base.display()))
}

/// Restores what benchmarks changed that were killed together with their guardians. Returns a line
/// for each. To be called while no other benchmark runs.
///
/// # Errors
/// When a journal that was left is malformed.
pub fn recover() -> Result<Vec<String>> {
    let ended = super::group::remove_all().into_iter();
    let mut lines: Vec<String> =
        ended.map(|name| format!("left by a benchmark that was killed: {name}; ended")).collect();
    for path in left_in(memory()) {
        let recovered = recover_stale(&path)
            .with_context(|| format!("restore what {} lists", path.display()))?;
        if let Some(report) = recovered {
            lines.push(format!("left by a benchmark that was killed: {report}"));
        }
        // Its owner is gone, and nothing refers to it.
        let _ = std::fs::remove_dir_all(&path);
    }
    for path in left_in(Path::new(DISK)) {
        let _ = std::fs::remove_dir_all(&path);
    }
    Ok(lines)
}

/// Directories of benchmarks. Any user may make some of such a name: only our own count.
fn left_in(base: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let own = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let of_us = named
        .filter(|entry| entry.metadata().is_ok_and(|looks| looks.is_dir() && looks.uid() == own));
    of_us.map(|entry| entry.path()).collect()
}

fn memory() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}
