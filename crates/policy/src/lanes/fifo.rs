//! First come, first served: a turn ends when its member goes to sleep.

use super::waiting::Waiting;
use super::{LanePolicy, Look, Seen, Turn};

/// Runs whoever became runnable first, until it sleeps. Promises nothing to those behind a member that never does.
#[derive(Clone, Debug)]
pub struct Fifo {
    waiting: Waiting,
}

impl Fifo {
    /// Nobody waits yet.
    pub fn new() -> Fifo {
        Fifo { waiting: Waiting::new() }
    }
}

impl Default for Fifo {
    fn default() -> Fifo {
        Fifo::new()
    }
}

impl LanePolicy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn decide(&mut self, seen: &Seen) -> Turn {
        self.waiting.update(seen.now, seen.waiting());
        let current = seen.current().map(|(member, _)| member);
        let next = current.or_else(|| self.waiting.longest(seen.runnable));
        next.map_or(Turn::IDLE, |member| Turn::of(member, Look::OnChange))
    }
}
