//! Changes of the host itself that a benchmark makes by hand, undone when it ends, or by the next one.

use anyhow::{Context as _, Result};
use quell_act::{Executor, Journal, Mode};
use tempfile::TempDir;

use super::folder::folder;

/// The executor of a benchmark. What it changes is in a journal, for [`super::recover`] in case that this process is
/// killed.
pub(super) fn executor() -> Result<(Executor, TempDir)> {
    let folder = folder()?;
    let journal = Journal::create(folder.path()).context("make a journal")?;
    let executor = Executor::open(journal, Mode::Live).context("open the executor")?;
    // No guardian: what a benchmark that is killed leaves, the next one gives back.
    executor.gate().set(true);
    Ok((executor, folder))
}
