//! What threads would show without Quell. The executor alone knows it; back ends ask.

use quell_model::CoreSet;
use quell_os::ThreadRef;

use super::attribute::Attribute;
use super::refusal;
use super::threads::{Managed, Tracked};
use super::{Executor, Mode};
use crate::backend::{Inspection, ThreadSettings};
use crate::journal::slot::{Identity, boot_ticks};
use crate::{ActError, SchedAttr};

impl Executor {
    /// Begins to know a thread, and returns what it shows and what it would show without Quell. The two differ for
    /// one that inherited from a thread that Quell changed.
    ///
    /// # Errors
    /// [`ActError::Gone`], [`ActError::Journal`], or [`ActError::Refused`] for a policy that Quell does not handle.
    pub fn inspect(&mut self, thread: &ThreadRef) -> Result<Inspection, ActError> {
        let sched = self.read_present_sched(thread)?;
        let present = ThreadSettings { sched, cores: self.read_all_affinity(thread)? };
        // A dry run changed nothing that could be inherited, and needs no handles.
        if self.mode == Mode::DryRun {
            return Ok(Inspection { present, original: present });
        }
        self.know(thread, None)?;
        let managed = self.threads.get(thread).ok_or(ActError::Gone(*thread))?;
        let original = ThreadSettings {
            sched: original(managed).unwrap_or(present.sched),
            cores: original(managed).unwrap_or(present.cores),
        };
        Ok(Inspection { present, original })
    }

    /// Policy, priority and nice value of a thread as they would be written.
    pub(crate) fn read_present_sched(&self, thread: &ThreadRef) -> Result<SchedAttr, ActError> {
        self.host
            .sched_original(thread.tid)
            .map_err(|error| refusal::of(thread, "read the policy", &error))
    }

    /// The affinity of a thread, offline cores included.
    pub(crate) fn read_all_affinity(&self, thread: &ThreadRef) -> Result<CoreSet, ActError> {
        // The quick read tells a thread that is gone from one that cannot be read.
        let online = self.read_affinity(thread)?;
        Ok(crate::host::allowed(thread).unwrap_or(online))
    }

    /// Begins to know a new thread of a managed one. Where it shows a value that it has from its creator, and that one
    /// from Quell, it gets its creator's original to be given back. Threads that are only inspected or set later are
    /// seen through as well, while an ancestor of theirs is alive; this is for those whose creator is about to be
    /// [forgotten](Self::forget).
    ///
    /// # Errors
    /// [`ActError::Gone`], [`ActError::Journal`].
    pub fn adopt(&mut self, child: &ThreadRef, parent: &ThreadRef) -> Result<(), ActError> {
        match self.mode {
            Mode::Live => self.know(child, Some(parent)),
            Mode::DryRun => Ok(()),
        }
    }

    /// Begins to know a thread, if it is new; its creator if that is known.
    pub(super) fn know(
        &mut self,
        thread: &ThreadRef,
        creator: Option<&ThreadRef>,
    ) -> Result<(), ActError> {
        if !self.threads.knows(thread) {
            // Another thread had the number before.
            self.forget_tid(thread.tid);
            self.threads.open(thread)?;
            if self.mode == Mode::Live {
                self.find_inherited::<SchedAttr>(thread, creator)?;
                self.find_inherited::<CoreSet>(thread, creator)?;
            }
        }
        Ok(())
    }

    /// A new thread may show what Quell gave its ancestor.
    fn find_inherited<A: Attribute>(
        &mut self,
        thread: &ThreadRef,
        creator: Option<&ThreadRef>,
    ) -> Result<(), ActError> {
        // Policies that Quell does not handle were not inherited from it.
        let Ok(seen) = A::read(thread.tid) else { return Ok(()) };
        let inherited = self.threads.inherited(thread, &seen, creator, &self.journal);
        let Some((original, managed)) = inherited.zip(self.threads.get_mut(thread)) else {
            return Ok(());
        };
        debug_assert!(A::place(managed).is_none(), "{thread:?} inherits what it has already");
        let identity = Identity { subject: A::subject(*thread), pidfd_inode: managed.pidfd_inode };
        let slot = self.journal.insert(&identity, &original, &seen.value())?;
        *A::place(managed) = Some(Box::new(Tracked {
            slot: Some(slot),
            created: boot_ticks(),
            original,
            wrote: [Some(seen), None],
            shown: Some(0),
            believed: seen,
        }));
        Ok(())
    }
}

/// The original of an attribute that Quell changed.
fn original<A: Attribute>(managed: &Managed) -> Option<A> {
    let tracked = A::tracked(managed).filter(|tracked| tracked.slot.is_some())?;
    A::from_value(&tracked.original)
}
