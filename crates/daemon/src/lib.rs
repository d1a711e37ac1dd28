//! The daemon: the tick loop, tasks, control server and guardians.
//!
//! * [`run`]: from a configuration file to a running daemon, and back.
//! * [`guardian`]: the two processes that restore the host if the daemon dies.
//!
//! Inside: the *engine* is the scheduler thread and owns observer, policy, executor and back end; the
//! *manager* makes the set of tasks what the configuration says; the *server* takes calls, and *metrics* scrapes; *lane* switches the members of lanes, on threads of its own.

mod access;
mod boot;
mod boot_beat;
mod command;
mod contract;
mod descent;
mod engine;
mod events;
mod feed;
pub mod guardian;
mod lane;
mod latency;
mod launch;
mod mailbox;
mod manager;
mod memory;
mod metrics;
mod recording;
mod server;
mod throttling;

pub use boot::{Lifetime, RunOptions, dry_run, restore, run, socket_path};
pub use lane::Companion;
pub use launch::{Launched, become_program};
/// The lane policies, by name.
pub use quell_policy::lanes::NAMES as LANE_POLICIES;
pub use recording::RecordTo;

/// A guardian's whole life, with what the daemon's BPF programs go on to record.
pub fn guardian_main(args: &[std::ffi::OsString]) -> std::process::ExitCode {
    guardian::main_with(args, &descent::descent)
}
