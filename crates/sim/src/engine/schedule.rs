//! Which thread runs where.

use quell_model::{Class, CoreId, Nanos, Rung};

use super::{Engine, Event};
use crate::cpu::{SLICE, State, Work, is_real_time};

impl Engine<'_> {
    /// Gives a sleeping thread work and a core, if it finds one.
    pub(super) fn wake(&mut self, thread: usize, work: Work) {
        self.threads[thread].work = work;
        self.threads[thread].state = State::Waiting { since: self.now };
        self.place(thread);
    }

    pub(super) fn sleep(&mut self, thread: usize) {
        let core = match self.threads[thread].state {
            State::Running { core, .. } => Some(core),
            _ => None,
        };
        self.stop(thread);
        self.threads[thread].state = State::Sleeping;
        self.threads[thread].work = Work::Nothing;
        self.threads[thread].ran = Nanos::ZERO;
        if let Some(core) = core {
            self.fill(core);
        }
    }

    /// Finds a core for a waiting thread: an idle one, the last one first, else one where a lower rung runs.
    fn place(&mut self, thread: usize) {
        let Some(core) = self.idle_core(thread).or_else(|| self.weakest_core(thread)) else {
            let shares = self.scenario.host.caps.shares_cores;
            if !shares || self.class_of(self.threads[thread].task) == Class::LatencyCritical {
                self.ring();
            }
            return;
        };
        let at = self.at(core);
        let victim = self.cores[at].running;
        if let Some(victim) = victim {
            self.stop(victim);
        }
        self.start(thread, core, self.scenario.switch);
        if let Some(victim) = victim {
            self.place(victim);
        }
    }

    fn idle_core(&self, thread: usize) -> Option<CoreId> {
        let thread = &self.threads[thread];
        let idle = |core: &CoreId| self.cores[self.at(*core)].running.is_none();
        let allowed = &self.allowed[thread.task];
        let last = thread.last_core.filter(|core| allowed.contains(*core) && idle(core));
        last.or_else(|| allowed.iter().find(idle))
    }

    fn weakest_core(&self, thread: usize) -> Option<CoreId> {
        let thread = &self.threads[thread];
        let rung = self.rights[thread.task].rung;
        let runs = |core: &CoreId| -> Option<Rung> {
            let running = self.cores[self.at(*core)].running?;
            Some(self.rights[self.threads[running].task].rung)
        };
        let lower = self.allowed[thread.task].iter().filter(|core| runs(core) > Some(rung));
        lower.max_by_key(|core| {
            (runs(core), thread.last_core == Some(*core), std::cmp::Reverse(*core))
        })
    }

    /// The waiting thread that a core would run next.
    pub(super) fn next_for(&self, core: CoreId) -> Option<usize> {
        let waiting = self.threads.iter().enumerate().filter_map(|(at, thread)| {
            let State::Waiting { since } = thread.state else { return None };
            let fits = self.allowed[thread.task].contains(core);
            fits.then(|| (self.rights[thread.task].rung, since, at))
        });
        waiting.min().map(|(_, _, at)| at)
    }

    /// Gives a core that became free to the next thread, or leaves it idle.
    pub(super) fn fill(&mut self, core: CoreId) {
        match self.next_for(core) {
            Some(next) => self.start(next, core, self.scenario.switch),
            None => {
                let at = self.at(core);
                self.cores[at].idle_since = self.now;
                self.went_idle.insert(core);
                self.ring();
            }
        }
    }

    pub(super) fn start(&mut self, thread: usize, core: CoreId, switch: Nanos) {
        let since = self.now + switch;
        let at = self.at(core);
        self.cores[at].running = Some(thread);
        let state = &mut self.threads[thread];
        state.state = State::Running { core, since };
        state.last_core = Some(core);
        state.starts += 1;
        let (starts, work, task) = (state.starts, state.work, state.task);
        if let Work::Request { left, .. } = work {
            self.schedule(since + left, Event::Finished { thread, starts });
        }
        if !is_real_time(self.rights[task].rung) {
            self.schedule(since + SLICE, Event::Slice { thread, starts });
        }
    }

    /// Takes a thread off its core; it waits from now on.
    pub(super) fn stop(&mut self, thread: usize) {
        self.account(thread);
        if let State::Running { core, .. } = self.threads[thread].state {
            let at = self.at(core);
            self.cores[at].running = None;
            self.cores[at].idle_since = self.now;
            self.threads[thread].state = State::Waiting { since: self.now };
            self.threads[thread].starts += 1;
        }
    }

    /// Books the time that a running thread has had so far.
    pub(super) fn account(&mut self, thread: usize) {
        let now = self.now;
        let State::Running { core, since } = self.threads[thread].state else { return };
        let had = now.since(since);
        let task = self.threads[thread].task;
        let state = &mut self.threads[thread];
        state.ran += had;
        state.state = State::Running { core, since: since.max(now) };
        if let Work::Request { left, .. } = &mut state.work {
            *left = *left - had;
        }
        self.report.tasks[task].ran += had;
        if self.class_of(task) == Class::LatencyCritical {
            let at = self.at(core);
            self.cores[at].roll(now);
            self.cores[at].lc_ran[1] += had;
        }
    }

    /// Brings threads and cores in line with changed rights.
    pub(super) fn settle(&mut self) {
        for place in 0..self.scenario.tasks.len() {
            let owns = |core: &&crate::cpu::Core| core.owner == Some(place);
            let beneath = &self.rights[place].beneath;
            let mut cores = *beneath;
            self.cores.iter().filter(owns).for_each(|core| cores.insert(core.id));
            for core in self.cores.iter().filter(|core| !core.online) {
                cores.remove(core.id);
            }
            self.allowed[place] = cores.intersection(&self.scenario.tasks[place].limits.allowed);
        }
        for at in 0..self.cores.len() {
            let core = self.cores[at].id;
            if let Some(thread) = self.cores[at].running
                && !self.allowed[self.threads[thread].task].contains(core)
            {
                self.stop(thread);
                self.went_idle.insert(core);
            }
        }
        let mut waiting: Vec<_> = (0..self.threads.len())
            .filter_map(|at| match self.threads[at].state {
                State::Waiting { since } => {
                    Some((self.rights[self.threads[at].task].rung, since, at))
                }
                _ => None,
            })
            .collect();
        waiting.sort_unstable();
        for (_, _, thread) in waiting {
            if let State::Waiting { .. } = self.threads[thread].state {
                self.place(thread);
            }
        }
    }

    /// A task that leaves the real-time rungs needs slices from now on, also where its threads run on.
    pub(super) fn begin_slices(&mut self, place: usize) {
        for thread in 0..self.threads.len() {
            let state = self.threads[thread];
            if state.task == place && matches!(state.state, State::Running { .. }) {
                let starts = state.starts;
                self.schedule(self.now + SLICE, Event::Slice { thread, starts });
            }
        }
    }

    fn at(&self, core: CoreId) -> usize {
        // Every core in `allowed` comes from the topology.
        self.scenario.host.topology.position(core).unwrap_or_default()
    }
}
