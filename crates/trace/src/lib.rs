//! What happened on a host, written down and read back.
//!
//! * [`decisions`]: Snapshots and Plans, recorded and replayed through the same or another policy.

pub mod decisions;
