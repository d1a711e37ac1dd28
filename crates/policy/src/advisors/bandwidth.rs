//! Caladan's memory-bandwidth controller: while memory is over its limit, it takes a core at a time from the
//! BE task that misses the last-level cache most; when it is not, it gives them back one at a time.
//!
//! ```text
//!            over the limit: note each BE core's counter
//!   Relaxed ────────────────────────────────────────────► Watching ─┐ still over: one core from the
//!      ▲  give one core back a step                          │  ▲   │ worst task, note counters again
//!      └─────────────────────────────────────────────────────┘  └───┘
//!                    no longer over
//! ```
//!
//! Source: Caladan (OSDI'20), `ias_bw`. One step each 10 us, 25 GB/s unless told otherwise, no hysteresis: a
//! single thread that alone exceeds the limit gets its core every other few steps, which is time-multiplexing
//! (as the paper has it). Where we differ from the published code:
//!
//! - It asks other cores for their counters and waits a step for each answer (three states, the first core
//!   after 20 us). A Snapshot brings the counters with it, so there are two states and it takes one step.
//! - Its victim has to miss at least `threshold / cores` where the threshold is that of *one* memory channel,
//!   so that the least offence depends on how many channels a machine has. We mean all of memory: a task is a
//!   candidate if it uses more than the share of the limit that one core in all would have.
//! - It invalidates the sample of the wrong core after a choice, and picks the worst core without asking whether
//!   its sample is valid. Here a sample counts only if the core ran the task at both ends.
//! - Where the host needs more than half a step to act, a step is twice that time: what was decided has to show
//!   before it is judged, or one offence is punished several times and forgiven as often. For the same reason
//!   a step is longer where counters are read only now and then.
//! - What a task is capped from is the number of cores that run it now. Where cores are shared that is one less
//!   whenever somebody preempts one of its threads, and two would go at once: there it is how many it could use.
//! - It rests where no service is: there is nobody to protect from the traffic.
//! - Without any core a task always counts as congested. A frozen task cannot show that it waits, and one
//!   that does not wait takes no harm from being allowed a core.

use quell_model::{Bytes, BytesPerSec, Class, CoreId, Nanos, Snapshot, TaskId, TaskView};
use serde::{Deserialize, Serialize};

use crate::advisors::STEP;
use crate::state::{ensure, put, take};
use crate::{Advice, Advisor, BadState, Host};

/// A task without a cap of ours.
const FREE: u32 = u32::MAX;

/// See the module.
pub struct Bandwidth {
    limit: BytesPerSec,
    step: Nanos,
    shares_cores: bool,
    /// Managed cores.
    cores: u64,
    state: State,
    /// Scratch, by place: what each task fetched since the last sample.
    fetched: Vec<u64>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    /// When the last step was, and the total then, if it was known.
    last: Option<(Nanos, Option<Bytes>)>,
    /// Since when counters are watched; `None`: relaxed.
    watching: Option<Nanos>,
    /// By core number: who ran there when they were noted, and the counter then.
    samples: Vec<Option<(TaskId, Bytes)>>,
    /// By place.
    tasks: Vec<Record>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Record {
    id: TaskId,
    cap: u32,
}

impl Bandwidth {
    /// The controller that keeps memory traffic below `limit`, with steps no shorter than `step`.
    pub fn new(host: &Host, limit: BytesPerSec, step: Nanos) -> Bandwidth {
        let numbers = host.topology.cores().last().map_or(0, |core| core.id.index() + 1);
        let state = State { samples: vec![None; numbers], ..State::default() };
        Bandwidth {
            limit,
            step: STEP.max(Nanos(host.caps.actuation_delay.0.saturating_mul(2))).max(step),
            shares_cores: host.caps.shares_cores,
            cores: host.managed.len() as u64,
            state,
            fetched: Vec::new(),
        }
    }

    fn sync(&mut self, seen: &Snapshot) {
        self.state.tasks.truncate(seen.tasks.len());
        for (place, view) in seen.tasks.iter().enumerate() {
            let new = Record { id: view.id, cap: FREE };
            match self.state.tasks.get_mut(place) {
                None => self.state.tasks.push(new),
                Some(record) if record.id != view.id || !is_candidate(view) => *record = new,
                Some(_) => {}
            }
        }
    }

    /// One step; the core that was chosen, and whose it is.
    fn take_step(&mut self, now: Nanos, seen: &Snapshot) -> Option<(TaskId, CoreId)> {
        let total = seen.memory.value();
        let before = self.state.last.replace((now, total));
        let over = match (before, total) {
            (Some((at, Some(before))), Some(total)) => {
                exceeds(total.0.saturating_sub(before.0), now.since(at), self.limit.0)
            }
            _ => false,
        };
        let over = over && has_services(seen);
        let Some(since) = self.state.watching else {
            match over {
                true => self.note(now, seen),
                false => self.relax(seen),
            }
            return None;
        };
        if !over {
            self.state.watching = None;
            return None;
        }
        let chosen = self.punish(now.since(since), seen);
        self.note(now, seen);
        chosen
    }

    /// Notes the counters of all cores that run BE.
    fn note(&mut self, now: Nanos, seen: &Snapshot) {
        self.state.watching = Some(now);
        self.state.samples.fill(None);
        for view in &seen.cores {
            let runs = view.running.and_then(|id| seen.tasks.get(id.at()).filter(|t| t.id == id));
            if let (Some(task), Some(count)) =
                (runs.filter(|task| is_candidate(task)), view.memory.value())
                && let Some(sample) = self.state.samples.get_mut(view.id.index())
            {
                *sample = Some((task.id, count));
            }
        }
    }

    /// What each core that ran the same BE task all the time fetched since it was noted.
    fn fetched<'a>(&'a self, seen: &'a Snapshot) -> impl Iterator<Item = (TaskId, CoreId, u64)> {
        seen.cores.iter().filter_map(|view| {
            let (task, before) = (*self.state.samples.get(view.id.index())?)?;
            let count = view.memory.value()?.0.checked_sub(before.0)?;
            (view.running == Some(task)).then_some((task, view.id, count))
        })
    }

    /// Takes a core from the task that fetched most, if it may lose one.
    fn punish(&mut self, passed: Nanos, seen: &Snapshot) -> Option<(TaskId, CoreId)> {
        let mut sums = std::mem::take(&mut self.fetched);
        sums.clear();
        sums.resize(seen.tasks.len(), 0);
        for (task, _, count) in self.fetched(seen) {
            if let Some(sum) = sums.get_mut(task.at()) {
                *sum = sum.saturating_add(count);
            }
        }
        let share = self.limit.0 / self.cores.max(1);
        let may_lose = |view: &&TaskView| {
            let cap = self.state.tasks[view.id.at()].cap.min(view.limits.core_limit());
            cap > view.limits.guaranteed && exceeds(sums[view.id.at()], passed, share)
        };
        let candidates =
            seen.tasks.iter().enumerate().filter(|(place, view)| {
                view.id.at() == *place && is_candidate(view) && may_lose(view)
            });
        let worst =
            candidates.map(|(_, view)| view).max_by_key(|view| (sums[view.id.at()], view.id));
        let chosen = worst.and_then(|view| {
            let of_it = self.fetched(seen).filter(|(task, _, _)| *task == view.id);
            let (_, core, _) = of_it.max_by_key(|&(_, core, count)| (count, core))?;
            let record = &mut self.state.tasks[view.id.at()];
            // Where cores are shared, whoever preempts one of its threads just now takes no core from it.
            let active = match self.shares_cores {
                true => view.runnable(),
                false => view.running_on.len() as u32,
            };
            let cap = record.cap.min(view.limits.core_limit());
            record.cap = cap.min(active).saturating_sub(1).max(view.limits.guaranteed);
            Some((view.id, core))
        });
        self.fetched = sums;
        chosen
    }

    /// Gives one core back, to the congested task that is capped least.
    fn relax(&mut self, seen: &Snapshot) {
        let capped = self.state.tasks.iter_mut().zip(&seen.tasks);
        let wants = capped
            .filter(|(record, view)| record.cap != FREE && (record.cap == 0 || view.waiting > 0));
        if let Some((record, view)) = wants.max_by_key(|(record, _)| (record.cap, record.id)) {
            record.cap += 1;
            if record.cap >= view.limits.core_limit() {
                record.cap = FREE;
            }
        }
    }
}

impl Advisor for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    fn advise(&mut self, now: Nanos, seen: &Snapshot, advice: &mut Advice) {
        self.sync(seen);
        let last = self.state.last.map_or(Nanos::ZERO, |(at, _)| at);
        let chosen = if now.since(last) >= self.step { self.take_step(now, seen) } else { None };
        let mut capped = false;
        for record in self.state.tasks.iter().filter(|record| record.cap != FREE) {
            capped = true;
            match chosen {
                Some((task, core)) if task == record.id => {
                    advice.cap_without(task, record.cap, core);
                }
                _ => advice.cap(record.id, record.cap),
            }
        }
        // Traffic grows without any event. Nobody is to blame for it while no BE task runs.
        let runs = |view: &TaskView| is_candidate(view) && view.runnable() > 0;
        let watches = seen.memory.value().is_some() && has_services(seen);
        if capped || (watches && seen.tasks.iter().any(runs)) {
            advice.revisit(now + self.step);
        }
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&self.state, state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let saved: State = take(state)?;
        ensure(saved.samples.len() == self.state.samples.len(), "counters of other cores")?;
        self.state = saved;
        Ok(())
    }
}

/// Only batch work loses cores.
fn is_candidate(view: &TaskView) -> bool {
    view.alive && view.limits.class == Class::BestEffort
}

/// Whether there is anybody to protect.
fn has_services(seen: &Snapshot) -> bool {
    seen.tasks.iter().any(|view| view.alive && view.limits.class == Class::LatencyCritical)
}

/// Whether so many bytes in this time are more than `per_sec`.
fn exceeds(bytes: u64, passed: Nanos, per_sec: u64) -> bool {
    u128::from(bytes) * 1_000_000_000 > u128::from(per_sec) * u128::from(passed.0)
}
