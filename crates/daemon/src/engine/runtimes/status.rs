//! What people see of a runtime.

use quell_control::protocol::RuntimeStatus;
use quell_model::TaskId;
use quell_shm::runtime::{CountersCopy, KthreadState};

use super::{Runtime, Runtimes};

impl Runtimes {
    /// What is known of a task as a runtime; `None` where it is none.
    pub fn status(&self, task: TaskId) -> Option<RuntimeStatus> {
        self.list.iter().find(|runtime| runtime.task == task).map(Runtime::status)
    }

    /// Whether the task is a runtime.
    pub fn has(&self, task: TaskId) -> bool {
        self.list.iter().any(|runtime| runtime.task == task)
    }

    /// The last decision about it in sentences, to follow those of its task.
    pub fn why(&self, task: TaskId) -> Vec<String> {
        self.status(task).as_ref().map(in_words).unwrap_or_default()
    }
}

fn in_words(status: &RuntimeStatus) -> Vec<String> {
    let granted = match status.granted.as_str() {
        "" => "no core".to_owned(),
        cores => format!("core {cores}"),
    };
    vec![
        format!(
            "it is a runtime: {} kernel threads run, {} sleep, {} ask for a core; {} uthreads are ready, the oldest wait in its queues is {:.1} us (measured)",
            status.running,
            status.parked,
            status.requesting_core,
            status.ready_uthreads,
            status.queueing_delay_us
        ),
        format!(
            "granted to its kernel threads: {granted}; {} grants and {} revokes so far, {} of them not obeyed in time",
            status.grants, status.revokes, status.forced_revokes
        ),
    ]
}

impl Runtime {
    fn status(&self) -> RuntimeStatus {
        let in_state = |state: KthreadState| {
            let known = self.kthreads.iter().filter(|it| it.thread.is_some());
            known.filter(|it| it.copy.state == state).count() as u32
        };
        let mut counters = CountersCopy::default();
        self.contract.memory.iter().for_each(|lines| counters += lines.counters.read());
        let queued = self.kthreads.iter().filter(|it| it.thread.is_some());
        RuntimeStatus {
            version: self.contract.version.clone(),
            kthreads: self.contract.memory.kthreads(),
            running: in_state(KthreadState::Running),
            parked: in_state(KthreadState::Parked),
            requesting_core: in_state(KthreadState::Asking),
            granted: self.held.to_string(),
            queueing_delay_us: self.delay.0 as f64 / 1e3,
            ready_uthreads: queued.map(|it| it.copy.queued).fold(0, u64::saturating_add),
            cores_used: self.load as f64 / 1e3,
            switches: counters.switches,
            steals: counters.steals,
            parks: counters.parks,
            preemptions: counters.preemptions,
            core_requests: counters.asks,
            busy_ms: counters.busy_ns as f64 / 1e6,
            grants: self.grants,
            revokes: self.revokes,
            forced_revokes: self.overdue,
            rejected_claims: self.ignored,
        }
    }
}
