//! Episodes in which cores idled while threads that may use them waited.
//!
//! A busy host has thousands of such moments that end before any balancer could have looked. A *spell* of a core is
//! therefore only what lasts a millisecond and more, with interruptions by short work left aside; spells of several
//! cores that follow each other closely are one episode.

use quell_model::{CoreId, CoreSet};
use serde::Serialize;

/// Work that is shorter does not end a spell of idling.
const TOUCH_NS: u64 = 1_000_000;
/// Spells that waste less are passed over.
const SPELL_NS: u64 = 1_000_000;
/// Spells that are no further apart belong together: a tick at 250 Hz.
const MERGED_NS: u64 = 4_000_000;
/// Spells that are kept while reading, and episodes in the end: those that wasted most.
const SPELLS: usize = 50_000;
const KEPT: usize = 1_000;

/// An episode of idling while overloaded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleEpisode {
    /// Its begin in nanoseconds since the first event.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// Idle cores × time, in nanoseconds.
    pub wasted_ns: u64,
    /// The most cores that idled at once.
    pub cores_max: usize,
    /// Those that idled at any time of it.
    pub cores: CoreSet,
}

#[derive(Clone, Copy)]
struct Spell {
    core: CoreId,
    from: u64,
    to: u64,
    wasted: u64,
}

/// Of one core: its open spell, and since when it is wasted, if it is.
#[derive(Clone, Copy, Default)]
struct Core {
    open: Option<Spell>,
    since: Option<u64>,
}

/// Collects episodes from cores that begin and cease to be wasted.
#[derive(Default)]
pub(crate) struct Findings {
    cores: Vec<Core>,
    spells: Vec<Spell>,
    total_ns: u64,
}

impl Findings {
    pub fn core(&mut self, core: CoreId, at: u64, wasted: bool) {
        if self.cores.len() <= core.index() {
            self.cores.resize(core.index() + 1, Core::default());
        }
        let slot = &mut self.cores[core.index()];
        match (slot.since, wasted) {
            (None, true) => {
                slot.since = Some(at);
                if slot.open.is_some_and(|open| at > open.to + TOUCH_NS) {
                    self.close(core);
                }
            }
            (Some(since), false) => {
                slot.since = None;
                let mut open = slot.open.unwrap_or(Spell { core, from: since, to: at, wasted: 0 });
                (open.to, open.wasted) = (at, open.wasted + at - since);
                slot.open = Some(open);
                self.total_ns += at - since;
            }
            _ => {}
        }
    }

    /// The episodes in order of time, how many there were in all, and all wasted core-nanoseconds.
    pub fn finish(mut self, at: u64) -> (Vec<IdleEpisode>, usize, u64) {
        for core in 0..self.cores.len() {
            let id = CoreId(core as u16);
            self.core(id, at, false);
            self.close(id);
        }
        self.spells.sort_by_key(|spell| spell.from);
        let mut episodes: Vec<&[Spell]> = Vec::new();
        let (mut first, mut end) = (0, 0);
        for (at, spell) in self.spells.iter().enumerate() {
            if at > first && spell.from > end + MERGED_NS {
                episodes.push(&self.spells[first..at]);
                (first, end) = (at, 0);
            }
            end = end.max(spell.to);
        }
        episodes.extend(Some(&self.spells[first..]).filter(|rest| !rest.is_empty()));
        let count = episodes.len();
        let mut findings: Vec<IdleEpisode> = episodes.into_iter().map(finding).collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.wasted_ns));
        findings.truncate(KEPT);
        findings.sort_by_key(|finding| finding.from_ns);
        (findings, count, self.total_ns)
    }

    fn close(&mut self, core: CoreId) {
        let open = self.cores[core.index()].open.take();
        self.spells.extend(open.filter(|open| open.wasted >= SPELL_NS));
        if self.spells.len() >= 2 * SPELLS {
            self.spells.sort_by_key(|spell| std::cmp::Reverse(spell.wasted));
            self.spells.truncate(SPELLS);
        }
    }
}

/// Spells in order of their begin as one episode.
fn finding(spells: &[Spell]) -> IdleEpisode {
    let mut edges: Vec<(u64, bool)> =
        spells.iter().flat_map(|spell| [(spell.from, true), (spell.to, false)]).collect();
    // One that ends as another begins did not idle beside it.
    edges.sort_unstable();
    let (mut now, mut cores_max) = (0usize, 0);
    for (_, begins) in edges {
        now = if begins { now + 1 } else { now - 1 };
        cores_max = cores_max.max(now);
    }
    IdleEpisode {
        from_ns: spells[0].from,
        to_ns: spells.iter().map(|spell| spell.to).max().unwrap_or_default(),
        wasted_ns: spells.iter().map(|spell| spell.wasted).sum(),
        cores_max,
        cores: spells.iter().map(|spell| spell.core).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn found(wasted: &[(u16, u64, u64)]) -> (Vec<IdleEpisode>, usize, u64) {
        let mut edges: Vec<(u64, bool, u16)> = wasted
            .iter()
            .flat_map(|&(core, from, to)| [(from, true, core), (to, false, core)])
            .collect();
        edges.sort_unstable();
        let mut findings = Findings::default();
        edges.iter().for_each(|&(at, wasted, core)| findings.core(CoreId(core), at, wasted));
        findings.finish(1_000 * MS)
    }

    #[test]
    fn spells_that_follow_each_other_are_one_episode() {
        let (kept, count, total) = found(&[
            (1, 0, 10 * MS),
            (2, 5 * MS, 12 * MS),
            (3, 14 * MS, 20 * MS),
            (1, 90 * MS, 95 * MS),
        ]);
        assert_eq!((count, total), (2, 28 * MS));
        let IdleEpisode { cores_max, wasted_ns, from_ns, to_ns, .. } = kept[0];
        assert_eq!((from_ns, to_ns, wasted_ns, cores_max), (0, 20 * MS, 23 * MS, 2));
        assert_eq!(
            (kept[0].cores.to_string(), kept[1].cores.to_string()),
            ("1-3".into(), "1".into())
        );
    }

    #[test]
    fn moments_are_counted_but_are_no_findings() {
        let (kept, count, total) = found(&[(1, 0, MS / 2), (2, 9 * MS, 10 * MS - 1)]);
        assert_eq!((kept, count, total), (vec![], 0, MS / 2 + MS - 1));
    }

    #[test]
    fn short_work_does_not_end_a_spell() {
        let pieces: Vec<_> = (0..10).map(|at| (7, at * MS, at * MS + MS / 2)).collect();
        let (kept, count, _) = found(&pieces);
        assert_eq!((count, kept[0].wasted_ns), (1, 5 * MS));
    }

    #[test]
    fn what_is_wasted_at_the_end_is_told() {
        let mut findings = Findings::default();
        findings.core(CoreId(0), 0, true);
        assert_eq!(findings.finish(3 * MS).0[0].wasted_ns, 3 * MS);
    }
}
