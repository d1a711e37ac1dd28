//! Preemptive: short work does not wait behind long work.

use quell_model::Nanos;

use super::waiting::Waiting;
use super::{LanePolicy, Look, Member, Members, Seen, Turn};

/// Runs whoever has waited longest. Who runs for longer than a budget makes way for those that did not, and is resumed
/// when none of them waits, or once it has waited for as long as it was promised: then it counts like the others.
///
/// Source: the priority elevation trick (APSys'24, section 3.4), where a request of 500 us stood before those of 0.5 us.
/// The bound on the wait of preempted ones is ours.
#[derive(Clone, Debug)]
pub struct Preemptive {
    budget: Nanos,
    resume_after: Nanos,
    waiting: Waiting,
    /// Those that used up a budget since they woke up.
    preempted: Members,
}

impl Preemptive {
    /// With this budget, and a wait after which the preempted are resumed whoever else waits.
    pub fn new(budget: Nanos, resume_after: Nanos) -> Preemptive {
        let (waiting, preempted) = (Waiting::new(), Members::NONE);
        Preemptive { budget, resume_after, waiting, preempted }
    }

    /// Those that wait and come first.
    fn first(&self, seen: &Seen) -> Members {
        let waited = |member: &Member| {
            !self.preempted.contains(*member)
                || seen.now.since(self.waiting.since(*member)) >= self.resume_after
        };
        seen.waiting().iter().filter(waited).collect()
    }

    /// When to look at the member that has the turn since then.
    fn look(&self, seen: &Seen, member: Member, since: Nanos) -> Look {
        match (seen.runnable.len(), self.preempted.contains(member)) {
            (1, _) => Look::OnChange,
            (_, false) => Look::At(since + self.budget),
            (_, true) => Look::AtOrOnWake(self.next_resumed(seen, member).min(since + self.budget)),
        }
    }

    /// When the next of the preempted that wait, beside this member, has waited for as long as it was promised.
    fn next_resumed(&self, seen: &Seen, beside: Member) -> Nanos {
        let waiting = self.preempted.and(self.waiting.all()).and(seen.runnable).without(beside);
        let due = waiting.iter().map(|member| self.waiting.since(member) + self.resume_after);
        due.min().unwrap_or(Nanos::MAX)
    }
}

impl LanePolicy for Preemptive {
    fn name(&self) -> &'static str {
        "preemptive"
    }

    fn decide(&mut self, seen: &Seen) -> Turn {
        self.preempted = self.preempted.and(seen.runnable);
        self.waiting.update(seen.now, seen.waiting());
        let first = self.first(seen);
        if let Some((member, since)) = seen.current() {
            let over = seen.now >= since + self.budget;
            let makes_way = match self.preempted.contains(member) {
                true => !first.is_empty() || (over && !seen.waiting().is_empty()),
                false => over && !seen.waiting().is_empty(),
            };
            if !makes_way {
                return Turn::of(member, self.look(seen, member, since));
            }
            self.preempted.insert(member);
        }
        let next = self.waiting.longest(first);
        if let Some(next) = next {
            // It has its whole budget again.
            self.preempted.remove(next);
        }
        match next.or_else(|| self.waiting.longest(seen.runnable)) {
            Some(next) => Turn::of(next, self.look(seen, next, seen.now)),
            None => Turn::IDLE,
        }
    }
}
