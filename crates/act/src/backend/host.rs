//! What a back end needs of a host.

use std::path::Path;

use quell_model::{CoreSet, Nanos};

use crate::{ActError, Executor, RestoreReport, SchedAttr, Setting};
use quell_os::ThreadRef;
use quell_os::ThreadStat;

/// Policy, priority, nice value and affinity of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSettings {
    /// Policy, priority and nice value.
    pub sched: SchedAttr,
    /// The affinity, offline cores included.
    pub cores: CoreSet,
}

/// A thread at the first look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// What it shows.
    pub present: ThreadSettings,
    /// What it would show without Quell, and gets back.
    pub original: ThreadSettings,
}

/// What a back end needs of a host: a clock, a few readings, a few changes. On a real machine this is
/// the executor, so that each change is journalled; tests record the calls.
pub trait Host {
    /// CLOCK_MONOTONIC.
    fn now(&self) -> Nanos;

    /// Cores that are online.
    fn online(&mut self) -> CoreSet;

    /// A thread's present policy, priority and nice value.
    ///
    /// # Errors
    /// [`ActError::Gone`], or the kernel's refusal.
    fn sched(&mut self, thread: &ThreadRef) -> Result<SchedAttr, ActError>;

    /// Whether the scheduler of a lane switches the thread's policy.
    fn is_lent(&self, _thread: &ThreadRef) -> bool {
        false
    }

    /// A thread's present affinity, offline cores included.
    ///
    /// # Errors
    /// [`ActError::Gone`], or the kernel's refusal.
    fn affinity(&mut self, thread: &ThreadRef) -> Result<CoreSet, ActError>;

    /// As [`Host::affinity`], without offline cores, at the cost of one system call.
    ///
    /// # Errors
    /// [`ActError::Gone`], or the kernel's refusal.
    fn affinity_online(&mut self, thread: &ThreadRef) -> Result<CoreSet, ActError>;

    /// Sets policy, priority and nice value.
    ///
    /// # Errors
    /// [`ActError`].
    fn set_sched(&mut self, thread: &ThreadRef, attr: SchedAttr) -> Result<(), ActError>;

    /// Sets the affinity.
    ///
    /// # Errors
    /// [`ActError`].
    fn set_affinity(&mut self, thread: &ThreadRef, cores: &CoreSet) -> Result<(), ActError>;

    /// Begins to know a thread: what it shows, and what it would show without Quell. Changes nothing on the host.
    ///
    /// # Errors
    /// [`ActError`].
    fn inspect(&mut self, thread: &ThreadRef) -> Result<Inspection, ActError>;

    /// Begins to know a child that may show what Quell gave its parent, so that it is given back as
    /// its parent was. Changes nothing on the host.
    ///
    /// # Errors
    /// [`ActError`].
    fn adopt(&mut self, child: &ThreadRef, parent: &ThreadRef) -> Result<(), ActError>;

    /// Gives threads back as they were found, where they still show what Quell wrote, and forgets
    /// them. Those that are gone are forgotten.
    fn give_back(&mut self, threads: &[ThreadRef]) -> RestoreReport;

    /// Freezes or thaws a cgroup.
    ///
    /// # Errors
    /// [`ActError`].
    fn freeze(&mut self, group: &Path, frozen: bool) -> Result<(), ActError>;

    /// Reads a file of a cgroup.
    ///
    /// # Errors
    /// [`ActError`].
    fn read_group(&mut self, file: &Path) -> Result<String, ActError>;

    /// Writes a file of one of Quell's own cgroups.
    ///
    /// # Errors
    /// [`ActError`].
    fn write_group(&mut self, file: &Path, value: &str) -> Result<(), ActError>;
}

impl Host for Executor {
    fn now(&self) -> Nanos {
        quell_os::clock::now()
    }

    fn is_lent(&self, thread: &ThreadRef) -> bool {
        Executor::is_lent(self, thread)
    }

    fn online(&mut self) -> CoreSet {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
        list.and_then(|list| list.parse().ok()).unwrap_or_else(|| self.possible_cores())
    }

    fn sched(&mut self, thread: &ThreadRef) -> Result<SchedAttr, ActError> {
        self.read_present_sched(thread)
    }

    fn affinity(&mut self, thread: &ThreadRef) -> Result<CoreSet, ActError> {
        self.read_all_affinity(thread)
    }

    fn affinity_online(&mut self, thread: &ThreadRef) -> Result<CoreSet, ActError> {
        self.read_affinity(thread)
    }

    fn set_sched(&mut self, thread: &ThreadRef, attr: SchedAttr) -> Result<(), ActError> {
        Executor::set_sched(self, thread, attr).map(drop)
    }

    fn set_affinity(&mut self, thread: &ThreadRef, cores: &CoreSet) -> Result<(), ActError> {
        Executor::set_affinity(self, thread, cores).map(drop)
    }

    fn inspect(&mut self, thread: &ThreadRef) -> Result<Inspection, ActError> {
        Executor::inspect(self, thread)
    }

    fn adopt(&mut self, child: &ThreadRef, parent: &ThreadRef) -> Result<(), ActError> {
        Executor::adopt(self, child, parent)
    }

    fn give_back(&mut self, threads: &[ThreadRef]) -> RestoreReport {
        let is_there = |thread: &ThreadRef| {
            ThreadStat::of(thread.tgid, thread.tid)
                .is_ok_and(|stat| stat.start_ticks == thread.start_ticks)
        };
        let (there, gone): (Vec<ThreadRef>, Vec<ThreadRef>) =
            threads.iter().partition(|thread| is_there(thread));
        gone.iter().for_each(|thread| self.forget(thread));
        match there.is_empty() {
            true => RestoreReport::default(),
            false => self.undo_matching(|thread| there.contains(thread)),
        }
    }

    fn freeze(&mut self, group: &Path, frozen: bool) -> Result<(), ActError> {
        Executor::freeze(self, group, frozen).map(drop)
    }

    fn read_group(&mut self, file: &Path) -> Result<String, ActError> {
        self.read_setting(&Setting::CgroupFile(file.to_owned()))
    }

    fn write_group(&mut self, file: &Path, value: &str) -> Result<(), ActError> {
        self.write_setting(&Setting::CgroupFile(file.to_owned()), value).map(drop)
    }
}
