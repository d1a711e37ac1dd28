//! Lanes: members that share one core by slices, as a policy in user space says.
//!
//! ```text
//! manager ── starts programs and, for each lane, its scheduler thread; adds members
//! engine ─── plans who has the core; lends each thread's switch handle to the lane's scheduler
//! quell-lane (rung Switcher): on the lane's core, asleep until a slice ends (shared); or one on an unmanaged core, which
//!            spins for all lanes that name it (dedicated)
//! ```
//!
//! A scheduler thread owns its lanes: their policies, the states of their threads as BPF counts them ([`LaneReader`]), and a switch handle
//! for each thread. A switch asks no other thread: both rungs of a thread are in the journal since it was lent. The engine orders the
//! lane whether it has a core ([`Seat`]); while it has none of its own, its members stay on the lower rung, no timer runs and
//! nothing wakes the scheduler.
//!
//! A scheduler thread that is overdue stops the daemon's heartbeat ([`Pulse`]): the guardians end both.
//!
//! [`LaneReader`]: quell_observe::bpf::LaneReader

mod counters;
mod lead;
pub mod probe;
pub mod request;
mod scheduler;
mod slices;
mod wait;

pub use counters::Counters;
pub use request::{LaneRequest, MemberSource};
pub use scheduler::{Companion, Order, Place, Pulse, Scheduler};
pub use slices::{Departure, Lane, LaneOrder, NewThread, Seat};

/// Index of the rung of members whose slice it is not, in what the executor lends.
pub const PARKED: usize = 0;
/// Index of the rung of the member whose slice it is.
pub const RUNS: usize = 1;
