//! What is simulated.

use quell_model::{CoreId, CoreSet, Nanos};
use quell_policy::Host;

use crate::kernel::linux::KernelModel;
use crate::machine::Machine;
use crate::workload::Task;

/// A host, its tasks, what goes wrong, and what changes on the way.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// For tables, plots and traces.
    pub name: String,
    /// The host that the policy is told of.
    pub host: Host,
    /// What its cores share.
    pub machine: Machine,
    /// How the kernel schedules threads.
    pub kernel: Kernel,
    /// Tasks by place.
    pub tasks: Vec<Task>,
    /// What switches and actions cost.
    pub costs: Costs,
    /// What the back end does wrong.
    pub faults: Faults,
    /// When what changes, in any order.
    pub changes: Vec<(Nanos, Change)>,
    /// How long to simulate.
    pub length: Nanos,
    /// Requests that arrive before this are served but not reported, and batch work is not counted.
    pub warm_up: Nanos,
    /// Decisions are at least this far apart.
    pub tick: Nanos,
    /// The interval of the timeline; zero: none is kept.
    pub sample: Nanos,
    /// How often services report their 99th percentile and their rate to the policy; zero: they do not.
    pub feed: Nanos,
    /// The seed of all chance.
    pub seed: u64,
}

/// How the kernel schedules threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernel {
    /// One queue for all cores: a thread never waits while a core that it may use idles.
    #[default]
    Global,
    /// A queue for each core, and a load balancer.
    Linux(KernelModel),
}

/// What it takes to change who runs. Actions take half to one and a half times their figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// From a wake-up of a thread (no runtime's) until its core hears of it; what runs there goes on meanwhile.
    pub wake: Nanos,
    /// A context switch: time that the core loses.
    pub switch: Nanos,
    /// What a thread loses on top of it when it ran on another core before.
    pub migrate: Nanos,
    /// From the decision until an idle core serves its new owner.
    pub grant: Nanos,
    /// From the decision until a busy core serves its new owner.
    pub preempt: Nanos,
    /// From the decision until a core that nobody shall have is left.
    pub idle: Nanos,
    /// From the decision until a task's rung or shared cores are changed.
    pub rights: Nanos,
}

impl Costs {
    /// A stock kernel: priorities and affinities change within some 20 us (`quell bench mechanism`).
    pub const KERNEL: Costs = Costs::uniform(Nanos::from_micros(20), Nanos(1_500));

    /// A kernel module with multicast interrupts: a core is preempted in some 2 to 5 us (Caladan), an idle one that
    /// watches a word of memory starts within 1 us.
    pub const MODULE: Costs = Costs {
        wake: Nanos::ZERO,
        switch: Nanos(500),
        migrate: Nanos(1_000),
        grant: Nanos(1_000),
        preempt: Nanos(3_000),
        idle: Nanos(3_000),
        rights: Nanos(3_000),
    };

    /// Every action takes the same, and a migration and a wake-up nothing.
    pub const fn uniform(action: Nanos, switch: Nanos) -> Costs {
        Costs {
            wake: Nanos::ZERO,
            switch,
            migrate: Nanos::ZERO,
            grant: action,
            preempt: action,
            idle: action,
            rights: action,
        }
    }
}

/// What the back end does wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Actions that take [`Faults::LATE`] times as long, per mille.
    pub late: u16,
    /// Grants refused, per mille; tried again after [`Faults::RETRY`].
    pub refused: u16,
    /// Actions lost without a trace, per mille; noticed and tried again after [`Faults::RETRY`].
    pub lost: u16,
    /// Actions that find the state moved and do nothing, per mille; said so, and tried again at the next decision.
    pub raced: u16,
}

impl Faults {
    /// The time after which a back end notices that an action had no effect.
    pub const RETRY: Nanos = Nanos::from_millis(2);
    /// How many times as long a late action takes.
    pub const LATE: u64 = 20;
}

/// Something that happens to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A core goes offline or comes back.
    Online(CoreId, bool),
    /// A task leaves, or joins again.
    Alive(u32, bool),
    /// One thread of a task stops sleeping: it spins from now on, or sleeps again.
    Spin(u32, bool),
    /// A task binds its threads to these of its cores (`sched_setaffinity`); to all of them while it may use none of these.
    Bind(u32, CoreSet),
}
