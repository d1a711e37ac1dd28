//! Keeps a kernel thread that samples memory out of a measurement.
//!
//! `kdamond` (Documentation/mm/damon) wakes when mappings change, which is what starting a daemon does, and then
//! holds a core for several ticks. On the client's core that looks like a service that is milliseconds late, in
//! whichever system happened to start something. At SCHED_IDLE it waits for a core that nobody uses.

use anyhow::{Context as _, Result};
use quell_linux::act::{Executor, Journal, Mode, Policy, SchedAttr};
use quell_linux::observe::procs;
use quell_linux::{ThreadRef, Tid};
use tempfile::TempDir;

use super::folder::folder;

/// Kernel threads that are held back.
const NAMES: [&str; 1] = ["kdamond."];

/// Holds them back while it lives. What it changed is in a journal, for [`super::recover`] in case that
/// this process is killed.
pub struct Quiet {
    executor: Executor,
    _folder: TempDir,
}

impl Quiet {
    /// Holds back those that run in the fair class; others were set by somebody who meant it.
    ///
    /// # Errors
    /// When the journal cannot be made.
    pub fn keep() -> Result<Quiet> {
        let folder = folder()?;
        let journal = Journal::create(folder.path()).context("make a journal")?;
        let mut executor = Executor::open(journal, Mode::Live).context("open the executor")?;
        // No guardian: a benchmark that is killed leaves no more than a sampler that waits.
        executor.gate().set(true);
        for thread in named() {
            if executor.read_sched(&thread).is_ok_and(|attr| attr.policy == Policy::Other) {
                // One that ends meanwhile needs nothing.
                let _ = executor.set_sched(&thread, SchedAttr::IDLE);
            }
        }
        Ok(Quiet { executor, _folder: folder })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = self.executor.close();
    }
}

/// The kernel threads of these names.
fn named() -> impl Iterator<Item = ThreadRef> {
    let processes = procs::all().unwrap_or_default().into_iter();
    let threads = processes.filter_map(|pid| ThreadRef::of(Tid(pid), Tid(pid)).ok());
    threads.filter(|thread| {
        let file = |name: &str| std::fs::read(format!("/proc/{}/{name}", thread.tid));
        file("cmdline").is_ok_and(|line| line.is_empty())
            && file("comm")
                .is_ok_and(|name| NAMES.iter().any(|start| name.starts_with(start.as_bytes())))
    })
}

#[cfg(test)]
mod tests {
    use quell_linux::testing::host_lock;

    use super::*;
    use crate::host::policy;

    #[test]
    fn what_was_held_back_is_given_back() {
        let _lock = host_lock().unwrap();
        let all = || named().map(|thread| (thread, policy(thread.tid.0).unwrap().0)).collect();
        let before: Vec<(ThreadRef, i32)> = all();
        let quiet = Quiet::keep().unwrap();
        let held: Vec<(ThreadRef, i32)> = all();
        assert!(held.iter().all(|(_, number)| *number == libc::SCHED_IDLE));
        drop(quiet);
        assert_eq!(all(), before);
    }
}
