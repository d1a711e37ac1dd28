//! Batch work in cgroups of its own counts for least there, so that the background threads of services, which are in the
//! fair class, go before it. Looked at again each second: processes come, and move between cgroups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use quell_act::backend::{Layout, SchedGroup, Standing, Weights};
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
    /// Their weight files.
    least: BTreeSet<PathBuf>,
}

/// What one look found.
#[derive(Default)]
struct Found {
    /// Cgroups that have to count for least.
    beside: BTreeSet<PathBuf>,
    /// What stays less than good, by the place of the task.
    problems: BTreeMap<usize, String>,
}

impl Weighed {
    /// `None` where this back end does not put batch work under SCHED_IDLE, or without a `cpu` controller.
    pub fn new(host: &HostConfig) -> Option<Weighed> {
        let idle = host.back_end == BackEndKind::Elevation && host.be_rung == BeRung::SchedIdle;
        let layout = Layout::detect(Path::new("/")).ok().filter(|_| idle)?;
        Some(Weighed { weights: Weights::new(&layout)?, least: BTreeSet::new() })
    }

    /// Compares the cgroups of batch work with those of services, and tells each task what could not be had.
    pub fn look(&mut self, tasks: &mut [Task], engine: &Postbox<Command>) {
        let mut found = self.find(tasks);
        let files = found.beside.iter().filter_map(|cgroup| self.weights.weight_file(cgroup));
        let wanted: BTreeSet<PathBuf> = files.collect();
        for file in self.least.difference(&wanted) {
            // Refused: the cgroup is gone, and its weight with it.
            let _ = engine.call(|reply| Command::Weigh(file.clone(), false, reply));
        }
        self.least.retain(|file| wanted.contains(file));
        let mut refused = None;
        for file in wanted {
            if self.least.contains(&file) {
                continue;
            }
            match engine.call(|reply| Command::Weigh(file.clone(), true, reply)) {
                Ok(Err(why)) => refused = Some(format!("its cgroup's weight stays: {why}")),
                _ => _ = self.least.insert(file),
            }
        }
        for (at, task) in tasks.iter_mut().enumerate() {
            let is_be = task.config.class == Class::BestEffort;
            let problem = found.problems.remove(&at);
            task.note_weight(problem.or_else(|| refused.clone().filter(|_| is_be)));
        }
    }

    fn find(&self, tasks: &[Task]) -> Found {
        let of_class = |class: Class| {
            let tasks = tasks.iter().enumerate();
            tasks.filter(move |(_, task)| task.config.class == class)
        };
        let groups = |task: &Task| -> BTreeSet<SchedGroup> {
            let pids = task.pids().take(PROCESSES_MAX);
            pids.filter_map(|pid| self.weights.group_of(pid).ok()).collect()
        };
        let lc = of_class(Class::LatencyCritical).flat_map(|(_, task)| groups(task)).collect();
        let known: BTreeSet<i32> =
            of_class(Class::BestEffort).flat_map(|(_, task)| task.pids()).collect();
        let mut found = Found::default();
        // The members of a lane are under SCHED_FIFO, whose order no group changes.
        let fair = |task: &Task| !matches!(task.config.source, Source::Lane(_));
        for (at, task) in of_class(Class::BestEffort).filter(|(_, task)| fair(task)) {
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
            Standing::Beside(cgroup) => match self.weights.other_in(&cgroup, known) {
                Ok(None) => {
                    found.beside.insert(cgroup);
                    return;
                }
                Ok(Some(other)) => format!(
                    "{SHARES}: process {other} is in its cgroup {} too; give it one of its own",
                    cgroup.display()
                ),
                // The cgroup is gone.
                Err(_) => return,
            },
        };
        found.problems.insert(at, problem);
    }
}
