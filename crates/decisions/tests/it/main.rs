//! Recordings of decisions, written and read.

#[path = "../../../policy/tests/common/mod.rs"]
mod common;
mod decisions;
