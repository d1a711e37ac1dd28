//! What happened on a host, written down and read back.
//!
//! * [`check`]: whether threads waited while cores idled that they could have used.
//! * [`decisions`]: Snapshots and Plans, recorded and replayed through the same or another policy.
//! * [`lint`]: scheduling domains that keep the balancer from balancing.
//! * [`why`]: windows of time charged to what happened in them, from recorded transitions.

pub mod check;
pub mod decisions;
pub mod lint;
pub mod why;
