//! Cgroups: those of launched tasks, and the weights of those in which tasks were found.

use std::path::Path;

use quell_act::backend::{GroupUse, TaskGroups, weight};
use quell_act::{Setting, Subject};
use quell_os::Tid;

use super::Engine;
use crate::command::GroupCall;

impl Engine {
    /// Makes the groups of a launched task, or finds those of an adopted one.
    pub fn groups(&mut self, call: GroupCall) -> Result<TaskGroups, String> {
        match call {
            GroupCall::Make { task, name, pid } => {
                let wanted = match self.parts.group_use {
                    GroupUse::Yield if self.is_lc(task) => GroupUse::Freeze,
                    wanted => wanted,
                };
                let (groups, exec) = (&self.parts.groups, &mut self.parts.executor);
                let made = groups.make(&name, wanted, exec).map_err(|err| err.to_string())?;
                groups.admit(&made, Tid(pid), exec).map_err(|err| err.to_string())?;
                Ok(made)
            }
            GroupCall::Find { pid } => {
                let freezer = self.parts.groups.freezer_of(Path::new("/"), Tid(pid));
                let freezer = freezer.map_err(|err| err.to_string())?;
                Ok(TaskGroups { freezer, ..TaskGroups::default() })
            }
        }
    }

    /// Removes the groups of a launched task.
    pub fn ungroup(&mut self, groups: &TaskGroups) {
        let report = self.parts.groups.remove(groups, &mut self.parts.executor);
        if !report.is_complete() {
            self.events.tell(format!("a group stays: {report}"));
        }
    }

    /// Makes the cgroup of this weight file count for least, or as it did before.
    pub fn weigh(&mut self, file: &Path, least: bool) -> Result<(), String> {
        let exec = &mut self.parts.executor;
        if least {
            let setting = Setting::CgroupFile(file.to_owned());
            exec.write_setting(&setting, weight(file, true)).map_err(|err| err.to_string())?;
            self.events.tell(format!("{} is {}", file.display(), weight(file, true)));
            return Ok(());
        }
        let report =
            exec.undo_texts(|subject| matches!(subject, Subject::Setting(own) if own == file));
        if report.is_complete() { Ok(()) } else { Err(report.to_string()) }
    }
}
