//! Either observer, with what only BPF can tell.

use std::os::fd::{AsFd, OwnedFd};

use quell_linux::observe::bpf::BpfObserver;
use quell_linux::observe::proc::ProcObserver;
use quell_linux::observe::{Observer, ThreadState, ThreadView};
use quell_model::{CoreSet, Nanos, TaskId};

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

    /// Time that a task's place ran and waited, as far as it is kept by task: with BPF all stretches that ended,
    /// also those of ended threads and of earlier tasks at this place; nothing from /proc.
    pub fn kept_times(&self, id: TaskId) -> (Nanos, Nanos) {
        match self {
            Sight::Bpf(bpf) => bpf.task_times(id),
            Sight::Proc(_) => (Nanos::ZERO, Nanos::ZERO),
        }
    }

    /// Time that a thread ran and waited beyond [`Sight::kept_times`]: with BPF the stretch in progress.
    pub fn own_times(&self, thread: &ThreadView, now: Nanos) -> (Nanos, Nanos) {
        match (self, thread.state) {
            (Sight::Proc(_), _) => (thread.ran, thread.waited),
            (Sight::Bpf(_), ThreadState::Running) => (now.since(thread.since), Nanos::ZERO),
            (Sight::Bpf(_), ThreadState::Waiting) => (Nanos::ZERO, now.since(thread.since)),
            (Sight::Bpf(_), _) => (Nanos::ZERO, Nanos::ZERO),
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
