//! What is simulated.

use quell_model::{CoreId, Limits, Nanos};
use quell_policy::Host;

/// A host, its tasks, what goes wrong, and what changes on the way.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The host that the policy is told of.
    pub host: Host,
    /// Tasks by place.
    pub tasks: Vec<Task>,
    /// What the back end does wrong.
    pub faults: Faults,
    /// When what changes, in any order.
    pub changes: Vec<(Nanos, Change)>,
    /// How long to simulate.
    pub length: Nanos,
    /// Requests that arrive before this are served but not reported.
    pub warm_up: Nanos,
    /// Decisions are at least this far apart.
    pub tick: Nanos,
    /// A context switch delays the thread that comes in by this much.
    pub switch: Nanos,
    /// The seed of all chance.
    pub seed: u64,
}

/// A task: a set of threads and what they do.
#[derive(Clone, Debug)]
pub struct Task {
    /// What the policy is told.
    pub limits: Limits,
    /// Its threads.
    pub threads: u32,
    /// What arrives.
    pub load: Load,
}

/// What keeps a task busy.
#[derive(Clone, Debug)]
pub enum Load {
    /// Every thread computes for ever.
    Hog,
    /// Requests arrive whatever becomes of earlier ones (an open loop), and wait for a sleeping thread.
    Open {
        /// Mean time between requests from each time on; Poisson arrivals.
        rates: Vec<(Nanos, Nanos)>,
        /// How long one takes.
        service: Service,
    },
}

/// A service time.
#[derive(Clone, Copy, Debug)]
pub enum Service {
    /// Always the same.
    Fixed(Nanos),
    /// Exponential with this mean.
    Exponential(Nanos),
}

/// What the back end does wrong, and how slow it is.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// An action takes effect after half to one and a half times this.
    pub delay: Nanos,
    /// Grants refused, per mille; tried again after [`Faults::RETRY`].
    pub refused: u16,
    /// Actions lost without a trace, per mille; noticed and tried again after [`Faults::RETRY`].
    pub lost: u16,
}

impl Faults {
    /// The time after which a back end notices that an action had no effect.
    pub const RETRY: Nanos = Nanos::from_millis(2);
}

/// Something that happens to the host.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// A core goes offline or comes back.
    Online(CoreId, bool),
    /// A task leaves, or joins again.
    Alive(u32, bool),
    /// One thread of a task stops sleeping: it spins from now on, or sleeps again.
    Spin(u32, bool),
}
