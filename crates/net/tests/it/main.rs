//! Endpoints of one process, or of two, that reach each other over loopback.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod copying;
mod count;
mod direct;
mod examples;
mod large;
mod messages;
mod paths;
mod placed;
mod process;
mod stats;
mod streams;
mod udp;
mod uring;
