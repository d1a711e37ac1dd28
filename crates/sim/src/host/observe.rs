//! The simulated host into a Snapshot.

use quell_model::{
    Absence, Bytes, BytesPerSec, Class, CoreView, Nanos, Permille, Role, Signal, Snapshot, TaskId,
    TaskView,
};
use quell_policy::roles::RT_WINDOW;

use crate::engine::Engine;
use crate::kernel::{State, WINDOW};

/// Readings in the window of [`CoreView::rt_share`].
const READINGS: usize = 10;

/// Readings of the time that LC threads above the fair class ran on a core, the oldest at `oldest` once all are there.
#[derive(Clone, Copy, Default)]
pub(crate) struct RtShare {
    readings: [(Nanos, Nanos); READINGS],
    oldest: usize,
    known: usize,
}

impl RtShare {
    /// The share in the recent window, given the whole time so far.
    fn of(&mut self, now: Nanos, ran: Nanos) -> Signal<Permille> {
        let newest = (self.oldest + self.known.max(1) - 1) % READINGS;
        let due = self.readings[newest].0 + Nanos(RT_WINDOW.0 / READINGS as u64);
        if self.known < READINGS && (self.known == 0 || now >= due) {
            self.readings[self.known] = (now, ran);
            self.known += 1;
        } else if now >= due {
            self.readings[self.oldest] = (now, ran);
            self.oldest = (self.oldest + 1) % READINGS;
        }
        let (from, before) = self.readings[self.oldest];
        match now.since(from) {
            Nanos::ZERO => Signal::Absent(Absence::Stale),
            window => Signal::Measured(Permille::of(ran.since(before), window)),
        }
    }
}

impl Engine<'_> {
    /// Fills the Snapshot in place.
    pub(crate) fn observe(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        seen.now = self.now;
        seen.went_idle = std::mem::take(&mut self.went_idle);
        seen.cores.clear();
        seen.memory = Signal::Absent(Absence::NotSupported);
        if self.scenario.host.caps.memory_counters {
            (0..self.hardware.nodes.len()).for_each(|node| self.hardware.book(node, self.now));
            seen.memory = Signal::Measured(Bytes(self.hardware.moved()));
        }
        for at in 0..self.cores.len() {
            seen.cores.push(self.core_view(at));
        }
        seen.tasks.clear();
        for task in 0..self.visible {
            seen.tasks.push(self.task_view(task));
        }
        if self.scenario.host.caps.bursts {
            self.report_bursts(&mut seen.bursts);
        }
        self.seen = seen;
    }

    fn core_view(&mut self, at: usize) -> CoreView {
        let now = self.now;
        let caps = &self.scenario.host.caps;
        let running = self.cores[at].running;
        let task = self.cores[at].running.map(|thread| self.threads[thread].task);
        let class = task.map(|task| self.tasks[task].class);
        let core = &mut self.cores[at];
        core.roll(now);
        let window = (WINDOW + now.since(core.window)).0.min(now.0);
        let mut busy = core.lc_ran[0] + core.lc_ran[1];
        if class == Some(Class::LatencyCritical) {
            busy += now.since(core.since);
        }
        let mut view = CoreView::new(core.id);
        view.online = core.online;
        view.running = task.filter(|task| *task < self.visible).map(|task| self.id_of(task));
        let core = &self.cores[at];
        view.idle_since = core.running.is_none().then_some(core.idle_since);
        view.lc_busy = Signal::Measured(Permille::of(busy, Nanos(window)));
        view.outcome = self.backend.outcome(at);
        if caps.bursts {
            let runs = running.filter(|_| class == Some(Class::LatencyCritical));
            let judged = runs.filter(|thread| self.threads[*thread].role < Role::Background);
            let length = judged.map(|_| now.since(core.since)).unwrap_or_default();
            view.rt_share = self.rt_shares[at].of(now, core.rt_ran + length);
            view.burst =
                judged.map(|thread| (self.thread_id(thread), self.burst_length(thread, at)));
            view.kernel_waits = self.kernel_waits(at);
        }
        if caps.request_start_times {
            view.request_start = match core.began.filter(|began| *began <= now) {
                Some(began) => Signal::Measured(began),
                None => Signal::Absent(Absence::NotApplicable),
            };
            view.serving = view.running.filter(|_| view.request_start.value().is_some());
        }
        if caps.memory_counters {
            let mut moved = core.moved;
            if let Some(task) = task.filter(|_| core.counted > 0) {
                let traffic = self.hardware.traffic_of(core.domain, task, core.counted);
                moved += traffic * now.since(core.since).0;
            }
            view.memory = Signal::Measured(Bytes(moved / 1_000));
        }
        view
    }

    fn task_view(&self, task: usize) -> TaskView {
        let state = &self.tasks[task];
        let described = &self.scenario.tasks[task];
        let mut view = TaskView::new(self.id_of(task), described.limits);
        view.alive = state.alive;
        view.running = state.running;
        view.running_on = state.running_on;
        let idle_threads = described.all_threads() - state.running;
        view.waiting = match described.is_runtime() {
            true => (state.backlog.len() + state.waiting.len()).min(idle_threads as usize) as u32,
            false => state.waiting.len() as u32,
        };
        view.sleeping = idle_threads - view.waiting;
        // Requests of a runtime wait where it can be seen, even while all its threads run; others' wait in sockets.
        let seen = view.waiting > 0 || described.is_runtime() && !state.backlog.is_empty();
        if seen && let Some(since) = self.waiting_since(task) {
            view.queueing_delay = Signal::Measured(self.now.since(since));
        }
        view.longest_run = Signal::Measured(self.longest_run(task));
        view.bandwidth = Signal::Absent(Absence::NotSupported);
        if self.scenario.host.caps.memory_counters {
            view.bandwidth = Signal::Measured(BytesPerSec(self.hardware.bandwidth_of(task)));
        }
        if self.scenario.host.caps.request_start_times {
            let began = state.running_on.iter().filter_map(|core| self.cores[self.at(core)].began);
            view.request_start = match began.filter(|began| *began <= self.now).min() {
                Some(began) => Signal::Measured(began),
                None => Signal::Absent(Absence::NotApplicable),
            };
        }
        if let Some(told) = &self.feed.told[task] {
            view.latency = Signal::Measured(told.tail);
            view.load = Signal::Measured(told.rate);
            view.reported = Some(told.reported);
        }
        view
    }

    /// The longest that a thread which is not asleep has run; of LC tasks, whose runaways it is for.
    fn longest_run(&self, task: usize) -> Nanos {
        let state = &self.tasks[task];
        if state.class == Class::BestEffort {
            return Nanos::ZERO;
        }
        let running = state.running_on.iter().filter_map(|core| {
            let core = &self.cores[self.at(core)];
            core.running.map(|thread| self.threads[thread].ran + self.now.since(core.since))
        });
        let waiting = state.waiting.iter().map(|thread| match self.threads[*thread].state {
            State::Waiting { .. } => self.threads[*thread].ran,
            _ => Nanos::ZERO,
        });
        running.chain(waiting).max().unwrap_or_default()
    }

    pub(crate) fn id_of(&self, task: usize) -> TaskId {
        TaskId { index: task as u32, generation: self.tasks[task].generation }
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
