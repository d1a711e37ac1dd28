//! Tests of the engine by simulation: endpoints, channels and peers that misbehave, in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod exhaustive;
mod host;
mod hostile;
mod lifecycle;
mod link;
mod pacing;
mod random;
mod retire;
mod world;
