//! Weighted fair: shares of the core in proportion to weights.

use quell_model::Nanos;

use super::{LanePolicy, Look, MEMBERS_MAX, Member, Members, Seen, Turn};

/// Runs whoever got least for its weight, for a slice. Among members that can always run, each gets its weight's share:
/// never more than a slice beyond it, and never short of it by more than a slice for each other member. Sleeping earns
/// no credit.
#[derive(Clone, Debug)]
pub struct Fair {
    slice: Nanos,
    weights: Vec<u32>,
    /// What each got, divided by its weight, in 1/2^16 ns.
    virtual_time: [u128; MEMBERS_MAX],
    /// The least of those that can run; never falls, so that nobody gains by sleeping.
    floor: u128,
    awake: Members,
    /// Up to when the turn was charged.
    charged: Nanos,
    /// Since when the slice runs.
    since: Nanos,
}

impl Fair {
    /// With this slice and a weight for each member; those beyond have weight 1.
    pub fn new(slice: Nanos, weights: Vec<u32>) -> Fair {
        Fair {
            slice,
            weights,
            virtual_time: [0; MEMBERS_MAX],
            floor: 0,
            awake: Members::NONE,
            charged: Nanos::ZERO,
            since: Nanos::ZERO,
        }
    }

    fn weight(&self, member: Member) -> u128 {
        self.weights.get(member.at()).map_or(1, |weight| u128::from(*weight).max(1))
    }

    fn charge(&mut self, seen: &Seen) {
        if let Some((member, since)) = seen.turn.filter(|(member, _)| member.at() < MEMBERS_MAX) {
            let ran = seen.now.since(since.max(self.charged));
            self.virtual_time[member.at()] += (u128::from(ran.0) << 16) / self.weight(member);
        }
        debug_assert!(self.charged <= seen.now, "charged up to a later time than now");
        self.charged = seen.now;
    }

    /// Who wakes up starts level with the one that got least.
    fn level(&mut self, seen: &Seen) {
        for new in seen.runnable.minus(self.awake).iter() {
            let own = &mut self.virtual_time[new.at()];
            *own = self.floor.max(*own);
        }
        if let Some(least) = self.least(seen.runnable) {
            self.floor = self.floor.max(self.virtual_time[least.at()]);
        }
        self.awake = seen.runnable;
    }

    fn least(&self, among: Members) -> Option<Member> {
        among.iter().min_by_key(|member| self.virtual_time[member.at()])
    }
}

impl LanePolicy for Fair {
    fn name(&self) -> &'static str {
        "fair"
    }

    fn decide(&mut self, seen: &Seen) -> Turn {
        self.charge(seen);
        self.level(seen);
        let Some(least) = self.least(seen.runnable) else { return Turn::IDLE };
        let mut member = least;
        match seen.current() {
            Some((current, began)) => {
                self.since = self.since.max(began);
                if seen.now < self.since + self.slice {
                    member = current;
                } else {
                    self.since = seen.now;
                }
            }
            None => self.since = seen.now,
        }
        match seen.runnable.len() {
            1 => Turn::of(member, Look::OnChange),
            _ => Turn::of(member, Look::At(self.since + self.slice)),
        }
    }
}
