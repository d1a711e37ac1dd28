//! The priority ladder.

use serde::{Deserialize, Serialize};

use crate::Role;

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
    /// An LC thread that waits for a lock, while the lock's owner is on the next rung: it preempts that one once it has the lock.
    LcReleased,
    /// A background thread of an LC task that owns a core, for one budget ([`crate::Role::Boosted`]);
    /// a thread with relief ([`crate::Relief`]).
    LcBoosted,
    /// Event threads of an LC task that owns a core, also while they sleep.
    Lc,
    /// Threads of such a task with longer bursts ([`crate::Role::LongEvent`]).
    LcLong,
    /// Event threads of an LC task that shares cores of other LC tasks: below the owner's, above any BE.
    LcOverflow,
    /// Threads of such a task with longer bursts.
    LcOverflowLong,
    /// The dispatcher of a lane; lane threads that may run.
    Dispatcher,
    /// Background threads of LC tasks where the fair class would not put batch work behind them: below all event threads.
    LcBackground,
    /// Lane threads that must not run, and BE by configuration: the lowest SCHED_FIFO priority.
    FifoLow,
    /// The fair class, with the nice value that the thread had: background threads of LC tasks.
    LcFair,
    /// The policy and priority that the thread had before Quell changed it.
    Original,
    /// SCHED_IDLE: BE on cores that an LC task owns.
    SchedIdle,
}

impl Rung {
    /// The rung of a thread with this role in a task on this rung. Only the rungs of LC tasks have roles.
    pub const fn of_role(self, role: Role) -> Rung {
        match (self, role) {
            (Rung::Lc | Rung::LcOverflow, Role::Background | Role::Fair) => Rung::LcFair,
            (Rung::Lc, Role::Boosted) => Rung::LcBoosted,
            (Rung::Lc, Role::LongEvent) => Rung::LcLong,
            (Rung::LcOverflow, Role::LongEvent) => Rung::LcOverflowLong,
            (rung, _) => rung,
        }
    }
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
