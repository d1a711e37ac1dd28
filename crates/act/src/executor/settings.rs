//! Settings: one file of the kernel each.

use std::collections::hash_map::Entry;
use std::io;
use std::path::Path;

use super::{Executor, Mode};
use crate::journal::layout::VALUE_BYTES;
use crate::journal::slot::Identity;
use crate::journal::value::Value;
use crate::protocol::free_entry;
use crate::{
    ActError, Applied, Drift, RestoreReport, Setting, Subject, kill_point, restore, setting,
};

/// What is known of a thing whose value is text.
#[derive(Debug)]
pub(super) struct TrackedText {
    pub(super) slot: Option<u32>,
    pub(super) original: String,
    pub(super) shown: Option<usize>,
    pub(super) believed: String,
}

impl TrackedText {
    /// Whether the host shows something else than Quell wrote.
    pub(super) fn drift(&self, what: &Subject) -> Option<Drift> {
        let Subject::Setting(path) = what else { return None };
        let seen = setting::read(path, VALUE_BYTES).unwrap_or_else(|error| error.to_string());
        (!setting::same_value(path, &self.believed, &seen)).then(|| Drift {
            what: what.clone(),
            expected: self.believed.clone(),
            seen,
        })
    }
}

impl Executor {
    /// Reads a setting.
    ///
    /// # Errors
    /// [`ActError::Refused`].
    pub fn read_setting(&self, setting: &Setting) -> Result<String, ActError> {
        let path = setting.path();
        setting::read(&path, VALUE_BYTES).map_err(|error| refused(&path, "read", &error))
    }

    /// Writes a setting. May take as long as the kernel takes: not for the tick's hot path.
    ///
    /// # Errors
    /// [`ActError`].
    pub fn write_setting(&mut self, setting: &Setting, value: &str) -> Result<Applied, ActError> {
        let path = setting.path();
        if !setting::is_kernel_path(&path) {
            let outside = io::Error::from_raw_os_error(libc::EINVAL);
            return Err(refused(&path, "write", &outside));
        }
        let read = |path: &Path| {
            setting::read(path, VALUE_BYTES).map_err(|error| refused(path, "read", &error))
        };
        let subject = Subject::Setting(path.clone());
        if self.mode == Mode::DryRun {
            return self.plan_text(subject, value, || read(&path));
        }
        let seen = read(&path)?;
        self.rebase_text(&subject, &seen, |believed| setting::same_value(&path, believed, &seen))?;
        if setting::same_value(&path, value, &seen) {
            return Ok(Applied::AlreadySo);
        }
        if !self.gate.is_open() {
            return Err(ActError::Unguarded);
        }
        // What a group of Quell's own holds goes with the group, but a frozen group cannot be left.
        let holds_threads = path.ends_with("freezer.state") || path.ends_with("cgroup.freeze");
        if self.is_in_own_group(&path) && !holds_threads {
            setting::write(&path, value).map_err(|error| refused(&path, "write", &error))?;
            return Ok(Applied::Changed);
        }
        self.write_text(&subject, &seen, value, || {
            setting::write(&path, value).map_err(|error| refused(&path, "write", &error))
        })?;
        // The kernel may show it in a form of its own; that form has to be known as Quell's.
        let shown = read(&path)?;
        if !setting::same_value(&path, value, &shown) {
            self.note_form(&subject, shown)?;
        }
        Ok(Applied::Changed)
    }

    /// Gives back all settings, groups and memberships that are meant, by what they are and by what Quell last wrote,
    /// newest first. Forgets those that show their original now.
    pub fn undo_texts(&mut self, mut meant: impl FnMut(&Subject, &str) -> bool) -> RestoreReport {
        let mut report = RestoreReport::default();
        let known = self.texts.iter().filter(|(subject, text)| meant(subject, &text.believed));
        let subjects: Vec<Subject> = known.map(|(subject, _)| subject.clone()).collect();
        let mut views: Vec<_> = subjects
            .iter()
            .filter_map(|subject| {
                let slot = self.texts.get(subject)?.slot?;
                Some((slot, self.journal.shared().slot(slot).read().ok()??))
            })
            .collect();
        views.sort_by_key(|(_, view)| std::cmp::Reverse(view.order));
        for (slot, view) in views {
            let failed = report.failed.len();
            restore::restore_slot(&view, &mut self.host, &mut report);
            if report.failed.len() == failed {
                self.journal.release(slot);
                self.texts.remove(&view.identity.subject);
            }
        }
        // What a dry run planned has no slot.
        self.texts.retain(|what, known| known.slot.is_some() || !meant(what, &known.believed));
        report
    }

    /// A dry run's answer.
    pub(super) fn plan_text(
        &mut self,
        subject: Subject,
        value: &str,
        read: impl FnOnce() -> Result<String, ActError>,
    ) -> Result<Applied, ActError> {
        let tracked = match self.texts.entry(subject) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let original = read()?;
                let believed = original.clone();
                unknown.insert(TrackedText { slot: None, original, shown: None, believed })
            }
        };
        if tracked.believed == value {
            return Ok(Applied::AlreadySo);
        }
        tracked.believed = value.to_owned();
        Ok(Applied::WouldChange)
    }

    /// Notices a change by somebody else.
    pub(super) fn rebase_text(
        &mut self,
        subject: &Subject,
        seen: &str,
        as_believed: impl FnOnce(&str) -> bool,
    ) -> Result<(), ActError> {
        let Some(tracked) = self.texts.get_mut(subject) else { return Ok(()) };
        if as_believed(&tracked.believed) {
            return Ok(());
        }
        if let Some(slot) = tracked.slot {
            self.journal.rebase(slot, &Value::Text(seen.to_owned()))?;
        }
        tracked.original = seen.to_owned();
        tracked.believed = seen.to_owned();
        tracked.shown = None;
        tracing::info!(target: "quell::audit", %subject, %seen, "changed by somebody else");
        Err(ActError::Raced { what: subject.clone(), seen: seen.to_owned() })
    }

    /// Records and makes a change.
    pub(super) fn write_text(
        &mut self,
        subject: &Subject,
        seen: &str,
        value: &str,
        write: impl FnOnce() -> Result<(), ActError>,
    ) -> Result<(), ActError> {
        let entry = self.record_text(subject, seen, value)?;
        write()?;
        self.note_written(subject, seen, value, entry);
        Ok(())
    }

    /// Records a change that is about to be made; answers with its entry in the journal.
    pub(super) fn record_text(
        &mut self,
        subject: &Subject,
        seen: &str,
        value: &str,
    ) -> Result<usize, ActError> {
        kill_point("before-journal");
        let next = Value::Text(value.to_owned());
        let (slot, entry) = match self.texts.get(subject).map(|known| (known.slot, known.shown)) {
            Some((Some(slot), shown)) => {
                self.journal.record(slot, free_entry(shown), &next)?;
                (slot, free_entry(shown))
            }
            _ => {
                let identity = Identity { subject: subject.clone(), pidfd_inode: 0 };
                let original = Value::Text(seen.to_owned());
                let slot = self.journal.insert(&identity, &original, &next)?;
                let known = TrackedText {
                    slot: Some(slot),
                    original: seen.to_owned(),
                    shown: None,
                    believed: seen.to_owned(),
                };
                self.texts.insert(subject.clone(), known);
                (slot, 0)
            }
        };
        debug_assert!(entry < 2 && slot < crate::CAPACITY);
        kill_point("journal-to-syscall");
        Ok(entry)
    }

    /// Forgets a thing that shows nothing of Quell's.
    pub(super) fn forget_unwritten(&mut self, subject: &Subject) {
        let is_unwritten = |known: &TrackedText| known.shown.is_none();
        if let Some(known) = self.texts.get(subject).filter(|known| is_unwritten(known)) {
            known.slot.into_iter().for_each(|slot| self.journal.release(slot));
            self.texts.remove(subject);
        }
    }

    /// Notes that a recorded change was made.
    pub(super) fn note_written(
        &mut self,
        subject: &Subject,
        before: &str,
        value: &str,
        entry: usize,
    ) {
        kill_point("syscall-to-ack");
        if let Some(tracked) = self.texts.get_mut(subject) {
            tracked.shown = Some(entry);
            tracked.believed = value.to_owned();
        }
        tracing::debug!(target: "quell::audit", %subject, %before, after = %value, "changed");
        if let Some(audit) = &mut self.audit {
            audit(subject, &before, &value);
        }
    }

    /// Records the form in which the kernel shows what was just written.
    fn note_form(&mut self, subject: &Subject, shown: String) -> Result<(), ActError> {
        let Some(tracked) = self.texts.get_mut(subject) else { return Ok(()) };
        let entry = free_entry(tracked.shown);
        if let Some(slot) = tracked.slot {
            self.journal.record(slot, entry, &Value::Text(shown.clone()))?;
        }
        tracked.shown = Some(entry);
        tracked.believed = shown;
        Ok(())
    }
}

/// The error of an attempt on a file.
pub(super) fn refused(path: &Path, attempt: &str, error: &io::Error) -> ActError {
    let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
    let remedy = match errno {
        libc::EPERM | libc::EACCES => {
            "run as root; a locked-down kernel or a container may forbid it"
        }
        libc::ENOENT => "this kernel, or this cgroup, does not have it",
        libc::EINVAL | libc::ERANGE => "the kernel does not take this value",
        libc::EBUSY => {
            "it is in use: threads are in the cgroup, or children have more than it would have"
        }
        _ => "see `quell doctor`",
    };
    ActError::Refused {
        errno,
        what: format!("{attempt} {}", path.display()),
        remedy: remedy.into(),
    }
}
