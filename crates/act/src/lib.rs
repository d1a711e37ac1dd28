//! What Quell changes on the host. One place writes: the executor.
//!
//! * [`Executor`]: every priority, affinity, cgroup and setting goes through it. It records each change in the
//!   [`Journal`] before it makes it, and knows what it found.
//! * [`SwitchHandle`]: the right to switch one thread between two journaled values, lent by the executor to the
//!   scheduler of a lane.
//! * [`restore`]: gives back what a journal records; the daemon's clean end, the guardians and
//!   [`recover_stale`] run the same code.
//! * [`protocol`]: the decisions of all of them, without effects, and checked exhaustively.
//! * [`ladder`]: which priority a rung has on this host.
//!
//! Invariants: nothing is changed that the journal does not name; two writers never exist; restore writes only
//! where the host shows what Quell wrote.

pub mod backend;
mod error;
mod executor;
mod groups;
mod host;
mod journal;
mod kill_point;
pub mod ladder;
pub mod protocol;
pub mod restore;
mod rt_try;
mod sched;
mod setting;
#[cfg(debug_assertions)]
mod stop;
mod switch;
#[cfg(test)]
mod testing;

pub use error::{ActError, Applied, Change, Drift, Subject};
pub use executor::{Audit, Executor, Gate, Joining, Mode};
pub use journal::{CAPACITY, Journal, JournalError, JournalFile, Stage};
pub use kill_point::kill_point;
pub use ladder::{InUse, Ladder};
pub use restore::{RestoreReport, recover_stale, release_by_force};
pub use rt_try::{RtTry, try_fifo};
pub use setting::Setting;
pub use switch::SwitchHandle;

use quell_os::sched::{Policy, SchedAttr};
