//! `quell status --follow`: decisions as they are taken.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use quell_control::client::ClientError;
use quell_control::subscribe::{Subscription, TaskUpdate, Update};
use quell_model::{CoreDecision, Nanos, TaskId};
use quell_os::clock;
use quell_terminal::interrupted;

use crate::client::Daemon;

/// Maximum time until Ctrl-C is noticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// Prints a line for each update until Ctrl-C, the end of the daemon, or that of the reader of standard output.
pub fn run(daemon: &Daemon, json: bool) -> Result<ExitCode> {
    let stop = interrupted()?;
    let mut subscription = Subscription::open(&daemon.socket(), PATIENCE)?;
    let mut words = Words { begin: clock::now(), names: BTreeMap::new() };
    let mut out = io::stdout().lock();
    // Relaxed: a flag alone, nothing is published by it.
    while !stop.load(Ordering::Relaxed) {
        let update = match subscription.next_update() {
            Ok(Some(update)) => update,
            Ok(None) => continue,
            Err(ClientError::Io(err)) if err.kind() == io::ErrorKind::UnexpectedEof => {
                eprintln!("the daemon ended");
                break;
            }
            Err(err) => return Err(err.into()),
        };
        let line = match json {
            true => serde_json::to_string(&update)?,
            false => words.line(&update),
        };
        match writeln!(out, "{line}") {
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes lines for people.
struct Words {
    begin: Nanos,
    /// Names of tasks; of those that left until their index is used again.
    names: BTreeMap<TaskId, String>,
}

impl Words {
    fn line(&mut self, update: &Update) -> String {
        let seconds = update.at().since(self.begin).0 as f64 / 1e9;
        format!("+{seconds:.6} s: {}", self.what(update))
    }

    fn what(&mut self, update: &Update) -> String {
        match update {
            Update::Task(task) => {
                self.names.retain(|id, _| id.index != task.id.index);
                self.names.insert(task.id, task.name.clone());
                let TaskUpdate { name, class, processes, affinities, .. } = task;
                let changed: usize = affinities.iter().map(|group| group.threads.len()).sum();
                let processes = processes.len();
                format!(
                    "task {name}: {class}, processes: {processes}, threads kept to other cores: {changed}"
                )
            }
            Update::TaskLeft(left) => format!("task {}: left", self.name(left.id)),
            Update::Core(core) => {
                let owner = core.owner.map_or("no task".to_owned(), |id| self.name(id));
                format!("core {}: {owner} ({}): {}", core.core, core.mode, core.reason)
            }
            Update::Decision(made) => self.decision(&made.decision),
            Update::PlanAffinity(plan) => {
                let cores = match plan.cores.is_empty() {
                    true => "no core".to_owned(),
                    false => format!("cores {}", plan.cores),
                };
                format!("task {}: may use {cores}: {}", self.name(plan.task), plan.reason)
            }
            Update::Lost(lost) => {
                format!("{} lines were lost, read too slowly; the state again:", lost.count)
            }
        }
    }

    fn decision(&self, decision: &CoreDecision) -> String {
        decision.line(|id| self.name(id))
    }

    fn name(&self, id: TaskId) -> String {
        self.names.get(&id).map_or_else(|| format!("task {id}"), String::clone)
    }
}

#[cfg(test)]
mod tests {
    use quell_control::subscribe::{DecisionUpdate, Lost, PlanAffinity};
    use quell_model::{Class, CoreId, CoreMode, CoreSet, Reason, TaskReason};

    use super::*;

    #[test]
    fn lines_name_tasks_and_times() {
        let (id, at_ns) = (TaskId { index: 0, generation: 1 }, Nanos(1_002_000_000));
        let mut words = Words { begin: Nanos(1_000_000_000), names: BTreeMap::new() };
        let task = TaskUpdate {
            at_ns,
            id,
            name: "web".to_owned(),
            class: Class::LatencyCritical,
            processes: vec![7],
            affinities: Vec::new(),
        };
        let (core, mode, reason) = (CoreId(1), CoreMode::Kernel, Reason::Guaranteed);
        let decision = CoreDecision { core, from: None, to: Some(id), mode, reason };
        let (cores, reason) = (CoreSet::EMPTY, TaskReason::NoCore);
        let updates = [
            Update::Decision(DecisionUpdate { at_ns, decision }),
            Update::Task(task),
            Update::Decision(DecisionUpdate { at_ns: Nanos(1), decision }),
            Update::PlanAffinity(PlanAffinity { at_ns, task: id, cores, reason }),
            Update::Lost(Lost { at_ns, count: 9 }),
        ];
        let expected = [
            "+0.002000 s: core 1: no task -> task 0.1: guaranteed to its owner",
            "+0.002000 s: task web: LC, processes: 1, threads kept to other cores: 0",
            "+0.000000 s: core 1: no task -> web: guaranteed to its owner",
            "+0.002000 s: task web: may use no core: no core is left for it",
            "+0.002000 s: 9 lines were lost, read too slowly; the state again:",
        ];
        assert_eq!(updates.map(|update| words.line(&update)), expected);
    }
}
