//! The identity of a thread.

use std::io;

use serde::{Deserialize, Serialize};

use crate::exists;

/// A thread's number in the initial pid namespace. The kernel reuses numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tid(pub i32);

impl std::fmt::Display for Tid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A thread that is known not to be another one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThreadRef {
    /// Its number.
    pub tid: Tid,
    /// The number of its process.
    pub tgid: Tid,
    /// When it started, in clock ticks since boot (field 22 of its `stat` file).
    pub start_ticks: u64,
}

impl ThreadRef {
    /// The calling thread.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn current() -> io::Result<ThreadRef> {
        let tgid = Tid(rustix::process::getpid().as_raw_nonzero().get());
        let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get());
        ThreadRef::of(tgid, tid)
    }

    /// A thread of a known process.
    ///
    /// # Errors
    /// `NotFound` when the process has no such thread.
    pub fn of(tgid: Tid, tid: Tid) -> io::Result<ThreadRef> {
        Ok(ThreadRef { tid, tgid, start_ticks: ThreadStat::of(tgid, tid)?.start_ticks })
    }

    /// The threads that a process has now. Those that exit meanwhile are left out.
    ///
    /// # Errors
    /// `NotFound` when there is no such process.
    pub fn all_of(tgid: Tid) -> io::Result<Vec<ThreadRef>> {
        let mut threads = Vec::new();
        if !exists(tgid, tgid) {
            return Err(io::ErrorKind::NotFound.into());
        }
        for entry in std::fs::read_dir(format!("/proc/{tgid}/task"))? {
            let Some(tid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            threads.extend(ThreadRef::of(tgid, Tid(tid)));
        }
        Ok(threads)
    }
}

/// What the `stat` file of a thread tells about its descent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadStat {
    /// `Z` for a process that ended and was not waited for.
    pub state: u8,
    /// The process that created its process, or that inherited it.
    pub parent: Tid,
    /// The kernel's `PF_*` flags.
    pub flags: u64,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ThreadStat {
    /// Reads `/proc/TGID/task/TID/stat`.
    ///
    /// # Errors
    /// `NotFound` when there is no such thread; `InvalidData` for another format.
    pub fn of(tgid: Tid, tid: Tid) -> io::Result<ThreadStat> {
        if !exists(tgid, tid) {
            return Err(io::ErrorKind::NotFound.into());
        }
        // A thread that exits between open and read yields ESRCH rather than ENOENT.
        let text =
            std::fs::read(format!("/proc/{tgid}/task/{tid}/stat")).map_err(|error| match error
                .raw_os_error()
            {
                Some(libc::ESRCH) => io::ErrorKind::NotFound.into(),
                _ => error,
            })?;
        ThreadStat::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses the format of proc(5). The name in parentheses may hold anything, so fields count from
    /// the last parenthesis.
    fn parse(text: &[u8]) -> Option<ThreadStat> {
        let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
        let rest = std::str::from_utf8(&text[after_name..]).ok()?;
        // The first field here is number 3, the state.
        let mut fields = rest.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let parent = Tid(fields.next()?.parse().ok()?);
        let flags = fields.nth(4)?.parse().ok()?;
        let start_ticks = fields.nth(12)?.parse().ok()?;
        Some(ThreadStat { state, parent, flags, start_ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_cannot_forge_fields() {
        let stat = b"7 (a) S 1 (b)) R 42 1 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let parsed = ThreadStat::parse(stat).unwrap();
        assert_eq!((parsed.state, parsed.parent, parsed.start_ticks), (b'R', Tid(42), 987_654));
        assert_eq!(parsed.flags, 4_194_304);
    }

    #[test]
    fn the_current_thread_is_among_those_of_its_process() {
        let me = ThreadRef::current().unwrap();
        assert!(ThreadRef::all_of(me.tgid).unwrap().contains(&me));
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = ThreadStat::parse(&text);
        }
    }
}
