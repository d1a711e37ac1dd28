//! Locks of the kernel that LC threads wait for, and threads that are stopped inside the kernel.

use quell_model::{InKernel, KernelStop, LockState, LockWait, Nanos, Role, Snapshot, ThreadId};

use super::views::Views;
use crate::{ThreadState, ThreadView};

/// Threads of each kind in a Snapshot: the one that waits longest may hold what is needed.
const IN_KERNEL_MAX: usize = 16;

/// An event of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockEvent {
    pub waiter: ThreadId,
    /// `None`: the waiting thread gets it.
    pub owner: Option<ThreadId>,
}

impl Views {
    /// An event as policies see it; `None` if one of its threads is gone.
    fn lock_wait(&self, event: LockEvent) -> Option<LockWait> {
        let waiter = self.view_of(event.waiter)?;
        let state = match event.owner {
            None => LockState::Released,
            Some(owner) => LockState::Owned { owner, task: self.view_of(owner)?.task },
        };
        Some(LockWait { waiter: event.waiter, task: waiter.task, state })
    }

    /// Moves the events to the Snapshot, and fills in who is stopped inside the kernel.
    pub fn tell_locks(&self, events: &mut Vec<LockEvent>, seen: &mut Snapshot) {
        seen.locks.extend(events.drain(..).filter_map(|event| self.lock_wait(event)));
        seen.in_kernel.clear();
        self.find_stopped(KernelStop::Sleeps, seen);
        if !seen.in_kernel.is_empty() {
            self.find_stopped(KernelStop::InTransaction, seen);
            self.find_stopped(KernelStop::Waits, seen);
        }
    }

    fn find_stopped(&self, stop: KernelStop, seen: &mut Snapshot) {
        let from = seen.in_kernel.len();
        let is_judged = |view: &ThreadView| match self.role_of(view.id) {
            Some(Role::Boosted | Role::Event | Role::LongEvent) => true,
            Some(Role::Background | Role::Fair) | None => false,
        };
        let stopped = self.in_kernel().filter(|view| match stop {
            KernelStop::Sleeps => view.lc && view.state == ThreadState::Sleeping && is_judged(view),
            KernelStop::Waits | KernelStop::InTransaction => {
                let is_inside = self.is_in_transaction(view.id);
                let waits = !view.lc && view.state == ThreadState::Waiting;
                waits && is_inside == (stop == KernelStop::InTransaction)
            }
        });
        seen.in_kernel.extend(stopped.map(|view| {
            let ThreadView { id: thread, task, core, since, .. } = *view;
            InKernel { thread, task, core, since, stop }
        }));
        let since = |stopped: &InKernel| -> (Nanos, ThreadId) { (stopped.since, stopped.thread) };
        seen.in_kernel[from..].sort_unstable_by_key(since);
        seen.in_kernel.truncate(from + IN_KERNEL_MAX);
    }
}
