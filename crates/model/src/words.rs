//! Plans in words, for status tables and explanations.

use std::fmt;

use crate::{
    Absence, CoreDecision, CoreMode, Estimate, Outcome, Reason, Role, Rung, TaskId, TaskReason,
};

impl fmt::Display for CoreMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CoreMode::Kernel => "kernel",
            CoreMode::Lane => "lane",
            CoreMode::Runtime => "runtime",
            CoreMode::Idled => "idled",
            CoreMode::Unmanaged => "unmanaged",
        })
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Estimate::ProcSchedstat => "from /proc",
            Estimate::Smoothed => "smoothed",
            Estimate::Histogram => "from a histogram",
            Estimate::Interpolated => "between two readings",
            Estimate::CacheMisses => "from cache misses",
        })
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Absence::NoSource => "nothing supplies it",
            Absence::NotSupported => "this host cannot measure it",
            Absence::NotApplicable => "there is nothing to measure now",
            Absence::Stale => "the last reading is too old",
        })
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rung::Guardian => "guardian",
            Rung::Scheduler => "scheduler",
            Rung::Softirq => "softirq",
            Rung::Switcher => "switcher",
            Rung::LcReleased => "lc-released",
            Rung::LcBoosted => "lc-boosted",
            Rung::Lc => "lc",
            Rung::LcLong => "lc-long",
            Rung::LcOverflow => "lc-overflow",
            Rung::LcOverflowLong => "lc-overflow-long",
            Rung::Dispatcher => "dispatcher",
            Rung::LcBackground => "lc-background",
            Rung::FifoLow => "fifo-low",
            Rung::LcFair => "lc-fair",
            Rung::Original => "original",
            Rung::SchedIdle => "sched-idle",
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Boosted => "boosted",
            Role::Event => "event",
            Role::LongEvent => "long-event",
            Role::Background => "background",
            Role::Fair => "fair",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Unmanaged => f.write_str("not managed"),
            Reason::Offline => f.write_str("offline"),
            Reason::Guaranteed => f.write_str("guaranteed to its owner"),
            Reason::Congested(delay) => write!(f, "its owner had waited {delay}"),
            Reason::Kept => f.write_str("its owner keeps it"),
            Reason::HandedOver => f.write_str("handed over when it fell idle"),
            Reason::Leftover => f.write_str("left by LC"),
            Reason::Unwanted => f.write_str("nobody may or wants to use it"),
            Reason::BannedFor(core) => write!(f, "kept idle to protect core {core}"),
            Reason::Capped => f.write_str("kept idle: who wants it is at its cap"),
            Reason::InsteadOf(core) => write!(f, "instead of core {core}, which is kept idle"),
            Reason::Refused(errno) => write!(f, "the host refused it (errno {errno})"),
        }
    }
}

impl fmt::Display for TaskReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskReason::Configured => f.write_str("as configured"),
            TaskReason::Owner => f.write_str("owns a core"),
            TaskReason::Guest => f.write_str("owns no core, shares those of others"),
            TaskReason::RanAway(run) => {
                write!(f, "ran away: {run} without sleeping, so treated as BE")
            }
            TaskReason::DelaysLc(delay) => {
                write!(
                    f,
                    "its sections in the kernel delayed LC by {delay}, so kept off LC's cores"
                )
            }
            TaskReason::Capped => f.write_str("held down by a cap"),
            TaskReason::Banned => f.write_str("banned from every core that it may use"),
            TaskReason::NoCore => f.write_str("no core is left for it"),
            TaskReason::Hyperthread => {
                f.write_str("kept off siblings of cores on which an LC request takes long")
            }
        }
    }
}

impl CoreDecision {
    /// One line, with the tasks named by `name`.
    pub fn line(&self, name: impl Fn(TaskId) -> String) -> String {
        let owner = |task: Option<TaskId>| task.map_or_else(|| "no task".to_owned(), &name);
        let (from, to) = (owner(self.from), owner(self.to));
        let mode = match self.mode {
            CoreMode::Kernel => String::new(),
            mode => format!(" ({mode})"),
        };
        format!("core {}: {from} -> {to}{mode}: {}", self.core, self.reason)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Pending => f.write_str("pending"),
            Outcome::Refused { errno } => write!(f, "refused (errno {errno})"),
            Outcome::Raced => f.write_str("raced"),
        }
    }
}
