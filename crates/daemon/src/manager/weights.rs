//! Batch work in cgroups of its own counts for least, so that the background threads of services, which are in the
//! fair class, go before it. Where that cannot be had, they get a real-time rung above it. Looked at again each second:
//! processes come, and move between cgroups.

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
    /// `None`: the fair class is of no use here, since batch work is above it or no cgroup has a weight.
    weights: Option<Weights>,
    /// Background threads have a real-time rung.
    elevated: bool,
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
    /// `None` where no thread of a service is in the background.
    pub fn new(host: &HostConfig, layout: &Layout, observer: &str) -> Option<Weighed> {
        let has_roles = host.back_end == BackEndKind::Elevation && observer == "bpf";
        let ordered = host.be_rung == BeRung::SchedIdle;
        let weights = Weights::new(layout).filter(|_| ordered);
        has_roles.then_some(Weighed { weights, elevated: false, least: BTreeMap::new() })
    }

    /// Compares the cgroups of batch work with those of services, and tells each task what could not be had.
    pub fn look(&mut self, tasks: &mut [Task], engine: &Postbox<Command>) {
        let Some(weights) = &self.weights else { return self.elevate(true, engine) };
        let mut found = find(weights, tasks);
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
            let Some(file) = known.or_else(|| weights.weight_file(&cgroup)) else { continue };
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
        self.elevate(!found.problems.is_empty(), engine);
        for (at, task) in tasks.iter_mut().enumerate() {
            task.note_weight(found.problems.remove(&at));
        }
    }

    /// Has background threads put on a real-time rung, or in the fair class.
    fn elevate(&mut self, on: bool, engine: &Postbox<Command>) {
        if self.elevated != on && engine.tell(Command::ElevateBackground(on)) {
            self.elevated = on;
        }
    }
}

fn find(weights: &Weights, tasks: &[Task]) -> Found {
    // Lanes and runtimes order their threads themselves, and have none in the background.
    let of_class = |class: Class| {
        let tasks = tasks.iter().enumerate().filter(move |(_, task)| task.config.class == class);
        tasks.filter(|(_, task)| {
            !matches!(task.config.source, Source::Lane(_) | Source::Registered(_))
        })
    };
    let groups = |task: &Task| -> BTreeSet<SchedGroup> {
        let pids = task.pids().take(PROCESSES_MAX);
        pids.filter_map(|pid| weights.group_of(pid).ok()).collect()
    };
    let lc = of_class(Class::LatencyCritical).flat_map(|(_, task)| groups(task)).collect();
    let known: BTreeSet<i32> =
        of_class(Class::BestEffort).flat_map(|(_, task)| task.pids()).collect();
    let mut found = Found::default();
    for (at, task) in of_class(Class::BestEffort) {
        for group in groups(task) {
            found.judge(weights, &group, &lc, &known, at);
        }
    }
    found
}

impl Found {
    fn judge(
        &mut self,
        weights: &Weights,
        group: &SchedGroup,
        lc: &BTreeSet<SchedGroup>,
        known: &BTreeSet<i32>,
        at: usize,
    ) {
        const ELEVATED: &str = "background threads of services have a real-time rung because of it";
        let problem = match weights.standing(group, lc) {
            Standing::Behind => return,
            Standing::OtherSession => {
                format!("{ELEVATED}: it is in another session; start it in a cgroup of its own")
            }
            Standing::Beside(cgroup) => {
                // A cgroup that is gone holds nothing.
                let look = || weights.other_in(&cgroup, known).unwrap_or_default();
                match *self.others.entry(cgroup.clone()).or_insert_with(look) {
                    None => {
                        self.beside.entry(cgroup).or_default().insert(at);
                        return;
                    }
                    Some(other) => format!(
                        "{ELEVATED}: process {other} is in {} too; start it in a cgroup of its own beside the services' \
                         (systemd-run --slice=batch.slice)",
                        cgroup.display()
                    ),
                }
            }
        };
        self.problems.insert(at, problem);
    }
}
