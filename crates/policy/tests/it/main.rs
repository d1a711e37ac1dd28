//! Policies, rule by rule, and on random hosts.

#[path = "../common/mod.rs"]
mod common;
mod controllers;
mod exclusive_cores;
mod guide_lane;
mod invariants;
mod properties;
mod rivals;
mod saved_state;
mod shared_cores;
