//! What a policy sees: the host at one instant.

use serde::{Deserialize, Serialize};

use crate::{
    Absence, Burst, Bytes, BytesPerSec, CoreId, CoreSet, InKernel, Limits, LockWait, Nanos,
    Outcome, Permille, RequestsPerSec, Signal, TaskId, ThreadId,
};

/// The host at one instant. Filled in place each tick; its tables keep their capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When the state was read.
    pub now: Nanos,
    /// One entry per core of the topology, in its order.
    pub cores: Vec<CoreView>,
    /// One entry per task place; a free place has `alive` false.
    pub tasks: Vec<TaskView>,
    /// Places of tasks that joined, left, or crossed a threshold since the last Snapshot, unordered.
    /// Empty does not mean that nothing moved: it means that nobody has to be looked at first.
    pub dirty: Vec<u32>,
    /// Cores that went idle since the last Snapshot.
    pub went_idle: CoreSet,
    /// Threads in [`crate::Role::Background`] are above the fair class here, so that [`CoreView::rt_share`] counts them.
    pub elevated_background: bool,
    /// What was observed of bursts of LC threads since the last Snapshot: roles that the operator gave, then overruns, proofs, exits.
    pub bursts: Vec<Burst>,
    /// What was observed of LC threads and locks of the kernel since the last Snapshot, oldest first.
    pub locks: Vec<LockWait>,
    /// Threads that are stopped inside the kernel, the longest of each kind first; BE threads only while an LC thread
    /// sleeps there.
    pub in_kernel: Vec<InKernel>,
    /// What moved between memory and caches so far, from any fixed time on: the traffic of the memory
    /// controllers, whoever caused it. A sum, so that who reads it chooses the window of the rate.
    pub memory: Signal<Bytes>,
}

/// One core as seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreView {
    /// The core.
    pub id: CoreId,
    /// Whether Quell may plan this core at all.
    pub managed: bool,
    /// Whether the kernel has it online.
    pub online: bool,
    /// The task that runs on it now, if a managed one does.
    pub running: Option<TaskId>,
    /// Since when nothing at all runs on it.
    pub idle_since: Option<Nanos>,
    /// Share of the recent window (100 ms) that LC threads ran on it.
    pub lc_busy: Signal<Permille>,
    /// Share of the recent window (250 ms) that LC threads above the fair class ran on it.
    pub rt_share: Signal<Permille>,
    /// The LC thread above the fair class that runs on it, and the length of its burst so far.
    pub burst: Option<(ThreadId, Nanos)>,
    /// Since when a kernel thread of the fair class waits for it. One that is bound to the core waits until it has run; of
    /// others it is known only that LC has had the core since they were woken.
    pub kernel_waits: Option<Nanos>,
    /// What became of the last Plan for this core.
    pub outcome: Outcome,
    /// When the request that runs on it began (a runtime or a hint tells); `Absent(NotApplicable)`
    /// when none does.
    pub request_start: Signal<Nanos>,
    /// The task whose request that is: it runs here, or is interrupted by a thread of no task (a kernel thread).
    pub serving: Option<TaskId>,
    /// What this core fetched from memory so far, from any fixed time on: a cache line for each miss in the
    /// last-level cache.
    pub memory: Signal<Bytes>,
}

/// One task as seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// Its identity.
    pub id: TaskId,
    /// Whether the place holds a task.
    pub alive: bool,
    /// What the operator asked for.
    pub limits: Limits,
    /// Threads that run now.
    pub running: u32,
    /// Threads that are runnable and wait for a core, counted from `sched_waking` on.
    pub waiting: u32,
    /// Threads that sleep.
    pub sleeping: u32,
    /// Cores on which its threads run now.
    pub running_on: CoreSet,
    /// Age of the oldest wait among its threads: the control signal (Caladan, section 4.1).
    /// `Absent(NotApplicable)` when none waits.
    pub queueing_delay: Signal<Nanos>,
    /// Longest time that one of its threads has now run without sleeping.
    pub longest_run: Signal<Nanos>,
    /// BE: how late LC threads got to run, at the 99.9th percentile of the recent window, when this task
    /// held their core as they woke, the few longest (stalls of a hypervisor) left out; its kernel
    /// sections show here.
    pub delay_caused: Signal<Nanos>,
    /// LC: tail latency that the service or its client reports.
    pub latency: Signal<Nanos>,
    /// LC: offered load.
    pub load: Signal<RequestsPerSec>,
    /// When `latency` and `load` were last reported.
    pub reported: Option<Reported>,
    /// Memory bandwidth that it uses.
    pub bandwidth: Signal<BytesPerSec>,
    /// When its oldest request in service began.
    pub request_start: Signal<Nanos>,
}

/// When something was reported, and how long that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// When it was measured.
    pub at: Nanos,
    /// From then on it is too old to act on.
    pub until: Nanos,
}

impl CoreView {
    /// A managed core that is online and of which nothing has been seen.
    pub fn new(id: CoreId) -> CoreView {
        CoreView {
            id,
            managed: true,
            online: true,
            running: None,
            idle_since: None,
            lc_busy: Signal::default(),
            rt_share: Signal::default(),
            burst: None,
            kernel_waits: None,
            outcome: Outcome::Done,
            request_start: Signal::default(),
            serving: None,
            memory: Signal::default(),
        }
    }
}

impl TaskView {
    /// A task of which nothing has been seen: no threads, and no signal has a source.
    pub fn new(id: TaskId, limits: Limits) -> TaskView {
        TaskView {
            id,
            alive: true,
            limits,
            running: 0,
            waiting: 0,
            sleeping: 0,
            running_on: CoreSet::EMPTY,
            queueing_delay: Signal::Absent(Absence::NotApplicable),
            longest_run: Signal::Absent(Absence::NotApplicable),
            delay_caused: Signal::default(),
            latency: Signal::default(),
            load: Signal::default(),
            reported: None,
            bandwidth: Signal::default(),
            request_start: Signal::default(),
        }
    }

    /// Threads that could use a core now.
    pub fn runnable(&self) -> u32 {
        self.running + self.waiting
    }

    /// Whether the oldest wait reached the task's target.
    pub fn is_congested(&self) -> bool {
        self.waiting > 0
            && self
                .queueing_delay
                .value()
                .is_some_and(|delay| delay >= self.limits.times.delay_target)
    }
}
