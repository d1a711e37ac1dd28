//! The identity of a thread.

use serde::{Deserialize, Serialize};

/// A thread's number in the initial pid namespace. The kernel reuses numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tid(pub i32);

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
