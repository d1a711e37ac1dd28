//! The decisions between two samples: followed, so that none is missed however many there are.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;

use quell_control::client::ClientError;
use quell_control::protocol::{Decision, Status, Update};
use quell_control::subscribe::{DecisionUpdate, Follower};
use quell_model::TaskId;

/// Decisions kept; a status has the newest 64.
const KEPT: usize = 256;

/// Follows a daemon's decisions on a connection of its own.
pub(crate) struct Followed {
    follower: Follower,
    known: Known,
}

/// What the updates so far add up to.
#[derive(Default)]
struct Known {
    names: BTreeMap<TaskId, String>,
    made: VecDeque<Decision>,
}

impl Followed {
    /// Begins to follow.
    ///
    /// # Errors
    /// When the thread for it cannot be started.
    pub fn start(socket: &Path) -> io::Result<Followed> {
        Ok(Followed { follower: Follower::start(socket)?, known: Known::default() })
    }

    /// Puts what was followed in the place of the decisions of a status; older ones stay.
    pub fn complete(&mut self, status: &mut Status) {
        self.follower.take().for_each(|update| self.known.take(update));
        self.known.complete(status);
    }
}

impl Known {
    fn take(&mut self, update: Result<Update, ClientError>) {
        match update {
            Ok(Update::Task(task)) => {
                // The name of a task that left serves until another task has its index.
                self.names.retain(|id, _| id.index != task.id.index);
                self.names.insert(task.id, task.name);
            }
            Ok(Update::Decision(made)) => {
                if self.made.len() >= KEPT {
                    self.made.pop_front();
                }
                let made = self.named(&made);
                self.made.push_back(made);
            }
            // Lines are missing, or the daemon is another one: the list of its status holds.
            Ok(Update::Lost(_)) | Err(_) => self.made.clear(),
            Ok(Update::TaskLeft(_) | Update::Core(_) | Update::PlanAffinity(_)) => {}
        }
    }

    fn named(&self, made: &DecisionUpdate) -> Decision {
        let name =
            |id: TaskId| self.names.get(&id).cloned().unwrap_or_else(|| format!("task {id}"));
        let decision = &made.decision;
        Decision {
            at_us: made.at_ns.as_micros(),
            core: u32::from(decision.core.0),
            from: decision.from.map(name),
            to: decision.to.map(name),
            reason: decision.reason.to_string(),
        }
    }

    fn complete(&self, status: &mut Status) {
        let Some(first) = self.made.front() else { return };
        status.decisions.retain(|made| made.at_us < first.at_us);
        // A change of the scheduler alone hands no core over.
        let handed_over = self.made.iter().filter(|made| made.from != made.to);
        status.decisions.extend(handed_over.cloned());
    }
}

#[cfg(test)]
mod tests {
    use quell_control::subscribe::{Lost, TaskUpdate};
    use quell_model::{Class, CoreDecision, CoreId, CoreMode, Nanos, Reason};

    use super::*;

    const WEB: TaskId = TaskId { index: 3, generation: 1 };

    fn at(us: u64) -> Result<Update, ClientError> {
        let (core, from, to) = (CoreId(1), None, Some(WEB));
        let decision =
            CoreDecision { core, from, to, mode: CoreMode::Kernel, reason: Reason::Guaranteed };
        Ok(Update::Decision(DecisionUpdate { at_ns: Nanos::from_micros(us), decision }))
    }

    fn times(known: &Known, status: &[u64]) -> Vec<u64> {
        let made = |us: &u64| Decision { at_us: *us, ..Decision::default() };
        let mut status =
            Status { decisions: status.iter().map(made).collect(), ..Status::default() };
        known.complete(&mut status);
        status.decisions.iter().map(|made| made.at_us).collect()
    }

    #[test]
    fn decisions_between_two_samples_are_all_there_under_their_tasks_names() {
        let mut known = Known::default();
        assert_eq!(times(&known, &[5, 9]), [5, 9], "nothing was followed yet");
        known.take(Ok(Update::Task(TaskUpdate {
            at_ns: Nanos(1),
            id: WEB,
            name: "web".into(),
            class: Class::LatencyCritical,
            processes: vec![],
            affinities: vec![],
        })));
        (9..9 + 2 * KEPT as u64).for_each(|us| known.take(at(us)));
        let all = times(&known, &[5, 9, 300]);
        assert_eq!((all.len(), all[0], all[1]), (KEPT + 2, 5, 9), "{all:?}");
        assert_eq!(known.made[0].to.as_deref(), Some("web"));
        known.take(Ok(Update::Lost(Lost { at_ns: Nanos(1), count: 2 })));
        assert_eq!(times(&known, &[700]), [700], "the daemon's own list holds after a loss");
    }
}
