//! A cyclic table: A-A-B-C, A-B-A-C, or any other.

use quell_model::Nanos;

use super::{LanePolicy, Look, Member, Seen, Turn};

/// One line of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Whose slot it is.
    pub member: Member,
    /// How long it is.
    pub slice: Nanos,
}

/// Runs the slots of a table in order, again and again. The slot of a member that sleeps is left out at once, and so
/// is the rest of one whose member goes to sleep. Who is in the table waits for one round at most.
#[derive(Clone, Debug)]
pub struct Table {
    slots: Vec<Slot>,
    /// The slot that runs, and since when it does: two slots of one member follow each other without a switch.
    at: usize,
    since: Nanos,
}

impl Table {
    /// With these slots, of which there is at least one.
    pub fn new(slots: Vec<Slot>) -> Table {
        let at = slots.len().saturating_sub(1);
        Table { slots, at, since: Nanos::ZERO }
    }

    /// The next slot whose member can run, this one last.
    fn next(&self, seen: &Seen) -> Option<usize> {
        let count = self.slots.len();
        (1..=count)
            .map(|step| (self.at + step) % count)
            .find(|&at| seen.runnable.contains(self.slots[at].member))
    }
}

impl LanePolicy for Table {
    fn name(&self) -> &'static str {
        "table"
    }

    fn decide(&mut self, seen: &Seen) -> Turn {
        // Members without a slot run where nobody else can.
        let Some(next) = self.next(seen) else {
            let other = seen.runnable.iter().next();
            return other.map_or(Turn::IDLE, |member| Turn::of(member, Look::OnChange));
        };
        let slot = self.slots[self.at];
        let runs = seen.current().filter(|(member, _)| *member == slot.member);
        let until = |since: Nanos, slot: Slot| since + slot.slice;
        if let Some((_, began)) = runs {
            self.since = self.since.max(began);
        }
        if runs.is_none() || seen.now >= until(self.since, slot) {
            (self.at, self.since) = (next, seen.now);
        }
        let slot = self.slots[self.at];
        let look = match seen.runnable.len() {
            1 => Look::OnChange,
            _ => Look::At(until(self.since, slot)),
        };
        Turn::of(slot.member, look)
    }
}
