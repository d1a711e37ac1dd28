//! Cores for threads, and threads for cores.

use quell_model::{Class, CoreSet, Rung};

use super::{State, Work};
use crate::engine::Engine;

/// The rungs from the lowest to the highest.
const LOWEST_FIRST: [Rung; 10] = [
    Rung::SchedIdle,
    Rung::Original,
    Rung::FifoLow,
    Rung::Dispatcher,
    Rung::LcOverflow,
    Rung::Lc,
    Rung::Switcher,
    Rung::Softirq,
    Rung::Scheduler,
    Rung::Guardian,
];

impl Engine<'_> {
    /// Finds a core for a waiting thread: an idle one, the last one first, else one where a lower rung runs.
    pub(super) fn place(&mut self, thread: usize) {
        let task = self.threads[thread].task;
        let Some(at) = self.find_core(task, self.threads[thread].last_core) else {
            if !self.scenario.host.caps.shares_cores
                || self.tasks[task].class == Class::LatencyCritical
            {
                self.ring();
            }
            return;
        };
        let victim = self.cores[at].running;
        if victim.is_some() {
            self.stop(at);
        }
        self.start(thread, at);
        if let Some(victim) = victim {
            self.replace(victim);
        }
    }

    /// Finds another core for one that was just stopped.
    pub(super) fn replace(&mut self, thread: usize) {
        match self.threads[thread].state {
            State::Waiting { .. } => self.place(thread),
            // A runtime's request went back to its queue.
            _ => self.feed(self.threads[thread].task),
        }
    }

    /// Where a thread of the task could run now.
    pub(super) fn find_core(&self, task: usize, last: Option<usize>) -> Option<usize> {
        let allowed = &self.tasks[task].allowed;
        let is_last = |set: &CoreSet| {
            last.filter(|last| {
                set.contains(self.cores[*last].id) && allowed.contains(self.cores[*last].id)
            })
        };
        if let Some(last) = is_last(&self.idle) {
            return Some(last);
        }
        if let Some(core) = allowed.intersection(&self.idle).first() {
            return Some(self.at(core));
        }
        let own = self.tasks[task].rung;
        for rung in LOWEST_FIRST.into_iter().take_while(|rung| *rung > own) {
            let running = &self.on_rung[rung as usize];
            if let Some(last) = is_last(running) {
                return Some(last);
            }
            if let Some(core) = allowed.intersection(running).first() {
                return Some(self.at(core));
            }
        }
        None
    }

    /// The task whose thread a core would run next.
    pub(super) fn next_for(&self, at: usize) -> Option<usize> {
        let core = &self.cores[at];
        if !core.online {
            return None;
        }
        let fits = |task: usize| {
            let state = &self.tasks[task];
            (state.is_hungry() && state.allowed.contains(core.id)).then_some(task)
        };
        if !self.scenario.host.caps.shares_cores {
            return core.owner.and_then(fits);
        }
        let hungry = (0..self.tasks.len()).filter_map(fits);
        hungry.min_by_key(|task| (self.tasks[*task].rung, self.waiting_since(*task), *task))
    }

    /// Since when the next thread or request of the task waits.
    pub(crate) fn waiting_since(&self, task: usize) -> Option<quell_model::Nanos> {
        let state = &self.tasks[task];
        let thread = state.waiting.front().and_then(|thread| match self.threads[*thread].state {
            State::Waiting { since } => Some(since),
            _ => None,
        });
        let request = state.backlog.front().map(|request| request.arrived);
        thread.or(request)
    }

    /// Gives a core that became free to the next thread, or leaves it idle.
    pub(crate) fn fill(&mut self, at: usize) {
        match self.next_for(at) {
            Some(task) => self.start_next(task, at),
            None => {
                self.went_idle.insert(self.cores[at].id);
                self.ring();
            }
        }
    }

    /// Starts what waits longest of a task that is hungry.
    pub(super) fn start_next(&mut self, task: usize, at: usize) {
        if let Some(thread) = self.tasks[task].waiting.front() {
            return self.start(*thread, at);
        }
        let state = &mut self.tasks[task];
        let own = |thread: &usize| self.threads[*thread].last_core == Some(at);
        let warm = state.sleepers.iter().rposition(own).or(state.sleepers.len().checked_sub(1));
        let (Some(warm), Some(request)) = (warm, state.backlog.pop_front()) else { return };
        let thread = state.sleepers.remove(warm);
        self.threads[thread].work = Work::Request(request);
        self.tell_waking(thread);
        self.run_on(thread, at);
    }

    /// Lets the next thread have a core if it has more right to it than who runs.
    pub(super) fn arbitrate(&mut self, at: usize) {
        let Some(next) = self.next_for(at) else { return };
        let Some(running) = self.cores[at].running else { return self.start_next(next, at) };
        if self.tasks[next].rung < self.tasks[self.threads[running].task].rung {
            self.stop(at);
            self.start_next(next, at);
            self.replace(running);
        }
    }

    pub(super) fn forget_waiting(&mut self, thread: usize) {
        let waiting = &mut self.tasks[self.threads[thread].task].waiting;
        if let Some(at) = waiting.iter().position(|other| *other == thread) {
            waiting.remove(at);
        }
    }
}
