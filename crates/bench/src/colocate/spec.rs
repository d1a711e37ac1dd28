//! What a co-location run measures.

use std::path::PathBuf;
use std::time::Duration;

use quell_model::{CoreId, CoreSet};

use super::lc::Lc;

/// Best-effort work beside the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mix {
    /// One thread that streams through memory.
    Stream,
    /// Several threads that compute.
    Hog,
    /// A Monte-Carlo with the Boehm collector: pauses of 100 to 200 ms.
    Gc,
    /// Page faults and file writes: long sections in the kernel.
    Faults,
    /// A Go program with its concurrent collector.
    GoGc,
}

impl Mix {
    /// The mixes of the demo.
    pub const DEMO: [Mix; 3] = [Mix::Stream, Mix::Hog, Mix::Gc];
    /// All mixes.
    pub const ALL: [Mix; 5] = [Mix::Stream, Mix::Hog, Mix::Gc, Mix::Faults, Mix::GoGc];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mix::Stream => "stream",
            Mix::Hog => "hog",
            Mix::Gc => "gc",
            Mix::Faults => "faults-writes",
            Mix::GoGc => "go-gc",
        }
    }
}

/// How service and batch work share the managed cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum System {
    /// The service alone, as started.
    Alone,
    /// The service alone on its Quell rung, its core kept awake by a PAUSE loop at SCHED_IDLE.
    AloneWarm,
    /// Both as started.
    LinuxDefault,
    /// Batch work at SCHED_IDLE and nice 19.
    SchedIdle,
    /// The service at SCHED_RR 20, batch work as started.
    SchedRr,
    /// Quell's initial priorities and affinities, without its loop.
    Static,
    /// Quell.
    Quell,
}

impl System {
    /// All of them; the denominator of the ratios is the second.
    pub const ALL: [System; 7] = [
        System::Alone,
        System::AloneWarm,
        System::LinuxDefault,
        System::SchedIdle,
        System::SchedRr,
        System::Static,
        System::Quell,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            System::Alone => "alone",
            System::AloneWarm => "alone-idle-poll",
            System::LinuxDefault => "linux-default",
            System::SchedIdle => "sched-idle",
            System::SchedRr => "sched-rr",
            System::Static => "static",
            System::Quell => "quell",
        }
    }

    /// Whether batch work runs.
    pub fn has_be(self) -> bool {
        !matches!(self, System::Alone | System::AloneWarm)
    }
}

/// A co-location run.
#[derive(Clone, Debug)]
pub struct ColocateSpec {
    /// The report's name.
    pub name: String,
    /// The service.
    pub lc: Lc,
    /// The command that makes the report again.
    pub command: String,
    /// Kinds of batch work, one after the other in each round.
    pub mixes: Vec<Mix>,
    /// Systems, in an order drawn anew for each round and mix.
    pub systems: Vec<System>,
    /// Valid rounds to collect.
    pub rounds: usize,
    /// Load before each measurement.
    pub warmup: Duration,
    /// Each measurement.
    pub duration: Duration,
    /// Measurement of batch work alone, in each round.
    pub be_alone: Duration,
    /// Requests a second; searched for when absent.
    pub peak_rps: Option<f64>,
    /// Part of the peak that is offered.
    pub load: f64,
    /// Seed of arrivals and orders.
    pub seed: u64,
    /// Cores that service and batch work share.
    pub managed: CoreSet,
    /// The load generator's core.
    pub client: CoreId,
    /// Whether to run the cases in which the loop matters too.
    pub loop_cases: bool,
    /// The `quell` program.
    pub quell: PathBuf,
    /// The `quell-antagonist` program.
    pub antagonist: PathBuf,
}
