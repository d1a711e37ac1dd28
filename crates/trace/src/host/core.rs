//! Cores of a [`HostState`](super::HostState).

use quell_model::{CoreId, CoreSet, Nanos};

use super::class::ClassIndex;
use super::thread::{Running, ThreadIndex};

/// What the kernel counts in a run queue, as last reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Threads in the queue, the running one included (`rq->nr_running`): since Linux 6.12 with sleepers whose
    /// dequeue is delayed.
    pub queued: u32,
    /// Threads in the queue that are runnable, the running one included.
    pub runnable: u32,
}

/// A core.
#[derive(Clone, Debug)]
pub struct HostCore {
    /// The kernel's number.
    pub id: CoreId,
    /// Index into the topology.
    pub index: usize,
    /// What has the core.
    pub running: Running,
    /// Since when.
    pub since: Nanos,
    /// Whether it is online.
    pub is_online: bool,
    /// Events were lost since the last keyframe: what waits here is not known.
    pub is_lost: bool,
    /// Threads in state waiting here.
    pub waiting: u32,
    /// Threads in state waking that are woken for this core.
    pub waking: u32,
    /// Waiting threads that are not SCHED_IDLE.
    pub(super) above_idle: u32,
    /// As last reported; `None` before.
    pub counts: Option<KernelCounts>,
    /// Runnable threads as the kernel counts them, while that is current: after an event that may have changed
    /// the queue it is not, until the next count.
    pub runnable: Option<u32>,
    /// Sum of the weights of the fair threads (`cfs_rq->load.weight`), as last reported.
    pub load_weight: u64,
    /// Its decayed average (PELT `load_avg`).
    pub load_avg: u64,
    /// A wake-up was on its way when the last keyframe was taken (`rq->ttwu_pending`).
    pub wake_pending: bool,
    /// The cores that balance with it: the span of its top scheduling domain; `None` while not reported.
    pub domain: Option<CoreSet>,
    /// The time of its last event.
    pub last_event: Nanos,
    /// Waiting and waking threads, the first that came first.
    pub(super) head: Option<ThreadIndex>,
    pub(super) tail: Option<ThreadIndex>,
    /// Waiting threads by class.
    pub(super) groups: Vec<(ClassIndex, u32)>,
    /// The number of its next event.
    pub(super) next_sequence: Option<u64>,
    /// Numbers behind the last event that belong to a loss which it reported.
    pub(super) reported_loss: u64,
    /// It is in the list of cores to settle.
    pub(super) is_dirty: bool,
}

impl HostCore {
    pub(super) fn new(id: CoreId, index: usize) -> HostCore {
        HostCore {
            id,
            index,
            running: Running::Unknown,
            since: Nanos::ZERO,
            is_online: true,
            is_lost: false,
            waiting: 0,
            waking: 0,
            above_idle: 0,
            counts: None,
            runnable: None,
            load_weight: 0,
            load_avg: 0,
            wake_pending: false,
            domain: None,
            last_event: Nanos::ZERO,
            head: None,
            tail: None,
            groups: Vec::new(),
            next_sequence: None,
            reported_loss: 0,
            is_dirty: false,
        }
    }

    /// Waiting threads by class.
    pub fn groups(&self) -> &[(ClassIndex, u32)] {
        &self.groups
    }

    /// Whether nothing is on its way to it, and it may be used.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_online && !self.is_lost && self.waking == 0 && !self.wake_pending
    }

    pub(super) fn join_group(&mut self, class: ClassIndex) {
        match self.groups.iter_mut().find(|(of, _)| *of == class) {
            Some((_, count)) => *count += 1,
            None => self.groups.push((class, 1)),
        }
    }

    pub(super) fn leave_group(&mut self, class: ClassIndex) {
        let found = self.groups.iter().position(|(of, _)| *of == class);
        debug_assert!(found.is_some(), "a waiting thread is in no group of its core");
        let Some(index) = found else { return };
        self.groups[index].1 -= 1;
        if self.groups[index].1 == 0 {
            self.groups.swap_remove(index);
        }
    }
}
