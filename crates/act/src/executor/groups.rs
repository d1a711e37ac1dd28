//! Cgroups: made, joined by launched tasks, frozen.

use std::io;
use std::path::{Path, PathBuf};

use super::settings::refused;
use super::{Executor, Mode};
use crate::groups::{self, CREATED, NONE};
use crate::{ActError, Applied, Setting, Subject, setting};
use quell_os::{ThreadRef, Tid};

/// A process on its way into a cgroup: the journal has it, and it is not there yet.
///
/// The kernel moves it once no process of the host forks, execs or ends (`cgroup_threadgroup_rwsem`), which takes an
/// RCU grace period: milliseconds, and more than a second on a host whose cores are full. Not for a thread that others
/// wait for.
#[derive(Debug)]
#[must_use = "nothing is moved yet"]
pub struct Joining {
    dir: PathBuf,
    process: ThreadRef,
    subject: Subject,
    seen: String,
    entry: usize,
}

impl Joining {
    /// The cgroup.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Moves the process, on any thread. [`Executor::end_join`] comes next, or [`Executor::cancel_join`].
    ///
    /// # Errors
    /// [`ActError`].
    pub fn carry_out(&self) -> Result<(), ActError> {
        let moved = groups::join(&self.dir, self.process.tgid);
        moved.map_err(|error| refused_or_gone(&self.dir, &self.process, "join", &error))
    }
}

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

    /// Moves a process into a cgroup; for processes that Quell launched, never for adopted ones. May take long: see
    /// [`Joining`].
    ///
    /// # Errors
    /// [`ActError`].
    pub fn join_cgroup(&mut self, dir: &Path, tgid: Tid) -> Result<Applied, ActError> {
        let Some(joining) = self.begin_join(dir, tgid)? else {
            let is_planned = self.mode == Mode::DryRun;
            return Ok(if is_planned { Applied::WouldChange } else { Applied::AlreadySo });
        };
        if let Err(error) = joining.carry_out() {
            self.cancel_join(&joining);
            return Err(error);
        }
        self.end_join(&joining);
        Ok(Applied::Changed)
    }

    /// Records that a process is about to be moved into a cgroup. `None` where nothing is to be done: it is there, or
    /// this is a dry run.
    ///
    /// # Errors
    /// [`ActError`].
    pub fn begin_join(&mut self, dir: &Path, tgid: Tid) -> Result<Option<Joining>, ActError> {
        let process = ThreadRef::of(tgid, tgid)
            .map_err(|_| ActError::Gone(ThreadRef { tid: tgid, tgid, start_ticks: 0 }))?;
        let hierarchy = groups::hierarchy_of(dir).map_err(|error| refused(dir, "join", &error))?;
        let subject = Subject::Member { process, hierarchy: hierarchy.clone() };
        let group_of = |hierarchy: &Path| {
            let group = groups::group_of(tgid, hierarchy).map_err(|error| {
                refused_or_gone(dir, &process, "read the group before joining", &error)
            })?;
            Ok(group.to_string_lossy().into_owned())
        };
        let wanted = dir.to_string_lossy();
        if self.mode == Mode::DryRun {
            self.plan_text(subject, &wanted, || group_of(&hierarchy))?;
            return Ok(None);
        }
        let seen = group_of(&hierarchy)?;
        self.rebase_text(&subject, &seen, |believed| believed == seen)?;
        if seen == wanted {
            return Ok(None);
        }
        if !self.gate.is_open() {
            return Err(ActError::Unguarded);
        }
        let entry = self.record_text(&subject, &seen, &wanted)?;
        Ok(Some(Joining { dir: dir.to_owned(), process, subject, seen, entry }))
    }

    /// Notes that a process was moved.
    pub fn end_join(&mut self, joining: &Joining) {
        let Joining { dir, subject, seen, entry, .. } = joining;
        self.note_written(subject, seen, &dir.to_string_lossy(), *entry);
    }

    /// Notes that a process was not moved: it is where it was.
    pub fn cancel_join(&mut self, joining: &Joining) {
        self.forget_unwritten(&joining.subject);
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

/// A process may end at any step, and leaves files that are not there any more.
fn refused_or_gone(dir: &Path, process: &ThreadRef, attempt: &str, error: &io::Error) -> ActError {
    match process_is_there(process) {
        true => refused(dir, attempt, error),
        false => ActError::Gone(*process),
    }
}

fn process_is_there(process: &ThreadRef) -> bool {
    ThreadRef::of(process.tgid, process.tgid).is_ok_and(|there| there == *process)
}
