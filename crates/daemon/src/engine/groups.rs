//! Settings of the host that follow tasks: cgroups of launched ones, weights of those in which tasks were found, RT
//! throttling.

use std::path::Path;

use quell_act::backend::{GroupUse, TaskGroups, weight};
use quell_act::{ActError, Applied, Executor, Joining, Setting, Subject};
use quell_os::Tid;

use super::Engine;
use crate::command::GroupCall;
use crate::throttling::WhyOff;

const RT_RUNTIME: &str = "kernel.sched_rt_runtime_us";

impl Engine {
    /// Makes the groups of a launched task, or finds those of an adopted one.
    pub fn groups(&mut self, call: GroupCall) -> Result<(TaskGroups, Vec<Joining>), String> {
        match call {
            GroupCall::Make { task, name, pid } => match self.parts.group_use {
                GroupUse::Yield if self.is_lc(task) => self.make(&name, pid, GroupUse::Freeze),
                GroupUse::Yield => self.make(&name, pid, GroupUse::Yield).or_else(|why| {
                    self.events.tell(format!("{name} counts in its cgroup as any other: {why}"));
                    self.make(&name, pid, GroupUse::Freeze)
                }),
                wanted => self.make(&name, pid, wanted),
            },
            GroupCall::Find { pid } => {
                let freezer = self.parts.groups.freezer_of(Path::new("/"), Tid(pid));
                let freezer = freezer.map_err(|err| err.to_string())?;
                Ok((TaskGroups { freezer, ..TaskGroups::default() }, Vec::new()))
            }
        }
    }

    fn make(
        &mut self,
        name: &str,
        pid: i32,
        wanted: GroupUse,
    ) -> Result<(TaskGroups, Vec<Joining>), String> {
        let (groups, exec) = (&self.parts.groups, &mut self.parts.executor);
        let made = groups.make(name, wanted, exec).map_err(|err| err.to_string())?;
        let moves = groups.begin_admit(&made, Tid(pid), exec).map_err(|err| err.to_string())?;
        Ok((made, moves))
    }

    /// Switches RT throttling off, until the daemon ends: a lane may fill its core by design.
    pub fn unthrottle(&mut self) -> Result<(), String> {
        if !self.settings.lanes_unthrottle {
            return Ok(());
        }
        let setting = Setting::Sysctl(RT_RUNTIME.to_owned());
        let done = self.parts.executor.write_setting(&setting, "-1");
        if done.map_err(|err| err.to_string())? == Applied::Changed {
            self.events.tell(format!("{RT_RUNTIME} is -1: {}", WhyOff::Lane));
        }
        Ok(())
    }

    /// Removes the groups of a launched task.
    pub fn ungroup(&mut self, groups: &TaskGroups) {
        let report = self.parts.groups.remove(groups, &mut self.parts.executor);
        if !report.is_complete() {
            self.events.tell(format!("a group stays: {report}"));
        }
    }

    /// Makes the cgroup of this weight file count for least, or as it did before. To be told again and again: a
    /// service manager that restarts a unit, or reads its files anew, writes weights too.
    pub fn weigh(&mut self, file: &Path, least: bool) -> Result<(), String> {
        let setting = Setting::CgroupFile(file.to_owned());
        let exec = &mut self.parts.executor;
        let write = |exec: &mut Executor, value| match exec.write_setting(&setting, value) {
            // Somebody else wrote it; it is compared with that from here on.
            Err(ActError::Raced { .. }) => exec.write_setting(&setting, value),
            done => done,
        };
        if least {
            let done = write(exec, weight(file, true)).map_err(|err| err.to_string())?;
            if done == Applied::Changed {
                self.events.tell(format!("{} is {}", file.display(), weight(file, true)));
            }
            return Ok(());
        }
        // What a group of Quell's own holds is in no journal.
        if self.parts.groups.owns(file) {
            return write(exec, weight(file, false)).map(drop).map_err(|err| err.to_string());
        }
        let report =
            exec.undo_texts(|subject, _| matches!(subject, Subject::Setting(own) if own == file));
        if report.is_complete() { Ok(()) } else { Err(report.to_string()) }
    }
}
