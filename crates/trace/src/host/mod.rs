//! The one state of a host, rebuilt from events: which thread runs, waits or sleeps where.
//!
//! [`HostState`] takes [`Event`]s and reports changes to a [`HostVisitor`]; [`WastedTime`] integrates how much time
//! of idle cores was wasted. `check`, `stats`, `why`, `view` and the importers of texts all read these two.
//!
//! The rules that earlier versions of these readers did not agree on (`docs/lab/host-state-differences.md` lists them):
//! - A wakeup latency starts at `sched_waking`, waiting in a queue at `sched_wakeup`. A stream without
//!   `sched_wakeup` (`perf sched record` of recent kernels) has both at `sched_waking`.
//! - A thread whose first event is a switch-in was *unknown* before.
//! - A tid that is used again is a new thread: after its end, at a fork, and at a first wake-up.
//! - Lost events make their core unknown, a keyframe makes it known. What was in its queue is unknown too.
//! - A switch to the idle thread empties the queue: the kernel would not idle otherwise.
//! - A switch away from another thread than the one that ran shows that switches were missed.

mod apply;
mod class;
mod core;
mod keyframe;
mod matching;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod thread;
mod usable;
mod validate;
mod visitor;
mod wasted;

use std::collections::{BTreeSet, HashMap};

use quell_model::{CoreId, CoreSet, Event, Keyframe, Meta, Nanos, Runner, Source, Topology};

pub use class::{ClassIndex, PlanCores, WaiterKey};
pub use core::{HostCore, KernelCounts};
pub use thread::{HostThread, Occupant, Running, ThreadIndex, ThreadState};
pub use usable::{PolicyReason, UsableCores};
pub use visitor::HostVisitor;
pub use wasted::{CoreTimes, WastedCores, WastedSplit, WastedTime};

use class::Classes;
use thread::ThreadTable;

/// What a source reports of run queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// Each core has a queue of threads.
    PerCore,
    /// Only how long the queues are.
    SizesOnly,
    /// All cores are searched for a waiting thread: the core under which it is filed may well be idle.
    Shared,
}

impl Queues {
    fn of(source: Source) -> Queues {
        match source {
            Source::WastedCores => Queues::SizesOnly,
            Source::Simulator => Queues::Shared,
            _ => Queues::PerCore,
        }
    }
}

/// The state of a host after the events so far.
#[derive(Clone, Debug)]
pub struct HostState {
    topology: Topology,
    queues: Queues,
    assumes_free_affinity: bool,
    cores: Vec<HostCore>,
    threads: ThreadTable,
    classes: Classes,
    /// Plans of Quell by tgid and by tid; the latter win.
    process_plans: HashMap<i32, PlanCores>,
    thread_plans: HashMap<i32, PlanCores>,
    /// Threads of the checker itself.
    own: BTreeSet<i32>,
    origin: Option<Nanos>,
    now: Nanos,
    /// When [`HostState::cut`] was called last.
    cut_at: Nanos,
    /// The stream has `sched_wakeup`.
    has_wakeups: bool,
    /// A thread waits on the core under which it is filed: moves are reported.
    has_migrations: bool,
    /// Wake-ups whose thread has not run yet, and the number of losses that made earlier ones unknown.
    pending_wakeups: u64,
    wakeup_epoch: u32,
    idle: CoreSet,
    sched_idle_only: CoreSet,
    contended: CoreSet,
    lost: CoreSet,
    /// Cores to settle, by index.
    dirty: Vec<u16>,
    epoch: u64,
    keyframes: u64,
    incomplete: Option<u64>,
    overflowed: bool,
}

impl HostState {
    /// The host of a trace before its first event: nothing is known of it.
    pub fn new(meta: &Meta) -> HostState {
        let cores = meta.topology.cores().iter().enumerate();
        HostState {
            queues: Queues::of(meta.source),
            assumes_free_affinity: !matches!(meta.source, Source::Recorder | Source::Simulator),
            cores: cores.map(|(index, core)| HostCore::new(core.id, index)).collect(),
            topology: meta.topology.clone(),
            threads: ThreadTable::default(),
            classes: Classes::new(),
            process_plans: HashMap::new(),
            thread_plans: HashMap::new(),
            own: BTreeSet::new(),
            origin: None,
            now: Nanos::ZERO,
            cut_at: Nanos::ZERO,
            has_wakeups: has_wakeups(meta),
            has_migrations: meta.source != Source::Recorder || has_hook(meta, "sched_migrate_task"),
            pending_wakeups: 0,
            wakeup_epoch: 1,
            idle: CoreSet::EMPTY,
            sched_idle_only: CoreSet::EMPTY,
            contended: CoreSet::EMPTY,
            lost: CoreSet::EMPTY,
            dirty: Vec::new(),
            epoch: 0,
            keyframes: 0,
            incomplete: None,
            overflowed: false,
        }
    }

    /// Takes the next event. One that is older than its predecessor counts as simultaneous with it.
    pub fn push<V: HostVisitor>(&mut self, event: &Event, visitor: &mut V) {
        self.advance(event.at);
        let here = self.topology.position(event.core);
        if let Some(here) = here {
            self.take_sequence(here, event, visitor);
        }
        self.apply(here, &event.what, visitor);
        if let Some(here) = here {
            self.cores[here].last_event = self.now;
        }
        self.settle(visitor);
    }

    /// Takes a keyframe that belongs to no stream.
    pub fn push_keyframe<V: HostVisitor>(
        &mut self,
        at: Nanos,
        keyframe: &Keyframe,
        visitor: &mut V,
    ) {
        self.advance(at);
        self.resync(keyframe, visitor);
        self.settle(visitor);
    }

    /// Takes the name, process and priority of a thread, where a source has them beside its events. Of a thread that
    /// no event has named nothing is kept.
    pub fn describe<V: HostVisitor>(&mut self, info: &Runner, visitor: &mut V) {
        if let Some(index) = self.threads.find(info.thread)
            && self.threads[index].info != *info
        {
            self.describe_as(index, info, visitor);
            self.settle(visitor);
        }
    }

    fn advance(&mut self, at: Nanos) {
        if self.origin.is_none() {
            self.origin = Some(at);
            self.cores.iter_mut().for_each(|core| (core.since, core.last_event) = (at, at));
        }
        self.now = self.now.max(at);
    }

    /// The shape of the host. Indices of cores are those of [`Topology::cores`].
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What the source reports of run queues.
    pub fn queues(&self) -> Queues {
        self.queues
    }

    /// The time of the first event; `None` before it.
    pub fn origin(&self) -> Option<Nanos> {
        self.origin
    }

    /// The time of the last event.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The cores by index.
    pub fn cores(&self) -> &[HostCore] {
        &self.cores
    }

    /// A core by its number.
    pub fn core(&self, core: CoreId) -> Option<&HostCore> {
        self.topology.position(core).map(|index| &self.cores[index])
    }

    /// What has a core.
    pub fn occupant(&self, core: usize) -> Occupant<'_> {
        match self.cores[core].running {
            Running::Unknown => Occupant::Unknown,
            Running::Idle => Occupant::Idle,
            Running::Thread(index) => Occupant::Thread(&self.threads[index]),
        }
    }

    /// The thread in a slot; of a free slot the one that ended there last.
    pub fn thread(&self, index: ThreadIndex) -> &HostThread {
        &self.threads[index]
    }

    /// The live thread that has this tid.
    pub fn thread_by_tid(&self, tid: i32) -> Option<&HostThread> {
        self.threads.find(tid).map(|index| &self.threads[index])
    }

    /// All live threads that are known, in no particular order.
    pub fn threads(&self) -> impl Iterator<Item = &HostThread> {
        self.threads.iter()
    }

    /// Threads in state waiting on a core, the first that came first.
    pub fn waiters(&self, core: usize) -> impl Iterator<Item = &HostThread> {
        self.listed(core).filter(|thread| thread.state == ThreadState::Waiting)
    }

    /// Waiting and waking threads of a core, the first that came first.
    fn listed(&self, core: usize) -> impl Iterator<Item = &HostThread> {
        let first = self.cores[core].head.map(|index| &self.threads[index]);
        std::iter::successors(first, |thread| thread.next.map(|next| &self.threads[next]))
    }

    /// The affinity, priority and plan of the threads of a class.
    pub fn class(&self, class: ClassIndex) -> &WaiterKey {
        self.classes.key(class)
    }

    /// The number of class indices so far.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Grows whenever the index of a class that had no threads any more is used for another one.
    pub fn classes_rekeyed(&self) -> u64 {
        self.classes.rekeyed()
    }

    /// The cores that a thread may use; `None` while not reported.
    pub fn allowed(&self, thread: &HostThread) -> Option<CoreSet> {
        self.classes.key(thread.class).allowed
    }

    /// Whether a thread is one of the checker's.
    pub fn is_own(&self, tid: i32) -> bool {
        self.own.contains(&tid)
    }

    /// When the wake-up began from which a thread has not run yet.
    pub fn woken_at(&self, thread: &HostThread) -> Option<Nanos> {
        (thread.wakeup_epoch == self.wakeup_epoch).then_some(thread.woken_at)
    }

    /// Known online cores that run the idle thread and for which nothing is queued or on its way. A core that
    /// runs a thread of the checker counts as if it did not.
    pub fn idle(&self) -> &CoreSet {
        &self.idle
    }

    /// Known online cores on which only SCHED_IDLE threads run and wait.
    pub fn sched_idle_only(&self) -> &CoreSet {
        &self.sched_idle_only
    }

    /// Known online cores on which threads wait behind another thread. Not where the kernel counts fewer runnable
    /// threads than wait by the events: some of those are throttled, and nothing says which.
    pub fn contended(&self) -> &CoreSet {
        &self.contended
    }

    /// Cores of which events were lost since the last keyframe.
    pub fn lost(&self) -> &CoreSet {
        &self.lost
    }

    /// Grows with each event after which idle cores, the threads that wait behind another or that thread may differ.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Keyframes so far: the number of the present interval between keyframes; 0 before the first.
    pub fn interval(&self) -> u64 {
        self.keyframes
    }

    /// The last interval between keyframes in which events were lost.
    pub fn last_incomplete_interval(&self) -> Option<u64> {
        self.incomplete
    }

    /// Whether a thread could not be followed since there were too many.
    pub fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Ends the spans of waiting threads here and begins new ones, so that what is reported later does not reach
    /// back beyond this time.
    pub fn cut<V: HostVisitor>(&mut self, visitor: &mut V) {
        self.cut_at = self.now;
        for core in 0..self.cores.len() {
            let mut next = self.cores[core].head;
            while let Some(index) = next {
                next = self.threads[index].next;
                self.end_span(index, self.now, visitor);
                self.threads[index].since = self.now;
            }
        }
    }

    /// Reports the spans that last until now; the stream is over.
    pub fn finish<V: HostVisitor>(&mut self, visitor: &mut V) {
        for core in 0..self.cores.len() {
            self.end_occupancy(core, self.now, Nanos::ZERO, visitor);
        }
        for slot in 0..self.threads.slots() {
            if let Some(index) = self.threads.get(slot).map(|thread| thread.index) {
                self.end_span(index, self.now, visitor);
                self.threads[index].since = self.now;
            }
        }
    }
}

/// Whether a source has `sched_wakeup` from its first event on. Of a text only an event shows it.
fn has_wakeups(meta: &Meta) -> bool {
    match meta.source {
        Source::Recorder => has_hook(meta, "sched_wakeup"),
        source => source == Source::Simulator,
    }
}

/// Whether a recorder had a program at this tracepoint, as far as it says so.
fn has_hook(meta: &Meta, name: &str) -> bool {
    meta.hooks.is_empty() || meta.hooks.iter().any(|hook| hook == name)
}
