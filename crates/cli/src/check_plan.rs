//! The plan of a running daemon, for the checker.

use quell_control::protocol::{Method, Reply, Status, TaskStatus};
use quell_model::{CoreSet, Nanos};
use quell_os::clock;
use quell_trace::check::{Managed, ManagedThread};

use crate::client::Daemon;

/// Between two questions to the daemon.
const EVERY: Nanos = Nanos::from_millis(200);

/// Asks a daemon for its plan, if there is one.
pub struct PlanWatch<'a> {
    daemon: &'a Daemon,
    next: Nanos,
    known: Managed,
    facts: Vec<String>,
}

impl<'a> PlanWatch<'a> {
    pub fn new(daemon: &'a Daemon) -> PlanWatch<'a> {
        PlanWatch { daemon, next: Nanos::ZERO, known: Managed::default(), facts: Vec::new() }
    }

    /// The managed threads, where they or the plan changed since the last time.
    pub fn news(&mut self) -> Option<Managed> {
        let now = clock::now();
        if now < self.next {
            return None;
        }
        self.next = now + EVERY;
        let managed = match self.daemon.call(Method::Status) {
            Ok(Reply::Status(status)) => {
                self.facts = facts(&status);
                managed(&status)
            }
            // No daemon runs: nobody is managed.
            _ => Managed::default(),
        };
        (managed != self.known).then(|| self.known.clone_from(&managed))?;
        Some(managed)
    }

    /// What the daemon says that bears on the verdict.
    pub fn facts(&self) -> Vec<String> {
        self.facts.clone()
    }
}

fn facts(status: &Status) -> Vec<String> {
    let broken = status.counters.violations_work_conservation;
    vec![format!(
        "a Quell daemon (pid {}) manages cores {}; {broken} of its plans left a core idle that a task could use",
        status.pid, status.managed
    )]
}

fn managed(status: &Status) -> Managed {
    let threads = status.tasks.iter().flat_map(|task| {
        task.affinities.iter().flat_map(move |affinity| {
            // A list that does not read as one allows nothing: such a thread is not accused.
            let original = cores(&affinity.original);
            let managed = ManagedThread {
                original,
                planned: original.intersection(&planned(task)),
                reason: format!("{}: {}", task.name, task.reason),
            };
            affinity.threads.iter().map(move |thread| (*thread, managed.clone()))
        })
    });
    Managed { threads: threads.collect(), ..Managed::default() }
}

fn planned(task: &TaskStatus) -> CoreSet {
    cores(&task.owned).union(&cores(&task.shared_cores))
}

fn cores(list: &str) -> CoreSet {
    list.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use quell_control::protocol::AffinityStatus;

    use super::*;

    #[test]
    fn a_thread_is_judged_by_what_it_might_use_before_and_what_the_plan_gives() {
        let task = TaskStatus {
            name: "batch".into(),
            owned: "".into(),
            shared_cores: "1-2".into(),
            reason: "held down by a cap".into(),
            affinities: vec![AffinityStatus { original: "0-1".into(), threads: vec![7, 8] }],
            ..TaskStatus::default()
        };
        let status = Status { tasks: vec![task], ..Status::default() };
        let managed = managed(&status);
        assert_eq!(managed.threads.keys().copied().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(managed.threads[&7].original, cores("0-1"));
        assert_eq!(managed.threads[&7].planned, cores("1"));
        assert_eq!(managed.threads[&7].reason, "batch: held down by a cap");
    }
}
