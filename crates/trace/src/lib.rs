//! What was recorded of a host, and what follows from it.
//!
//! * [`decisions`]: Snapshots and Plans, recorded and replayed through the same or another policy. Its `spool` and
//!   `read` alone touch files.
//! * [`why`]: why something was slow.

pub mod decisions;
pub mod why;
