//! Keeps a kernel thread that samples memory out of a measurement.
//!
//! `kdamond` (Documentation/mm/damon) wakes when mappings change, which is what starting a daemon does, and then
//! holds a core for several ticks. On the client's core that looks like a service that is milliseconds late, in
//! whichever system happened to start something. At SCHED_IDLE it waits for a core that nobody uses.

use anyhow::{Context as _, Result};
use quell_act::{Executor, Journal, Mode};
use quell_model::{CoreId, CoreSet};
use quell_observe::procs;
use quell_os::sched::{Policy, SchedAttr};
use quell_os::{ThreadRef, Tid};
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

    /// Moves the kernel threads that may move off a core as well. On one that real-time threads keep busy the fair server
    /// runs those that wait there, for as long as they like up to 50 ms a second, whatever their weight is.
    pub fn keep_off(&mut self, core: CoreId) {
        let others = self.executor.possible_cores().difference(&CoreSet::of(core));
        let processes = procs::all().unwrap_or_default().into_iter();
        for pid in processes.filter(|pid| procs::is_kernel_thread(*pid)) {
            // Those that are bound to their core refuse; one that ends meanwhile needs nothing.
            let Ok(thread) = ThreadRef::of(Tid(pid), Tid(pid)) else { continue };
            if self.executor.read_affinity(&thread).is_ok_and(|cores| !cores.is_subset(&others)) {
                let _ = self.executor.set_affinity(&thread, &others);
            }
        }
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
    use quell_testkit::host_lock;

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

    #[test]
    fn kernel_threads_that_may_move_leave_a_core_and_may_use_it_again_afterwards() {
        let _lock = host_lock().unwrap();
        // Always there, and free to move: it starts all others, and looks after tasks that hang.
        let free = || -> Vec<(i32, CoreSet)> {
            let pids = procs::all().unwrap().into_iter();
            pids.filter(|pid| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                procs::is_kernel_thread(*pid) && ["kthreadd", "khungtaskd"].contains(&name.trim())
            })
            .map(|pid| (pid, affinity(pid)))
            .collect()
        };
        let before = free();
        assert!(!before.is_empty());
        let core = CoreId(1);
        let mut quiet = Quiet::keep().unwrap();
        quiet.keep_off(core);
        assert!(free().iter().all(|(_, cores)| !cores.contains(core)));
        drop(quiet);
        assert_eq!(free(), before);
    }

    fn affinity(pid: i32) -> CoreSet {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().parse().unwrap()
    }
}
