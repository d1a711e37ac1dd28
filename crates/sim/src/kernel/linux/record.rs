//! What the scheduler looked at and why it did what it did, noted where a trace is made.

use std::sync::Arc;

use quell_model::{CoreSet, DomainTrees, Pass, PassEntry, PassGroup, PassOutcome, Search, Skipped};

use super::Linux;
use super::balance::GroupStats;

/// Something of note, in the order in which it happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Record {
    Search(SearchRecord),
    Pass(Box<Pass>),
    /// Domains were built.
    Domains(Arc<DomainTrees>),
}

/// Cores that a search looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SearchRecord {
    /// On behalf of this core.
    pub by: usize,
    pub search: Search,
    pub cores: CoreSet,
}

/// What a pass saw up to now.
#[derive(Clone, Debug, Default)]
pub(super) struct PassNotes {
    /// `None` where no trace is made.
    groups: Option<Vec<PassGroup>>,
    /// Where the busiest group is in `groups`.
    busiest: Option<usize>,
    /// Threads of the queues that it looked through.
    pub skipped: Skipped,
}

impl PassNotes {
    /// A pass looks at the groups, from the first: it looks again if all threads of the busiest queue are pinned.
    pub fn begin_groups(&mut self) {
        if let Some(groups) = &mut self.groups {
            groups.clear();
        }
        self.busiest = None;
    }

    /// The next group.
    pub fn note_group(&mut self, stats: &GroupStats, is_busiest: bool) {
        let Some(groups) = &mut self.groups else { return };
        if is_busiest {
            self.busiest = Some(groups.len());
        }
        groups.push(PassGroup {
            cores: stats.cores,
            sum: stats.load,
            mean: stats.average(),
            minimum: stats.least,
            queued: u32::try_from(stats.queued).unwrap_or(u32::MAX),
            idle: stats.idle as u16,
            kind: stats.kind,
        });
    }

    /// The last group that was noted is the core's own: it comes first.
    pub fn last_is_local(&mut self) {
        if let Some(groups) = &mut self.groups {
            groups.rotate_right(1);
            self.busiest = self.busiest.map(|at| at + 1);
        }
    }

    /// Threads of a queue were left there.
    pub fn skip(&mut self, threads: Skipped) {
        self.skipped.running += threads.running;
        self.skipped.pinned += threads.pinned;
        self.skipped.warm += threads.warm;
        self.skipped.heavy += threads.heavy;
    }

    /// The groups, of which too many are left out, but neither the own nor the busiest one.
    fn into_groups(self) -> Vec<PassGroup> {
        let mut groups = self.groups.unwrap_or_default();
        if let Some(busiest) = self.busiest.filter(|at| *at >= Pass::GROUPS_MAX) {
            groups.swap(busiest, Pass::GROUPS_MAX - 1);
        }
        groups.truncate(Pass::GROUPS_MAX);
        groups
    }
}

impl Linux {
    /// Notes searches, passes and domains that are built from now on.
    pub fn note_records(&mut self) {
        self.records = Some(Vec::new());
    }

    /// The domains as they are now.
    pub fn trees(&self) -> DomainTrees {
        self.domains.trees(&self.online)
    }

    /// Moves what was noted since the last time behind what is in the list.
    pub fn move_records(&mut self, into: &mut Vec<Record>) {
        if let Some(records) = &mut self.records {
            into.append(records);
        }
    }

    /// What was noted since the last time.
    #[cfg(test)]
    pub fn take_records(&mut self) -> Vec<Record> {
        self.records.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn note_search(&mut self, by: usize, search: Search, cores: CoreSet) {
        if let Some(records) = &mut self.records {
            records.push(Record::Search(SearchRecord { by, search, cores }));
        }
    }

    /// Domains were built. Of those that were built one after the other the last ones count.
    pub(super) fn note_domains(&mut self) {
        let Some(records) = &mut self.records else { return };
        records.pop_if(|last| matches!(last, Record::Domains(_)));
        records.push(Record::Domains(Arc::new(self.domains.trees(&self.online))));
    }

    /// For the notes of a pass.
    pub(super) fn pass_notes(&self) -> PassNotes {
        PassNotes { groups: self.records.as_ref().map(|_| Vec::new()), ..PassNotes::default() }
    }

    /// A pass ended.
    pub(super) fn note_pass(
        &mut self,
        (core, level): (usize, usize),
        entry: PassEntry,
        result: Result<usize, PassOutcome>,
        notes: PassNotes,
    ) {
        let Some(records) = &mut self.records else { return };
        let (moved, outcome) = match result {
            Ok(moved) => (moved as u32, PassOutcome::Moved),
            Err(outcome) => (0, outcome),
        };
        records.push(Record::Pass(Box::new(Pass {
            core: Linux::id(core),
            level: level as u8,
            entry,
            skipped: notes.skipped,
            groups: notes.into_groups(),
            outcome,
            moved,
        })));
    }
}

#[cfg(test)]
mod tests {
    use quell_model::CoreId;

    use super::*;

    #[test]
    fn groups_past_the_bound_keep_the_own_and_the_busiest() {
        let mut notes = PassNotes { groups: Some(Vec::new()), ..PassNotes::default() };
        // A first look is forgotten.
        notes.note_group(&GroupStats::default(), true);
        notes.begin_groups();
        for core in 0..100 {
            let stats = GroupStats { cores: CoreSet::of(CoreId(core)), ..GroupStats::default() };
            notes.note_group(&stats, core == 80);
            if core == 90 {
                notes.last_is_local();
            }
        }
        let cores = |group: &PassGroup| group.cores.first().unwrap().0;
        let groups: Vec<u16> = notes.into_groups().iter().map(cores).collect();
        assert_eq!(groups.len(), Pass::GROUPS_MAX);
        assert_eq!((groups[0], groups[1], groups[62], groups[63]), (90, 0, 61, 80));
    }

    #[test]
    fn without_a_trace_nothing_is_noted() {
        let topology = quell_model::Topology::regular(2, 2, 1).unwrap();
        let mut linux = Linux::new(super::super::KernelModel::LINUX_4_1, &topology);
        let mut notes = linux.pass_notes();
        notes.begin_groups();
        notes.note_group(&GroupStats::default(), true);
        notes.last_is_local();
        linux.note_pass((0, 0), PassEntry::Nohz, Ok(1), notes);
        linux.note_domains();
        assert_eq!(linux.take_records(), []);
    }

    #[test]
    fn noted_domains_are_those_that_the_model_builds() {
        let topology = quell_model::Topology::regular(4, 2, 2).unwrap();
        for (_, model) in super::super::KernelModel::PRESETS {
            let mut linux = Linux::new(model, &topology);
            linux.note_records();
            let built = |online: &CoreSet, after_hotplug| {
                DomainTrees::build(&topology, online, &model.domain_rules(after_hotplug))
            };
            let expected = built(&topology.all(), false);
            assert_eq!((linux.trees(), linux.take_records()), (expected, vec![]));
            linux.set_online(CoreId(3), false, quell_model::Nanos(1));
            let mut online = topology.all();
            online.remove(CoreId(3));
            let expected = built(&online, false);
            assert_eq!(linux.take_records(), [Record::Domains(Arc::new(expected))]);
            // Of two changes in one instant the last one counts.
            linux.set_online(CoreId(4), false, quell_model::Nanos(1));
            linux.set_online(CoreId(4), true, quell_model::Nanos(1));
            let expected = built(&online, true);
            assert_eq!(linux.take_records(), [Record::Domains(Arc::new(expected))]);
        }
    }
}
