//! Switch handles: how the scheduler of a lane changes the rung of a member without the executor.
//!
//! A switch must wait for nothing and record nothing. So both values of a thread stand in its journal slot before the
//! executor lends the handle ([`super::Executor::lend`]), and whatever the host shows later is Quell's to restore. A
//! handle pins one thread and knows two values; it can do nothing else. The executor revokes it before it restores.

mod lease;

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use self::lease::Lease;
use super::executor::refusal;
use super::{ActError, Applied, Gate, SchedAttr, Subject, kill_point, sched};
use quell_os::{ThreadRef, ThreadStat, pidfd};

/// What both sides of a lent thread hold.
pub(super) struct Lent {
    thread: ThreadRef,
    /// A handle on the thread; `None` where the kernel has none for it: then its start time is read.
    pidfd: Option<OwnedFd>,
    attrs: [SchedAttr; 2],
    gate: Gate,
    lease: Lease<AtomicU32>,
}

impl Lent {
    pub(super) fn new(
        thread: ThreadRef,
        pidfd: Option<OwnedFd>,
        attrs: [SchedAttr; 2],
        gate: Gate,
    ) -> Lent {
        Lent { thread, pidfd, attrs, gate, lease: Lease::new(0) }
    }

    /// The two values.
    pub(super) fn attrs(&self) -> &[SchedAttr; 2] {
        &self.attrs
    }

    /// Ends all switches; the value that the host shows since.
    pub(super) fn revoke(&self) -> SchedAttr {
        self.attrs[self.lease.revoke()]
    }

    fn is_alive(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => pidfd::is_alive(pidfd.as_fd()).unwrap_or(false),
            None => ThreadStat::of(self.thread.tgid, self.thread.tid)
                .is_ok_and(|stat| stat.start_ticks == self.thread.start_ticks),
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("thread", &self.thread).field("lease", &self.lease).finish()
    }
}

/// The right to switch one thread between two values. One owner, on whichever thread.
#[derive(Debug)]
pub struct SwitchHandle(Arc<Lent>);

impl SwitchHandle {
    pub(super) fn new(lent: Arc<Lent>) -> SwitchHandle {
        SwitchHandle(lent)
    }

    /// The thread.
    pub fn thread(&self) -> ThreadRef {
        self.0.thread
    }

    /// Index of the value that the thread has, as far as known.
    pub fn shown(&self) -> usize {
        self.0.lease.shown()
    }

    /// Gives the thread the value of this index: four system calls, two of them on its identity. Takes no lock, writes
    /// no journal entry, waits for nothing.
    ///
    /// # Errors
    /// [`ActError::Revoked`] once the executor took the handle back, [`ActError::Raced`] where the thread shows neither
    /// value: something else changed it; [`ActError::Unguarded`], [`ActError::Gone`] and the kernel's refusals.
    pub fn switch_to(&mut self, to: usize) -> Result<Applied, ActError> {
        let lent = &*self.0;
        debug_assert!(to < 2, "a handle knows two values");
        if lent.lease.shown() == to {
            return Ok(Applied::AlreadySo);
        }
        if !lent.gate.is_open() {
            return Err(ActError::Unguarded);
        }
        let shown = lent.lease.begin().map_err(|_| ActError::Revoked(lent.thread))?;
        let switched = lent.switch(shown, to);
        // A thread that died on the way shows neither.
        let wrote = matches!(switched, Ok(_) | Err(ActError::Gone(_)));
        lent.lease.end(if wrote { to } else { shown });
        switched
    }
}

impl Lent {
    fn switch(&self, shown: usize, to: usize) -> Result<Applied, ActError> {
        let wanted = &self.attrs[to];
        if !self.is_alive() {
            return Err(ActError::Gone(self.thread));
        }
        let seen = quell_os::sched::attr(self.thread.tid).map_err(|error| {
            refusal::of(&self.thread, &format!("read before setting {wanted}"), &error)
        })?;
        if !seen.same_effect(&self.attrs[shown]) {
            let what = Subject::Sched(self.thread);
            return Err(ActError::Raced { what, seen: seen.to_string() });
        }
        kill_point("before-switch");
        sched::set_attr(self.thread.tid, wanted)
            .map_err(|error| refusal::of(&self.thread, &format!("set {wanted}"), &error))?;
        kill_point("after-switch");
        match self.is_alive() {
            true => Ok(Applied::Changed),
            false => Err(ActError::Gone(self.thread)),
        }
    }
}
