//! What each event does.

use quell_model::{Class, Nanos};

use super::{CACHE_STEP, Engine, Timer};
use crate::kernel::{Request, WORK_BITS};
use crate::workload::Load;

/// How far apart keyframes of a trace are.
const KEYFRAMES: Nanos = Nanos::from_secs(1);

impl Engine<'_> {
    pub(super) fn handle(&mut self, timer: Timer) {
        match timer {
            Timer::Change => self.next_change(),
            Timer::WarmUp => {
                self.book_all();
                let queued = self.queued_times();
                self.books.warmed_up(queued);
            }
            Timer::CoreAction(at) => self.core_action(at),
            Timer::TaskAction(task) => self.task_action(task),
            Timer::End(at) => self.ended(at),
            Timer::Arrival(task) => self.arrive(task),
            Timer::Wake(task) => self.heard_of(task),
            Timer::Phase(task) => self.next_phase(task),
            Timer::Memory(node) => self.settle(node),
            Timer::Drift(node) => {
                if self.hardware.drift(node) {
                    self.settle(node);
                }
                self.after(CACHE_STEP, timer);
            }
            Timer::Check(at) => self.check_burst(at),
            Timer::Helper(nth) => self.helper_due(nth),
            Timer::Program(thread) => self.program_due(thread),
            Timer::Feed => {
                self.report_latencies();
                self.after(self.scenario.feed, timer);
            }
            Timer::Sample => {
                self.sample();
                self.after(self.scenario.sample, timer);
            }
            Timer::Keyframe => {
                self.tell_keyframe();
                self.after(KEYFRAMES, timer);
            }
            // The loop has the policy.
            Timer::Tick => {}
        }
    }

    fn after(&mut self, time: Nanos, timer: Timer) {
        self.timers.arm(self.layout.timer(timer), self.now + time);
    }

    fn next_change(&mut self) {
        while let Some(nth) = self.changes.get(self.changed) {
            let (at, change) = self.scenario.changes[*nth];
            if at > self.now {
                return self.timers.arm(self.layout.timer(Timer::Change), at);
            }
            self.changed += 1;
            self.change(change);
        }
    }

    /// Schedules the next request of a task, at the rate that holds when it arrives.
    pub(super) fn schedule_arrival(&mut self, task: usize) {
        let Load::Open { steps, .. } = &self.scenario.tasks[task].load else { return };
        let state = &mut self.tasks[task];
        let mut from = state.arrival_ps;
        let ps = |time: Nanos| time.0.saturating_mul(1_000);
        loop {
            let begun = steps.partition_point(|step| ps(step.from) <= from);
            let next = steps.get(begun).map(|step| ps(step.from));
            let current = begun.checked_sub(1).map(|at| steps[at]).filter(|step| step.gap_ps > 0);
            let at = current.map(|step| from + state.chance.exponential(step.gap_ps));
            match (at, next) {
                // Arrivals have no memory, so a new rate starts afresh.
                (at, Some(next)) if at.is_none_or(|at| at > next) => from = next,
                (Some(at), _) => {
                    state.arrival_ps = at;
                    let timer = self.layout.timer(Timer::Arrival(task));
                    return self.timers.arm(timer, Nanos(at / 1_000));
                }
                (None, _) => return,
            }
        }
    }

    fn arrive(&mut self, task: usize) {
        let Load::Open { service, .. } = &self.scenario.tasks[task].load else { return };
        let takes = service.draw(&mut self.tasks[task].chance);
        self.books.tasks[task].asked += u128::from(takes.0) << WORK_BITS;
        self.accept(task, Request { arrived: self.now, left: takes.0 << WORK_BITS });
        self.schedule_arrival(task);
    }

    /// A request is over.
    pub(crate) fn answer(&mut self, task: usize, request: Request) {
        let latency = self.now.since(request.arrived);
        self.books.tasks[task].answered += 1;
        self.books.tasks[task].residue += request.left;
        if request.arrived >= self.scenario.warm_up {
            self.report.tasks[task].latency.record(latency);
        }
        if self.scenario.sample > Nanos::ZERO {
            self.timeline.answered(task, latency);
        }
        if self.scenario.feed > Nanos::ZERO {
            self.feed.answered(task, latency);
        }
    }

    fn settle(&mut self, node: usize) {
        let mut moved = std::mem::take(&mut self.moved);
        self.hardware.settle(node, self.now, &mut moved);
        for (domain, task) in moved.drain(..) {
            for core in self.tasks[task].running_on.iter() {
                let at = self.at(core);
                if self.cores[at].domain == domain {
                    self.slow(at);
                }
            }
        }
        self.moved = moved;
    }

    fn next_phase(&mut self, task: usize) {
        self.advance(task);
        let phases = &self.scenario.tasks[task].phases;
        let phase = (self.tasks[task].phase + 1) % phases.len();
        self.tasks[task].phase = phase;
        self.tasks[task].progress.left = phases[phase].work.0 << WORK_BITS;
        for core in self.tasks[task].running_on.iter() {
            let at = self.at(core);
            self.account(at);
        }
        self.hardware.set_profile(task, phases[phase].profile);
        for core in self.tasks[task].running_on.iter() {
            let at = self.at(core);
            self.occupy(at, phases[phase].profile.kind);
            self.rearm(at);
            self.settle_soon(self.cores[at].node);
        }
        self.arm_phase(task);
    }

    /// Notes how long the LC thread or request that waits longest has waited although a core that its task may own more of
    /// idles or runs BE.
    pub(super) fn watch_inversions(&mut self) {
        for task in 0..self.tasks.len() {
            let began = self.inverted[task];
            if began.is_none() && !self.tasks[task].is_hungry() {
                continue;
            }
            if let Some(began) = began {
                let began = began.max(self.oldest[task]);
                let waited = self.now.since(began);
                self.report.longest_inversion = self.report.longest_inversion.max(waited);
            }
            let inverted = self.is_inverted(task);
            self.inverted[task] = inverted.then(|| began.unwrap_or(self.now));
            if inverted {
                self.oldest[task] = self.waiting_since(task).unwrap_or(self.now);
            }
        }
    }

    fn is_inverted(&self, task: usize) -> bool {
        let treated = self.plan.tasks.get(task).map(|planned| planned.class);
        let state = &self.tasks[task];
        let limits = &self.scenario.tasks[task].limits;
        if treated != Some(Class::LatencyCritical)
            || !state.is_hungry()
            || state.running >= limits.core_limit()
        {
            return false;
        }
        !(state.reach.is_disjoint(&self.idle) && state.reach.is_disjoint(&self.on_be))
    }
}
