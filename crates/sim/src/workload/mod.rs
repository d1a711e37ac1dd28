//! What tasks do: requests that arrive, batch work that goes through phases.

pub mod models;
pub mod papers;
mod program;
mod recording;
pub mod tpch;

use std::sync::Arc;

use quell_model::{Class, Limits, Nanos, TaskScheduler, Topology};

pub use program::{Program, ProgramStep, Sync, SyncKind, ThreadKind, Waiting};
pub use recording::{
    RecordedClass, RecordedFigures, RecordedStart, RecordedThread, Recording, Window,
};

use crate::chance::Chance;
use crate::machine::Profile;

/// The slice of a lane that names none, as in the daemon's configuration.
pub const SLICE_DEFAULT: Nanos = Nanos::from_micros(100);

/// A task: a set of threads and what they do.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// For tables, plots and traces.
    pub name: String,
    /// What the policy is told.
    pub limits: Limits,
    /// Its threads.
    pub threads: u32,
    /// Who puts its work on threads.
    pub style: Style,
    /// The nice value of its threads, where the kernel model has weights and Quell gives no rung.
    pub nice: i8,
    /// Its threads are SCHED_IDLE, where the kernel model has classes and Quell gives no rung.
    pub sched_idle: bool,
    /// Its session, which is a task group where the kernel model has autogroup; `None`: one of its own.
    pub session: Option<u32>,
    /// Requests come on connections that belong to one thread each, as in memcached: one waits for its own thread even if others
    /// sleep. Not of a runtime.
    pub own_connections: bool,
    /// Its session is in a cgroup with this weight (`cpu.weight`, 1 to 10,000), with autogroup or without; `None`: in no cgroup.
    pub cpu_weight: Option<u32>,
    /// Of a lane: how long a member runs before the next one.
    pub slice: Nanos,
    /// What arrives.
    pub load: Load,
    /// Threads beside those that serve requests; none but where the kernel schedules threads.
    pub helpers: Vec<Helper>,
    /// How it uses the machine, one after the other and over again; one of them at least.
    pub phases: Vec<Phase>,
}

/// Threads of one kind that a program has beside those that serve its requests, such as a collector or a crawler.
#[derive(Clone, Debug, PartialEq)]
pub struct Helper {
    /// Of its threads, in traces.
    pub name: String,
    /// How many.
    pub threads: u32,
    /// Each wakes up so often, and leaves out what it would miss while its burst goes on.
    pub period: Nanos,
    /// How long it then runs, alone on an idle host.
    pub burst: Service,
    /// The requests of its task stop until its burst is over.
    pub stops_world: bool,
}

/// Who puts a task's work on its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Any program: a request wakes a thread and stays with it. How long one has waited is seen of threads only.
    Threads,
    /// A runtime with work stealing (Caladan's contract): requests wait in one queue, whose age is seen, and
    /// any of its threads that has a core takes the oldest. A request whose core is taken away goes back to
    /// the front.
    Runtime {
        /// How long a thread without work looks for some before it gives its core back.
        polls: Nanos,
    },
    /// The kernel's own threads: helpers alone, one thread for each core and pinned to it, in the fair class. Policies do not
    /// see them. Such a task is the last of its scenario.
    Kernel,
}

/// How a task uses the machine for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// How.
    pub profile: Profile,
    /// After how much work, of all its threads together, the next phase begins: core time on an idle host; zero: never.
    pub work: Nanos,
}

/// What keeps a task busy.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// Every thread computes for ever.
    Hog,
    /// Threads go through steps; the task has room for as many as [`Task::threads`].
    Program(Program),
    /// Threads do what they did on a recorded host. The task has one for each of them.
    Recorded(Arc<Recording>),
    /// Requests arrive whatever becomes of earlier ones (an open loop).
    Open {
        /// Poisson arrivals at the rate of the last step that has begun; none before the first.
        steps: Vec<Step>,
        /// How long one takes, alone on an idle host.
        service: Service,
    },
}

impl Load {
    /// The steps of its threads, if they go through steps.
    pub fn program(&self) -> Option<&Program> {
        match self {
            Load::Program(program) => Some(program),
            Load::Recorded(recording) => Some(&recording.program),
            Load::Hog | Load::Open { .. } => None,
        }
    }
}

/// A rate from some time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// From when on.
    pub from: Nanos,
    /// Mean time between requests, in picoseconds (12 million a second are 83,333); zero: nothing arrives.
    pub gap_ps: u64,
}

impl Step {
    /// From then on, one request in `gap` on average.
    pub fn every(from: Nanos, gap: Nanos) -> Step {
        Step { from, gap_ps: gap.0.saturating_mul(1_000) }
    }

    /// From then on, so many requests a second.
    pub fn rate(from: Nanos, per_second: u64) -> Step {
        Step { from, gap_ps: 1_000_000_000_000u64.checked_div(per_second).unwrap_or(0) }
    }

    /// Requests a second.
    pub fn per_second(&self) -> u64 {
        1_000_000_000_000u64.checked_div(self.gap_ps).unwrap_or(0)
    }
}

/// A service time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Always the same.
    Fixed(Nanos),
    /// Exponential with this mean.
    Exponential(Nanos),
    /// One of two.
    Bimodal {
        /// The usual one.
        short: Nanos,
        /// The other one.
        long: Nanos,
        /// How many in a thousand take the other one.
        long_permille: u16,
    },
    /// Lognormal.
    Lognormal {
        /// Its mean.
        mean: Nanos,
        /// The standard deviation of its logarithm, in thousandths.
        sigma: u16,
    },
}

impl Service {
    /// Its mean; of two times, as often as each is taken.
    pub fn mean(&self) -> Nanos {
        match *self {
            Service::Fixed(mean) | Service::Exponential(mean) => mean,
            Service::Lognormal { mean, .. } => mean,
            Service::Bimodal { short, long, long_permille } => {
                let long_share = u64::from(long_permille);
                Nanos((short.0 * (1_000 - long_share) + long.0 * long_share) / 1_000)
            }
        }
    }

    pub(crate) fn draw(&self, chance: &mut Chance) -> Nanos {
        let time = match *self {
            Service::Fixed(time) => time,
            Service::Exponential(mean) => Nanos(chance.exponential(mean.0)),
            Service::Bimodal { short, long, long_permille } => {
                match chance.happens(long_permille) {
                    true => long,
                    false => short,
                }
            }
            Service::Lognormal { mean, sigma } => chance.lognormal(mean, sigma),
        };
        time.max(Nanos(1))
    }
}

impl Task {
    /// A program that only computes.
    pub fn new(limits: Limits, threads: u32, load: Load) -> Task {
        Task {
            name: String::new(),
            limits,
            threads,
            style: Style::Threads,
            nice: 0,
            sched_idle: false,
            session: None,
            own_connections: false,
            cpu_weight: None,
            slice: SLICE_DEFAULT,
            load,
            helpers: Vec::new(),
            phases: vec![Phase { profile: Profile::COMPUTE, work: Nanos::ZERO }],
        }
    }

    /// Threads of the kernel on a host with so many cores: each wakes up so often for a burst.
    pub fn kernel(topology: &Topology, period: Nanos, burst: Service) -> Task {
        let helper = Helper {
            name: "kworker".to_owned(),
            threads: topology.len() as u32,
            period,
            burst,
            stops_world: false,
        };
        let limits = Limits {
            class: Class::BestEffort,
            max: helper.threads,
            allowed: topology.all(),
            ..Limits::NONE
        };
        let load = Load::Open { steps: Vec::new(), service: burst };
        let (name, style, helpers) = ("kernel".to_owned(), Style::Kernel, vec![helper]);
        Task { name, style, helpers, ..Task::new(limits, 0, load) }
    }

    /// Its threads, helpers included.
    pub fn all_threads(&self) -> u32 {
        self.threads + self.helpers.iter().map(|helper| helper.threads).sum::<u32>()
    }

    pub(crate) fn is_lane(&self) -> bool {
        self.limits.scheduler == TaskScheduler::Lane
    }

    pub(crate) fn is_runtime(&self) -> bool {
        matches!(self.style, Style::Runtime { .. })
    }
}
