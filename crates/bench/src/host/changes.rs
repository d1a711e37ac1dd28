//! Changes of the host itself that a benchmark makes by hand, undone when it ends, or by the next one.

use anyhow::{Context as _, Result};
use quell_act::{Executor, Journal, Mode};
use tempfile::TempDir;

use super::directory::directory;

/// The executor of a benchmark. What it changes is in a journal, for [`super::recover`] in case that this process is
/// killed.
pub(super) fn executor() -> Result<(Executor, TempDir)> {
    let directory = directory()?;
    let journal = Journal::create(directory.path()).context("make a journal")?;
    let executor = Executor::open(journal, Mode::Live).context("open the executor")?;
    // No guardian: the next benchmark restores what a killed one leaves.
    executor.gate().set(true);
    Ok((executor, directory))
}
