//! Who descends from whom, for a guardian: read from the slot table that outlives the daemon.

use std::os::fd::AsFd;

use quell_linux::Tid;
use quell_linux::observe::bpf::lineage;

use crate::guardian::Held;

/// The name under which guardians hold the BPF links and the slot table, the table first.
pub const HELD: &str = "bpf";

/// (thread, its creator) of every thread that is watched. Empty where nothing is held or readable: the
/// guardian then knows what /proc tells.
pub fn descent(held: &Held) -> Vec<(Tid, Tid)> {
    let Some(table) = held.get(HELD).and_then(|fds| fds.first()) else { return Vec::new() };
    let watched = lineage(table.as_fd()).unwrap_or_default();
    watched.into_iter().map(|(thread, creator)| (thread.tid, creator)).collect()
}
