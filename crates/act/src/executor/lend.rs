//! Threads whose policy the scheduler of a lane switches.

use std::sync::Arc;

use super::threads::Managed;
use super::{Executor, Mode};
use crate::journal::slot::{Identity, boot_ticks};
use crate::journal::value::Value;
use crate::protocol::free_entry;
use crate::switch::{Lent, SwitchHandle};
use crate::{ActError, SchedAttr, Subject, kill_point};
use quell_os::ThreadRef;

impl Executor {
    /// Gives a thread the first of two values and lends the right to switch it between both. From here on the host may
    /// show either; both are journaled. The executor itself leaves the thread's policy alone until it
    /// [revokes](Executor::revoke) the handle, which every restore does first.
    ///
    /// # Errors
    /// [`ActError`]; [`ActError::Lent`] for a thread that is lent already, [`ActError::Unguarded`] in a dry run, too.
    pub fn lend(
        &mut self,
        thread: &ThreadRef,
        attrs: [SchedAttr; 2],
    ) -> Result<SwitchHandle, ActError> {
        if self.mode == Mode::DryRun || !self.gate.is_open() {
            return Err(ActError::Unguarded);
        }
        // What is elevated carries the reset on fork.
        let attrs = attrs.map(|attr| SchedAttr {
            reset_on_fork: attr.reset_on_fork || attr.policy.is_realtime(),
            ..attr
        });
        self.know(thread, None)?;
        if self.threads.get_mut(thread).is_some_and(|managed| managed.lent.is_some()) {
            return Err(ActError::Lent(*thread));
        }
        let lent = self.change(thread, attrs[0]).and_then(|_| self.journal_both(thread, attrs));
        if let Err(ActError::Gone(_)) = lent {
            self.forget_tid(thread.tid);
        }
        lent
    }

    /// Has both values stand in the thread's slot, and makes the handle.
    fn journal_both(
        &mut self,
        thread: &ThreadRef,
        attrs: [SchedAttr; 2],
    ) -> Result<SwitchHandle, ActError> {
        let gone = || ActError::Gone(*thread);
        let managed = self.threads.get_mut(thread).ok_or_else(gone)?;
        let pidfd_inode = managed.pidfd_inode;
        let tracked = managed.sched.as_mut().ok_or_else(gone)?;
        let shown = match (tracked.slot, tracked.shown) {
            (Some(_), Some(shown)) => shown,
            // It had the first value by itself, so that nothing was changed and nothing recorded.
            (None, _) => {
                let identity = Identity { subject: Subject::Sched(*thread), pidfd_inode };
                let first = Value::Sched(attrs[0]);
                let slot = self.journal.insert(&identity, &tracked.original, &first)?;
                (tracked.slot, tracked.created) = (Some(slot), boot_ticks());
                0
            }
            (Some(slot), None) => {
                self.journal.record(slot, 0, &Value::Sched(attrs[0]))?;
                0
            }
        };
        tracked.shown = Some(shown);
        tracked.wrote[shown] = Some(attrs[0]);
        kill_point("lend-second-value");
        let other = free_entry(Some(shown));
        debug_assert_ne!(other, shown, "the value that the host shows is never overwritten");
        if let Some(slot) = tracked.slot {
            self.journal.record(slot, other, &Value::Sched(attrs[1]))?;
        }
        tracked.wrote[other] = Some(attrs[1]);
        let pidfd = managed.duplicate_handle();
        let lent = Arc::new(Lent::new(*thread, pidfd, attrs, self.gate.clone()));
        managed.lent = Some(Arc::clone(&lent));
        Ok(SwitchHandle::new(lent))
    }

    /// Takes a switch handle back, once no switch is under way. The thread stays as it is; the executor handles it again.
    pub fn revoke(&mut self, thread: &ThreadRef) {
        if let Some(managed) = self.threads.get_mut(thread) {
            managed.revoke();
        }
    }

    /// Whether the thread's policy is switched by the scheduler of a lane.
    pub fn is_lent(&self, thread: &ThreadRef) -> bool {
        self.threads.get(thread).is_some_and(|managed| managed.lent.is_some())
    }
}

impl Managed {
    /// Ends all switches of this thread, if it is lent, and takes in what they left.
    pub(super) fn revoke(&mut self) {
        let Some(lent) = self.lent.take() else { return };
        let left = lent.revoke();
        let Some(tracked) = self.sched.as_mut() else { return };
        let shows = |wrote: &Option<SchedAttr>| wrote.is_some_and(|wrote| wrote == left);
        tracked.shown = tracked.wrote.iter().position(shows);
        debug_assert!(tracked.shown.is_some(), "both values of a lent thread are journaled");
        tracked.believed = left;
    }
}
