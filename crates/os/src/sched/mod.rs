//! Policy and priority of a thread, in the terms of sched(7).

use std::fmt;

use quell_model::Nanos;

pub(crate) mod calls;

pub use calls::{affinity, attr, nice, to_kernel};

/// A scheduling policy that Quell sets or puts back. Threads under others (deadline, sched_ext) are
/// not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// `SCHED_OTHER`.
    Other,
    /// `SCHED_BATCH`.
    Batch,
    /// `SCHED_IDLE`.
    Idle,
    /// `SCHED_FIFO`.
    Fifo,
    /// `SCHED_RR`.
    Rr,
}

impl Policy {
    /// The kernel's number (`include/uapi/linux/sched.h`).
    pub const fn to_kernel(self) -> u32 {
        match self {
            Policy::Other => 0,
            Policy::Fifo => 1,
            Policy::Rr => 2,
            Policy::Batch => 3,
            Policy::Idle => 5,
        }
    }

    /// The policy of the kernel's number, if it is one that Quell handles.
    pub const fn from_kernel(number: u32) -> Option<Policy> {
        Some(match number {
            0 => Policy::Other,
            1 => Policy::Fifo,
            2 => Policy::Rr,
            3 => Policy::Batch,
            5 => Policy::Idle,
            _ => return None,
        })
    }

    /// Whether threads under it run before all that are not.
    pub const fn is_realtime(self) -> bool {
        matches!(self, Policy::Fifo | Policy::Rr)
    }

    /// Whether nice value and slice are set along with it. SCHED_IDLE leaves both as they are.
    pub const fn is_fair(self) -> bool {
        matches!(self, Policy::Other | Policy::Batch)
    }
}

/// All that `sched_setattr(2)` sets at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SchedAttr {
    /// The policy.
    pub policy: Policy,
    /// 1 to 99 for FIFO and RR, 0 for the others.
    pub priority: u8,
    /// The nice value, -20 to 19; in force under OTHER and BATCH.
    pub nice: i8,
    /// Children start as OTHER instead of inheriting a realtime policy.
    pub reset_on_fork: bool,
    /// The requested slice under OTHER and BATCH (kernel 6.12 and later); zero: the kernel's default.
    pub slice: Nanos,
}

impl SchedAttr {
    /// `SCHED_OTHER`, nice 0.
    pub const OTHER: SchedAttr = SchedAttr {
        policy: Policy::Other,
        priority: 0,
        nice: 0,
        reset_on_fork: false,
        slice: Nanos::ZERO,
    };

    /// `SCHED_IDLE`: runs when nothing else wants the core.
    pub const IDLE: SchedAttr = SchedAttr { policy: Policy::Idle, ..SchedAttr::OTHER };

    /// `SCHED_FIFO` at a priority, with the reset on fork that every elevated thread carries.
    pub const fn fifo(priority: u8) -> SchedAttr {
        SchedAttr { policy: Policy::Fifo, priority, reset_on_fork: true, ..SchedAttr::OTHER }
    }

    /// Whether two attributes have the same effect. Nice values count where they are in force; the slice
    /// never does, for the kernel reports its default like a request.
    pub fn same_effect(&self, other: &SchedAttr) -> bool {
        self.policy == other.policy
            && self.reset_on_fork == other.reset_on_fork
            && (!self.policy.is_realtime() || self.priority == other.priority)
            && (!self.policy.is_fair() || self.nice == other.nice)
    }
}

impl fmt::Display for SchedAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy {
            Policy::Other => write!(f, "SCHED_OTHER nice {}", self.nice)?,
            Policy::Batch => write!(f, "SCHED_BATCH nice {}", self.nice)?,
            Policy::Idle => write!(f, "SCHED_IDLE")?,
            Policy::Fifo => write!(f, "SCHED_FIFO {}", self.priority)?,
            Policy::Rr => write!(f, "SCHED_RR {}", self.priority)?,
        }
        if self.reset_on_fork { write!(f, " (reset on fork)") } else { Ok(()) }
    }
}
