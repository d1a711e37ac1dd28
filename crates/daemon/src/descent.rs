//! Who descends from whom, for a guardian: read from the slot table that outlives the daemon.

use std::os::fd::AsFd;

use quell_observe::bpf::lineage;
use quell_os::Tid;

use crate::guardian::Held;

/// The name under which guardians hold the BPF links and the slot table, the table first; or how such names begin.
pub const HELD: &str = "bpf";

/// (thread, its creator) of every thread that is watched. Empty where nothing is held or readable: the
/// guardian then knows what /proc tells.
pub fn descent(held: &Held) -> Vec<(Tid, Tid)> {
    // Each scheduler thread of lanes has programs of its own.
    let tables = held.iter().filter(|(name, _)| name.starts_with(HELD));
    let tables = tables.filter_map(|(_, fds)| fds.first());
    let watched = tables.flat_map(|table| lineage(table.as_fd()).unwrap_or_default());
    watched.map(|(thread, creator)| (thread.tid, creator)).collect()
}
