//! The one place that writes to the host.
//!
//! Each change goes the same way: make sure that the thing is the one that is meant, read what it shows, record
//! original and new value in the journal, change it, make sure again. The path of a known thread neither
//! allocates nor reads /proc: five system calls, some 2 us in all.

mod attribute;
mod groups;
mod lend;
mod originals;
pub(super) mod refusal;
mod settings;
mod threads;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_model::CoreSet;

pub use self::groups::Joining;

use self::attribute::Attribute;
use self::settings::TrackedText;
use self::threads::{Threads, Tracked, says_gone};
use super::host::Host;
use super::journal::slot::{Identity, boot_ticks};
use super::journal::value::Value;
use super::protocol::{BeforeWrite, before_write, free_entry};
use super::restore::{self, RestoreReport};
use super::{ActError, Applied, Change, Drift, Journal, SchedAttr, Subject, kill_point};
use quell_os::{ThreadRef, Tid};

/// Whether changes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are.
    Live,
    /// Nothing is changed: the answer says what would be.
    DryRun,
}

/// Told of each change: what, the value before and the value after.
pub type Audit = Box<dyn FnMut(&Subject, &dyn fmt::Display, &dyn fmt::Display) + Send>;

/// Says whether the executor may change the host: only while both guardians live. Closed at first.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    /// Lets changes through, or not.
    pub fn set(&self, open: bool) {
        // Relaxed: nothing is published by the gate. The daemon's one tick loop sets and reads it; of lanes, the main
        // thread sets it and a scheduler thread sees that at its next change.
        self.0.store(open, Ordering::Relaxed);
    }

    /// Whether changes go through.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The one place that writes to the host.
pub struct Executor {
    mode: Mode,
    journal: Journal,
    gate: Gate,
    host: Host,
    threads: Threads,
    texts: HashMap<Subject, TrackedText>,
    audit: Option<Audit>,
}

impl Executor {
    /// An executor that records in this journal. A live one changes nothing until its [`Gate`] is open. For a dry
    /// run take [`Journal::scratch`].
    ///
    /// # Errors
    /// When /proc or /sys is not mounted.
    pub fn open(journal: Journal, mode: Mode) -> io::Result<Executor> {
        Ok(Executor {
            mode,
            journal,
            gate: Gate::default(),
            host: Host::read()?,
            threads: Threads::default(),
            texts: HashMap::new(),
            audit: None,
        })
    }

    /// Whether changes are made.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The gate that the guardians open.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// The journal, to be shared with guardians.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// All cores that this host can ever have.
    pub fn possible_cores(&self) -> CoreSet {
        self.host.possible()
    }

    /// Tells of each change from now on. Every change is a `tracing` event of target `quell::audit` too.
    pub fn set_audit(&mut self, audit: Audit) {
        self.audit = Some(audit);
    }

    /// Reads policy and priority of a thread from the kernel.
    ///
    /// # Errors
    /// [`ActError::Gone`], or [`ActError::Refused`] for a policy that Quell does not handle.
    pub fn read_sched(&self, thread: &ThreadRef) -> Result<SchedAttr, ActError> {
        quell_os::sched::attr(thread.tid)
            .map_err(|error| refusal::of(thread, "read the policy", &error))
    }

    /// Reads the affinity of a thread from the kernel: online cores only.
    ///
    /// # Errors
    /// [`ActError::Gone`].
    pub fn read_affinity(&self, thread: &ThreadRef) -> Result<CoreSet, ActError> {
        quell_os::sched::affinity(thread.tid)
            .map_err(|error| refusal::of(thread, "read the affinity", &error))
    }

    /// Sets policy and priority of a thread. Elevated threads get the reset on fork in any case.
    ///
    /// # Errors
    /// [`ActError`].
    pub fn set_sched(&mut self, thread: &ThreadRef, attr: SchedAttr) -> Result<Applied, ActError> {
        if self.is_lent(thread) {
            return Err(ActError::Lent(*thread));
        }
        let reset_on_fork = attr.reset_on_fork || attr.policy.is_realtime();
        self.set(thread, SchedAttr { reset_on_fork, ..attr })
    }

    /// Restricts a thread to these cores.
    ///
    /// # Errors
    /// [`ActError`].
    pub fn set_affinity(
        &mut self,
        thread: &ThreadRef,
        cores: &CoreSet,
    ) -> Result<Applied, ActError> {
        self.set(thread, *cores)
    }

    fn set<A: Attribute + fmt::Display>(
        &mut self,
        thread: &ThreadRef,
        wanted: A,
    ) -> Result<Applied, ActError> {
        self.know(thread, None)?;
        let known = self.threads.get_mut(thread).and_then(|managed| A::place(managed).as_ref());
        if known.is_some_and(|tracked| tracked.believed.same(&wanted)) {
            return Ok(Applied::AlreadySo);
        }
        if self.mode == Mode::Live && !self.gate.is_open() {
            return Err(ActError::Unguarded);
        }
        let changed = self.change(thread, wanted);
        if let Err(ActError::Gone(_)) = changed {
            self.forget_tid(thread.tid);
        }
        changed
    }

    fn change<A: Attribute + fmt::Display>(
        &mut self,
        thread: &ThreadRef,
        wanted: A,
    ) -> Result<Applied, ActError> {
        self.look::<A>(thread, &wanted)?;
        let gone = || ActError::Gone(*thread);
        let managed = self.threads.get_mut(thread).ok_or_else(gone)?;
        let inode = managed.pidfd_inode;
        let tracked = A::place(managed).as_mut().ok_or_else(gone)?;
        if tracked.believed.same(&wanted) {
            return Ok(Applied::AlreadySo);
        }
        let before = tracked.believed;
        if self.mode == Mode::DryRun {
            tracked.believed = wanted;
            return Ok(Applied::WouldChange);
        }

        kill_point("before-journal");
        let entry = free_entry(tracked.shown);
        debug_assert_ne!(
            Some(entry),
            tracked.shown,
            "the value that the host shows is overwritten"
        );
        let slot = match tracked.slot {
            Some(slot) => {
                self.journal.record(slot, entry, &wanted.value())?;
                slot
            }
            None => {
                let identity = Identity { subject: A::subject(*thread), pidfd_inode: inode };
                self.journal.insert(&identity, &tracked.original, &wanted.value())?
            }
        };
        if tracked.slot.is_none() {
            (tracked.slot, tracked.created) = (Some(slot), boot_ticks());
        }
        tracked.wrote[entry] = Some(wanted);
        debug_assert!(
            self.journal.has_written(slot, entry),
            "{thread:?} is written before the journal has the value"
        );
        kill_point("journal-to-syscall");
        if let Err(error) = wanted.write(thread.tid) {
            return Err(refusal::of(thread, &format!("set {wanted}"), &error));
        }
        kill_point("syscall-to-ack");
        tracked.shown = Some(entry);
        tracked.believed = wanted;
        if !managed.is_alive() {
            return Err(gone());
        }
        let subject = A::subject(*thread);
        tracing::debug!(target: "quell::audit", %subject, %before, after = %wanted, "changed");
        if let Some(audit) = &mut self.audit {
            audit(&subject, &before, &wanted);
        }
        Ok(Applied::Changed)
    }

    /// Reads what the host shows, and makes `believed` right. Leaves the attribute tracked.
    fn look<A: Attribute + fmt::Display>(
        &mut self,
        thread: &ThreadRef,
        wanted: &A,
    ) -> Result<(), ActError> {
        let gone = || ActError::Gone(*thread);
        let managed = self.threads.get_mut(thread).ok_or_else(gone)?;
        if !managed.is_alive() {
            return Err(gone());
        }
        if self.mode == Mode::DryRun && A::place(managed).is_some() {
            return Ok(());
        }
        let seen = A::read(thread.tid).map_err(|error| {
            refusal::of(thread, &format!("read before setting {wanted}"), &error)
        })?;
        let Some(tracked) = A::place(managed) else {
            return self.first_look(thread, seen);
        };
        if before_write(&tracked.believed, &seen, A::same) == BeforeWrite::Write
            || tracked.believed.may_show(&seen, thread, &mut self.host)
        {
            return Ok(());
        }
        let original = A::original(thread, &mut self.host)
            .map_err(|error| refusal::of(thread, "read", &error))?;
        if let Some(slot) = tracked.slot {
            self.journal.rebase(slot, &original)?;
        }
        tracked.original = original;
        tracked.shown = None;
        tracked.believed = seen;
        let what = A::subject(*thread);
        tracing::info!(target: "quell::audit", subject = %what, %seen, "changed by somebody else");
        Err(ActError::Raced { what, seen: seen.to_string() })
    }

    fn first_look<A: Attribute>(&mut self, thread: &ThreadRef, seen: A) -> Result<(), ActError> {
        let original = A::original(thread, &mut self.host)
            .map_err(|error| refusal::of(thread, "read", &error))?;
        if let Some(managed) = self.threads.get_mut(thread) {
            *A::place(managed) = Some(Box::new(Tracked {
                slot: None,
                created: 0,
                original,
                wrote: [None, None],
                shown: None,
                believed: seen,
            }));
        }
        Ok(())
    }

    /// Forgets a thread that is gone.
    pub fn forget(&mut self, thread: &ThreadRef) {
        if self.threads.knows(thread) {
            self.forget_tid(thread.tid);
        }
    }

    fn forget_tid(&mut self, tid: Tid) {
        self.threads.forget(tid, &mut self.journal);
    }

    /// Gives a thread back as it was found, as far as it shows what Quell wrote, and forgets it.
    pub fn undo_thread(&mut self, thread: &ThreadRef) -> RestoreReport {
        self.undo_matching(|other| other == thread)
    }

    /// As [`Executor::undo_thread`], for all threads that are meant.
    pub fn undo_matching(&mut self, mut meant: impl FnMut(&ThreadRef) -> bool) -> RestoreReport {
        let mut report = RestoreReport::default();
        let threads: Vec<ThreadRef> = self
            .threads
            .iter()
            .map(|managed| managed.thread)
            .filter(|thread| meant(thread))
            .collect();
        self.host.refresh();
        for thread in threads {
            let Some(managed) = self.threads.get_mut(&thread) else { continue };
            managed.revoke();
            debug_assert!(managed.lent.is_none(), "no switch handle outlives a restore");
            for slot in managed.slots() {
                if let Ok(Some(view)) = self.journal.shared().slot(slot).read() {
                    restore::restore_slot(&view, &mut self.host, &mut report);
                }
            }
            self.forget_tid(thread.tid);
        }
        report
    }

    /// Gives everything back, newest first. The executor goes on with nothing changed.
    pub fn undo_all(&mut self) -> RestoreReport {
        self.threads.revoke_all();
        let report = match self.mode {
            Mode::Live => restore::restore_journal(self.journal.shared(), &mut self.host, &[]),
            Mode::DryRun => RestoreReport::default(),
        };
        debug_assert!(
            self.threads.iter().all(|managed| managed.lent.is_none()),
            "no switch handle outlives a restore"
        );
        self.threads.clear();
        self.texts.clear();
        self.journal.reset();
        report
    }

    /// Ends: gives everything back and removes the journal. The guardians leave when they see it closed.
    ///
    /// # Errors
    /// When the journal cannot be locked; then the guardians restore once this process ends.
    pub fn close(&mut self) -> io::Result<RestoreReport> {
        if self.mode == Mode::DryRun {
            return Ok(RestoreReport::default());
        }
        let shared = Arc::clone(self.journal.shared());
        let lock = shared.reopen()?;
        lock.lock()?;
        let report = self.undo_all();
        shared.set_stage(super::Stage::Closed);
        shared.remove()?;
        Ok(report)
    }

    /// The threads whose affinity is changed now, and the cores that each might use before.
    pub fn affinities(&self) -> impl Iterator<Item = (Tid, CoreSet)> {
        self.threads.iter().filter_map(|managed| {
            let tracked = <CoreSet as Attribute>::tracked(managed)?;
            tracked.slot?;
            let Value::Cores(original) = &tracked.original else { return None };
            Some((managed.thread.tid, original.set))
        })
    }

    /// What is changed now: what, as found, as it is.
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for managed in self.threads.iter() {
            self.list::<SchedAttr>(managed, &mut changes);
            self.list::<CoreSet>(managed, &mut changes);
        }
        changes.extend(self.texts.iter().map(|(what, tracked)| Change {
            what: what.clone(),
            old: tracked.original.clone(),
            new: tracked.believed.clone(),
        }));
        changes
    }

    fn list<A: Attribute>(&self, managed: &threads::Managed, changes: &mut Vec<Change>) {
        let Some(tracked) = A::tracked(managed) else { return };
        let (old, new) = (tracked.original.to_string(), tracked.believed.value().to_string());
        if tracked.slot.is_some() || (self.mode == Mode::DryRun && old != new) {
            changes.push(Change { what: A::subject(managed.thread), old, new });
        }
    }

    /// Reads everything back, and lists what is not what Quell last wrote. Reads /proc where in doubt.
    pub fn verify(&mut self) -> Vec<Drift> {
        let mut drifts = Vec::new();
        if self.mode == Mode::DryRun {
            return drifts;
        }
        for managed in self.threads.iter() {
            drifts.extend(drift::<SchedAttr>(managed, &mut self.host));
            drifts.extend(drift::<CoreSet>(managed, &mut self.host));
        }
        drifts.extend(self.texts.iter().filter_map(|(what, tracked)| tracked.drift(what)));
        drifts
    }
}

fn drift<A: Attribute + fmt::Display>(
    managed: &threads::Managed,
    host: &mut Host,
) -> Option<Drift> {
    let tracked = A::tracked(managed).filter(|tracked| tracked.slot.is_some())?;
    let thread = &managed.thread;
    let seen = match A::read(thread.tid) {
        Err(error) if says_gone(&error) => return None,
        seen => seen.ok(),
    };
    // A thread that is lent shows one value or the other, from one read to the next.
    let switched = |seen: &A| {
        let lent = managed.lent.as_deref().into_iter().flat_map(|lent| lent.attrs());
        lent.filter_map(|attr| A::from_value(&Value::Sched(*attr))).any(|attr| attr.same(seen))
    };
    let as_written = |seen: &A| {
        tracked.believed.same(seen)
            || switched(seen)
            || tracked.believed.may_show(seen, thread, host)
    };
    let as_written = seen.as_ref().is_some_and(as_written);
    (!as_written && managed.is_alive()).then(|| Drift {
        what: A::subject(*thread),
        expected: tracked.believed.to_string(),
        seen: seen.map_or_else(|| "a policy that Quell does not handle".into(), |v| v.to_string()),
    })
}
