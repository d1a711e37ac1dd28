//! Threads as events name them: identity, name, scheduling priority, and how one leaves a core.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of a thread: at most 15 bytes, as the kernel keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadName([u8; 16]);

impl ThreadName {
    /// From the kernel's bytes: up to the first zero.
    pub fn new(bytes: &[u8]) -> ThreadName {
        let mut name = [0; 16];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()).min(15);
        name[..end].copy_from_slice(&bytes[..end]);
        ThreadName(name)
    }

    /// The bytes, without the zeros behind them.
    pub fn as_bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        &self.0[..end]
    }
}

impl fmt::Display for ThreadName {
    /// Any program chooses its name: what is no plain character is escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

/// How a thread stands to others in the kernel's eyes: a lower number preempts a higher one at once
/// (sched(7)); equals take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank(u16);

impl Rank {
    /// SCHED_DEADLINE.
    pub const DEADLINE: Rank = Rank(0);
    /// SCHED_OTHER and SCHED_BATCH, whatever the nice value.
    pub const FAIR: Rank = Rank(200);
    /// SCHED_IDLE.
    pub const BENEATH: Rank = Rank(300);
    /// The idle thread of a core.
    pub const NOBODY: Rank = Rank(400);

    /// SCHED_FIFO or SCHED_RR with a priority from 1 to 99.
    pub fn realtime(priority: u8) -> Rank {
        Rank(100 - u16::from(priority.clamp(1, 99)))
    }

    /// The number that files keep; a lower one preempts.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The rank that has this number; `None` where none has.
    pub fn from_number(number: u16) -> Option<Rank> {
        let known = matches!(number, 0..=99 | 200 | 300 | 400);
        known.then_some(Rank(number))
    }
}

/// A thread on a core, or on its way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runner {
    /// The kernel's number; 0 is a core's idle thread.
    pub thread: i32,
    /// The number of its process.
    pub process: i32,
    /// Whom it preempts.
    pub rank: Rank,
    /// Its name.
    pub name: ThreadName,
}

/// How a thread left its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It would have gone on: it waits.
    Preempted,
    /// It sleeps and anything may wake it.
    Sleeping,
    /// It waits for a device or a lock of the kernel.
    Blocked,
    /// A signal or a debugger stopped it.
    Stopped,
    /// It ended.
    Dead,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_preempts_whom_is_the_order_of_ranks() {
        let ranks = [
            Rank::DEADLINE,
            Rank::realtime(99),
            Rank::realtime(1),
            Rank::FAIR,
            Rank::BENEATH,
            Rank::NOBODY,
        ];
        assert!(ranks.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn names_end_at_a_zero_and_are_plain() {
        assert_eq!(ThreadName::new(b"memcached\0\0junk").to_string(), "memcached");
        assert_eq!(ThreadName::new(b"a\x1b[2Jb").to_string(), "a\\x1b[2Jb");
        assert_eq!(ThreadName::new(&[b'x'; 40]).to_string(), "x".repeat(15));
    }
}
