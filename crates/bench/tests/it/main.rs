//! Whole benchmarks with tiny measurements, and the published figures in their short form.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod check;
mod common;
mod services;
