//! Why the waiters of one class in one queue wait, as counts: a pass or an event costs the same however many they are.

use std::collections::VecDeque;

use quell_model::Nanos;

use super::cause::{Cause, Charges};

/// Why one waiter waits, as it was when this was looked at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// How it came to wait.
    pub(super) cause: Cause,
    /// When it came to the core.
    since: Nanos,
    /// When an arrival ceases to count.
    until: Nanos,
    /// Passes that had been counted when it began to wait.
    passes: u64,
    /// A pass had left it here before it began to wait.
    was_left: bool,
}

impl Phase {
    pub(super) const NONE: Phase = Phase {
        cause: Cause::Seen,
        since: Nanos::ZERO,
        until: Nanos::ZERO,
        passes: 0,
        was_left: false,
    };

    /// Whether the waiter is here because of an arrival that counts until then.
    pub(super) fn is_arrival_until(&self, until: Nanos) -> bool {
        self.cause.is_arrival() && self.until == until
    }
}

/// Arrivals of waiters that left which are kept at least.
const STALE_KEPT: usize = 16;

/// The waiters of one class in one queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Phases {
    /// Waiters by why they wait, without those that a pass left here.
    counts: Vec<(Cause, u32)>,
    /// Waiters that a pass left here.
    left: u32,
    /// The last pass that left waiters here: when, and why.
    last_pass: Option<(Nanos, Cause)>,
    /// Such passes so far.
    passes: u64,
    /// When the arrivals of waiters cease to count, with their slots, the first first. Some may have left.
    arrivals: VecDeque<(Nanos, usize)>,
}

impl Phases {
    /// A thread begins to wait because of `cause`, which counts until `until` if it is an arrival; it came to the core at
    /// `since`.
    pub(super) fn join(&mut self, slot: usize, cause: Cause, since: Nanos, until: Nanos) -> Phase {
        let mut phase = Phase { cause, since, until, passes: self.passes, was_left: false };
        if cause.is_arrival() {
            self.arrivals.push_back((until, slot));
        }
        self.enter(&mut phase);
        phase
    }

    /// Counts a waiter: among those that a pass left, if one came since it came to the core.
    fn enter(&mut self, phase: &mut Phase) {
        let is_left = self.last_pass.is_some_and(|(at, _)| at > phase.since);
        phase.passes = self.passes;
        phase.was_left = !phase.cause.is_arrival() && is_left;
        match phase.was_left {
            true => self.left += 1,
            false => *self.count(phase.cause) += 1,
        }
    }

    /// A waiter waits no more.
    pub(super) fn leave(&mut self, phase: &Phase) {
        let is_left = phase.was_left || (!phase.cause.is_arrival() && phase.passes < self.passes);
        let count = if is_left { &mut self.left } else { self.count(phase.cause) };
        debug_assert!(*count > 0, "more waiters leave than came");
        *count = count.saturating_sub(1);
    }

    fn count(&mut self, cause: Cause) -> &mut u32 {
        let at = self.counts.iter().position(|(known, _)| *known == cause);
        let at = at.unwrap_or_else(|| {
            self.counts.push((cause, 0));
            self.counts.len() - 1
        });
        &mut self.counts[at].1
    }

    /// A pass of an idle core left the waiters here.
    pub(super) fn pass_left(&mut self, at: Nanos, cause: Cause) {
        self.last_pass = Some((at, cause));
        self.passes += 1;
        for (_, count) in self.counts.iter_mut().filter(|(cause, _)| !cause.is_arrival()) {
            self.left += std::mem::take(count);
        }
    }

    /// Charges a time of all waiters to its causes.
    pub(super) fn charge(&self, time: Nanos, charges: &mut Charges) {
        for (cause, count) in &self.counts {
            charges.add(*cause, time, u64::from(*count));
        }
        if let Some((_, cause)) = self.last_pass {
            charges.add(cause, time, u64::from(self.left));
        }
    }

    /// The next waiter that is in this slot by what it was when it came, and whose arrival ceases to count.
    pub(super) fn next_expired(&mut self, now: Nanos) -> Option<(Nanos, usize)> {
        let (until, _) = *self.arrivals.front()?;
        if until <= now { self.arrivals.pop_front() } else { None }
    }

    /// A waiter is not here because of its arrival any more, if that is the one that ceases to count at `until`.
    pub(super) fn expire(&mut self, phase: &mut Phase, until: Nanos) {
        if phase.is_arrival_until(until) {
            self.leave(phase);
            phase.cause = Cause::Waited;
            self.enter(phase);
        }
    }

    /// Sweeps out arrivals of waiters that left, now and then.
    pub(super) fn tidy(&mut self, members: usize, is_current: impl Fn(Nanos, usize) -> bool) {
        if self.arrivals.len() > 2 * members + STALE_KEPT {
            self.arrivals.retain(|(until, slot)| is_current(*until, *slot));
        }
    }
}
