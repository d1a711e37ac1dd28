//! Either observer, with what only BPF can tell.

use std::os::fd::{AsFd, OwnedFd};

use quell_model::{CoreId, CoreSet, Nanos, TaskId};
use quell_observe::bpf::{BpfObserver, Histogram, TaskTimes};
use quell_observe::proc::ProcObserver;
use quell_observe::{Observer, ThreadState, ThreadView};

/// Where signals come from.
pub enum Sight {
    /// Every wake-up and switch.
    Bpf(Box<BpfObserver>),
    /// Files of /proc, now and then.
    Proc(Box<ProcObserver>),
}

impl Sight {
    /// As the contract that both fill.
    pub fn observer(&mut self) -> &mut dyn Observer {
        match self {
            Sight::Bpf(bpf) => bpf.as_mut(),
            Sight::Proc(proc) => proc.as_mut(),
        }
    }

    /// As the contract that both fill, for reading.
    pub fn seen(&self) -> &dyn Observer {
        match self {
            Sight::Bpf(bpf) => bpf.as_ref(),
            Sight::Proc(proc) => proc.as_ref(),
        }
    }

    /// `bpf` or `proc`.
    pub fn name(&self) -> &'static str {
        match self {
            Sight::Bpf(_) => "bpf",
            Sight::Proc(_) => "proc",
        }
    }

    /// Tells which cores a task may use, for the accounting of idle time.
    pub fn allow(&mut self, task: TaskId, cores: &CoreSet) {
        if let Sight::Bpf(bpf) = self {
            bpf.allow(task, cores);
        }
    }

    /// Time during which LC waited while a core that it may use was idle.
    pub fn idle_while_lc_waits(&mut self) -> Option<Nanos> {
        match self {
            Sight::Bpf(bpf) => Some(bpf.idle_while_lc_waits()),
            Sight::Proc(_) => None,
        }
    }

    /// Time that a thread ran and waited beyond what [`Sight::task_times`] counts.
    pub fn own_times(&self, thread: &ThreadView, now: Nanos) -> (Nanos, Nanos) {
        match (self, thread.state) {
            (Sight::Proc(_), _) => (thread.ran, thread.waited),
            (Sight::Bpf(_), ThreadState::Waiting) => (Nanos::ZERO, now.since(thread.since)),
            (Sight::Bpf(_), _) => (Nanos::ZERO, Nanos::ZERO),
        }
    }

    /// What the threads of a task's place did so far, whoever held it.
    pub fn task_times(&self, task: TaskId) -> Option<TaskTimes> {
        match self {
            Sight::Bpf(bpf) => Some(bpf.task_times(task)),
            Sight::Proc(_) => None,
        }
    }

    /// How long a managed core idled.
    pub fn idle_time(&self, core: CoreId) -> Option<Nanos> {
        match self {
            Sight::Bpf(bpf) => bpf.core_times(core).map(|[_, _, idle]| idle),
            Sight::Proc(_) => None,
        }
    }

    /// Wake-to-run times of a task's LC threads in the last second.
    pub fn recent_wake_to_run(&mut self, task: TaskId) -> Option<Histogram> {
        match self {
            Sight::Bpf(bpf) => Some(bpf.recent_wake_to_run(task)),
            Sight::Proc(_) => None,
        }
    }

    /// Copies of the descriptors that keep descendants tracked after this process is gone.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn held_fds(&self) -> std::io::Result<Vec<OwnedFd>> {
        match self {
            Sight::Bpf(bpf) => {
                bpf.held_fds().iter().map(|fd| fd.as_fd().try_clone_to_owned()).collect()
            }
            Sight::Proc(_) => Ok(Vec::new()),
        }
    }
}
