//! Cgroups: made, joined by launched tasks, frozen.

use std::io;
use std::path::{Path, PathBuf};

use super::settings::refused;
use super::{Executor, Mode};
use crate::groups::{self, CREATED, NONE};
use crate::{ActError, Applied, Setting, Subject, setting};
use quell_os::{ThreadRef, Tid};

impl Executor {
    /// Creates a cgroup directory, and those above it that are missing. It is removed again at the end, and
    /// what is then still in it goes to the group above.
    ///
    /// # Errors
    /// [`ActError`].
    pub fn create_cgroup(&mut self, dir: &Path) -> Result<Applied, ActError> {
        if !setting::is_kernel_path(dir) {
            let outside = io::Error::from_raw_os_error(libc::EINVAL);
            return Err(refused(dir, "create", &outside));
        }
        let mut missing: Vec<PathBuf> =
            dir.ancestors().take_while(|dir| !dir.is_dir()).map(Path::to_owned).collect();
        if missing.is_empty() {
            return Ok(Applied::AlreadySo);
        }
        if self.mode == Mode::DryRun {
            let subject = Subject::Group(dir.to_owned());
            return self.plan_text(subject, CREATED, || Ok(NONE.into()));
        }
        if !self.gate.is_open() {
            return Err(ActError::Unguarded);
        }
        while let Some(dir) = missing.pop() {
            let subject = Subject::Group(dir.clone());
            self.write_text(&subject, NONE, CREATED, || {
                std::fs::create_dir(&dir).map_err(|error| refused(&dir, "create", &error))
            })?;
        }
        Ok(Applied::Changed)
    }

    /// Moves a process into a cgroup; for processes that Quell launched, never for adopted ones.
    ///
    /// # Errors
    /// [`ActError`].
    pub fn join_cgroup(&mut self, dir: &Path, tgid: Tid) -> Result<Applied, ActError> {
        let process = ThreadRef::of(tgid, tgid)
            .map_err(|_| ActError::Gone(ThreadRef { tid: tgid, tgid, start_ticks: 0 }))?;
        let hierarchy = groups::hierarchy_of(dir).map_err(|error| refused(dir, "join", &error))?;
        let subject = Subject::Member { process, hierarchy: hierarchy.clone() };
        // A process may end at any step, and leaves files that are not there any more.
        let refused_or_gone = |attempt: &str, error: &io::Error| match process_is_there(&process) {
            true => refused(dir, attempt, error),
            false => ActError::Gone(process),
        };
        let group_of = |hierarchy: &Path| {
            let group = groups::group_of(tgid, hierarchy)
                .map_err(|error| refused_or_gone("read the group before joining", &error))?;
            Ok(group.to_string_lossy().into_owned())
        };
        let wanted = dir.to_string_lossy();
        if self.mode == Mode::DryRun {
            return self.plan_text(subject, &wanted, || group_of(&hierarchy));
        }
        let seen = group_of(&hierarchy)?;
        self.rebase_text(&subject, &seen, |believed| believed == seen)?;
        if seen == wanted {
            return Ok(Applied::AlreadySo);
        }
        if !self.gate.is_open() {
            return Err(ActError::Unguarded);
        }
        self.write_text(&subject, &seen, &wanted, || {
            groups::join(dir, tgid).map_err(|error| refused_or_gone("join", &error))
        })?;
        Ok(Applied::Changed)
    }

    /// Freezes or thaws a cgroup of either version. The kernel stops its threads within some 50 us after
    /// the call returned.
    ///
    /// # Errors
    /// [`ActError`].
    pub fn freeze(&mut self, dir: &Path, frozen: bool) -> Result<Applied, ActError> {
        let v1 = dir.join("freezer.state");
        match v1.exists() {
            true => self
                .write_setting(&Setting::CgroupFile(v1), if frozen { "FROZEN" } else { "THAWED" }),
            false => self.write_setting(
                &Setting::CgroupFile(dir.join("cgroup.freeze")),
                if frozen { "1" } else { "0" },
            ),
        }
    }

    /// Whether a file is in a group that Quell created.
    pub(super) fn is_in_own_group(&self, path: &Path) -> bool {
        path.ancestors().skip(1).any(|dir| self.texts.contains_key(&Subject::Group(dir.to_owned())))
    }
}

fn process_is_there(process: &ThreadRef) -> bool {
    ThreadRef::of(process.tgid, process.tgid).is_ok_and(|there| there == *process)
}
