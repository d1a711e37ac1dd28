//! Linux's own scheduler: a queue for each core, and a load balancer between them.
//!
//! A state machine without time and chance of its own. The engine says what happens (a thread wakes, sleeps, forks; a tick
//! passes) and when; the machine answers which cores have to reschedule and what they run next. Written from descriptions of
//! the kernel's behaviour; each part cites the kernel function that it models.
//!
//! | module | models |
//! | --- | --- |
//! | `model` | which version has which part |
//! | `fair` | the order of fair threads: CFS, EEVDF |
//! | `fair_server` | what fair threads get beside real-time ones |
//! | `load`, `sums` | decayed loads of threads, groups and cores |
//! | `queue` | threads that come into and leave the queue of a core, and which one it runs |
//! | `realtime`, `cpupri` | real-time threads, pushed and pulled, and which cores run them |
//! | `domains` | levels of domains and the state of their balancing |
//! | `balance` | passes of the load balancer |
//! | `hotplug` | cores that go online and offline |
//! | `record` | what searches and passes saw, for traces |
//! | `wake`, `fork` | where woken and new threads go |
//! | `waste`, `masks` | idle cores that could run what waits elsewhere |

mod balance;
mod cpupri;
mod domains;
mod fair;
mod fair_server;
mod fork;
mod hotplug;
mod load;
mod masks;
mod model;
mod queue;
mod realtime;
mod record;
mod sums;
#[cfg(test)]
mod tests;
mod wake;
mod waste;
pub(crate) mod weights;

use quell_model::{CoreId, CoreSet, MoveCause, Nanos, Topology};

pub use model::{
    Balancer, Fix, Fixes, KernelModel, LevelRules, LoadMetric, Picker, RtLimit, WakeSearch,
};

use cpupri::RealtimeCores;
use domains::Domains;
use fair::{FairQueue, Tunables};
use load::Share;
pub(crate) use record::{Record, SearchRecord};
use sums::{GroupCore, Sums};

/// The class of a thread, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SchedClass {
    /// First in, first out; a higher priority preempts at once.
    RealTime(u8),
    /// By weight.
    Fair { weight: u64 },
    /// Fair, with the least weight; any other fair thread preempts it.
    Idle,
}

impl SchedClass {
    fn weight(self) -> u64 {
        match self {
            SchedClass::RealTime(_) => 0,
            SchedClass::Fair { weight } => weight,
            SchedClass::Idle => weights::SCHED_IDLE,
        }
    }

    fn is_fair(self) -> bool {
        !matches!(self, SchedClass::RealTime(_))
    }
}

/// The task group of threads that are in no other.
pub(crate) const ROOT: usize = 0;

/// What the scheduler knows of a thread.
#[derive(Clone, Debug)]
pub(crate) struct SchedThread {
    class: SchedClass,
    group: usize,
    allowed: CoreSet,
    /// The core in whose queue it is, or was last.
    core: usize,
    /// It is in that queue: it waits or runs.
    is_queued: bool,
    /// It was queued once.
    has_run: bool,
    /// The number of its allowed cores in [`masks::Masks`].
    mask: u32,
    /// Its place in virtual time while it is in no queue.
    place: i64,
    /// For how much of the past it was runnable, and what of its weight is in the sums of its core.
    share: Share,
    counted: Sums,
    /// For how much of the past it ran, and ran or waited (`util_avg`, `runnable_avg`).
    used: Share,
    runnable: Share,
    /// When it left its core last, or came to it.
    ran_at: Nanos,
    /// The thread that it woke last, and how often it woke another one than before; halved each second (`wakee_flips`).
    last_wakee: usize,
    flips: u32,
    flips_at: Nanos,
}

/// The queue of a core (`struct rq`).
#[derive(Clone, Debug)]
pub(crate) struct CoreQueue {
    root: FairQueue,
    /// Real-time threads that wait, the next one first.
    realtime: Vec<usize>,
    running: Option<usize>,
    /// Up to when the running thread is charged.
    charged: Nanos,
    /// Fair threads of all groups, the running one included, the newest last (`cfs_tasks`).
    fair: Vec<usize>,
    /// Those that run or wait, of all classes; with delayed sleepers (`nr_running`).
    queued: u32,
    /// What the core does in a time against the fastest ones, in 1/1,024ths (`arch_scale_cpu_capacity`).
    scale: u64,
    /// The sum of [`CoreQueue::queued`] over time, up to [`CoreQueue::charged`].
    queued_time: Nanos,
    /// Since when it idles, and how long it usually does (`avg_idle`).
    idle_since: Nanos,
    mean_idle: Nanos,
    /// For how much of the past fair threads ran, and real-time threads.
    fair_share: Share,
    /// The sum over its fair threads of how much of the past they ran or waited.
    fair_runnable: Share,
    realtime_share: Share,
    next_balance: Nanos,
    /// Where the last pass found a thread that only the stopper could move.
    pushes_from: Option<usize>,
    limit: realtime::Limit,
}

/// A task group: a cgroup or a session.
#[derive(Clone, Debug)]
struct TaskGroup {
    /// Its weight on all cores together (`cpu.shares`).
    shares: u64,
    /// By core index.
    on: Vec<GroupCore>,
    /// Of all cores.
    total: Sums,
}

/// A thread that was moved from queue to queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Migration {
    pub thread: usize,
    pub from: usize,
    pub to: usize,
    pub cause: MoveCause,
}

/// The scheduler of a host. Cores are numbered as in the topology, threads as they were added.
#[derive(Clone, Debug)]
pub(crate) struct Linux {
    model: KernelModel,
    tunables: Tunables,
    topology: Topology,
    near: Vec<waste::Near>,
    waste: waste::WasteCounts,
    online: CoreSet,
    /// Some core has been offline.
    after_hotplug: bool,
    cores: Vec<CoreQueue>,
    threads: Vec<SchedThread>,
    groups: Vec<TaskGroup>,
    domains: Domains,
    /// Cores that are online and have nothing in their queues.
    idle: CoreSet,
    /// Cores that have idled since their last tick (`nohz.idle_cpus_mask`).
    tickless: CoreSet,
    /// Cores with more than one thread in their queue.
    crowded: CoreSet,
    /// What passes see of each core, but for those that have changed since.
    views: Vec<balance::CoreView>,
    stale: CoreSet,
    /// Idle cores of which passes need not look at the load again.
    still: CoreSet,
    /// Cores that have to look for what they run next.
    resched: CoreSet,
    /// Some core had two threads when this was looked at last (`rd->overload`).
    is_overloaded: bool,
    /// When an idle core is to balance for all (`nohz.next_balance`).
    nohz_next: Nanos,
    migrations: Vec<Migration>,
    /// Real-time threads in all queues, and cores on which one waits (`rd->rto_mask`).
    realtime_queued: usize,
    realtime_levels: realtime::Levels,
    /// Scratch: threads that a core pushes.
    pushed: Vec<usize>,
    realtime_waits: CoreSet,
    /// Cores that run one.
    realtime_runs: RealtimeCores,
    /// Searches, passes and domains, where a trace is made.
    records: Option<Vec<Record>>,
}

impl Linux {
    /// A host without threads.
    pub fn new(model: KernelModel, topology: &Topology) -> Linux {
        let cores = topology.cores().last().map_or(0, |core| core.id.index() + 1);
        let tunables = Tunables::of_cores(topology.len());
        let queue = CoreQueue {
            root: FairQueue::new(model.picker, tunables),
            realtime: Vec::new(),
            running: None,
            charged: Nanos::ZERO,
            fair: Vec::new(),
            queued: 0,
            scale: balance::ONE,
            queued_time: Nanos::ZERO,
            idle_since: Nanos::ZERO,
            mean_idle: Nanos(2 * balance::MIGRATION_COST.0),
            fair_share: Share::none(Nanos::ZERO),
            fair_runnable: Share::none(Nanos::ZERO),
            realtime_share: Share::none(Nanos::ZERO),
            next_balance: Nanos::ZERO,
            pushes_from: None,
            limit: realtime::Limit::default(),
        };
        let mut queues = vec![queue; cores];
        for core in topology.cores() {
            queues[core.id.index()].scale = u64::from(topology.capacity(core.id));
        }
        let online = topology.all();
        let mut linux = Linux {
            model,
            tunables,
            topology: topology.clone(),
            near: waste::Near::of_all(topology),
            waste: waste::WasteCounts::new(cores),
            online,
            after_hotplug: false,
            cores: queues,
            threads: Vec::new(),
            groups: Vec::new(),
            domains: Domains::build(topology, &online, &model, false),
            idle: online,
            tickless: online,
            crowded: CoreSet::EMPTY,
            views: vec![balance::CoreView::default(); cores],
            stale: online,
            still: CoreSet::EMPTY,
            resched: CoreSet::EMPTY,
            is_overloaded: false,
            nohz_next: Nanos::ZERO,
            migrations: Vec::new(),
            realtime_queued: 0,
            realtime_levels: realtime::Levels::EMPTY,
            pushed: Vec::new(),
            realtime_waits: CoreSet::EMPTY,
            realtime_runs: RealtimeCores::new(cores),
            records: None,
        };
        linux.add_group(weights::NICE_0);
        linux
    }

    /// A task group with this weight; the first one is [`ROOT`].
    pub fn add_group(&mut self, shares: u64) -> usize {
        let core = GroupCore::new(FairQueue::new(self.model.picker, self.tunables));
        let on = vec![core; self.cores.len()];
        self.groups.push(TaskGroup { shares, on, total: Sums::default() });
        self.groups.len() - 1
    }

    /// A thread that sleeps on this core.
    pub fn add_thread(
        &mut self,
        class: SchedClass,
        group: usize,
        allowed: CoreSet,
        core: CoreId,
        now: Nanos,
    ) -> usize {
        debug_assert!(group < self.groups.len(), "group {group} is not there");
        self.threads.push(SchedThread {
            class,
            group,
            allowed,
            core: core.index(),
            is_queued: false,
            has_run: false,
            mask: self.waste.masks.take(&allowed, &self.near),
            place: 0,
            share: Share::new(self.model.load, self.tunables.granularity, now),
            counted: Sums::default(),
            used: Share::none(now),
            runnable: Share::none(now),
            ran_at: Nanos::ZERO,
            last_wakee: usize::MAX,
            flips: 0,
            flips_at: now,
        });
        self.threads.len() - 1
    }

    /// A thread that is in no queue will be in this task group. In another one than before it has no past.
    pub fn join_group(&mut self, thread: usize, group: usize, now: Nanos) {
        debug_assert!(!self.is_queued(thread), "thread {thread} is in a queue");
        debug_assert!(group < self.groups.len(), "group {group} is not there");
        if self.threads[thread].group == group {
            return;
        }
        if !self.is_new(thread) {
            self.reset(thread, now);
        }
        self.threads[thread].group = group;
    }

    /// The lowest core that has to reschedule.
    pub fn next_resched(&self) -> Option<CoreId> {
        self.resched.first()
    }

    /// The thread is in the queue of a core, where it waits or runs.
    pub fn is_queued(&self, thread: usize) -> bool {
        self.threads[thread].is_queued
    }

    /// The thread has been in no queue yet: it is to be forked.
    pub fn is_new(&self, thread: usize) -> bool {
        !self.threads[thread].has_run
    }

    /// The core in whose queue the thread is, or was last.
    pub fn last_core(&self, thread: usize) -> CoreId {
        Linux::id(self.threads[thread].core)
    }

    /// What was moved since the last time, in place of what is in the list.
    pub fn take_migrations(&mut self, into: &mut Vec<Migration>) {
        into.clear();
        std::mem::swap(&mut self.migrations, into);
    }

    /// The weight of all fair threads of a core, and its load as the balancer sees it.
    pub fn load(&self, core: CoreId, now: Nanos) -> (u64, u64) {
        (self.cores[core.index()].root.weight(), self.core_load(core.index(), now))
    }

    /// The cores with which this one balances.
    pub fn reach(&self, core: CoreId) -> CoreSet {
        self.domains.levels(core.index()).last().map_or(CoreSet::of(core), |level| level.span)
    }

    /// What runs on a core.
    #[cfg(test)]
    pub fn running(&self, core: CoreId) -> Option<usize> {
        self.cores[core.index()].running
    }

    /// Threads in the queue of a core, the running one and delayed sleepers included (`nr_running`).
    pub fn queued(&self, core: CoreId) -> u32 {
        self.cores[core.index()].queued
    }

    /// For how long threads were in the queue of a core so far, all of them together.
    pub fn queued_time(&self, core: CoreId, now: Nanos) -> Nanos {
        let queue = &self.cores[core.index()];
        Nanos(queue.queued_time.0 + u64::from(queue.queued) * now.since(queue.charged).0)
    }

    /// Idle cores have a tick, too.
    pub fn ticks_idle(&self) -> bool {
        !self.model.nohz
    }

    /// The next tick of any core after this time.
    pub fn next_tick(&self, now: Nanos) -> Nanos {
        let tick = self.model.tick.0;
        Nanos((now.0 / tick + 1) * tick)
    }

    /// The core at an index.
    fn id(core: usize) -> CoreId {
        CoreId(core as u16)
    }

    fn is_idle(&self, core: usize) -> bool {
        self.idle.contains(Linux::id(core))
    }

    /// The thread may use this core, and the core is there.
    fn may_use(&self, thread: usize, core: usize) -> bool {
        let id = Linux::id(core);
        self.threads[thread].allowed.contains(id) && self.online.contains(id)
    }
}
