//! Who descends from whom, read by a guardian from the slots alone.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::abi::Slot;
use super::table::Table;
use quell_os::{ThreadRef, Tid};

/// The threads that are watched now, each with the number of the thread that created it (0 where the
/// daemon named it). `slots` is the first of [`super::BpfObserver::held_fds`]; it stays readable after the
/// daemon's end, and the links among them keep it true.
///
/// # Errors
/// When the descriptor is not that of the slots.
pub fn lineage(slots: BorrowedFd<'_>) -> io::Result<Vec<(ThreadRef, Tid)>> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", slots.as_raw_fd()))?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse::<usize>().ok())
    };
    if field("value_size") != Some(size_of::<Slot>()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the map of the thread slots"));
    }
    let table = Table::<Slot>::map(slots, field("max_entries").unwrap_or(0), false)?;
    let watched = table.iter().filter_map(|slot| {
        let slot = slot.read().0?;
        Some((slot.thread?, slot.parent))
    });
    Ok(watched.collect())
}
