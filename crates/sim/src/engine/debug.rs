//! What holds of the engine between two events. Release builds compile this to nothing.

use quell_model::Role;

use super::Engine;
use crate::kernel::{HelperThread, State, Thread};

impl Engine<'_> {
    /// Each thread is in one place, each core runs what it is said to run, and time and requests add up.
    pub(super) fn debug_check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.check_cores();
        self.check_threads();
        self.check_requests();
        self.check_time();
    }

    fn check_cores(&self) {
        for (at, core) in self.cores.iter().enumerate() {
            let (id, runs) = (core.id, core.running);
            debug_assert!(runs.is_none() || core.online, "core {id} is offline and runs {runs:?}");
            let rungs = self.on_rung.iter().filter(|cores| cores.contains(id)).count();
            debug_assert_eq!(rungs, usize::from(runs.is_some()), "rungs of core {id}");
            let is_idle = core.online && runs.is_none();
            debug_assert_eq!(self.idle.contains(id), is_idle, "core {id} runs {runs:?}");
            if let Some(thread) = runs {
                let state = self.threads[thread].state;
                debug_assert_eq!(state, State::Running(at), "core {id} runs thread {thread}");
                let task = &self.tasks[self.threads[thread].task];
                debug_assert!(
                    task.running_on.contains(id),
                    "task of thread {thread}, on core {id}"
                );
                let rung = self.rung_of(thread);
                let on_rung = self.on_rung[rung as usize].contains(id);
                debug_assert!(on_rung, "core {id} runs rung {rung:?}");
            }
            if let Some(owner) = core.owner {
                debug_assert!(self.tasks[owner].owned.contains(id), "core {id} is task {owner}'s");
            }
        }
    }

    fn check_threads(&self) {
        let mut places = vec![0u32; self.threads.len()];
        for (at, task) in self.tasks.iter().enumerate() {
            for thread in &task.sleepers {
                places[*thread] += 1;
                let state = self.threads[*thread].state;
                debug_assert_eq!(state, State::Sleeping, "thread {thread} of task {at} sleeps");
            }
            for thread in &task.waiting {
                places[*thread] += 1;
                let state = self.threads[*thread].state;
                let waits = matches!(state, State::Waiting { .. });
                debug_assert!(waits, "thread {thread} of task {at} is queued and {state:?}");
            }
            let running = task.running_on.len();
            debug_assert_eq!(task.running as usize, running, "task {at} on {}", task.running_on);
        }
        self.check_roles();
        for (thread, mut times) in places.into_iter().enumerate() {
            if let State::Running(at) = self.threads[thread].state {
                times += 1;
                debug_assert_eq!(self.cores[at].running, Some(thread), "core of thread {thread}");
                let pinned = self.pinned_to(thread);
                debug_assert!(pinned.is_none_or(|pinned| pinned == at), "thread {thread} on {at}");
            }
            let (state, helper) = (self.threads[thread].state, self.threads[thread].helper);
            times += u32::from(helper.is_some() && state == State::Sleeping);
            debug_assert_eq!(times, 1, "thread {thread} is in {times} places");
        }
    }

    /// Roles are of LC tasks that the kernel schedules, and counted.
    fn check_roles(&self) {
        let mut demoted = vec![0u32; self.tasks.len()];
        for thread in self.threads.iter().filter(|thread| thread.role != Role::Event) {
            demoted[thread.task] += 1;
        }
        for (at, task) in self.tasks.iter().enumerate() {
            debug_assert_eq!(task.demoted, demoted[at], "threads of task {at} with another role");
            debug_assert!(task.has_roles || task.demoted == 0, "task {at} has no roles");
            let holds = |helper: &&HelperThread| {
                let Thread { task, state, .. } = self.threads[helper.thread];
                let stops = self.scenario.tasks[task].helpers[helper.kind].stops_world;
                task == at && stops && state != State::Sleeping
            };
            let holding = self.helpers.iter().filter(holds).count();
            debug_assert_eq!(task.held as usize, holding, "helpers that task {at} waits for");
        }
        for planned in &self.backend.roles {
            let at = planned.thread.index as usize;
            debug_assert!(at < self.threads.len(), "a role for thread {at}, which is not there");
        }
    }

    fn check_requests(&self) {
        for (task, books) in self.books.tasks.iter().enumerate() {
            let open = self.open_requests(task).count() as u64;
            let booked = books.answered + books.dropped + open;
            debug_assert_eq!(booked, books.arrived, "requests of task {task}, {open} of them open");
        }
    }

    /// Core time, with what was not booked yet.
    fn check_time(&self) {
        let mut booked: i128 = 0;
        for core in &self.cores {
            booked += i128::from((core.idle + core.offline + core.switching).0);
            booked += match core.running {
                // A switch is booked when it begins.
                Some(_) => i128::from(self.now.0) - i128::from(core.since.0),
                None => i128::from(self.now.since(core.idle_since).0),
            };
        }
        booked += self.books.tasks.iter().map(|task| i128::from(task.ran.0)).sum::<i128>();
        let passed = i128::from(self.now.0) * self.cores.len() as i128;
        debug_assert_eq!(booked, passed, "nanoseconds of core time, booked and passed");
    }
}
