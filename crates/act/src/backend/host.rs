//! What a back end needs of a host.

use std::path::Path;

use quell_model::{CoreSet, Nanos};

use crate::{ActError, Executor, RestoreReport, SchedAttr, Setting, host};
use quell_os::ThreadStat;
use quell_os::{ThreadRef, Tid};

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
        let mut attr = self.read_sched(thread)?;
        // The kernel reports its default slice like a request; written back it would become one.
        let me = Tid(rustix::thread::gettid().as_raw_nonzero().get());
        if quell_os::sched::attr(me).is_ok_and(|mine| mine.slice == attr.slice) {
            attr.slice = Nanos::ZERO;
        }
        Ok(attr)
    }

    fn affinity(&mut self, thread: &ThreadRef) -> Result<CoreSet, ActError> {
        // The quick read tells a thread that is gone from one that cannot be read.
        let online = self.read_affinity(thread)?;
        Ok(host::allowed(thread).unwrap_or(online))
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
