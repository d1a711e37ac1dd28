//! What one event changed, as the host state reports it.

use quell_model::{CoreId, CoreSet, Nanos};

use super::waiters::WaiterId;
use crate::host::{ClassIndex, HostCore, HostThread, HostVisitor, ThreadState};

/// Events of a core that are missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) core: CoreId,
    /// When the core reported something last before it.
    pub(super) from: Nanos,
    pub(super) count: u64,
}

/// A wake-up onto a busy core although others were idle and allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyWakeup {
    /// Index into the topology.
    pub(super) onto: usize,
    pub(super) idle: CoreSet,
}

/// How a thread that waits or waited was after one step of an event: a slot may have another thread after the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaiterChange {
    pub(super) waiter: WaiterId,
    pub(super) state: ThreadState,
    /// Index into the topology.
    pub(super) core: usize,
    pub(super) class: ClassIndex,
}

/// Changes since they were read last, in memory that is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    /// Threads that began or ceased to wait, or wait elsewhere or in another class now.
    pub(super) waiters: Vec<WaiterChange>,
    /// Cores whose queue or running thread changed.
    pub(super) cores: Vec<CoreId>,
    /// The set of idle cores changed, or of those that run SCHED_IDLE threads only.
    pub(super) has_shifted: bool,
    /// Queues out of which a waiting thread was moved.
    pub(super) relieved: Vec<CoreId>,
    pub(super) losses: Vec<Loss>,
    pub(super) busy_wakeup: Option<BusyWakeup>,
}

impl Changes {
    pub(super) fn clear(&mut self) {
        self.waiters.clear();
        self.losses.clear();
        self.cores.clear();
        self.relieved.clear();
        (self.has_shifted, self.busy_wakeup) = (false, None);
    }
}

impl HostVisitor for Changes {
    const TRACKS_PLACEMENT: bool = true;

    fn waiter_changed(&mut self, thread: &HostThread, _at: Nanos) {
        self.waiters.push(WaiterChange {
            waiter: WaiterId::of(thread),
            state: thread.state,
            core: thread.core,
            class: thread.class,
        });
    }

    fn woken_beside_idle(
        &mut self,
        _thread: &HostThread,
        onto: &HostCore,
        idle: &CoreSet,
        _at: Nanos,
    ) {
        self.busy_wakeup = Some(BusyWakeup { onto: onto.index, idle: *idle });
    }

    fn core_lost(&mut self, core: &HostCore, from: Nanos, _at: Nanos, count: u64) {
        self.losses.push(Loss { core: core.id, from, count });
    }

    fn core_changed(&mut self, core: &HostCore, _at: Nanos) {
        self.cores.push(core.id);
    }

    fn idle_set_changed(&mut self, _at: Nanos) {
        self.has_shifted = true;
    }
}
