//! Lanes: threads that take turns on a core, as a policy in user space says.
//!
//! ```text
//! quell lane run ─┬─ main thread (rung Scheduler, on the cores without a lane): heartbeats, launched programs, status
//!                 ├─ quell-lane-N (rung Switcher): one for each lane, on its core (shared); or one for all, which
//!                 │    spins on a core without a lane (dedicated)
//!                 ├─ guardian 1 ┐ restore every thread if this process dies or hangs
//!                 └─ guardian 2 ┘
//! ```
//!
//! A scheduler thread owns its lanes, their policies and an observer with BPF programs of its own; the executor is
//! shared, for one journal and one pair of guardians: scheduler threads hold it for a hand-over, all on the same rung
//! and on cores of their own, so that nobody waits for one who cannot run. The main thread looks through it for threads
//! that changed their own scheduling; those leave the lane, since Quell does not fight its tasks.
//!
//! The heartbeat is the main thread's, and it stops beating when a scheduler thread is overdue: so an idle lane costs
//! no timer, and one whose scheduler hangs is taken apart by the guardians.

mod boot;
mod claim;
mod counters;
mod crew;
mod lead;
mod probe;
mod request;
mod status;
mod thread;

pub use boot::{Options, restore, run};
pub use counters::{LaneStatus, MemberStatus};
/// The policies, by name.
pub use quell_policy::lanes::NAMES as POLICIES;
pub use request::{LaneRequest, MemberRequest, Request, Who};
pub use status::{SchedulerStatus, Status, ask};
pub use thread::Companion;
