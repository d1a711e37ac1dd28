//! Threads on cores: strict priority by rung, first in first out within the real-time rungs, slices below them.

use quell_model::{CoreId, CoreSet, Nanos, Rung};

/// A slice of a thread on a rung that shares in time.
pub(crate) const SLICE: Nanos = Nanos::from_millis(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Sleeping,
    Waiting { since: Nanos },
    Running { core: CoreId, since: Nanos },
}

/// What a thread works on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Nothing,
    /// Until somebody stops it.
    Endless,
    /// A request that arrived then, and what is left of it.
    Request {
        arrived: Nanos,
        left: Nanos,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread {
    pub task: usize,
    pub state: State,
    pub work: Work,
    pub last_core: Option<CoreId>,
    /// Time run since it last slept.
    pub ran: Nanos,
    /// Grows with each start, so that an old end of work is recognised.
    pub starts: u64,
}

/// What the host lets a task do now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    pub rung: Rung,
    pub beneath: CoreSet,
}

#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub id: CoreId,
    pub online: bool,
    /// Whose the host holds it to be.
    pub owner: Option<usize>,
    pub running: Option<usize>,
    pub idle_since: Nanos,
    /// Time that LC threads ran in the windows before and since `window`.
    pub lc_ran: [Nanos; 2],
    pub window: Nanos,
}

/// The window of `lc_busy` is one to two of these.
pub(crate) const WINDOW: Nanos = Nanos::from_millis(50);

impl Core {
    pub fn new(id: CoreId) -> Core {
        Core {
            id,
            online: true,
            owner: None,
            running: None,
            idle_since: Nanos::ZERO,
            lc_ran: [Nanos::ZERO; 2],
            window: Nanos::ZERO,
        }
    }

    /// Moves the window on.
    pub fn roll(&mut self, now: Nanos) {
        while now.since(self.window) >= WINDOW {
            self.window += WINDOW;
            self.lc_ran = [self.lc_ran[1], Nanos::ZERO];
        }
    }
}

/// A real-time rung runs until it blocks or a higher one wakes.
pub(crate) fn is_real_time(rung: Rung) -> bool {
    rung <= Rung::LcGuest
}
