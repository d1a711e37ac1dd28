//! Keeps a kernel thread that samples memory out of a measurement.
//!
//! `kdamond` (Documentation/mm/damon) wakes for each sample, here two a second, and when mappings change, which is what
//! starting a daemon does. It then holds a core for milliseconds, within the kernel, where nobody preempts it: more than
//! a thousandth of the time, so that a p99.9 would be its doing. What user space started through sysfs is off meanwhile;
//! others wait at SCHED_IDLE for a core that nobody uses.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use quell_act::{Executor, Setting};
use quell_model::{CoreId, CoreSet};
use quell_observe::procs;
use quell_os::sched::{Policy, SchedAttr};
use quell_os::{ThreadRef, Tid};
use tempfile::TempDir;

use super::changes::executor;

/// Where user space starts them.
const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// Kernel threads that are held back.
const NAMES: [&str; 1] = ["kdamond."];

/// The priority of a client's softirq thread: above those of clients that sleep.
const SOFTIRQ_PRIORITY: u8 = 2;

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
        let (mut executor, directory) = executor()?;
        for setting in damon_states().map(Setting::File) {
            if executor.read_setting(&setting).is_ok_and(|state| state == "on") {
                // One that cannot be stopped is held back below.
                let _ = executor.write_setting(&setting, "off");
            }
        }
        for thread in named(is_sampler) {
            if executor.read_sched(&thread).is_ok_and(|attr| attr.policy == Policy::Other) {
                // One that ends meanwhile needs nothing.
                let _ = executor.set_sched(&thread, SchedAttr::IDLE);
            }
        }
        Ok(Quiet { executor, _folder: directory })
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

    /// Lets the core's softirq thread go before the clients there. The kernel leaves packets to it where a thread is to be
    /// switched to meanwhile, as where one client wakes beside another that spins: at nice 0 it would wait for milliseconds.
    pub fn favour_softirqs(&mut self, core: CoreId) {
        let name = format!("ksoftirqd/{}", core.0);
        for thread in named(|comm| comm == name) {
            // A refusal shows in what is measured, of all systems alike.
            let _ = self.executor.set_sched(&thread, SchedAttr::fifo(SOFTIRQ_PRIORITY));
        }
    }

    /// Has interrupts served on other cores than these. Returns the numbers of those that stay: the kernel manages them
    /// (Documentation/core-api/irq/irq-affinity.rst), or they belong to one core.
    pub fn move_interrupts_off(&mut self, cores: &CoreSet) -> Vec<u32> {
        let others = self.executor.possible_cores().difference(cores);
        let entries = std::fs::read_dir("/proc/irq").into_iter().flatten().flatten();
        let irqs = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        irqs.filter(|&irq| {
            let setting = Setting::IrqAffinity(irq);
            let seen = self.executor.read_setting(&setting).ok();
            let meets = seen.and_then(|seen| seen.parse::<CoreSet>().ok());
            let meets = meets.is_some_and(|seen| !seen.is_subset(&others));
            meets && self.executor.write_setting(&setting, &others.to_string()).is_err()
        })
        .collect()
    }

    /// Turns real-time throttling off: threads that are busy stop for 50 ms of each second otherwise, and where the kernel
    /// shares real-time time out among groups (RT_GROUP_SCHED) a group without a share is refused.
    ///
    /// # Errors
    /// The kernel's.
    pub fn allow_real_time(&mut self) -> Result<()> {
        let throttling = Setting::Sysctl("kernel.sched_rt_runtime_us".to_owned());
        self.write(&throttling, "-1").context("turn real-time throttling off")
    }

    /// Writes a setting until this ends.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&mut self, setting: &Setting, value: &str) -> Result<()> {
        self.executor.write_setting(setting, value)?;
        Ok(())
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = self.executor.close();
    }
}

/// The switches of what user space started.
fn damon_states() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(DAMON).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join("state")).filter(|state| state.is_file())
}

fn is_sampler(comm: &str) -> bool {
    NAMES.iter().any(|start| comm.starts_with(start))
}

/// The kernel threads with such names.
fn named(is_one: impl Fn(&str) -> bool) -> impl Iterator<Item = ThreadRef> {
    let processes = procs::all().unwrap_or_default().into_iter();
    let threads = processes.filter_map(|pid| ThreadRef::of(Tid(pid), Tid(pid)).ok());
    threads.filter(move |thread| {
        let file = |name: &str| std::fs::read(format!("/proc/{}/{name}", thread.tid));
        file("cmdline").is_ok_and(|line| line.is_empty())
            && file("comm").is_ok_and(|name| is_one(String::from_utf8_lossy(&name).trim_end()))
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
        let states = || -> Vec<String> {
            damon_states().map(|state| std::fs::read_to_string(state).unwrap()).collect()
        };
        // One that was off is another thread afterwards.
        let policies = || -> Vec<i32> {
            named(is_sampler).map(|thread| policy(thread.tid.0).unwrap().0).collect()
        };
        let before = (states(), policies());
        let quiet = Quiet::keep().unwrap();
        assert!(states().iter().all(|state| state != "on\n"));
        assert!(policies().iter().all(|number| *number == libc::SCHED_IDLE));
        drop(quiet);
        assert_eq!((states(), policies()), before);
    }

    #[test]
    fn the_softirq_thread_of_a_core_goes_first_for_a_while() {
        let _lock = host_lock().unwrap();
        let policies = || -> Vec<(i32, i32)> {
            named(|comm| comm == "ksoftirqd/0")
                .map(|thread| policy(thread.tid.0).unwrap())
                .collect()
        };
        let before = policies();
        assert!(!before.is_empty());
        let mut quiet = Quiet::keep().unwrap();
        quiet.favour_softirqs(CoreId(0));
        assert!(
            policies()
                .iter()
                .all(|(number, _)| number & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO)
        );
        drop(quiet);
        assert_eq!(policies(), before);
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
