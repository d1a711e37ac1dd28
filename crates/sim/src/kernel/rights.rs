//! What the back end and hotplug change: who may use which core, on which rung.

use quell_model::{CoreSet, Nanos, Rung};

use super::{State, Work, slice_of};
use crate::engine::Engine;
use crate::scenario::Change;

impl Engine<'_> {
    /// The core belongs to this task from now on.
    pub(crate) fn set_owner(&mut self, at: usize, owner: Option<usize>) {
        let id = self.cores[at].id;
        let before = std::mem::replace(&mut self.cores[at].owner, owner);
        if before == owner {
            return;
        }
        if let Some(before) = before {
            self.tasks[before].owned.remove(id);
            self.allow(before);
        }
        if let Some(owner) = owner {
            self.tasks[owner].owned.insert(id);
            self.allow(owner);
        }
        self.evict(at);
        self.arbitrate(at);
    }

    /// The task has this rung and these shared cores from now on.
    pub(crate) fn set_rights(&mut self, task: usize, rung: Rung, shared_cores: CoreSet) {
        let before = self.tasks[task].rung;
        if before != rung {
            self.change_rung(task, rung);
        }
        self.tasks[task].shared_cores = shared_cores;
        self.allow(task);
        self.follow_allowed(task);
    }

    /// Takes threads of a task off cores that it may no longer use, and finds cores for what waits.
    fn follow_allowed(&mut self, task: usize) {
        for core in self.tasks[task].running_on.iter() {
            let at = self.at(core);
            self.evict(at);
            self.arbitrate(at);
        }
        self.place_all(task);
    }

    fn change_rung(&mut self, task: usize, rung: Rung) {
        let before = std::mem::replace(&mut self.tasks[task].rung, rung);
        for core in self.tasks[task].running_on.iter() {
            let at = self.at(core);
            let Some(thread) = self.cores[at].running else { continue };
            let role = self.threads[thread].role;
            self.move_rung(at, before.of_role(role), rung.of_role(role));
        }
        self.reclass_linux(self.threads_of(task));
    }

    /// The thread that runs on this core goes from one rung to another.
    pub(super) fn move_rung(&mut self, at: usize, from: Rung, to: Rung) {
        let Some(thread) = self.cores[at].running.filter(|_| from != to) else { return };
        let id = self.cores[at].id;
        self.on_rung[from as usize].remove(id);
        self.on_rung[to as usize].insert(id);
        let task = &self.scenario.tasks[self.threads[thread].task];
        let (was, slice) = (slice_of(from, task), slice_of(to, task));
        // A slice that was endless has begun only now, and one of a lane ends where the lane has to wait.
        if self.linux.is_none() && slice != was && (was == Nanos::MAX || task.is_lane()) {
            self.cores[at].slice = self.now + slice;
            self.rearm(at);
        }
    }

    /// Works out anew where a task may run.
    pub(crate) fn allow(&mut self, task: usize) {
        let state = &self.tasks[task];
        let limits = &self.scenario.tasks[task].limits.allowed;
        let has = match state.is_kernel {
            true => self.online,
            false => state.owned.union(&state.shared_cores),
        };
        let may_use = has.intersection(limits).intersection(&self.online);
        let bound = may_use.intersection(&state.bound);
        let allowed = if bound.is_empty() { may_use } else { bound };
        if allowed != state.allowed {
            self.tasks[task].allowed = allowed;
            self.tell_allowed(task);
            self.allow_linux(task);
        }
    }

    /// Takes the thread of a core off if it may no longer run there.
    fn evict(&mut self, at: usize) {
        let Some(thread) = self.cores[at].running.filter(|_| self.linux.is_none()) else { return };
        let task = self.threads[thread].task;
        if !self.tasks[task].allowed.contains(self.cores[at].id) {
            self.stop(at);
            self.went_idle.insert(self.cores[at].id);
            self.replace(thread);
            if self.cores[at].running.is_none() {
                self.arbitrate(at);
            }
        }
    }

    /// Finds cores for all that waits.
    fn place_all(&mut self, task: usize) {
        for thread in self.tasks[task].waiting.clone() {
            if let State::Waiting { .. } = self.threads[thread].state {
                self.place(thread);
            }
        }
        let starts = self.tasks[task].backlog.len().min(self.tasks[task].sleepers.len());
        if self.scenario.tasks[task].is_runtime() {
            (0..starts).for_each(|_| self.feed(task));
        }
    }

    pub(crate) fn change(&mut self, change: Change) {
        match change {
            Change::Online(id, online) => {
                if let Some(at) = self.scenario.host.topology.position(id) {
                    self.set_online(at, online);
                }
            }
            Change::Alive(task, alive) => self.set_alive(task as usize, alive),
            Change::Spin(task, spins) => self.set_spinning(task as usize, spins),
            Change::Bind(task, cores) => {
                self.tasks[task as usize].bound = cores;
                self.allow(task as usize);
                self.follow_allowed(task as usize);
            }
        }
        self.ring();
    }

    fn set_online(&mut self, at: usize, online: bool) {
        if self.cores[at].online == online {
            return;
        }
        let id = self.cores[at].id;
        if let Some(linux) = &mut self.linux {
            linux.set_online(id, online, self.now);
            self.follow_linux();
        }
        if online {
            self.cores[at].book_idle(self.now);
            self.cores[at].idle_since = self.now;
            self.cores[at].online = true;
            self.online.insert(id);
            self.idle.insert(id);
        } else {
            self.online.remove(id);
        }
        (0..self.tasks.len()).for_each(|task| self.allow(task));
        if online {
            self.arbitrate(at);
        } else {
            self.idle.remove(id);
            let running = self.cores[at].running;
            self.stop(at);
            if running.is_none() {
                self.cores[at].book_idle(self.now);
                self.cores[at].idle_since = self.now;
            }
            self.cores[at].online = false;
            self.idle.remove(id);
            if let Some(thread) = running {
                self.replace(thread);
            }
        }
        self.tell_online(at);
    }

    fn set_alive(&mut self, task: usize, alive: bool) {
        if self.tasks[task].alive == alive {
            return;
        }
        let id = self.id_of(task);
        self.tasks[task].alive = alive;
        self.seen.dirty.push(task as u32);
        if alive {
            self.tasks[task].generation += 1;
            self.begin_load(task);
            return;
        }
        self.silence(task);
        self.end_program(task);
        let state = &mut self.tasks[task];
        let on_connections = state.inboxes.iter_mut().flat_map(|inbox| inbox.drain(..));
        for request in state.backlog.drain(..).chain(on_connections) {
            self.books.tasks[task].drop_request(&request);
        }
        for thread in self.threads_of(task) {
            self.drop_request(thread);
            self.sleep(thread);
            self.end_thread(thread, id);
        }
        for at in 0..self.cores.len() {
            if self.cores[at].owner == Some(task) {
                self.set_owner(at, None);
            }
        }
    }

    fn set_spinning(&mut self, task: usize, spins: bool) {
        let thread = self.tasks[task].first;
        if self.scenario.tasks[task].threads == 0 || !self.tasks[task].alive {
            return;
        }
        match (spins, self.threads[thread].state) {
            (true, State::Sleeping) => {
                self.tasks[task].sleepers.retain(|other| *other != thread);
                self.wake(thread, Work::Endless);
            }
            (true, state) => {
                self.drop_request(thread);
                self.threads[thread].work = Work::Endless;
                if let State::Running(at) = state {
                    self.begin(at);
                }
            }
            (false, _) => {
                self.drop_request(thread);
                self.sleep(thread);
            }
        }
    }

    /// What the thread works on is never answered.
    fn drop_request(&mut self, thread: usize) {
        let state = &self.threads[thread];
        if let State::Running(at) = state.state {
            self.account(at);
        }
        let thread = &mut self.threads[thread];
        if let Work::Request(request) = thread.work {
            self.books.tasks[thread.task].drop_request(&request);
            thread.work = Work::Nothing;
        }
    }
}
