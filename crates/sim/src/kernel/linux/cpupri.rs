//! Which cores run real-time threads, by priority, so that a wake-up finds the lowest without a look at all cores
//! (kernel/sched/cpupri.c).

use quell_model::{CoreId, CoreSet};

/// Real-time priorities: 0 to 99.
const LEVELS: usize = 100;

/// Cores by the priority of the real-time thread that they run.
#[derive(Clone, Debug)]
pub(super) struct RealtimeCores {
    by_priority: Vec<CoreSet>,
    /// Priorities that some core runs, as bits.
    levels: u128,
    /// By core.
    runs: Vec<Option<u8>>,
    all: CoreSet,
}

impl RealtimeCores {
    /// No core runs any.
    pub fn new(cores: usize) -> RealtimeCores {
        RealtimeCores {
            by_priority: vec![CoreSet::EMPTY; LEVELS],
            levels: 0,
            runs: vec![None; cores],
            all: CoreSet::EMPTY,
        }
    }

    /// The core runs a real-time thread of this priority from now on, or none.
    pub fn set(&mut self, core: usize, priority: Option<u8>) {
        let id = CoreId(core as u16);
        let before = std::mem::replace(&mut self.runs[core], priority);
        if before == priority {
            return;
        }
        if let Some(before) = before {
            let cores = &mut self.by_priority[usize::from(before)];
            cores.remove(id);
            if cores.is_empty() {
                self.levels &= !(1 << before);
            }
            self.all.remove(id);
        }
        if let Some(priority) = priority {
            self.by_priority[usize::from(priority)].insert(id);
            self.levels |= 1 << priority;
            self.all.insert(id);
        }
    }

    /// Cores that run one.
    pub fn all(&self) -> &CoreSet {
        &self.all
    }

    /// Some core runs a lower priority than this one.
    pub fn has_below(&self, priority: u8) -> bool {
        self.levels & ((1 << priority) - 1) != 0
    }

    /// The lowest of these cores among those that run the lowest priority below this one.
    pub fn lowest(&self, among: &CoreSet, below: u8) -> Option<CoreId> {
        let mut levels = self.levels & ((1 << below) - 1);
        while levels != 0 {
            let level = levels.trailing_zeros();
            let found = self.by_priority[level as usize].intersection(among).first();
            if found.is_some() {
                return found;
            }
            levels &= levels - 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_priority_below_own_is_found_among_usable_cores() {
        let mut cores = RealtimeCores::new(4);
        let all: CoreSet = (0..4).map(CoreId).collect();
        assert_eq!(cores.lowest(&all, 99), None);
        for (core, priority) in [(0, 50), (1, 20), (2, 20), (3, 99)] {
            cores.set(core, Some(priority));
        }
        assert_eq!(cores.lowest(&all, 99), Some(CoreId(1)));
        assert_eq!(cores.lowest(&CoreSet::of(CoreId(0)), 51), Some(CoreId(0)));
        assert_eq!(cores.lowest(&CoreSet::of(CoreId(0)), 50), None, "an equal one stays");
        cores.set(1, Some(60));
        cores.set(2, None);
        assert_eq!(cores.lowest(&all, 99), Some(CoreId(0)));
        assert_eq!(*cores.all(), [0, 1, 3].into_iter().map(CoreId).collect());
    }
}
