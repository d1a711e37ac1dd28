//! What happened on a host, written down and read back.
//!
//! * [`decisions`]: Snapshots and Plans, recorded and replayed through the same or another policy.
//! * [`why`]: windows of time charged to what happened in them, from recorded transitions.

pub mod decisions;
pub mod why;
