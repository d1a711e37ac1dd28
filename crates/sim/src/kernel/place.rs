//! Cores for threads, and threads for cores.

use std::collections::VecDeque;

use quell_model::{Class, CoreSet, Nanos, Rung};

use super::{State, Thread, Work};
use crate::engine::Engine;

/// The rungs from the lowest to the highest.
const LOWEST_FIRST: [Rung; 14] = [
    Rung::SchedIdle,
    Rung::Original,
    Rung::LcFair,
    Rung::FifoLow,
    Rung::Dispatcher,
    Rung::LcOverflowLong,
    Rung::LcOverflow,
    Rung::LcLong,
    Rung::Lc,
    Rung::LcBoosted,
    Rung::Switcher,
    Rung::Softirq,
    Rung::Scheduler,
    Rung::Guardian,
];

/// What a core could start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub task: usize,
    pub rung: Rung,
    /// Since when it waits.
    since: Option<Nanos>,
    /// `None`: the oldest request of the task's queue.
    thread: Option<usize>,
}

impl Engine<'_> {
    /// The present rung of a thread.
    pub(crate) fn rung_of(&self, thread: usize) -> Rung {
        let Thread { task, role, .. } = self.threads[thread];
        self.tasks[task].rung.of_role(role)
    }

    /// Finds a core for a waiting thread: an idle one, the last one first, else one where a lower rung runs.
    pub(super) fn place(&mut self, thread: usize) {
        if self.linux.is_some() {
            self.queue_thread(thread);
            if let State::Waiting { .. } = self.threads[thread].state {
                self.has_to_wait(thread);
            }
            return;
        }
        let Thread { task, last_core, .. } = self.threads[thread];
        let rung = self.rung_of(thread);
        let is_free = self.pinned_to(thread).is_none() && self.recorded_cores(thread).is_none();
        let found = match is_free {
            true => self.find_core(&self.tasks[task].allowed, rung, last_core),
            false => self.find_core(&self.cores_of(thread), rung, last_core),
        };
        let Some(at) = found else {
            return self.has_to_wait(thread);
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

    /// No core was found at once: the policy looks at it, and at those that are in its way.
    fn has_to_wait(&mut self, thread: usize) {
        self.check_those_before(thread);
        let class = self.tasks[self.threads[thread].task].class;
        if !self.scenario.host.caps.shares_cores || class == Class::LatencyCritical {
            self.ring();
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

    /// The cores that a thread may use now.
    pub(crate) fn cores_of(&self, thread: usize) -> CoreSet {
        let allowed = self.tasks[self.threads[thread].task].allowed;
        if let Some(at) = self.pinned_to(thread) {
            return allowed.intersection(&CoreSet::of(self.cores[at].id));
        }
        let own = self.recorded_cores(thread).map(|cores| cores.intersection(&allowed));
        own.filter(|cores| !cores.is_empty()).unwrap_or(allowed)
    }

    /// Where a thread that may use these cores could run now, on this rung.
    pub(super) fn find_core(
        &self,
        allowed: &CoreSet,
        own: Rung,
        last: Option<usize>,
    ) -> Option<usize> {
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

    /// What a core would start next.
    pub(super) fn next_for(&self, at: usize) -> Option<Next> {
        let core = &self.cores[at];
        if !core.online {
            return None;
        }
        if !self.scenario.host.caps.shares_cores {
            return core.owner.and_then(|owner| self.next_of(owner, at));
        }
        let hungry = (0..self.tasks.len()).filter_map(|task| self.next_of(task, at));
        hungry.min_by_key(|next| (next.rung, next.since, next.task))
    }

    /// What the core would start next of this task.
    pub(super) fn next_of(&self, task: usize, at: usize) -> Option<Next> {
        let state = &self.tasks[task];
        if !state.is_hungry() || !state.allowed.contains(self.cores[at].id) {
            return None;
        }
        let thread = match state.demoted > 0 || state.is_kernel || self.is_recorded(task) {
            true => self.first_of(&state.waiting, at),
            false => state.waiting.front().copied(),
        };
        if thread.is_none() && !state.could_begin() {
            return None;
        }
        let rung = thread.map_or(state.rung, |thread| self.rung_of(thread));
        let since = match thread.map(|thread| self.threads[thread].state) {
            Some(State::Waiting { since }) => Some(since),
            Some(_) => None,
            None => state.backlog.front().map(|request| request.arrived),
        };
        Some(Next { task, rung, since, thread })
    }

    /// Of threads that wait on different rungs, the one on the highest, and of those the one that waits longest.
    fn first_of(&self, waiting: &VecDeque<usize>, at: usize) -> Option<usize> {
        let core = self.cores[at].id;
        let fits = |thread: &usize| {
            let is_free =
                self.pinned_to(*thread).is_none() && self.recorded_cores(*thread).is_none();
            is_free || self.cores_of(*thread).contains(core)
        };
        waiting.iter().copied().filter(fits).min_by_key(|thread| self.rung_of(*thread))
    }

    /// Since when the next thread or request of the task waits.
    pub(crate) fn waiting_since(&self, task: usize) -> Option<Nanos> {
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
        if self.linux.is_some() {
            self.follow_linux();
            if self.cores[at].running.is_none() {
                self.idles(at);
            }
            return;
        }
        match self.next_for(at) {
            Some(next) => self.start_next(next, at),
            None => self.idles(at),
        }
    }

    /// The core has nothing to run.
    pub(super) fn idles(&mut self, at: usize) {
        self.went_idle.insert(self.cores[at].id);
        self.arm_idle_tick(at);
        self.ring();
    }

    /// Starts what [`Engine::next_for`] found.
    pub(super) fn start_next(&mut self, next: Next, at: usize) {
        if let Some(thread) = next.thread {
            return self.start(thread, at);
        }
        let state = &mut self.tasks[next.task];
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
        if self.linux.is_some() {
            return;
        }
        let Some(next) = self.next_for(at) else { return };
        let Some(running) = self.cores[at].running else { return self.start_next(next, at) };
        if next.rung < self.rung_of(running) {
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
