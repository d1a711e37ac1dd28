//! Helper threads: what a program runs beside its requests, and the kernel's own threads.

use quell_model::Nanos;

use super::{Request, State, WORK_BITS, Work};
use crate::chance::Chance;
use crate::engine::{Engine, Timer};
use crate::workload::Helper;

/// A helper thread in motion.
pub(crate) struct HelperThread {
    pub thread: usize,
    /// Its kind, among those of its task.
    pub kind: usize,
    /// The position of the one core that it may use: a thread of the kernel.
    pub pinned: Option<usize>,
    /// Chance for its bursts alone.
    pub chance: Chance,
}

impl Engine<'_> {
    /// Arms the timers of the task's helpers.
    pub(crate) fn begin_helpers(&mut self, task: usize) {
        for nth in 0..self.helpers.len() {
            let helper = &mut self.helpers[nth];
            if self.threads[helper.thread].task != task {
                continue;
            }
            let period = self.scenario.tasks[task].helpers[helper.kind].period;
            // Threads of the kernel know nothing of each other; those of a program work together.
            let first = match helper.pinned {
                Some(_) => Nanos(helper.chance.below(period.0)),
                None => period,
            };
            self.timers.arm(self.layout.timer(Timer::Helper(nth)), self.now + first);
        }
    }

    /// The helper wakes up, unless its last burst is not over.
    pub(crate) fn helper_due(&mut self, nth: usize) {
        let HelperThread { thread, kind, .. } = self.helpers[nth];
        let task = self.threads[thread].task;
        if !self.tasks[task].alive {
            return;
        }
        let Helper { period, burst, stops_world, .. } = self.scenario.tasks[task].helpers[kind];
        self.timers.arm(self.layout.timer(Timer::Helper(nth)), self.now + period);
        if self.threads[thread].state != State::Sleeping {
            return;
        }
        let takes = burst.draw(&mut self.helpers[nth].chance);
        if stops_world {
            self.hold_requests(task);
        }
        self.wake(thread, Work::Burst(takes.0 << WORK_BITS));
    }

    /// The burst of a helper is over.
    pub(super) fn helper_sleeps(&mut self, nth: usize) {
        let HelperThread { thread, kind, .. } = self.helpers[nth];
        let task = self.threads[thread].task;
        if self.scenario.tasks[task].helpers[kind].stops_world {
            self.release_requests(task);
        }
    }

    /// Threads with a request sleep, and no request begins, until [`Engine::release_requests`].
    fn hold_requests(&mut self, task: usize) {
        self.tasks[task].held += 1;
        if self.tasks[task].held > 1 {
            return;
        }
        let first = self.tasks[task].first;
        for thread in first..first + self.scenario.tasks[task].threads as usize {
            if let State::Running(at) = self.threads[thread].state {
                self.account(at);
            }
            if let Work::Request(request) = self.threads[thread].work {
                self.threads[thread].work = Work::Nothing;
                let state = &mut self.tasks[task];
                let own = state.inboxes.get_mut(thread - state.first);
                own.unwrap_or(&mut state.backlog).push_front(request);
                self.sleep(thread);
            }
        }
        let oldest_first = |request: &Request| request.arrived;
        self.tasks[task].backlog.make_contiguous().sort_by_key(oldest_first);
    }

    fn release_requests(&mut self, task: usize) {
        self.tasks[task].held -= 1;
        for nth in 0..self.tasks[task].inboxes.len() {
            self.wake_for_own(task, nth);
        }
        while self.tasks[task].held == 0 && !self.tasks[task].backlog.is_empty() {
            let Some(thread) = self.tasks[task].sleepers.pop() else { return };
            let Some(request) = self.tasks[task].backlog.pop_front() else { return };
            self.wake(thread, Work::Request(request));
        }
    }

    /// The core to which a thread of the kernel is pinned.
    pub(crate) fn pinned_to(&self, thread: usize) -> Option<usize> {
        self.helpers[self.threads[thread].helper? as usize].pinned
    }

    /// Since when a thread of the kernel waits for this core.
    pub(crate) fn kernel_waits(&self, at: usize) -> Option<Nanos> {
        let kernel = self.tasks.iter().filter(|task| task.is_kernel);
        let waiting = kernel.flat_map(|task| &task.waiting);
        let pinned = waiting.filter(|thread| self.pinned_to(**thread) == Some(at));
        let since = pinned.filter_map(|thread| match self.threads[*thread].state {
            State::Waiting { since } => Some(since),
            State::Sleeping | State::Running(_) => None,
        });
        since.min()
    }

    /// A thread of the kernel waits no longer, or the simulation ends.
    pub(crate) fn note_kernel_wait(&mut self, thread: usize) {
        if let State::Waiting { since } = self.threads[thread].state
            && self.tasks[self.threads[thread].task].is_kernel
        {
            let waited = self.now.since(since);
            self.report.longest_kernel_wait = self.report.longest_kernel_wait.max(waited);
        }
    }
}
