//! How much peers may send over channels without congestion control of their own: the receiver says so, shortest first.
//!
//! As in Homa (SIGCOMM'18, 3.3 to 3.5) a sender may send a few bytes unasked; for more it waits for a grant. What is granted
//! to all senders and has not arrived is bounded, so that the queue in front of the receiver is, too. Here a sender is a
//! channel, and what remains is what it has gathered for it, not one message. As in Homa's kernel module a part goes to the
//! sender that waits longest, which the shortest would starve.

use std::collections::BTreeMap;

use quell_model::Nanos;

/// The bounds of a [`Granter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantLimits {
    /// Bytes that a sender may send unasked.
    pub unscheduled: u64,
    /// Bytes beyond those that are granted to all senders together, and have not arrived. As much as the network carries in
    /// a few round trips: less wastes some of it, more waits in front of the slowest link.
    pub window: u64,
}

impl Default for GrantLimits {
    fn default() -> GrantLimits {
        GrantLimits { unscheduled: 16 << 10, window: 128 << 10 }
    }
}

/// A grant is raised by this part of the window at least, if so much is wanted: each is a packet.
const STEPS: u64 = 8;
/// The part of the window for the sender that waits longest.
const OLDEST: u64 = 8;
/// What was granted to a sender of which nothing was heard for so long others may have: it was lost, or the sender is gone.
const SILENT: Nanos = Nanos::from_millis(20);
/// A sender that announces more is taken to want so much.
const WANTED_MAX: u64 = 1 << 40;

/// Names a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sender(u64);

#[derive(Clone, Copy, Debug)]
struct State {
    /// Bytes that it has sent, whether they have arrived or were lost.
    sent: u64,
    /// Bytes that it has sent or would send.
    wanted: u64,
    /// Bytes that it may send.
    granted: u64,
    /// Its place among those that wait for grants.
    waits_since: Option<u64>,
    heard_at: Nanos,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Granter {
    limits: GrantLimits,
    senders: BTreeMap<Sender, State>,
    next: u64,
    turn: u64,
}

impl State {
    /// Bytes on their way that it was granted beyond those that need no grant.
    fn scheduled(&self, unscheduled: u64, now: Nanos) -> u64 {
        match self.is_silent(now) {
            true => 0,
            false => self.granted.saturating_sub(self.sent).saturating_sub(unscheduled),
        }
    }

    fn is_silent(&self, now: Nanos) -> bool {
        now.since(self.heard_at) > SILENT
    }

    fn remaining(&self) -> u64 {
        self.wanted.saturating_sub(self.sent)
    }
}

impl Granter {
    /// One without senders.
    pub fn new(limits: GrantLimits) -> Granter {
        Granter { limits, senders: BTreeMap::new(), next: 0, turn: 0 }
    }

    /// A sender that has not sent anything. Returns its name, and what it may send.
    pub fn add(&mut self) -> (Sender, u64) {
        let sender = Sender(self.next);
        self.next += 1;
        let granted = self.limits.unscheduled;
        self.senders.insert(
            sender,
            State { sent: 0, wanted: 0, granted, waits_since: None, heard_at: Nanos::ZERO },
        );
        (sender, granted)
    }

    /// A sender is gone: what it was granted others may have.
    pub fn remove(&mut self, sender: Sender) {
        self.senders.remove(&sender);
    }

    /// A sender has sent so much in all, and would send `wanted`. Reports that come out of order change nothing.
    pub fn heard(&mut self, sender: Sender, sent: u64, wanted: u64, now: Nanos) {
        let Some(state) = self.senders.get_mut(&sender) else { return };
        state.heard_at = now;
        state.sent = state.sent.max(sent);
        state.wanted = state.wanted.max(wanted.min(state.sent.saturating_add(WANTED_MAX)));
        match state.wanted > state.granted {
            true if state.waits_since.is_none() => {
                state.waits_since = Some(self.turn);
                self.turn += 1;
            }
            true => {}
            false => state.waits_since = None,
        }
    }

    /// Raises grants. Puts those that rose into `raised`, with what the senders may send in all.
    pub fn grant(&mut self, now: Nanos, raised: &mut Vec<(Sender, u64)>) {
        let GrantLimits { unscheduled, window } = self.limits;
        for (sender, state) in &mut self.senders {
            let unasked = state.sent.saturating_add(unscheduled);
            if unasked > state.granted {
                state.granted = unasked;
                state.waits_since.take_if(|_| unasked >= state.wanted);
                raised.push((*sender, unasked));
            }
        }
        let scheduled = self.scheduled(now);
        let mut left = window.saturating_sub(scheduled);
        let oldest = self.waiting(now).min_by_key(|(_, state)| state.waits_since);
        if let Some((sender, state)) = oldest {
            let part = (window / OLDEST).saturating_sub(state.scheduled(unscheduled, now));
            left -= self.give(sender, part.min(left), raised);
        }
        let mut waiting: Vec<(u64, Sender)> =
            self.waiting(now).map(|(sender, state)| (state.remaining(), sender)).collect();
        waiting.sort_unstable();
        for (_, sender) in waiting {
            left -= self.give(sender, left, raised);
        }
    }

    /// Senders that want more, and say so again and again.
    fn waiting(&self, now: Nanos) -> impl Iterator<Item = (Sender, State)> {
        let waits = move |(_, state): &(&Sender, &State)| {
            state.waits_since.is_some() && !state.is_silent(now)
        };
        self.senders.iter().filter(waits).map(|(sender, state)| (*sender, *state))
    }

    /// Raises one grant by at most `most`. Returns by how much.
    fn give(&mut self, sender: Sender, most: u64, raised: &mut Vec<(Sender, u64)>) -> u64 {
        let step = (self.limits.window / STEPS).max(1);
        let Some(state) = self.senders.get_mut(&sender) else { return 0 };
        let missing = state.wanted.saturating_sub(state.granted);
        let given = missing.min(most);
        if given == 0 || given < missing.min(step) {
            return 0;
        }
        state.granted += given;
        if state.granted >= state.wanted {
            state.waits_since = None;
        }
        match raised.iter_mut().find(|(known, _)| *known == sender) {
            Some((_, granted)) => *granted = state.granted,
            None => raised.push((sender, state.granted)),
        }
        given
    }

    fn scheduled(&self, now: Nanos) -> u64 {
        let of = |state: &State| state.scheduled(self.limits.unscheduled, now);
        self.senders.values().map(of).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: GrantLimits = GrantLimits { unscheduled: 1_000, window: 8_000 };

    const NOW: Nanos = Nanos::from_secs(1);

    fn granted(granter: &mut Granter) -> Vec<(Sender, u64)> {
        let mut raised = Vec::new();
        granter.grant(NOW, &mut raised);
        raised
    }

    #[test]
    fn short_ones_go_first_and_the_oldest_does_not_starve() {
        let mut granter = Granter::new(LIMITS);
        let [long, short] = [granter.add(), granter.add()];
        assert_eq!((long.1, short.1), (1_000, 1_000), "a few bytes need no grant");
        granter.heard(long.0, 1_000, 1_000_000, NOW);
        assert_eq!(granted(&mut granter), [(long.0, 10_000)], "the whole window");
        granter.heard(short.0, 1_000, 5_000, NOW);
        assert_eq!(
            granted(&mut granter),
            [(short.0, 2_000)],
            "nothing is left but what is unasked"
        );
        granter.heard(long.0, 5_000, 1_000_000, NOW);
        assert_eq!(granted(&mut granter), [(short.0, 5_000), (long.0, 11_000)]);
        // However many short ones come, it goes on.
        for round in 1..20 {
            let (next, _) = granter.add();
            granter.heard(next, 1_000, 9_000, NOW);
            granter.heard(long.0, 5_000 + round * 1_000, 1_000_000, NOW);
            granted(&mut granter);
        }
        let state = granter.senders[&long.0];
        assert!(state.scheduled(1_000, NOW) >= 1_000, "{state:?}");
    }

    #[test]
    fn what_a_lost_sender_had_goes_to_others() {
        let mut granter = Granter::new(LIMITS);
        let [lost, other] = [granter.add().0, granter.add().0];
        granter.heard(lost, 0, 100_000, NOW);
        granter.heard(other, 0, 100_000, NOW);
        assert_eq!(granted(&mut granter), [(lost, 9_000)]);
        granter.remove(lost);
        assert_eq!(granted(&mut granter), [(other, 9_000)]);
    }

    #[test]
    fn what_a_silent_sender_has_goes_to_others() {
        let mut granter = Granter::new(LIMITS);
        let [silent, other] = [granter.add().0, granter.add().0];
        granter.heard(silent, 0, 100_000, NOW);
        granted(&mut granter);
        let later = NOW + SILENT + Nanos(1);
        granter.heard(other, 0, 100_000, later);
        let mut raised = Vec::new();
        granter.grant(later, &mut raised);
        assert_eq!(raised, [(other, 9_000)]);
        // It comes back: until what it had has arrived there is more on the way, and no more is granted.
        granter.heard(silent, 1_000, 100_000, later);
        raised.clear();
        granter.grant(later, &mut raised);
        assert_eq!(raised, []);
    }

    proptest! {
        /// Whatever senders claim: no more is on its way than allowed, grants never fall, none is granted what it does not
        /// want, and while there is room and a wish a grant rises.
        #[test]
        fn window_holds_and_is_used(
            reports in prop::collection::vec((0_usize..5, any::<u64>(), 0_u64..40_000), 1..200),
        ) {
            let mut granter = Granter::new(LIMITS);
            let senders: Vec<Sender> = (0..5).map(|_| granter.add().0).collect();
            let mut known = [LIMITS.unscheduled; 5];
            for (index, sent, wanted) in reports {
                let sender = senders[index];
                let state = granter.senders[&sender];
                // Some claim anything, most what is possible.
                let sent = if sent % 16 == 0 { sent } else { state.sent + sent % (state.granted.saturating_sub(state.sent) + 1) };
                granter.heard(sender, sent, sent.saturating_add(wanted), NOW);
                for (sender, granted) in granted(&mut granter) {
                    let at = senders.iter().position(|it| *it == sender).unwrap();
                    prop_assert!(granted > known[at], "a grant did not rise");
                    known[at] = granted;
                    let state = granter.senders[&sender];
                    prop_assert!(granted <= state.wanted.max(state.sent.saturating_add(LIMITS.unscheduled)));
                }
                let used = granter.scheduled(NOW);
                prop_assert!(used <= LIMITS.window);
                let wishes = granter.senders.values().any(|it| it.wanted > it.granted);
                let step = LIMITS.window / STEPS;
                prop_assert!(!wishes || used + step > LIMITS.window, "{used} are granted, and some wait");
            }
        }
    }
}
