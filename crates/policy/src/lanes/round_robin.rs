//! Round robin: everybody in turn, a slice each.

use quell_model::Nanos;

use super::waiting::Waiting;
use super::{LanePolicy, Look, Seen, Turn};

/// Runs whoever has waited longest, for one slice or until it sleeps. With n members that can run, nobody waits for
/// more than n - 1 slices.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    slice: Nanos,
    waiting: Waiting,
}

impl RoundRobin {
    /// With this slice.
    pub fn new(slice: Nanos) -> RoundRobin {
        RoundRobin { slice, waiting: Waiting::new() }
    }
}

impl LanePolicy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn decide(&mut self, seen: &Seen) -> Turn {
        self.waiting.update(seen.now, seen.waiting());
        let current = seen.current();
        let waiting = self.waiting.longest(seen.waiting());
        match (current, waiting) {
            (Some((member, _)), None) => Turn::of(member, Look::OnChange),
            (Some((member, since)), Some(_)) if seen.now < since + self.slice => {
                Turn::of(member, Look::At(since + self.slice))
            }
            (_, Some(next)) => {
                let alone = seen.runnable.len() == 1;
                let look = if alone { Look::OnChange } else { Look::At(seen.now + self.slice) };
                Turn::of(next, look)
            }
            (None, None) => Turn::IDLE,
        }
    }
}
