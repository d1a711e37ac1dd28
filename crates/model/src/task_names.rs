//! Names of tasks, as the events of a stream introduce them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{PlanReason, TaskId, TaskInfo, What};

/// The tasks that a stream of events has introduced so far. Holds at most [`TaskNames::TASKS_MAX`].
#[derive(Clone, Debug, Default)]
pub struct TaskNames(BTreeMap<TaskId, Arc<TaskInfo>>);

impl TaskNames {
    /// Maximum number of tasks that are kept; the next one replaces all.
    pub const TASKS_MAX: usize = 65_536;

    /// Takes the task that an event introduces, if it does.
    pub fn take(&mut self, what: &What) {
        let What::Task(task) = what else { return };
        if self.0.len() >= TaskNames::TASKS_MAX && !self.0.contains_key(&task.id) {
            self.0.clear();
        }
        self.0.insert(task.id, Arc::clone(task));
    }

    /// The task with this id, if the stream introduced it.
    pub fn get(&self, id: TaskId) -> Option<&Arc<TaskInfo>> {
        self.0.get(&id)
    }

    /// All tasks, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<TaskInfo>> {
        self.0.values()
    }

    /// The name of a task; `task INDEX.GENERATION` where the stream did not introduce it.
    pub fn name(&self, id: TaskId) -> String {
        self.get(id).map_or_else(|| format!("task {id}"), |task| task.name.clone())
    }

    /// A plan's reason in one line, with the name of the task.
    pub fn plan_reason(&self, reason: &PlanReason) -> String {
        match reason {
            PlanReason::Task { task, reason } => format!("{}: {reason}", self.name(*task)),
            PlanReason::Text(text) => text.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Class, CoreDecision, CoreId, CoreMode, Nanos, Reason, TaskReason};

    fn id(index: u32, generation: u32) -> TaskId {
        TaskId { index, generation }
    }

    fn names() -> TaskNames {
        let mut names = TaskNames::default();
        for (id, name) in [(id(0, 0), "web"), (id(1, 2), "batch")] {
            let task = TaskInfo {
                id,
                name: name.to_owned(),
                class: Class::BestEffort,
                processes: Vec::new(),
            };
            names.take(&What::Task(Arc::new(task)));
        }
        names
    }

    #[test]
    fn decision_line_names_owners_or_their_ids() {
        let names = names();
        let decision = CoreDecision {
            core: CoreId(3),
            from: Some(id(1, 2)),
            to: Some(id(0, 0)),
            mode: CoreMode::Kernel,
            reason: Reason::Congested(Nanos::from_micros(12)),
        };
        let line = |decision: CoreDecision| decision.line(|id| names.name(id));
        let congested = Reason::Congested(Nanos::from_micros(12));
        assert_eq!(line(decision), format!("core 3: batch -> web: {congested}"));
        let decision = CoreDecision { from: None, to: Some(id(1, 1)), ..decision };
        assert!(line(decision).starts_with("core 3: no task -> task 1.1: "));
        let decision = CoreDecision { to: None, mode: CoreMode::Lane, ..decision };
        assert!(line(decision).starts_with("core 3: no task -> no task (lane): "));
    }

    #[test]
    fn plan_reason_of_old_files_is_their_text() {
        let reason = PlanReason::Task { task: id(0, 0), reason: TaskReason::Owner };
        assert_eq!(names().plan_reason(&reason), "web: owns a core");
        assert_eq!(names().plan_reason(&PlanReason::Text("as it was".into())), "as it was");
    }
}
