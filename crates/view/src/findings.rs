//! Episodes in which cores idled while threads that may use them waited.

use quell_model::{CoreId, CoreSet};
use serde::Serialize;

/// Idling that is interrupted no longer than this is one episode: a tick at 250 Hz, the time after which the kernel
/// may first have tried to balance.
const MERGED_NS: u64 = 4_000_000;
/// Episodes that are kept: those that wasted most.
const KEPT: usize = 1_000;

/// An episode of idling while overloaded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
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

/// Collects episodes from cores that begin and cease to be wasted.
#[derive(Default)]
pub(crate) struct Findings {
    wasted: CoreSet,
    since: u64,
    open: Option<Finding>,
    kept: Vec<Finding>,
    total_ns: u64,
    count: usize,
}

impl Findings {
    pub fn core(&mut self, core: CoreId, at: u64, wasted: bool) {
        if self.wasted.contains(core) == wasted {
            return;
        }
        self.account(at);
        match wasted {
            true => self.wasted.insert(core),
            false => self.wasted.remove(core),
        }
        if !wasted {
            return;
        }
        if self.open.as_ref().is_some_and(|open| at > open.to_ns + MERGED_NS) {
            self.close();
        }
        let open = self.open.get_or_insert(Finding {
            from_ns: at,
            to_ns: at,
            wasted_ns: 0,
            cores_max: 0,
            cores: CoreSet::EMPTY,
        });
        open.cores.insert(core);
        open.cores_max = open.cores_max.max(self.wasted.len());
    }

    /// The episodes in order of time, how many there were in all, and all wasted core-nanoseconds.
    pub fn finish(mut self, at: u64) -> (Vec<Finding>, usize, u64) {
        self.account(at);
        self.close();
        self.prune();
        self.kept.sort_by_key(|finding| finding.from_ns);
        (self.kept, self.count, self.total_ns)
    }

    fn account(&mut self, at: u64) {
        let cores = self.wasted.len() as u64;
        if let Some(open) = &mut self.open
            && cores > 0
        {
            let ns = cores * (at - self.since);
            open.wasted_ns += ns;
            open.to_ns = at;
            self.total_ns += ns;
        }
        self.since = at;
    }

    fn close(&mut self) {
        // What began and ceased at one instant wasted nothing.
        let Some(open) = self.open.take().filter(|open| open.wasted_ns > 0) else { return };
        self.count += 1;
        self.kept.push(open);
        if self.kept.len() >= 2 * KEPT {
            self.prune();
        }
    }

    fn prune(&mut self) {
        self.kept.sort_by_key(|finding| std::cmp::Reverse(finding.wasted_ns));
        self.kept.truncate(KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_interruptions_do_not_end_an_episode() {
        let mut findings = Findings::default();
        findings.core(CoreId(1), 0, true);
        findings.core(CoreId(2), 10, true);
        findings.core(CoreId(1), 20, false);
        findings.core(CoreId(2), 20, false);
        findings.core(CoreId(3), MERGED_NS, true);
        findings.core(CoreId(3), MERGED_NS + 5, false);
        findings.core(CoreId(3), 3 * MERGED_NS, true);
        let (kept, count, total) = findings.finish(3 * MERGED_NS + 7);
        assert_eq!((count, total), (2, 20 + 10 + 5 + 7));
        assert_eq!(kept[0].cores.to_string(), "1-3");
        assert_eq!((kept[0].cores_max, kept[0].wasted_ns), (2, 35));
        assert_eq!((kept[1].from_ns, kept[1].to_ns), (3 * MERGED_NS, 3 * MERGED_NS + 7));
    }
}
