//! Plans of a recording in words.

use std::collections::HashMap;

use quell_model::{CorePlan, CoreSet, Nanos, Plan, TaskId, TaskPlan};
use quell_policy::Wake;

/// Places whose name is kept; a recording with more of them is not one of ours.
const PLACES_MAX: usize = 1 << 16;

/// What the operator called the tasks: per place the last one that had it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    by_place: HashMap<u32, (u32, String)>,
}

impl Names {
    /// Notes a task's name.
    pub fn insert(&mut self, task: TaskId, name: String) {
        if self.by_place.len() < PLACES_MAX || self.by_place.contains_key(&task.index) {
            self.by_place.insert(task.index, (task.generation, name));
        }
    }

    /// The task's name, or its number.
    pub fn of(&self, task: TaskId) -> String {
        match self.by_place.get(&task.index) {
            Some((generation, name)) if *generation == task.generation => name.clone(),
            _ => task.to_string(),
        }
    }

    /// The owner's name, or `nobody`.
    pub fn owner(&self, owner: Option<TaskId>) -> String {
        owner.map_or("nobody".to_owned(), |task| self.of(task))
    }
}

/// What differs between two decisions for the same Snapshot, a sentence each; `who` made the first, and who the
/// second.
pub fn differences(names: &Names, who: [&str; 2], plans: [&Plan; 2]) -> Vec<String> {
    let mut out = Vec::new();
    let [a, b] = plans;
    let cores = [a.cores.as_slice(), &b.cores];
    pairs(&mut out, who, cores, |core| (format!("core {}", core.id), core_in_words(names, core)));
    let tasks = [a.tasks.as_slice(), &b.tasks];
    pairs(&mut out, who, tasks, |task| {
        (format!("task {}", names.of(task.id)), task_in_words(task))
    });
    out
}

/// One sentence for each place at which two tables differ.
fn pairs<T: PartialEq>(
    out: &mut Vec<String>,
    who: [&str; 2],
    tables: [&[T]; 2],
    words: impl Fn(&T) -> (String, String),
) {
    for at in 0..tables[0].len().max(tables[1].len()) {
        let entries = tables.map(|table| table.get(at));
        if entries[0] == entries[1] {
            continue;
        }
        let label = entries.into_iter().flatten().next().map(|entry| words(entry).0);
        let said = entries.map(|entry| entry.map_or("nothing".to_owned(), |entry| words(entry).1));
        let label = label.unwrap_or_default();
        out.push(format!("{label}: {} {}; {} {}", who[0], said[0], who[1], said[1]));
    }
}

fn core_in_words(names: &Names, core: &CorePlan) -> String {
    format!("{}'s ({}, {})", names.owner(core.owner), core.mode, core.reason)
}

fn task_in_words(task: &TaskPlan) -> String {
    let TaskPlan { class, cap, rung, shared_cores, reason, .. } = task;
    format!("{class} on rung {rung}, cap {cap}, beneath {} ({reason})", or_none(shared_cores))
}

fn or_none(cores: &CoreSet) -> String {
    if cores.is_empty() { "nobody".to_owned() } else { format!("the owners of {cores}") }
}

/// What a Plan changes about the one before: owners of cores, rungs and rights of tasks.
pub fn changes(names: &Names, before: &Plan, after: &Plan) -> Vec<String> {
    let mut out = Vec::new();
    for core in &after.cores {
        let old = before.cores.iter().find(|old| old.id == core.id).and_then(|old| old.owner);
        if old != core.owner {
            let (from, to) = (names.owner(old), names.owner(core.owner));
            out.push(format!("core {}: {from} -> {to} ({})", core.id, core.reason));
        }
    }
    for task in &after.tasks {
        let old = before.tasks.get(task.id.at()).filter(|old| old.id == task.id);
        let same = |old: &TaskPlan| {
            (old.class, old.rung, old.shared_cores) == (task.class, task.rung, task.shared_cores)
        };
        if !old.is_some_and(same) {
            out.push(format!("task {}: {}", names.of(task.id), task_in_words(task)));
        }
    }
    out
}

/// A time of day in UTC, to the millisecond: `2026-11-21 09:30:00.125 UTC`.
pub fn utc(unix_ns: u64) -> String {
    let (seconds, ms) = (unix_ns / 1_000_000_000, unix_ns / 1_000_000 % 1_000);
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin on 1 March.
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02}.{ms:03} UTC")
}

/// When the policy wants to be asked again.
pub(super) fn wake_in_words(now: Nanos, wake: Wake) -> String {
    match wake {
        Wake::At(at) => format!("asks again after {}", at.since(now)),
        Wake::OnChange => "asks again on a change".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_of_day_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(utc(951_782_399_999_000_000), "2000-02-28 23:59:59.999 UTC");
        assert_eq!(utc(951_782_400_000_000_000), "2000-02-29 00:00:00.000 UTC");
        assert_eq!(utc(1_798_761_599_000_000_000), "2026-12-31 23:59:59.000 UTC");
        let _ = utc(u64::MAX);
    }
}
