//! The priority ladder.

use serde::{Deserialize, Serialize};

/// A named step of the one priority ladder, highest first. What priority a rung has on a host is
/// the back end's affair (`act::ladder` checks it against the priorities already in use).
///
/// Source: the priority elevation trick (APSys'24, section 2) has high, mid and low; the others keep
/// what a managed core needs from starving behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// The guardians: they must run to undo what went wrong.
    Guardian,
    /// The scheduler thread.
    Scheduler,
    /// Softirq and interrupt threads that serve an LC task.
    Softirq,
    /// The switcher of a lane.
    Switcher,
    /// LC threads of a task that owns a core, also while they sleep.
    Lc,
    /// LC threads of a task that shares cores of other LC tasks: below the owner, above any BE.
    LcOverflow,
    /// The dispatcher of a lane; lane threads that may run.
    Dispatcher,
    /// Lane threads that must not run, and BE by configuration: the lowest SCHED_FIFO priority.
    FifoLow,
    /// The policy and priority that the thread had before Quell changed it.
    Original,
    /// SCHED_IDLE: BE on cores that an LC task owns.
    SchedIdle,
}

/// The rung of BE threads on cores that an LC task owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BeRung {
    /// SCHED_IDLE.
    #[default]
    SchedIdle,
    /// The lowest SCHED_FIFO priority: out of reach of the fair server, above every fair thread.
    FifoLow,
}

impl BeRung {
    /// Its place on the ladder.
    pub const fn rung(self) -> Rung {
        match self {
            BeRung::SchedIdle => Rung::SchedIdle,
            BeRung::FifoLow => Rung::FifoLow,
        }
    }
}
