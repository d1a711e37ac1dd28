//! Folders of a benchmark in memory, and what one that was killed left in them.

use std::path::Path;

use anyhow::{Context as _, Result};
use quell_act::recover_stale;
use tempfile::TempDir;

/// How the names of all of them begin.
const PREFIX: &str = "quell-bench-";

/// A new folder: in memory where the host has such, so that writing there is no disk traffic.
///
/// # Errors
/// When it cannot be made.
pub fn folder() -> Result<TempDir> {
    let base = base();
    let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base);
    made.with_context(|| format!("make a folder in {}", base.display()))
}

/// Gives back what benchmarks changed that were killed together with their guardians. Returns a line
/// for each. To be called while no other benchmark runs.
///
/// # Errors
/// When a journal that was left does not read.
pub fn recover() -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(base()).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let recovered = recover_stale(&path)
            .with_context(|| format!("give back what {} tells of", path.display()))?;
        if let Some(report) = recovered {
            lines.push(format!("left by a benchmark that was killed: {report}"));
        }
        // Whoever made it is gone, and nothing refers to it.
        let _ = std::fs::remove_dir_all(&path);
    }
    Ok(lines)
}

fn base() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}
