//! What the executor answers.

use std::fmt;
use std::io;
use std::path::PathBuf;

use quell_os::ThreadRef;

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The host was changed.
    Changed,
    /// The host was as wanted.
    AlreadySo,
    /// A live run would have changed the host; a dry run did not.
    WouldChange,
}

/// Something on the host that the executor changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Policy and priority of a thread.
    Sched(ThreadRef),
    /// The cores that a thread may use.
    Affinity(ThreadRef),
    /// A file of the kernel that holds a setting.
    Setting(PathBuf),
    /// A cgroup directory that Quell created.
    Group(PathBuf),
    /// The cgroup of a process in one hierarchy.
    Member {
        /// The process, by its first thread.
        process: ThreadRef,
        /// Where the hierarchy is mounted.
        hierarchy: PathBuf,
    },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Sched(thread) => write!(f, "policy of thread {}", thread.tid),
            Subject::Affinity(thread) => write!(f, "affinity of thread {}", thread.tid),
            Subject::Setting(file) => write!(f, "{}", file.display()),
            Subject::Group(dir) => write!(f, "cgroup {}", dir.display()),
            Subject::Member { process, hierarchy } => {
                write!(f, "cgroup of process {} in {}", process.tgid, hierarchy.display())
            }
        }
    }
}

/// Why the executor did not change the host.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The thread exited, or its number means another one now.
    #[error("thread {} is gone", .0.tid)]
    Gone(ThreadRef),
    /// The kernel said no.
    #[error("{what}: {}; {remedy}", io::Error::from_raw_os_error(*.errno))]
    Refused {
        /// The kernel's reason.
        errno: i32,
        /// What was attempted, on what.
        what: String,
        /// What the operator can do.
        remedy: String,
    },
    /// Somebody else changed the value since Quell last looked. What was seen is now the value to give
    /// back; the next attempt goes ahead.
    #[error("{what} was changed by somebody else to {seen}")]
    Raced {
        /// The thing.
        what: Subject,
        /// Its value now.
        seen: String,
    },
    /// The scheduler of a lane switches the thread's policy; nothing else may set it meanwhile.
    #[error("policy of thread {} not changed: the scheduler of its lane switches it", .0.tid)]
    Lent(ThreadRef),
    /// The executor took the switch handle back.
    #[error("thread {} not switched: its switch handle is revoked", .0.tid)]
    Revoked(ThreadRef),
    /// Less than two guardians live: nothing is changed that could stay behind.
    #[error("not changed: a guardian is missing and its successor is not ready yet")]
    Unguarded,
    /// The change cannot be recorded, so it is not made.
    #[error("not changed: {0}")]
    Journal(#[from] super::JournalError),
}

impl ActError {
    /// The kernel's reason, where it gave one.
    pub const fn errno(&self) -> Option<i32> {
        match self {
            ActError::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// A value that Quell changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What.
    pub what: Subject,
    /// As found; what is given back.
    pub old: String,
    /// As changed.
    pub new: String,
}

/// A value that is not what Quell last wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// What.
    pub what: Subject,
    /// What Quell wrote.
    pub expected: String,
    /// What the host shows.
    pub seen: String,
}
