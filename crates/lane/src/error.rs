//! What can stand in a lane's way.

use std::io;

/// Why a lane cannot be, or a thread not be changed. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// The host has no such core.
    #[error("there is no core {0}")]
    NoCore(u32),
    /// The core is there, but not for this process.
    #[error("core {0} is offline, or not in the cpuset of this process")]
    NotAllowed(u32),
    /// They do not rise.
    #[error("priorities have to rise from level to level, within 1 to {}", crate::PRIORITY_MAX)]
    Priorities,
    /// The process has no right to `SCHED_FIFO`.
    #[error(
        "SCHED_FIFO at priority {priority} is refused: this process has neither CAP_SYS_NICE nor an RLIMIT_RTPRIO of \
         {priority} (it is {limit}): run it as root, `setcap cap_sys_nice+ep` the program, or raise the limit \
         (`ulimit -r {priority}`, LimitRTPRIO={priority}); the cgroup needs a real-time budget as well"
    )]
    NoRight {
        /// The priority of the highest level.
        priority: u8,
        /// The limit in force.
        limit: u64,
    },
    /// The process has the right, and is refused all the same.
    #[error(
        "SCHED_FIFO is refused in spite of CAP_SYS_NICE: the cgroup of this process has no real-time budget (cgroup \
         v1: write e.g. 500000 to its cpu.rt_runtime_us; v2 with RT_GROUP_SCHED: sysctl -w \
         kernel.sched_rt_runtime_us=-1), or a container forbids it"
    )]
    NoBudget,
    /// The thread's policy is one that could not be given back.
    #[error(
        "the thread is under a policy that could not be given back (SCHED_DEADLINE or sched_ext)"
    )]
    Policy,
    /// The member has left, or its thread has ended.
    #[error("the thread is not in the lane, or has ended")]
    Gone,
    /// The kernel refused something else.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Its reason.
        source: io::Error,
    },
}

impl LaneError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> LaneError {
        move |source| LaneError::Io { what, source }
    }
}
