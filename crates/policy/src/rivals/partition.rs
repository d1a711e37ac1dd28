//! The host divided into parts: whole physical cores, and ways of the last-level cache.

use quell_model::{Class, CoreSet, Plan, Reason, Snapshot, TaskPlan, TaskReason, TaskView};
use serde::{Deserialize, Serialize};

use super::{blank, give, live, rung_owners};
use crate::Host;

/// What each task has, by place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Physical cores, siblings included.
    pub cores: Vec<u32>,
    /// Ways of the last-level cache; all zero where it is not divided.
    pub ways: Vec<u16>,
}

/// Physical cores as far as they are usable, and who has each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Division {
    /// The cores of each unit.
    units: Vec<CoreSet>,
    /// By unit, the place of the task that has it.
    owners: Vec<Option<u32>>,
    /// By place.
    pub ways: Vec<u16>,
}

impl Division {
    /// Nobody has anything yet.
    pub fn new(host: &Host, usable: &CoreSet, tasks: usize) -> Division {
        let mut units: Vec<CoreSet> = Vec::new();
        for core in usable.iter() {
            let whole = host.topology.siblings(core).union(&CoreSet::of(core));
            let unit = whole.intersection(usable);
            if unit.first() == Some(core) {
                units.push(unit);
            }
        }
        Division { owners: vec![None; units.len()], units, ways: vec![0; tasks] }
    }

    /// As many cores and ways for each task as for any other.
    pub fn equal(host: &Host, usable: &CoreSet, seen: &Snapshot) -> Division {
        let mut division = Division::new(host, usable, seen.tasks.len());
        let mut dealt = true;
        while dealt {
            dealt = false;
            for task in live(seen) {
                dealt |= division.take_free(task);
            }
        }
        let share = host.caps.llc_ways as usize / live(seen).count().max(1);
        for task in live(seen) {
            division.ways[task.id.at()] = share as u16;
        }
        division
    }

    /// What the partition says, as far as limits allow it.
    pub fn of(host: &Host, usable: &CoreSet, seen: &Snapshot, partition: &Partition) -> Division {
        let mut division = Division::new(host, usable, seen.tasks.len());
        let mut left = host.caps.llc_ways;
        for task in live(seen) {
            let at = task.id.at();
            for _ in 0..partition.cores.get(at).copied().unwrap_or(0) {
                if !division.take_free(task) {
                    break;
                }
            }
            division.ways[at] = partition.ways.get(at).copied().unwrap_or(0).min(left);
            left -= division.ways[at];
        }
        division
    }

    /// Gives the task the lowest unit that nobody has and that it may have.
    pub fn take_free(&mut self, task: &TaskView) -> bool {
        self.take(task, None)
    }

    /// Moves a unit of `from`, or one that nobody has, to the task.
    pub fn take(&mut self, task: &TaskView, from: Option<u32>) -> bool {
        let owned = self.cores_of(task.id.index);
        let fits = |(unit, owner): &(&CoreSet, &Option<u32>)| {
            let most = task.limits.core_limit() as usize;
            **owner == from && unit.is_subset(&task.limits.allowed) && owned + unit.len() <= most
        };
        let found = self.units.iter().zip(&self.owners).position(|pair| fits(&pair));
        if let Some(at) = found {
            self.owners[at] = Some(task.id.index);
        }
        found.is_some()
    }

    /// Leaves one unit of the task's to nobody.
    pub fn leave(&mut self, place: u32) -> bool {
        let last = self.owners.iter().rposition(|owner| *owner == Some(place));
        if let Some(at) = last {
            self.owners[at] = None;
        }
        last.is_some()
    }

    /// Units in all.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Units of the task.
    pub fn units_of(&self, place: u32) -> u32 {
        self.owners.iter().filter(|owner| **owner == Some(place)).count() as u32
    }

    /// Ways that nobody has.
    pub fn free_ways(&self, host: &Host) -> u16 {
        host.caps.llc_ways.saturating_sub(self.ways.iter().sum())
    }

    fn cores_of(&self, place: u32) -> usize {
        let units = self.units.iter().zip(&self.owners);
        units.filter(|(_, owner)| **owner == Some(place)).map(|(unit, _)| unit.len()).sum()
    }

    /// Writes the whole Plan: each task on its own cores. One that has none shares all where cores can be
    /// shared, at the bottom of the ladder, so that it is not lost.
    pub fn write(&self, host: &Host, usable: &CoreSet, seen: &Snapshot, plan: &mut Plan) {
        blank(host, seen, plan);
        for (unit, owner) in self.units.iter().zip(&self.owners) {
            let Some(task) = owner.and_then(|place| seen.tasks.get(place as usize)) else {
                continue;
            };
            unit.iter().for_each(|core| give(host, plan, core, task.id, Reason::Guaranteed));
        }
        rung_owners(host, seen, plan);
        for task in live(seen) {
            let planned = &mut plan.tasks[task.id.at()];
            planned.llc_ways = Some(self.ways[task.id.at()]).filter(|ways| *ways > 0);
            if planned.reason == TaskReason::NoCore && host.caps.shares_cores {
                share(planned, task, usable);
            }
        }
    }

    /// Whether its tables fit so many tasks and the host's cache; a restored one need not.
    pub fn is_sound(&self, host: &Host, tasks: usize) -> bool {
        let ways: u64 = self.ways.iter().map(|ways| u64::from(*ways)).sum();
        self.owners.len() == self.units.len()
            && self.owners.iter().flatten().all(|place| (*place as usize) < tasks)
            && self.ways.len() == tasks
            && ways <= u64::from(host.caps.llc_ways)
    }
}

fn share(planned: &mut TaskPlan, task: &TaskView, usable: &CoreSet) {
    let open = usable.intersection(&task.limits.allowed);
    planned.shared_cores = open.iter().take(task.limits.core_limit() as usize).collect();
    if !planned.shared_cores.is_empty() {
        planned.reason = match task.limits.class {
            Class::LatencyCritical => TaskReason::Configured,
            Class::BestEffort => TaskReason::Guest,
        };
    }
}
