//! The record of decisions: what was seen, what was decided, and what the policy knew.
//!
//! ```text
//! scheduler thread                              writer thread                     later
//! decide ─► Recorder ─► Sink (bounded, in memory) ─► Spool ─► file ─► Reader ─► replay | compare
//! ```
//!
//! A **recording** is a preamble and one or more *segments*. A segment opens with [`Meta`] and a *keyframe*:
//! the policy's saved state, the last Snapshot and the last Plan. Then follow decisions, each as what differs
//! from the one before, and further keyframes. Every decision after a keyframe can be made again exactly,
//! because a policy is nothing but its state and the Snapshots that it is given.
//!
//! Where the writer fell behind, decisions are left out and counted; the next keyframe says how many and
//! makes a new beginning. `docs/tools/replay.md` describes the format for users.

mod compare;
mod delta;
mod format;
mod frame;
mod list;
mod read;
mod record;
mod replay;
mod spool;
mod words;

pub use compare::{Comparison, CoreShare, TaskShare, compare};
pub use format::{Clock, FORMAT, Meta};
pub use list::{Entry, list};
pub use read::{Decision, Event, Extent, ReadError, Reader};
pub use record::{Counts, Recorder, Sink};
pub use replay::{Difference, Options, ReplayError, Replayed, Window, replay};
pub use spool::{NewFile, RING_MIN, RingSink, Spool, SpoolError, Written};
pub use words::{Names, changes, utc};

#[cfg(test)]
#[path = "../../policy/tests/common/mod.rs"]
mod common;
#[cfg(test)]
mod tests;
