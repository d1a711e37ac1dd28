//! The vocabulary of Quell: pure data, without I/O, clock or global state.
//!
//! Everything hangs on one line, and this crate names what flows along it:
//!
//! ```text
//! observe ──► Snapshot ──► decide (policy) ──► Plan ──► act ──► Outcome
//!   ▲                                                             │
//!   └───────── the host, or a simulated one ◄── (next Snapshot) ──┘
//! ```

mod caps;
mod cores;
mod distances;
mod domains;
mod event;
mod file_error;
mod outcome;
mod pass;
mod plan;
mod relief;
mod renamed;
mod role;
mod rung;
mod signal;
mod snapshot;
mod task;
mod task_names;
mod time_limits;
mod topology;
mod transition;
mod units;
mod words;

pub use caps::HostCaps;
pub use cores::{CORES_MAX, CoreId, CoreListError, CoreSet};
pub use distances::{DistancesError, NodeDistances};
pub use domains::{
    BalanceState, CoreDomains, Domain, DomainGroup, DomainRules, DomainTrees, DomainTreesError,
    GroupWalk,
};
pub use event::{
    Activity, Certainty, CoreDecision, CoreState, Event, Keyframe, Meta, MoveCause, PlanReason,
    Planned, Search, Source, TaskInfo, ThreadState, Violation, What,
};
pub use file_error::FileError;
pub use outcome::Outcome;
pub use pass::{GroupKind, Pass, PassEntry, PassGroup, PassOutcome, Skipped};
pub use plan::{CoreMode, CorePlan, Plan, Reason, TaskPlan, TaskReason};
pub use relief::{InKernel, KernelStop, LockState, LockWait, Relief, ReliefCause};
pub use renamed::renamed_in;
pub use role::{
    Burst, BurstState, INPUT_WEIGHT, RECORD_TRANSITIONS, Role, ThreadId, ThreadPlan, Waiter,
};
pub use rung::{BeRung, Rung};
pub use signal::{Absence, Estimate, Signal};
pub use snapshot::{CoreView, Reported, Snapshot, TaskView};
pub use task::{Children, Class, Limits, TaskId, TaskScheduler};
pub use task_names::TaskNames;
pub use time_limits::{TimeKey, TimeLimits, TypedTimes};
pub use topology::{Core, Topology, TopologyError};
pub use transition::{Left, Rank, Runner, ThreadName};
pub use units::{Bytes, BytesPerSec, Nanos, Permille, RequestsPerSec, TimeError};
