//! What each event does.

use quell_model::{Nanos, TaskId};

use super::{Engine, Event};
use crate::backend::Action;
use crate::cpu::{State, Work, is_real_time};
use crate::scenario::{Change, Load, Service};

impl Engine<'_> {
    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival(place) => self.arrive(place),
            Event::Finished { thread, starts } => self.finished(thread, starts),
            Event::Slice { thread, starts } => self.slice_ended(thread, starts),
            Event::Effect(action) => self.take_effect(action),
            Event::Change(nth) => self.change(self.scenario.changes[nth].1),
        }
    }

    /// Schedules the next request of a task, at the rate that holds when it arrives.
    pub(super) fn schedule_arrival(&mut self, place: usize) {
        let Load::Open { rates, .. } = &self.scenario.tasks[place].load else { return };
        let mut from = self.now;
        loop {
            let current = rates.iter().rev().find(|(start, _)| *start <= from);
            let next = rates.iter().map(|(start, _)| *start).find(|start| *start > from);
            let at = current.map(|(_, mean)| from + self.arrivals[place].exponential(*mean));
            match (at, next) {
                // Arrivals have no memory, so a new rate starts afresh.
                (at, Some(next)) if at.is_none_or(|at| at > next) => from = next,
                (Some(at), _) => return self.schedule(at, Event::Arrival(place)),
                (None, _) => return,
            }
        }
    }

    fn arrive(&mut self, place: usize) {
        let Load::Open { service, .. } = self.scenario.tasks[place].load else { return };
        if !self.alive[place] {
            return;
        }
        let takes = match service {
            Service::Fixed(time) => time,
            Service::Exponential(mean) => self.arrivals[place].exponential(mean),
        };
        let sleeper = self
            .threads
            .iter()
            .position(|thread| thread.task == place && thread.state == State::Sleeping);
        match sleeper {
            Some(thread) => self.wake(thread, Work::Request { arrived: self.now, left: takes }),
            None => self.backlog[place].push_back((self.now, takes)),
        }
        self.schedule_arrival(place);
    }

    fn finished(&mut self, thread: usize, starts: u64) {
        if self.threads[thread].starts != starts {
            return;
        }
        let State::Running { core, .. } = self.threads[thread].state else { return };
        self.account(thread);
        let place = self.threads[thread].task;
        if let Work::Request { arrived, .. } = self.threads[thread].work
            && arrived >= self.scenario.warm_up
        {
            self.report.tasks[place].latencies.push(self.now.since(arrived));
        }
        match self.backlog[place].pop_front() {
            Some((arrived, left)) => {
                self.threads[thread].work = Work::Request { arrived, left };
                self.start(thread, core, Nanos::ZERO);
            }
            None => self.sleep(thread),
        }
    }

    fn slice_ended(&mut self, thread: usize, starts: u64) {
        if self.threads[thread].starts != starts {
            return;
        }
        let State::Running { core, .. } = self.threads[thread].state else { return };
        let rung = self.rights[self.threads[thread].task].rung;
        match self.next_for(core).filter(|_| !is_real_time(rung)) {
            Some(_) => {
                self.stop(thread);
                self.fill(core);
            }
            None => {
                self.account(thread);
                self.start(thread, core, Nanos::ZERO);
            }
        }
    }

    fn take_effect(&mut self, action: Action) {
        match action {
            Action::Core { at, generation, refused } => {
                let outcome = self.backend.core_done(at, generation, refused);
                if let Some(owner) = outcome {
                    let live = |id: &TaskId| self.id_of(id.at()) == *id && self.alive[id.at()];
                    self.cores[at].owner = owner.filter(live).map(TaskId::at);
                    self.settle();
                } else if refused {
                    let again = Event::Effect(Action::Again { at, generation });
                    self.schedule(self.now + crate::Faults::RETRY, again);
                }
                self.ring();
            }
            Action::Task { place, generation } => {
                if let Some((rung, beneath)) = self.backend.task_done(place, generation) {
                    let before = self.rights[place].rung;
                    (self.rights[place].rung, self.rights[place].beneath) = (rung, beneath);
                    self.settle();
                    if is_real_time(before) && !is_real_time(rung) {
                        self.begin_slices(place);
                    }
                }
            }
            Action::Again { at, generation } => {
                let started = self.backend.again(at, generation, self.now, &mut self.mishaps);
                if let Some((due, action)) = started {
                    self.schedule(due, Event::Effect(action));
                }
            }
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Online(id, online) => {
                if let Some(at) = self.scenario.host.topology.position(id) {
                    self.cores[at].online = online;
                }
            }
            Change::Alive(place, alive) => self.set_alive(place as usize, alive),
            Change::Spin(place, spins) => self.set_spinning(place as usize, spins),
        }
        self.settle();
        self.ring();
    }

    fn set_alive(&mut self, place: usize, alive: bool) {
        if self.alive[place] == alive {
            return;
        }
        self.alive[place] = alive;
        if alive {
            self.generations[place] += 1;
            self.begin(place);
            return;
        }
        self.backlog[place].clear();
        for thread in 0..self.threads.len() {
            if self.threads[thread].task == place && self.threads[thread].state != State::Sleeping {
                self.sleep(thread);
            }
        }
        for core in self.cores.iter_mut().filter(|core| core.owner == Some(place)) {
            core.owner = None;
        }
    }

    fn set_spinning(&mut self, place: usize, spins: bool) {
        let Some(thread) = self.threads.iter().position(|thread| thread.task == place) else {
            return;
        };
        match (spins, self.threads[thread].state) {
            (true, State::Sleeping) => self.wake(thread, Work::Endless),
            (true, _) => {
                // Its request is never answered.
                self.account(thread);
                self.threads[thread].work = Work::Endless;
                self.threads[thread].starts += 1;
                self.report.tasks[place].unanswered += 1;
                if let State::Running { .. } = self.threads[thread].state {
                    let starts = self.threads[thread].starts;
                    self.schedule(self.now + crate::cpu::SLICE, Event::Slice { thread, starts });
                }
            }
            (false, State::Sleeping) => {}
            (false, _) => self.sleep(thread),
        }
    }
}
