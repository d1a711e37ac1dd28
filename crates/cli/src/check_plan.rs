//! The plan of a running daemon, for the checker.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use quell_control::protocol::{Method, Reply};
use quell_control::subscribe::{Follower, PlanAffinity, TaskUpdate, Update};
use quell_model::TaskId;
use quell_trace::check::{Managed, ManagedThread};

use crate::client::Daemon;

/// How often, and how many times, the first state of a daemon is looked for before anything is judged.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const FIRST_LOOKS: u32 = 100;

/// Follows a daemon's plan, whenever one runs.
pub struct PlanWatch<'a> {
    daemon: &'a Daemon,
    follower: Follower,
    known: Known,
}

/// The tasks, and what the plan lets each use.
#[derive(Default)]
struct Known {
    tasks: BTreeMap<TaskId, (TaskUpdate, Option<PlanAffinity>)>,
    has_changed: bool,
    /// Why the daemon cannot be followed.
    problem: Option<String>,
}

impl<'a> PlanWatch<'a> {
    /// Waits for the plan if a daemon's socket is there, for a second at most.
    pub fn new(daemon: &'a Daemon) -> Result<PlanWatch<'a>> {
        let socket = daemon.socket();
        let follower = Follower::start(&socket)?;
        let mut watch = PlanWatch { daemon, follower, known: Known::default() };
        let looks = if socket.exists() { FIRST_LOOKS } else { 0 };
        for _ in 0..looks {
            if watch.read() {
                break;
            }
            std::thread::sleep(FIRST_LOOK);
        }
        Ok(watch)
    }

    /// The managed threads, where they or the plan changed since the last time.
    pub fn news(&mut self) -> Option<Managed> {
        self.read();
        std::mem::take(&mut self.known.has_changed).then(|| self.known.managed())
    }

    /// Takes what came; whether something did.
    fn read(&mut self) -> bool {
        let mut count = 0;
        for update in self.follower.take() {
            count += 1;
            match update {
                Ok(update) => self.known.update(update),
                Err(err) => {
                    self.known = Known { has_changed: true, ..Known::default() };
                    self.known.problem = Some(err.to_string());
                }
            }
        }
        count > 0
    }

    /// What the daemon says that bears on the verdict.
    pub fn facts(&self) -> Vec<String> {
        let problem = self.known.problem.as_ref().filter(|_| self.known.tasks.is_empty());
        let problem = problem.map(|why| format!("the plan of a Quell daemon is not known: {why}"));
        let Ok(Reply::Status(status)) = self.daemon.call(Method::Status) else {
            return problem.into_iter().collect();
        };
        let broken = status.counters.violations_work_conservation;
        let manages = format!(
            "a Quell daemon (pid {}) manages cores {}; {broken} of its plans left a core idle that a task could use",
            status.pid, status.managed
        );
        [Some(manages), problem].into_iter().flatten().collect()
    }
}

impl Known {
    fn update(&mut self, update: Update) {
        match update {
            Update::Task(task) => {
                let plan = self.tasks.get(&task.id).and_then(|(_, plan)| *plan);
                self.tasks.insert(task.id, (task, plan));
            }
            Update::TaskLeft(left) => drop(self.tasks.remove(&left.id)),
            Update::PlanAffinity(planned) => {
                let Some((_, plan)) = self.tasks.get_mut(&planned.task) else { return };
                *plan = Some(planned);
            }
            Update::Lost(_) => self.tasks.clear(),
            Update::Core(_) | Update::Decision(_) => return,
        }
        self.has_changed = true;
    }

    fn managed(&self) -> Managed {
        let plans = self.tasks.values().filter_map(|(task, plan)| Some((task, (*plan)?)));
        let threads = plans.flat_map(|(task, plan)| {
            task.affinities.iter().flat_map(move |affinity| {
                let managed = ManagedThread {
                    original: affinity.cores,
                    planned: affinity.cores.intersection(&plan.cores),
                    reason: format!("{}: {}", task.name, plan.reason),
                };
                affinity.threads.iter().map(move |thread| (*thread, managed.clone()))
            })
        });
        Managed { threads: threads.collect(), ..Managed::default() }
    }
}

#[cfg(test)]
mod tests {
    use quell_control::subscribe::{OriginalAffinity, TaskLeft};
    use quell_model::{Class, CoreSet, Nanos, TaskReason};

    use super::*;

    const BATCH: TaskId = TaskId { index: 1, generation: 0 };

    fn cores(list: &str) -> CoreSet {
        list.parse().unwrap()
    }

    #[test]
    fn a_thread_is_judged_by_what_it_might_use_before_and_what_the_plan_gives() {
        let at_ns = Nanos(1);
        let affinity = OriginalAffinity {
            process: 7,
            cores: cores("0-1"),
            threads: vec![7, 8],
            whole_process: false,
        };
        let task = TaskUpdate {
            at_ns,
            id: BATCH,
            name: "batch".to_owned(),
            class: Class::BestEffort,
            processes: vec![7],
            affinities: vec![affinity],
        };
        let (cores_of_plan, reason) = (cores("1-2"), TaskReason::Capped);
        let plan = PlanAffinity { at_ns, task: BATCH, cores: cores_of_plan, reason };
        let mut known = Known::default();
        known.update(Update::Task(task.clone()));
        assert!(known.managed().threads.is_empty(), "nothing is planned yet");
        known.update(Update::PlanAffinity(plan));
        known.update(Update::Task(task));
        let managed = known.managed();
        assert_eq!(managed.threads.keys().copied().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(managed.threads[&7].original, cores("0-1"));
        assert_eq!(managed.threads[&7].planned, cores("1"));
        assert_eq!(managed.threads[&7].reason, "batch: held down by a cap");
        known.update(Update::TaskLeft(TaskLeft { at_ns, id: BATCH }));
        assert!(known.managed().threads.is_empty() && known.has_changed);
    }
}
