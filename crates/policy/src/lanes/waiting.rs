//! Who waits, and who has waited longest.

use quell_model::Nanos;

use super::{MEMBERS_MAX, Member, Members};

/// Members in the order in which they began to wait.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    members: Members,
    since: [Nanos; MEMBERS_MAX],
    /// Breaks ties between those that began at the same time.
    order: [u64; MEMBERS_MAX],
    arrivals: u64,
}

impl Waiting {
    pub(super) fn new() -> Waiting {
        Waiting {
            members: Members::NONE,
            since: [Nanos::ZERO; MEMBERS_MAX],
            order: [0; MEMBERS_MAX],
            arrivals: 0,
        }
    }

    /// From now on these wait: who is new joins at the end, who is missing leaves.
    pub(super) fn update(&mut self, now: Nanos, waiting: Members) {
        for new in waiting.minus(self.members).iter() {
            self.since[new.at()] = now;
            self.order[new.at()] = self.arrivals;
            self.arrivals += 1;
        }
        self.members = waiting;
    }

    /// All that wait.
    pub(super) fn all(&self) -> Members {
        self.members
    }

    /// Since when a member waits.
    pub(super) fn since(&self, member: Member) -> Nanos {
        self.since[member.at()]
    }

    /// Who of these has waited longest.
    pub(super) fn longest(&self, among: Members) -> Option<Member> {
        self.members.and(among).iter().min_by_key(|member| self.order[member.at()])
    }
}
