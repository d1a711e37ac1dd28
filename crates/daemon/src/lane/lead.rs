//! What a scheduler on the lane's own core adds to a slice, so that the member has all of it.
//!
//! Between the scheduler's call to sleep and the member's first instruction lie setting a timer and a switch of threads: half a
//! microsecond on bare metal, fifteen and more on a virtual machine, which is more than a short slice. It cannot be read off a
//! clock, but what the members had of their slices can, so it is learnt from them. The kernel counts the end of the switch and the
//! interrupt that ends the turn as the member's; how much that is, [`super::probe`] finds.

use quell_model::Nanos;

/// A host that needs more than this does not get better by waiting.
const LONGEST: Nanos = Nanos::from_micros(50);
/// One turn says no more than this: hypervisors stop cores for milliseconds.
const ERROR_MAX_NS: i64 = 16_000;
/// The share of a turn's error that is corrected at the next.
const GAIN: i64 = 16;

/// The time to add.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lead {
    ns: i64,
    /// What of a member's time on the core is the kernel's at the two ends of a turn.
    ends: Nanos,
}

impl Lead {
    /// One that begins with what was found: the time to add, and the ends of a turn.
    pub fn found(time: Nanos, ends: Nanos) -> Lead {
        Lead { ns: time.min(LONGEST).0 as i64, ends: ends.min(LONGEST) }
    }

    /// The time from the call to sleep until the member runs, as far as is known.
    pub fn time(&self) -> Nanos {
        Nanos(self.ns.unsigned_abs())
    }

    /// A turn ended by time: what its member was to have, and for how long it was on the core.
    pub fn learn(&mut self, slice: Nanos, ran: Nanos) {
        let signed = |time: Nanos| i64::try_from(time.0).unwrap_or(i64::MAX);
        let error = signed(slice) - signed(ran.since(self.ends));
        self.ns += error.clamp(-ERROR_MAX_NS, ERROR_MAX_NS) / GAIN;
        self.ns = self.ns.clamp(0, LONGEST.0 as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Nanos = Nanos::from_micros(10);

    /// For how long a member is on the core on a host where the way to it takes so long.
    fn had(lead: &Lead, way: Nanos) -> Nanos {
        Nanos((SLICE.0 + lead.time().0).saturating_sub(way.0))
    }

    #[test]
    fn members_come_to_have_their_slices() {
        let way = Nanos::from_micros(17);
        let mut lead = Lead::default();
        assert_eq!(had(&lead, way), Nanos::ZERO);
        for _ in 0..200 {
            lead.learn(SLICE, had(&lead, way));
        }
        assert!(had(&lead, way).0.abs_diff(SLICE.0) < 100, "{lead:?}");
    }

    #[test]
    fn the_kernels_ends_of_a_turn_are_not_the_members() {
        let (way, ends) = (Nanos::from_micros(17), Nanos::from_micros(6));
        let mut lead = Lead::found(Nanos::from_micros(3), ends);
        assert_eq!(lead.time(), Nanos::from_micros(3));
        for _ in 0..200 {
            lead.learn(SLICE, had(&lead, way));
        }
        let own = had(&lead, way).since(ends);
        assert!(own.0.abs_diff(SLICE.0) < 100, "{lead:?}");
        let most = Lead::found(Nanos::from_millis(1), Nanos::from_millis(1));
        assert_eq!((most.time(), most.ends), (LONGEST, LONGEST));
    }

    #[test]
    fn a_turn_that_somebody_else_took_says_little_and_the_lead_has_a_bound() {
        let mut lead = Lead::default();
        lead.learn(Nanos::from_millis(10), Nanos::ZERO);
        assert_eq!(lead.time(), Nanos::from_micros(1));
        for _ in 0..10_000 {
            lead.learn(SLICE, Nanos::ZERO);
        }
        assert_eq!(lead.time(), LONGEST);
        for _ in 0..10_000 {
            lead.learn(SLICE, Nanos(u64::MAX));
        }
        assert_eq!(lead.time(), Nanos::ZERO);
    }
}
