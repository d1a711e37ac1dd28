//! Bursts of LC threads by the budgets of their roles, as `bpf/bursts.h` judges them on a host.
//!
//! Two things are reported only: a burst that goes on beyond the budget of the thread's role while another LC thread or a
//! thread of the kernel waits, and the sleep after which a demoted thread has proved itself. A timer of each core
//! finds the first kind. It is armed only while something waits for a core that runs LC, never by a switch.

use quell_model::{
    Burst, BurstState, CoreSet, INPUT_WEIGHT, Nanos, RECORD_TRANSITIONS, Role, Rung, TaskId,
    ThreadId, Waiter,
};

use super::State;
use crate::engine::{Engine, Timer};

/// Least time between two reports of one burst, which grows with its length.
const OVERRUN_GAP: Nanos = Nanos::from_millis(1);
const OVERRUN_GAP_MAX: Nanos = Nanos::from_millis(10);
const KTHREAD_WAITS: Nanos = Nanos::from_millis(70);
/// Short bursts that a long one of a long event thread undoes. In the background one long burst undoes all.
const LONG_BURST_COSTS: u32 = 4;
/// Shortest time of the timer.
const CHECK_MIN: Nanos = Nanos::from_micros(20);

/// The rungs of threads whose bursts have budgets.
const JUDGED: [Rung; 5] =
    [Rung::LcBoosted, Rung::Lc, Rung::LcLong, Rung::LcOverflow, Rung::LcOverflowLong];

/// What is remembered of a thread's bursts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BurstRecord {
    /// Threads that had this number before.
    pub generation: u32,
    /// Short bursts in a row that earn a higher role, and those so far.
    needs: u32,
    proved: u32,
    is_proof_sent: bool,
    /// What the thread had run of the present burst when it took its last request, and the longest stretch before that.
    input_ran: Nanos,
    stretch_max: Nanos,
    /// When the present burst was last reported.
    overrun_sent: Option<Nanos>,
    /// Changes of state: beyond a number of them it has a record.
    transitions: u64,
}

impl Engine<'_> {
    pub(crate) fn thread_id(&self, thread: usize) -> ThreadId {
        ThreadId { index: thread as u32, generation: self.records[thread].generation }
    }

    /// The length of the burst of a thread that runs on this core.
    pub(crate) fn burst_length(&self, thread: usize, at: usize) -> Nanos {
        let whole = self.whole_burst(thread, at);
        Burst::weigh(whole, whole.since(self.records[thread].input_ran))
    }

    /// All of it.
    fn whole_burst(&self, thread: usize, at: usize) -> Nanos {
        self.threads[thread].ran + self.now.since(self.cores[at].since)
    }

    /// A running thread goes on to a further request, as one on a host that receives from a socket.
    pub(super) fn note_input(&mut self, thread: usize, at: usize) {
        if !self.tasks[self.threads[thread].task].has_roles {
            return;
        }
        let ran = self.whole_burst(thread, at);
        let record = &mut self.records[thread];
        record.stretch_max = record.stretch_max.max(ran.since(record.input_ran));
        record.input_ran = ran;
    }

    pub(super) fn count_transition(&mut self, thread: usize) {
        if self.tasks[self.threads[thread].task].has_roles {
            self.records[thread].transitions += 1;
        }
    }

    /// A thread waits: bursts on the cores that it may use are looked at when they reach their budgets.
    pub(super) fn check_those_before(&mut self, thread: usize) {
        let task = &self.tasks[self.threads[thread].task];
        if !self.scenario.host.caps.bursts || !(task.has_roles || task.is_kernel) {
            return;
        }
        let judged = JUDGED
            .iter()
            .fold(CoreSet::EMPTY, |cores, rung| cores.union(&self.on_rung[*rung as usize]));
        let cores = self.cores_of(thread).intersection(&judged);
        for core in cores.difference(&self.checks_armed).iter() {
            let at = self.at(core);
            self.check_in_time(at);
            self.checks_armed.insert(core);
        }
        let is_in_time = |core| {
            let at = self.at(core);
            self.timers.time(self.layout.timer(Timer::Check(at))) <= self.budget_ends(at)
        };
        debug_assert!(cores.iter().all(is_in_time), "a burst is looked at too late: {cores}");
    }

    /// Looks at the burst of this core when it reaches its budget.
    fn check_in_time(&mut self, at: usize) {
        let due = self.budget_ends(at);
        self.check_at(at, due);
    }

    /// When the burst of this core reaches its budget: while the same thread runs in the same role this gets no earlier.
    fn budget_ends(&self, at: usize) -> Nanos {
        let thread = self.cores[at].running;
        let budget = thread.and_then(|thread| self.threads[thread].role.budget());
        let left = match (thread, budget) {
            (Some(thread), Some(budget)) => budget.since(self.whole_burst(thread, at)),
            _ => Role::Event.budget().unwrap_or(OVERRUN_GAP),
        };
        self.now + left.max(CHECK_MIN)
    }

    /// How long until the length of the burst on this core reaches the budget, if the thread takes no further request.
    fn burst_left(&self, thread: usize, at: usize, budget: Nanos) -> Nanos {
        let whole = self.whole_burst(thread, at);
        let of_stretch = budget.since(whole.since(self.records[thread].input_ran));
        of_stretch.min(Nanos(budget.0 * INPUT_WEIGHT).since(whole))
    }

    fn check_after(&mut self, at: usize, delay: Nanos) {
        self.check_at(at, self.now + delay.max(CHECK_MIN));
    }

    fn check_at(&mut self, at: usize, due: Nanos) {
        let timer = self.layout.timer(Timer::Check(at));
        if due < self.timers.time(timer) {
            self.timers.arm(timer, due);
        }
    }

    /// The timer of a core went off: reports its burst if that exceeds its budget while something waits.
    pub(crate) fn check_burst(&mut self, at: usize) {
        self.checks_armed.remove(self.cores[at].id);
        if !self.is_crowded(at) {
            return;
        }
        let judged = self.cores[at].running.filter(|thread| {
            let task = self.threads[*thread].task;
            self.tasks[task].has_roles && self.threads[*thread].role.budget().is_some()
        });
        let Some(thread) = judged else { return self.check_in_time(at) };
        let (whole, now) = (self.whole_burst(thread, at), self.now);
        // A boost is for one budget, whatever is taken up meanwhile.
        let length = match self.threads[thread].role {
            Role::Boosted => whole,
            _ => self.burst_length(thread, at),
        };
        let budget = self.threads[thread].role.budget().unwrap_or(Nanos::MAX);
        let kernel_waits =
            self.kernel_waits(at).is_some_and(|since| now.since(since) > KTHREAD_WAITS);
        if whole < budget && !kernel_waits {
            return self.check_after(at, budget - whole);
        }
        // A burst may be let go on for long: fewer and fewer reports. Those of its own task wait for the length.
        let is_long = length >= budget;
        let gap = if is_long { length } else { whole }.clamp(OVERRUN_GAP, OVERRUN_GAP_MAX);
        let sent = &mut self.records[thread].overrun_sent;
        if sent.is_none_or(|sent| now.since(sent) >= gap) {
            *sent = Some(now);
            self.overruns.push(thread);
            self.ring();
        }
        let left = if is_long { gap } else { self.burst_left(thread, at, budget) };
        self.check_after(at, gap.min(left));
    }

    /// Whether a thread of the kernel waits for this core, or an LC thread that may use it.
    fn is_crowded(&self, at: usize) -> bool {
        let id = self.cores[at].id;
        let mut tasks = self.tasks.iter();
        tasks.any(|task| task.has_roles && !task.waiting.is_empty() && task.allowed.contains(id))
            || self.kernel_waits(at).is_some()
    }

    /// The thread sleeps: reports it if it has proved itself by that.
    pub(super) fn end_burst(&mut self, thread: usize) {
        if !self.tasks[self.threads[thread].task].has_roles {
            return;
        }
        let role = self.threads[thread].role;
        let whole = self.threads[thread].ran;
        let record = &mut self.records[thread];
        let last = whole.since(std::mem::take(&mut record.input_ran));
        let length = Burst::weigh(whole, last.max(std::mem::take(&mut record.stretch_max)));
        record.transitions += 1;
        record.overrun_sent = None;
        if matches!(role, Role::Event | Role::Boosted) || record.is_proof_sent {
            return;
        }
        if role.above().budget().is_some_and(|budget| length <= budget) {
            record.proved += 1;
        } else if role == Role::LongEvent {
            record.proved = record.proved.saturating_sub(LONG_BURST_COSTS);
        } else {
            record.proved = 0;
        }
        if record.proved >= record.needs {
            record.is_proof_sent = true;
            self.proofs.push(thread);
            self.ring();
        }
    }

    /// A thread has this role from now on; another one than before it has to prove itself for anew.
    pub(crate) fn set_role(&mut self, thread: usize, role: Role, needs: u32) {
        self.records[thread].needs = needs;
        let before = self.threads[thread].role;
        if before == role {
            return;
        }
        let record = &mut self.records[thread];
        (record.proved, record.is_proof_sent) = (0, false);
        let demoted = &mut self.tasks[self.threads[thread].task].demoted;
        *demoted = *demoted + u32::from(role != Role::Event) - u32::from(before != Role::Event);
        let from = self.rung_of(thread);
        if let State::Running(at) = self.threads[thread].state {
            // What it ran so far, it ran in the role before.
            self.account(at);
        }
        self.threads[thread].role = role;
        if let State::Running(at) = self.threads[thread].state {
            self.checks_armed.remove(self.cores[at].id);
        }
        let to = self.rung_of(thread);
        match self.threads[thread].state {
            State::Running(at) => {
                self.move_rung(at, from, to);
                self.arbitrate(at);
            }
            State::Waiting { .. } if to < from => self.place(thread),
            State::Waiting { .. } | State::Sleeping => {}
        }
        self.reclass_linux(thread..thread + 1);
    }

    /// The thread is gone; its number may be another one's.
    pub(super) fn end_thread(&mut self, thread: usize, task: TaskId) {
        if let Some(linux) = &mut self.linux {
            linux.reset(thread, self.now);
        }
        let place = self.threads[thread].task;
        if !self.tasks[place].has_roles {
            return;
        }
        self.exits.push(Burst {
            thread: self.thread_id(thread),
            task,
            core: self.cores[self.threads[thread].last_core.unwrap_or_default()].id,
            length: Nanos::ZERO,
            whole: Nanos::ZERO,
            has_record: false,
            state: BurstState::Exited,
        });
        self.set_role(thread, Role::Event, 0);
        let generation = self.records[thread].generation + 1;
        self.records[thread] = BurstRecord { generation, ..BurstRecord::default() };
    }

    /// What was reported of bursts since the last time: overruns, proofs, exits.
    pub(crate) fn report_bursts(&mut self, seen: &mut Vec<Burst>) {
        seen.clear();
        let overruns = self.overruns.drain(..).collect::<Vec<_>>();
        seen.extend(overruns.into_iter().filter_map(|thread| self.overrun(thread)));
        let proofs = std::mem::take(&mut self.proofs);
        seen.extend(proofs.iter().map(|thread| self.burst(*thread, BurstState::Proved)));
        self.proofs = proofs;
        self.proofs.clear();
        seen.append(&mut self.exits);
    }

    /// The burst of a thread that exceeded its budget, if it still runs and an LC thread waits for its core: the one with the
    /// highest role, of those one of the same task, of those the one that waits longest. Else a thread of the kernel
    /// may wait there. A burst that is long as a whole only is one for other tasks.
    fn overrun(&self, thread: usize) -> Option<Burst> {
        let State::Running(at) = self.threads[thread].state else { return None };
        let (own, core) = (self.threads[thread].task, self.cores[at].id);
        let tasks = self.tasks.iter().filter(|task| task.has_roles && task.allowed.contains(core));
        let waiting = tasks.flat_map(|task| task.waiting.iter().copied());
        let budget = self.threads[thread].role.budget();
        let is_backlog = budget.is_some_and(|budget| self.burst_length(thread, at) < budget);
        let first = waiting.filter_map(|other| match self.threads[other].state {
            State::Waiting { since } => {
                let is_foreign = self.threads[other].task != own;
                (is_foreign || !is_backlog)
                    .then_some(((self.threads[other].role, is_foreign, since), other))
            }
            State::Sleeping | State::Running(_) => None,
        });
        let waiter = first.min().map(|((_, is_foreign, _), other)| Waiter {
            thread: self.thread_id(other),
            task: self.id_of(self.threads[other].task),
            same_process: !is_foreign,
            has_record: self.has_record(other),
        });
        let waited_for = waiter.is_some() || self.kernel_waits(at).is_some();
        waited_for.then(|| self.burst(thread, BurstState::Overran(waiter)))
    }

    fn burst(&self, thread: usize, state: BurstState) -> Burst {
        let at = self.threads[thread].last_core.unwrap_or_default();
        let whole = match self.threads[thread].state {
            State::Running(at) => self.whole_burst(thread, at),
            State::Sleeping | State::Waiting { .. } => self.threads[thread].ran,
        };
        let record = &self.records[thread];
        let stretch = whole.since(record.input_ran);
        let stretch = match self.threads[thread].state {
            State::Running(_) => stretch,
            State::Sleeping | State::Waiting { .. } => stretch.max(record.stretch_max),
        };
        Burst {
            thread: self.thread_id(thread),
            task: self.id_of(self.threads[thread].task),
            core: self.cores[at].id,
            length: Burst::weigh(whole, stretch),
            whole,
            has_record: self.has_record(thread),
            state,
        }
    }

    fn has_record(&self, thread: usize) -> bool {
        self.records[thread].transitions >= RECORD_TRANSITIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_those_of_the_bpf_programs() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/bursts.h");
        let header = std::fs::read_to_string(path).unwrap();
        for (name, value) in [
            ("OVERRUN_GAP", format!("{}ULL", OVERRUN_GAP.0)),
            ("OVERRUN_GAP_MAX", format!("{}ULL", OVERRUN_GAP_MAX.0)),
            ("LONG_BURST_COSTS", LONG_BURST_COSTS.to_string()),
            ("KTHREAD_WAITS", format!("{}ULL", KTHREAD_WAITS.0)),
            ("INPUT_WEIGHT", INPUT_WEIGHT.to_string()),
            ("CHECK_MIN", format!("{}ULL", CHECK_MIN.0)),
        ] {
            assert!(header.contains(&format!("#define {name} {value}\n")), "{name} is not {value}");
        }
    }
}
