//! Batch work in cgroups of its own counts for least, so that the background threads of services, which are in the
//! fair class, go before it. Looked at again each second: processes come, and move between cgroups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use quell_act::backend::{Layout, SchedGroup, Standing, Weights, is_least};
use quell_control::config::{BackEndKind, HostConfig, Source};
use quell_model::{BeRung, Class};

use super::task::Task;
use crate::command::Command;
use crate::mailbox::Postbox;

/// Processes of a task whose cgroups are read at most. The rest are most often in the same.
const PROCESSES_MAX: usize = 64;

/// The cgroups that count for least on behalf of Quell.
pub struct Weighed {
    weights: Weights,
    /// Each with the file that says so: which one is chosen by what the file of the shares held before.
    least: BTreeMap<PathBuf, PathBuf>,
}

/// What one look found.
#[derive(Default)]
struct Found {
    /// Cgroups that have to count for least, with the places of the tasks for which.
    beside: BTreeMap<PathBuf, BTreeSet<usize>>,
    /// What else is in a cgroup, once for all tasks.
    others: BTreeMap<PathBuf, Option<i32>>,
    /// What stays less than good, by the place of the task.
    problems: BTreeMap<usize, String>,
}

impl Weighed {
    /// `None` where no thread of a service is in the background, where batch work is not under SCHED_IDLE, or without a
    /// `cpu` controller.
    pub fn new(host: &HostConfig, layout: &Layout, observer: &str) -> Option<Weighed> {
        let has_roles = host.back_end == BackEndKind::Elevation && observer == "bpf";
        let wanted = has_roles && host.be_rung == BeRung::SchedIdle;
        let weights = if wanted { Weights::new(layout)? } else { return None };
        Some(Weighed { weights, least: BTreeMap::new() })
    }

    /// Compares the cgroups of batch work with those of services, and tells each task what could not be had.
    pub fn look(&mut self, tasks: &mut [Task], engine: &Postbox<Command>) {
        let mut found = self.find(tasks);
        let is_gone = |cgroup: &&PathBuf| !found.beside.contains_key(*cgroup);
        let gone: Vec<PathBuf> = self.least.keys().filter(is_gone).cloned().collect();
        for file in gone.iter().filter_map(|cgroup| self.least.remove(cgroup)) {
            // Refused: the cgroup is gone, and its weight with it.
            let _ = engine.call(|reply| Command::Weigh(file, false, reply));
        }
        for (cgroup, places) in std::mem::take(&mut found.beside) {
            // Somebody else may have written another of the files, or the cgroup is a new one.
            let known = self.least.remove(&cgroup);
            if let Some(file) = known.as_ref().filter(|file| !is_least(file)) {
                let _ = engine.call(|reply| Command::Weigh(file.clone(), false, reply));
            }
            let known = known.filter(|file| is_least(file));
            let Some(file) = known.or_else(|| self.weights.weight_file(&cgroup)) else { continue };
            match engine.call(|reply| Command::Weigh(file.clone(), true, reply)) {
                Ok(Ok(())) => _ = self.least.insert(cgroup, file),
                Ok(Err(why)) => {
                    let problem = format!("{} stays: {why}", file.display());
                    found.problems.extend(places.into_iter().map(|at| (at, problem.clone())));
                }
                // The scheduler thread is gone.
                Err(_) => return,
            }
        }
        for (at, task) in tasks.iter_mut().enumerate() {
            task.note_weight(found.problems.remove(&at));
        }
    }

    fn find(&self, tasks: &[Task]) -> Found {
        // Lanes and runtimes order their threads themselves, and have none in the background.
        let of_class = |class: Class| {
            let tasks =
                tasks.iter().enumerate().filter(move |(_, task)| task.config.class == class);
            tasks.filter(|(_, task)| {
                !matches!(task.config.source, Source::Lane(_) | Source::Registered(_))
            })
        };
        let groups = |task: &Task| -> BTreeSet<SchedGroup> {
            let pids = task.pids().take(PROCESSES_MAX);
            pids.filter_map(|pid| self.weights.group_of(pid).ok()).collect()
        };
        let lc = of_class(Class::LatencyCritical).flat_map(|(_, task)| groups(task)).collect();
        let known: BTreeSet<i32> =
            of_class(Class::BestEffort).flat_map(|(_, task)| task.pids()).collect();
        let mut found = Found::default();
        for (at, task) in of_class(Class::BestEffort) {
            for group in groups(task) {
                self.judge(&group, &lc, &known, at, &mut found);
            }
        }
        found
    }

    fn judge(
        &self,
        group: &SchedGroup,
        lc: &BTreeSet<SchedGroup>,
        known: &BTreeSet<i32>,
        at: usize,
        found: &mut Found,
    ) {
        const SHARES: &str = "background threads of services share the core evenly with it";
        let problem = match self.weights.standing(group, lc) {
            Standing::Behind => return,
            Standing::OtherSession => {
                format!("{SHARES}: it is in another session; start it in a cgroup of its own")
            }
            Standing::Beside(cgroup) => {
                // A cgroup that is gone holds nothing.
                let look = || self.weights.other_in(&cgroup, known).unwrap_or_default();
                match *found.others.entry(cgroup.clone()).or_insert_with(look) {
                    None => {
                        found.beside.entry(cgroup).or_default().insert(at);
                        return;
                    }
                    Some(other) => format!(
                        "{SHARES}: process {other} is in {} too; start it in a cgroup of its own beside the services' \
                         (systemd-run --slice=batch.slice)",
                        cgroup.display()
                    ),
                }
            }
        };
        found.problems.insert(at, problem);
    }
}
