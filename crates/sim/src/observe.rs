//! The simulated host into a Snapshot.

use quell_model::{
    Absence, Class, CoreSet, CoreView, Nanos, Permille, Signal, Snapshot, TaskId, TaskView,
};

use crate::cpu::{State, WINDOW};
use crate::engine::Engine;

impl Engine<'_> {
    /// Fills the Snapshot in place.
    pub(crate) fn observe(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        seen.now = self.now;
        seen.went_idle = std::mem::take(&mut self.went_idle);
        seen.dirty.clear();
        seen.cores.clear();
        for at in 0..self.cores.len() {
            seen.cores.push(self.core_view(at));
        }
        seen.tasks.clear();
        for place in 0..self.scenario.tasks.len() {
            seen.tasks.push(self.task_view(place));
        }
        self.seen = seen;
    }

    fn core_view(&mut self, at: usize) -> CoreView {
        let now = self.now;
        let mut lc_now = Nanos::ZERO;
        if let Some(thread) = self.cores[at].running.map(|thread| self.threads[thread])
            && self.class_of(thread.task) == Class::LatencyCritical
            && let State::Running { since, .. } = thread.state
        {
            lc_now = now.since(since);
        }
        let id = self.cores[at].id;
        let core = &mut self.cores[at];
        core.roll(now);
        let window = (WINDOW + now.since(core.window)).0.min(now.0);
        let busy = core.lc_ran[0] + core.lc_ran[1] + lc_now;
        CoreView {
            managed: true,
            online: core.online,
            running: core.running.map(|thread| self.id_of(self.threads[thread].task)),
            idle_since: self.cores[at].running.is_none().then_some(self.cores[at].idle_since),
            lc_busy: Signal::Measured(Permille::of(busy, Nanos(window))),
            outcome: self.backend.outcome(at),
            ..CoreView::new(id)
        }
    }

    fn task_view(&self, place: usize) -> TaskView {
        let (mut running, mut waiting, mut sleeping) = (0, 0, 0);
        let (mut oldest, mut longest, mut running_on) = (None, Nanos::ZERO, CoreSet::EMPTY);
        for thread in self.threads.iter().filter(|thread| thread.task == place) {
            match thread.state {
                State::Sleeping => sleeping += 1,
                State::Waiting { since } => {
                    waiting += 1;
                    oldest = oldest.max(Some(self.now.since(since)));
                    longest = longest.max(thread.ran);
                }
                State::Running { core, since } => {
                    running += 1;
                    running_on.insert(core);
                    longest = longest.max(thread.ran + self.now.since(since));
                }
            }
        }
        let absent = || Signal::Absent(Absence::NoSource);
        TaskView {
            id: self.id_of(place),
            alive: self.alive[place],
            limits: self.scenario.tasks[place].limits,
            running,
            waiting,
            sleeping,
            running_on,
            queueing_delay: match oldest {
                Some(age) => Signal::Measured(age),
                None => Signal::Absent(Absence::NotApplicable),
            },
            longest_run: Signal::Measured(longest),
            delay_caused: absent(),
            latency: absent(),
            load: Signal::Absent(Absence::NoSource),
            reported: None,
            bandwidth: Signal::Absent(Absence::NotSupported),
            request_start: absent(),
        }
    }

    pub(crate) fn id_of(&self, place: usize) -> TaskId {
        TaskId { index: place as u32, generation: self.generations[place] }
    }

    pub(crate) fn class_of(&self, place: usize) -> Class {
        self.scenario.tasks[place].limits.class
    }
}

/// An empty Snapshot with room for the scenario.
pub(crate) fn room(cores: usize, tasks: usize) -> Snapshot {
    Snapshot {
        cores: Vec::with_capacity(cores),
        tasks: Vec::with_capacity(tasks),
        ..Snapshot::default()
    }
}
