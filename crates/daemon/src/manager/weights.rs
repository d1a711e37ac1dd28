//! Batch work in cgroups of its own counts for least, so that the background threads of services, which are in the
//! fair class, go before it. Where that cannot be had, they get a real-time rung above it. Looked at again each second, or
//! sooner where something is open: processes come, and move between cgroups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use quell_act::backend::{Layout, SchedGroup, Standing, Weights, is_least};
use quell_control::config::{BackEndKind, HostConfig, Source};
use quell_model::{BeRung, Class};

use super::task::Task;
use crate::command::Command;
use crate::mailbox::Postbox;

/// Looks that find something else in a cgroup of batch work, each time another, after which it is not batch work's alone.
const UNSURE_MAX: u32 = 4;

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
    /// What the last look found in these cgroups.
    looks: BTreeMap<PathBuf, Look>,
}

/// What one look found.
#[derive(Default)]
struct Found {
    /// Cgroups that have to count for least, with the places of the tasks for which.
    beside: BTreeMap<PathBuf, BTreeSet<usize>>,
    /// What is in a cgroup, once for all tasks.
    looks: BTreeMap<PathBuf, Look>,
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
            looks: BTreeMap::new(),
        })
    }

    /// Whether the next look has to come soon.
    pub fn is_unsure(&self) -> bool {
        self.looks.values().any(|look| look.unsure > 0)
    }

    /// Compares the cgroups of batch work with those of services, and tells each task what could not be had.
    pub fn look(&mut self, tasks: &mut [Task], engine: &Postbox<Command>) {
        let Some(weights) = &self.weights else { return self.elevate(true, engine) };
        let mut found = self.find(weights, tasks);
        self.looks = std::mem::take(&mut found.looks);
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
        let before = self.looks.get(&cgroup);
        let look = || {
            // A cgroup that is gone holds nothing.
            let others = weights.others_in(&cgroup, known).unwrap_or_default();
            Look::after(before, others)
        };
        match found.looks.entry(cgroup.clone()).or_insert_with(look).verdict {
            Verdict::Shared(other) => found.note_other(at, other, &cgroup),
            Verdict::Alone => _ = found.beside.entry(cgroup).or_default().insert(at),
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

/// What one look found in a cgroup of batch work.
///
/// A process of batch work looks like another one while it is new, and while lock relief raises it. So what else is there
/// counts when it still is at the next look, or when there was something else at several in a row. Until then the
/// cgroup stays what it was. Of a cgroup seen for the first time nothing follows: its weight stays, and so do the rungs of
/// background threads.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    others: BTreeSet<i32>,
    verdict: Verdict,
    /// Looks in a row, this one the last, that left open whether the others stay.
    unsure: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Batch work's alone.
    Alone,
    /// With this process among others.
    Shared(i32),
    /// The next look decides.
    Open,
}

impl Look {
    fn after(before: Option<&Look>, others: BTreeSet<i32>) -> Look {
        let stays = before.and_then(|before| others.intersection(&before.others).next());
        let was_alone = before.is_some_and(|before| before.verdict == Verdict::Alone);
        let unsure = before.map_or(0, |before| before.unsure) + 1;
        let first = others.first().copied();
        let (verdict, unsure) = match (stays, first) {
            (_, None) => (Verdict::Alone, 0),
            (Some(&other), _) => (Verdict::Shared(other), 0),
            (None, Some(_)) if was_alone && unsure < UNSURE_MAX => (Verdict::Alone, unsure),
            (None, Some(_)) if before.is_none() => (Verdict::Open, unsure),
            (None, Some(other)) => (Verdict::Shared(other), 0),
        };
        Look { others, verdict, unsure }
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

    /// The verdict of each look, and whether the next one has to come soon.
    fn looks<const N: usize>(others: [&[i32]; N]) -> [(Verdict, bool); N] {
        let mut before = None;
        others.map(|others| {
            let look = Look::after(before.as_ref(), others.iter().copied().collect());
            let said = (look.verdict, look.unsure > 0);
            before = Some(look);
            said
        })
    }

    #[test]
    fn process_seen_once_does_not_share_a_cgroup_of_batch_work() {
        let (own, open) = ((Verdict::Alone, false), (Verdict::Alone, true));
        let shared = |pid| (Verdict::Shared(pid), false);
        assert_eq!(looks([&[], &[7], &[8], &[]]), [own, open, open, own]);
        assert_eq!(looks([&[], &[7], &[7, 8], &[9], &[]]), [own, open, shared(7), shared(9), own]);
        let first = (Verdict::Open, true);
        assert_eq!(looks([&[7], &[8], &[]]), [first, shared(8), own], "nothing was known of it");
        assert_eq!(looks([&[7], &[7]]), [first, shared(7)]);
    }

    #[test]
    fn other_programs_that_come_and_go_share_a_cgroup_in_the_end() {
        let mut others: Vec<BTreeSet<i32>> = (0..10).map(|pid| BTreeSet::from([pid])).collect();
        others.insert(0, BTreeSet::new());
        let mut look = None;
        for others in others {
            look = Some(Look::after(look.as_ref(), others));
        }
        assert_eq!(look.map(|look| (look.verdict, look.unsure)), Some((Verdict::Shared(9), 0)));
    }
}
