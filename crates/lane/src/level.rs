//! The four levels, and their priorities.

use crate::LaneError;

/// The highest priority that a program may choose: 99 is the kernel's own.
pub const PRIORITY_MAX: u8 = 98;

/// What a thread of a lane is, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// A worker whose turn it is not.
    Parked,
    /// The thread that chooses: it runs whenever no chosen worker does.
    Dispatcher,
    /// The chosen worker.
    Running,
    /// The thread that sleeps on the timer and ends turns.
    Switcher,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Level; 4] = [Level::Parked, Level::Dispatcher, Level::Running, Level::Switcher];
}

/// A `SCHED_FIFO` priority for each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priorities([u8; 4]);

impl Default for Priorities {
    /// Between two rungs of Quell's ladder: above batch work that Quell parks (2), below a member of `quell lane` that
    /// has its turn (10) and below every latency-critical task (20, 30). None is a rung's own priority: two threads
    /// of one FIFO priority would wait for each other.
    fn default() -> Self {
        Priorities([4, 5, 6, 7])
    }
}

impl Priorities {
    /// Priorities of the program's choice, lowest level first.
    ///
    /// # Errors
    /// [`LaneError::Priorities`] where they do not rise from level to level, within 1 to [`PRIORITY_MAX`].
    pub fn new(priorities: [u8; 4]) -> Result<Priorities, LaneError> {
        let rise = priorities.is_sorted_by(|below, above| below < above);
        match rise && priorities[0] >= 1 && priorities[3] <= PRIORITY_MAX {
            true => Ok(Priorities(priorities)),
            false => Err(LaneError::Priorities),
        }
    }

    /// The priority of a level.
    pub fn of(self, level: Level) -> u8 {
        self.0[level as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_rise_and_leave_the_kernels_own_alone() {
        let refused = [[1, 2, 3, 3], [4, 3, 2, 1], [0, 1, 2, 3], [1, 2, 3, 99]];
        assert!(refused.into_iter().all(|priorities| Priorities::new(priorities).is_err()));
        let chosen = Priorities::new([1, 20, 30, 98]).unwrap();
        assert_eq!(Level::ALL.map(|level| chosen.of(level)), [1, 20, 30, 98]);
        assert!(Level::ALL.is_sorted());
    }
}
