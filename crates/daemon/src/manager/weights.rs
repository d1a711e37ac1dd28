//! Batch work in cgroups of its own counts for least, so that the background threads of services, which are in the
//! fair class, go before it. Where that cannot be had, they get a real-time rung above it. Looked at again each second:
//! processes come, and move between cgroups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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
    /// What else was in these cgroups at the last look. Only what still is at the next one counts: a process of batch work
    /// looks like another one while it is new, and while lock relief raises it.
    suspects: BTreeMap<PathBuf, BTreeSet<i32>>,
    unsure: bool,
}

/// What one look found.
#[derive(Default)]
struct Found {
    /// Cgroups that have to count for least, with the places of the tasks for which.
    beside: BTreeMap<PathBuf, BTreeSet<usize>>,
    /// What else is in a cgroup, once for all tasks.
    others: BTreeMap<PathBuf, BTreeSet<i32>>,
    /// Some of them may be processes of batch work.
    unsure: bool,
    /// What stays less than good, by the place of the task.
    problems: BTreeMap<usize, String>,
}

impl Weighed {
    /// `None` where no thread of a service is in the background.
    pub fn new(host: &HostConfig, layout: &Layout, observer: &str) -> Option<Weighed> {
        let has_roles = host.back_end == BackEndKind::Elevation && observer == "bpf";
        let ordered = host.be_rung == BeRung::SchedIdle;
        let weights = Weights::new(layout).filter(|_| ordered);
        has_roles.then_some(Weighed {
            weights,
            elevated: false,
            least: BTreeMap::new(),
            suspects: BTreeMap::new(),
            unsure: false,
        })
    }

    /// Whether the next look has to come soon.
    pub fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Compares the cgroups of batch work with those of services, and tells each task what could not be had.
    pub fn look(&mut self, tasks: &mut [Task], engine: &Postbox<Command>) {
        let Some(weights) = &self.weights else { return self.elevate(true, engine) };
        let mut found = self.find(weights, tasks);
        self.suspects = std::mem::take(&mut found.others);
        self.unsure = found.unsure;
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

    fn find(&self, weights: &Weights, tasks: &[Task]) -> Found {
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
            pids.filter_map(|pid| weights.group_of(pid).ok()).collect()
        };
        let lc = of_class(Class::LatencyCritical).flat_map(|(_, task)| groups(task)).collect();
        let known: BTreeSet<i32> =
            of_class(Class::BestEffort).flat_map(|(_, task)| task.pids()).collect();
        let mut found = Found::default();
        for (at, task) in of_class(Class::BestEffort) {
            for group in groups(task) {
                match weights.standing(&group, &lc) {
                    Standing::Behind => {}
                    Standing::OtherSession => found.note_other_session(at),
                    Standing::Beside(cgroup) => self.judge(weights, cgroup, &known, at, &mut found),
                }
            }
        }
        found
    }

    /// A cgroup of batch work beside one of a service: may it count for least?
    fn judge(
        &self,
        weights: &Weights,
        cgroup: PathBuf,
        known: &BTreeSet<i32>,
        at: usize,
        found: &mut Found,
    ) {
        // A cgroup that is gone holds nothing.
        let look = || weights.others_in(&cgroup, known).unwrap_or_default();
        let others = found.others.entry(cgroup.clone()).or_insert_with(look);
        found.unsure |= !others.is_empty();
        let is_least = self.least.contains_key(&cgroup);
        match Verdict::of(others, self.suspects.get(&cgroup), is_least) {
            Verdict::Shared(other) => found.note_other(at, other, &cgroup),
            Verdict::Own => _ = found.beside.entry(cgroup).or_default().insert(at),
            Verdict::Open => {}
        }
    }

    /// Has background threads put on a real-time rung, or in the fair class.
    fn elevate(&mut self, on: bool, engine: &Postbox<Command>) {
        if self.elevated != on && engine.tell(Command::ElevateBackground(on)) {
            self.elevated = on;
        }
    }
}

/// Whether a cgroup holds batch work alone.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Own,
    Shared(i32),
    /// It stays as it is until the next look.
    Open,
}

impl Verdict {
    /// Only what was there at the look before, too, is something else for sure.
    fn of(others: &BTreeSet<i32>, before: Option<&BTreeSet<i32>>, is_least: bool) -> Verdict {
        let stayed = before.and_then(|before| others.intersection(before).next());
        match stayed {
            Some(&other) => Verdict::Shared(other),
            None if others.is_empty() || is_least => Verdict::Own,
            None => Verdict::Open,
        }
    }
}

/// What is told of batch work that no weight puts behind services.
const ELEVATED: &str = "background threads of services have a real-time rung because of it";

impl Found {
    fn note_other_session(&mut self, at: usize) {
        let remedy = "it is in another session; start it in a cgroup of its own";
        self.problems.insert(at, format!("{ELEVATED}: {remedy}"));
    }

    fn note_other(&mut self, at: usize, other: i32, cgroup: &Path) {
        let cgroup = cgroup.display();
        let problem = format!(
            "{ELEVATED}: process {other} is in {cgroup} too; start it in a cgroup of its own beside the services' \
             (systemd-run --slice=batch.slice)"
        );
        self.problems.insert(at, problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_seen_once_neither_takes_a_weight_nor_keeps_it() {
        let looks = [vec![], vec![7], vec![8], vec![8, 9], vec![9], vec![10], vec![]];
        let looks = looks.map(BTreeSet::from_iter);
        let verdicts = |is_least| {
            let mut before = None;
            looks.each_ref().map(|others| Verdict::of(others, before.replace(others), is_least))
        };
        let (own, shared) = (|| Verdict::Own, Verdict::Shared);
        assert_eq!(verdicts(true), [own(), own(), own(), shared(8), shared(9), own(), own()]);
        let open = || Verdict::Open;
        assert_eq!(verdicts(false), [own(), open(), open(), shared(8), shared(9), open(), own()]);
    }
}
