//! The decisions of executor, restore and guardians, without any effect.
//!
//! The real code and the model that is checked exhaustively (`tests/it/protocol.rs`) call the same functions:
//!
//! * Before a write the executor reads what the host shows ([`before_write`]) and puts the value that it
//!   is about to write into the journal entry that the host does *not* show ([`free_entry`]). Between any
//!   two steps the journal therefore names whatever of Quell's the host may show.
//! * Restore gives back the original only where the host shows such a value ([`restore_decision`]).
//! * Whoever restores for a dead daemon follows [`takeover_step`], so that two writers never exist.

use quell_model::Nanos;

/// What to do about a wanted value, given what the host shows now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BeforeWrite {
    /// The host shows what Quell last wrote, or what it found: go on.
    Write,
    /// Somebody else changed it: remember what is seen as the value to give back, and decide anew.
    Rebase,
}

/// Whether the host still shows what Quell believes it shows.
pub fn before_write<V>(believed: &V, seen: &V, same: impl Fn(&V, &V) -> bool) -> BeforeWrite {
    if same(believed, seen) { BeforeWrite::Write } else { BeforeWrite::Rebase }
}

/// Which of the two journal entries may be overwritten: never the one whose value the host shows.
pub const fn free_entry(shown: Option<usize>) -> usize {
    match shown {
        Some(0) => 1,
        _ => 0,
    }
}

/// What restore does with one journalled value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Restore {
    /// Write the original.
    Write,
    /// The host shows the original already.
    AsFound,
    /// Somebody else changed it since: it stays.
    Leave,
}

/// Decides what restore does, from the original, the last two values that Quell wrote or was about to
/// write, and what the host shows. Where a value is both Quell's and the original, writing does no harm.
pub fn restore_decision<'v, V: 'v>(
    original: &V,
    wrote: impl IntoIterator<Item = &'v V>,
    seen: &V,
    mut same: impl FnMut(&V, &V) -> bool,
) -> Restore {
    if wrote.into_iter().any(|wrote| same(wrote, seen)) {
        return Restore::Write;
    }
    if same(original, seen) { Restore::AsFound } else { Restore::Leave }
}

/// What somebody who may have to restore sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TakeoverView {
    /// The journal is marked closed: all is restored.
    pub closed: bool,
    /// The daemon's process is gone.
    pub daemon_gone: bool,
    /// The daemon's heartbeat is older than the limit.
    pub daemon_stale: bool,
    /// This process holds the journal's lock.
    pub locked: bool,
}

/// The next step of somebody who may have to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TakeoverStep {
    /// All is well: go on watching.
    Watch,
    /// Kill the daemon and wait for its end.
    Kill,
    /// Take the journal's lock.
    Lock,
    /// Write originals, then mark the journal closed.
    Restore,
    /// Nothing is left to do.
    Leave,
}

/// The protocol of taking over. The daemon's end comes before the lock: a daemon that was stopped while it
/// restored holds the lock itself, and a dead one cannot write.
pub const fn takeover_step(view: &TakeoverView) -> TakeoverStep {
    match view {
        TakeoverView { closed: true, .. } => TakeoverStep::Leave,
        TakeoverView { daemon_gone: false, daemon_stale: false, .. } => TakeoverStep::Watch,
        TakeoverView { daemon_gone: false, daemon_stale: true, .. } => TakeoverStep::Kill,
        TakeoverView { daemon_gone: true, locked: false, .. } => TakeoverStep::Lock,
        TakeoverView { daemon_gone: true, locked: true, .. } => TakeoverStep::Restore,
    }
}

/// Tells a daemon that hangs from a host that hangs: a guardian that was itself kept from running cannot
/// blame the daemon for that time.
#[derive(Clone, Copy, Debug)]
pub struct StaleWatch {
    limit: Nanos,
    /// Beats before this time do not count against the daemon.
    grace_from: Nanos,
    looked: Nanos,
}

impl StaleWatch {
    /// Starts to watch for heartbeats older than `limit`.
    pub const fn new(limit: Nanos, now: Nanos) -> StaleWatch {
        StaleWatch { limit, grace_from: now, looked: now }
    }

    /// How long to sleep between two looks.
    pub const fn interval(&self) -> Nanos {
        Nanos(self.limit.0 / 4)
    }

    /// Whether a daemon that last beat at `beat` counts as hung.
    pub fn is_stale(&mut self, beat: Nanos, now: Nanos) -> bool {
        let overslept = now.since(self.looked) > self.interval() + self.interval();
        self.looked = now;
        if overslept {
            self.grace_from = now;
        }
        now.since(Nanos(beat.0.max(self.grace_from.0))) > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_quell_wrote_is_restored() {
        let decide = |seen| restore_decision(&1, &[2, 3], &seen, |a, b| a == b);
        assert_eq!(decide(1), Restore::AsFound);
        assert_eq!((decide(2), decide(3)), (Restore::Write, Restore::Write));
        assert_eq!(decide(4), Restore::Leave);
    }

    #[test]
    fn the_shown_entry_is_never_overwritten() {
        for shown in [None, Some(0), Some(1)] {
            assert_ne!(Some(free_entry(shown)), shown);
        }
    }

    #[test]
    fn a_stalled_host_is_not_a_hung_daemon() {
        let ms = Nanos::from_millis;
        let mut watch = StaleWatch::new(ms(1_000), ms(0));
        assert!(!watch.is_stale(ms(240), ms(250)));
        // Nobody ran for three seconds, then both go on.
        assert!(!watch.is_stale(ms(240), ms(3_250)));
        assert!(!watch.is_stale(ms(240), ms(3_500)));
        // The guardian runs on time and the daemon does not.
        for now in [3_750, 4_000, 4_250] {
            assert!(!watch.is_stale(ms(240), ms(now)));
        }
        assert!(watch.is_stale(ms(240), ms(4_500)));
    }
}
