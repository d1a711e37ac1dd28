//! What the scheduler did, as events that every reader of traces understands.
//!
//! The events are worked out after each step of the simulation, from what the trace has shown so far and how the
//! cores and threads stand now: several changes within one instant show as one.

use std::mem::discriminant;
use std::sync::Arc;

use quell_model::{
    Activity, Certainty, CoreDecision, CoreId, CoreSet, CoreState, Event, Keyframe, Left, Meta,
    MoveCause, Nanos, PlanReason, Planned, Rank, Rung, Runner, Source, TaskId, TaskInfo,
    TaskReason, ThreadName, ThreadState, What,
};

use crate::engine::{Engine, Timer};
use crate::kernel::linux::{Linux, Migration, Record, SearchRecord};
use crate::kernel::{State, Thread};
use crate::scenario::{Kernel, Scenario};

/// Receives the events of a simulation, in order.
pub trait Sink {
    /// Takes one.
    fn event(&mut self, event: Event);
}

impl<F: FnMut(Event)> Sink for F {
    fn event(&mut self, event: Event) {
        self(event);
    }
}

pub(crate) struct Trace<'a> {
    sink: &'a mut dyn Sink,
    /// By core: the next number, and the thread that the trace shows there.
    sequence: Vec<u64>,
    shown: Vec<Option<usize>>,
    touched: Vec<usize>,
    /// Threads that woke, and the threads that woke them.
    woken: Vec<(usize, i32)>,
    /// What the kernel moved since the last step.
    moved: Vec<Migration>,
    /// What its searches and passes saw.
    records: Vec<Record>,
    /// By thread: on which core's queue the trace has it, or had it last, and whether it is in there now.
    queue: Vec<(Option<usize>, bool)>,
    /// By thread: whether the trace has it ended, because it gave up waiting.
    ended: Vec<bool>,
    /// By task: the cores that the last plan told of lets it use, and why no others.
    planned: Vec<Option<(CoreSet, TaskReason)>>,
    /// By task: the id under which it was introduced since the last keyframe.
    introduced: Vec<Option<TaskId>>,
    /// By core: threads in its queue, and how many the trace last said.
    queued: Vec<(u32, u32)>,
    /// Positions of cores of which the queue may have another size than the trace said.
    resized: CoreSet,
    /// By thread: the position of the core where the trace shows it.
    shown_on: Vec<Option<usize>>,
    /// Whether the domains that the kernel began with are in the trace.
    has_domains: bool,
}

impl<'a> Trace<'a> {
    /// The kernel moved threads from queue to queue, looked at cores, and built domains.
    pub fn note_linux(&mut self, migrations: &[Migration], linux: &mut Linux) {
        self.moved.extend_from_slice(migrations);
        linux.move_records(&mut self.records);
    }

    pub fn new(sink: &'a mut dyn Sink, cores: usize) -> Trace<'a> {
        Trace {
            sink,
            sequence: vec![0; cores],
            shown: vec![None; cores],
            touched: Vec::new(),
            woken: Vec::new(),
            moved: Vec::new(),
            records: Vec::new(),
            queue: Vec::new(),
            ended: Vec::new(),
            planned: Vec::new(),
            introduced: Vec::new(),
            queued: vec![(0, 0); cores],
            resized: CoreSet::EMPTY,
            shown_on: Vec::new(),
            has_domains: false,
        }
    }

    /// Room for this many threads.
    fn make_room(&mut self, threads: usize) {
        self.queue.resize(threads, (None, false));
        self.ended.resize(threads, false);
        self.shown_on.resize(threads, None);
    }

    /// The thread is in this core's queue from now on, or in none. Returns in which one it was last.
    fn enqueue(&mut self, thread: usize, to: Option<usize>) -> Option<usize> {
        let (place, is_in) = &mut self.queue[thread];
        let from = *place;
        if let Some(from) = from.filter(|_| *is_in) {
            self.queued[from].0 -= 1;
            self.resized.insert(CoreId(from as u16));
        }
        if let Some(to) = to {
            *place = Some(to);
            self.queued[to].0 += 1;
            self.resized.insert(CoreId(to as u16));
        }
        *is_in = to.is_some();
        from
    }

    fn tell(&mut self, now: Nanos, at: usize, core: quell_model::CoreId, what: What) {
        let sequence = self.sequence[at];
        self.sequence[at] += 1;
        self.sink.event(Event { at: now, core, sequence, what });
    }
}

impl Scenario {
    /// The head of a trace of this scenario under a policy.
    pub fn meta(&self, policy: &str) -> Meta {
        Meta {
            source: Source::Simulator,
            topology: self.host.topology.clone(),
            kernel: format!("quell-sim {}, policy {policy}", env!("CARGO_PKG_VERSION")),
            host: self.name.clone(),
            hooks: Vec::new(),
            absent: absent(self.kernel).iter().map(|what| (*what).to_owned()).collect(),
            wall_offset_ns: 0,
        }
    }
}

/// What traces of a kernel model do not have.
fn absent(kernel: Kernel) -> &'static [&'static str] {
    const NO_INTERRUPTS: &str = "softirqs and interrupts";
    match kernel {
        Kernel::Global => &[
            "loads of run queues; what waits is in the queue of the core it ran on last",
            "considered cores and balancing: this kernel searches all cores at once",
            NO_INTERRUPTS,
        ],
        Kernel::Linux(_) => &[NO_INTERRUPTS],
    }
}

impl Engine<'_> {
    /// Something changed on this core.
    pub(crate) fn touch(&mut self, at: usize) {
        if let Some(trace) = &mut self.trace {
            trace.touched.push(at);
        }
    }

    /// A thread woke up, or gave up waiting.
    pub(crate) fn tell_waking(&mut self, thread: usize) {
        if let Some(trace) = &mut self.trace {
            let by = self.acting.filter(|waker| *waker != thread);
            trace.woken.push((thread, by.map_or(0, number)));
        }
    }

    pub(crate) fn tell_allowed(&mut self, task: usize) {
        let Some(mut trace) = self.trace.take() else { return };
        for thread in self.threads_of(task) {
            let what =
                What::Allowed { thread: number(thread), cores: self.cores_of(thread).into() };
            trace.tell(self.now, 0, self.cores[0].id, what);
        }
        self.trace = Some(trace);
    }

    pub(crate) fn tell_online(&mut self, at: usize) {
        let Some(trace) = &mut self.trace else { return };
        let Some(core) = self.cores.get(at) else { return };
        let what = What::Online { of: core.id, online: core.online };
        trace.tell(self.now, at, core.id, what);
        // Readers conclude nothing between such an event and the next keyframe.
        self.timers.arm(self.layout.timer(Timer::Keyframe), self.now);
    }

    /// Tells what the last step changed.
    pub(crate) fn tell_switches(&mut self) {
        let Some(mut trace) = self.trace.take() else { return };
        trace.make_room(self.threads.len());
        // The lists keep their memory.
        let mut records = std::mem::take(&mut trace.records);
        records.drain(..).for_each(|record| self.tell_record(&mut trace, record));
        trace.records = records;
        let mut moved = std::mem::take(&mut trace.moved);
        moved.drain(..).for_each(|migration| self.tell_migration(&mut trace, migration));
        trace.moved = moved;
        let mut woken = std::mem::take(&mut trace.woken);
        woken.drain(..).for_each(|(thread, by)| self.tell_wake(&mut trace, thread, by));
        trace.woken = woken;
        let mut touched = std::mem::take(&mut trace.touched);
        for at in touched.drain(..) {
            self.tell_switch(&mut trace, at);
        }
        trace.touched = touched;
        let resized = std::mem::take(&mut trace.resized);
        debug_assert!(
            (0..self.cores.len()).all(|at| {
                let (queued, told) = trace.queued[at];
                queued == told || resized.contains(CoreId(at as u16))
            }),
            "queues changed beside those of {resized}"
        );
        for at in resized.iter().map(CoreId::index) {
            let (queued, told) = trace.queued[at];
            if queued != told {
                let of = self.cores[at].id;
                trace.queued[at].1 = queued;
                trace.tell(self.now, at, of, What::Queue { of, queued, runnable: queued });
                if let Some(linux) = &self.linux {
                    let (weight, average) = linux.load(of, self.now);
                    trace.tell(self.now, at, of, What::Load { of, weight, average });
                }
            }
        }
        self.trace = Some(trace);
    }

    fn tell_wake(&self, trace: &mut Trace, thread: usize, by: i32) {
        let state = &self.threads[thread];
        let target = match state.state {
            State::Sleeping => return self.tell_given_up(trace, thread),
            State::Running(at) => at,
            State::Waiting { .. } => self.queue_of(thread),
        };
        self.tell_born_again(trace, thread);
        if trace.shown_on[thread].is_some() {
            return;
        }
        let core = self.cores[target].id;
        let runner = self.runner(thread);
        let is_new = state.ran == Nanos::ZERO && state.last_core.is_none();
        // A fork is no wake-up by the parent.
        let by = if is_new { 0 } else { by };
        trace.tell(self.now, target, core, What::Waking { thread: runner, by, target: core });
        self.tell_move(trace, thread, target, MoveCause::Wakeup);
        trace.tell(self.now, target, core, What::Woken { thread: runner, on: core, is_new });
    }

    /// A thread waits no more and never ran: its task left, or had nothing to do any more. The one way for a trace to tell
    /// that is the thread's end; a real thread would run to it.
    fn tell_given_up(&self, trace: &mut Trace, thread: usize) {
        if !trace.queue[thread].1 || trace.shown_on[thread].is_some() {
            return;
        }
        trace.enqueue(thread, None);
        trace.ended[thread] = true;
        let at = self.threads[thread].last_core.unwrap_or_default();
        trace.tell(self.now, at, self.cores[at].id, What::Exit { thread: number(thread) });
    }

    /// What the trace has ended begins again before it can wake.
    fn tell_born_again(&self, trace: &mut Trace, thread: usize) {
        if !std::mem::take(&mut trace.ended[thread]) {
            return;
        }
        let Thread { task, last_core, .. } = self.threads[thread];
        let at = last_core.unwrap_or_default();
        let mut tell = |what| trace.tell(self.now, at, self.cores[at].id, what);
        tell(What::Fork { parent: number(self.tasks[task].first), child: self.runner(thread) });
        tell(What::Allowed { thread: number(thread), cores: self.cores_of(thread).into() });
    }

    /// The position of the core in whose queue a thread waits: of the one it ran on last where there is one queue for all.
    fn queue_of(&self, thread: usize) -> usize {
        match &self.linux {
            Some(linux) => self.at(linux.last_core(thread)),
            None => self.threads[thread].last_core.unwrap_or_default(),
        }
    }

    /// A search or pass, before what it moved; or domains.
    fn tell_record(&self, trace: &mut Trace, record: Record) {
        let (core, what) = match record {
            Record::Search(SearchRecord { by, search, cores }) => {
                let (by, certainty) = (CoreId(by as u16), Certainty::Observed);
                (by, What::Considered { by, search, cores: cores.into(), certainty })
            }
            Record::Pass(pass) => (pass.core, What::Pass(pass)),
            Record::Domains(trees) => (self.cores[0].id, What::Domains(trees)),
        };
        trace.tell(self.now, self.at(core), core, what);
    }

    /// The kernel moved a thread that the trace has in a queue.
    fn tell_migration(&self, trace: &mut Trace, migration: Migration) {
        let Migration { thread, to, cause, .. } = migration;
        if trace.queue[thread].1 {
            let to = self.at(CoreId(to as u16));
            // A running thread is shown to leave its core first.
            if let Some(at) = trace.shown_on[thread] {
                self.show(trace, at, None);
                // It may come back within this step, and then its core did not change.
                trace.touched.push(at);
            }
            self.tell_move(trace, thread, to, cause);
        }
    }

    fn tell_move(&self, trace: &mut Trace, thread: usize, to: usize, cause: MoveCause) {
        if let Some(from) = trace.enqueue(thread, Some(to)).filter(|from| *from != to) {
            let (from, id) = (self.cores[from].id, self.cores[to].id);
            let what = What::Migrate { thread: number(thread), from, to: id, cause };
            trace.tell(self.now, to, id, what);
        }
    }

    fn tell_switch(&self, trace: &mut Trace, at: usize) {
        let next = self.cores[at].running;
        let left = trace.shown[at];
        if next == left {
            return;
        }
        if let Some(next) = next {
            self.tell_move(trace, next, at, MoveCause::NewIdle);
            // It is shown on one core at most: the other one's switch comes first.
            if let Some(other) = trace.shown_on[next] {
                self.show(trace, other, None);
            }
        }
        self.show(trace, at, next);
    }

    fn show(&self, trace: &mut Trace, at: usize, next: Option<usize>) {
        let left = std::mem::replace(&mut trace.shown[at], next);
        if let Some(left) = left {
            trace.shown_on[left] = None;
        }
        if let Some(next) = next {
            trace.shown_on[next] = Some(at);
        }
        let slept = left.filter(|left| self.threads[*left].state == State::Sleeping);
        let how = if slept.is_some() { Left::Sleeping } else { Left::Preempted };
        if let Some(slept) = slept {
            trace.enqueue(slept, None);
        }
        let what = What::Switch {
            next: next.map_or_else(nobody, |next| self.runner(next)),
            left: left.map_or(0, number),
            how,
            stolen: Nanos::ZERO,
        };
        trace.tell(self.now, at, self.cores[at].id, what);
    }

    fn runner(&self, thread: usize) -> Runner {
        let task = self.threads[thread].task;
        let state = &self.tasks[task];
        Runner {
            thread: number(thread),
            process: number(state.first),
            rank: rank(self.rung_of(thread)),
            name: ThreadName::new(self.name_of(thread).as_bytes()),
        }
    }

    fn name_of(&self, thread: usize) -> &str {
        let task = &self.scenario.tasks[self.threads[thread].task];
        match self.threads[thread].helper {
            Some(nth) => &task.helpers[self.helpers[nth as usize].kind].name,
            None => &task.name,
        }
    }

    /// Tells the whole state.
    pub(crate) fn tell_keyframe(&mut self) {
        let Some(mut trace) = self.trace.take() else { return };
        trace.make_room(self.threads.len());
        let is_first = trace.sequence.iter().all(|next| *next == 0);
        let mut frame = Keyframe::default();
        let mut waiting = vec![0u32; self.cores.len()];
        for (at, thread) in self.threads.iter().enumerate() {
            let (core, state) = match thread.state {
                State::Running(core) => (core, Activity::Running),
                State::Waiting { .. } => {
                    let core = match &self.linux {
                        Some(_) => self.queue_of(at),
                        None => trace.queue[at].0.or(thread.last_core).unwrap_or_default(),
                    };
                    waiting[core] += 1;
                    (core, Activity::Waiting)
                }
                State::Sleeping if is_first => {
                    (thread.last_core.unwrap_or_default(), Activity::Sleeping)
                }
                State::Sleeping => continue,
            };
            frame.threads.push(ThreadState {
                thread: self.runner(at),
                core: self.cores[core].id,
                state,
                allowed: self.cores_of(at),
                bound: false,
            });
        }
        for (core, waiting) in self.cores.iter().zip(waiting).filter(|(core, _)| core.online) {
            let queued = waiting + u32::from(core.running.is_some());
            let (weight, average) =
                self.linux.as_ref().map_or((0, 0), |linux| linux.load(core.id, self.now));
            let all = self.scenario.host.topology.all();
            frame.cores.push(CoreState {
                core: core.id,
                running: core.running.map_or(0, number),
                queued,
                runnable: queued,
                weight,
                average,
                wake_pending: false,
                domain: self.linux.as_ref().map_or(all, |linux| linux.reach(core.id)),
            });
        }
        trace.tell(self.now, 0, self.cores[0].id, What::Keyframe(Arc::new(frame)));
        if let Some(linux) = self.linux.as_ref().filter(|_| !trace.has_domains) {
            let what = What::Domains(Arc::new(linux.trees()));
            trace.tell(self.now, 0, self.cores[0].id, what);
            trace.has_domains = true;
        }
        // A reader that starts here needs the tasks and plans as well.
        trace.planned.clear();
        trace.introduced.clear();
        self.tell_tasks(&mut trace);
        self.tell_plans(&mut trace);
        self.trace = Some(trace);
    }

    /// Emits the tasks that joined since the last keyframe or call.
    fn tell_tasks(&self, trace: &mut Trace) {
        trace.introduced.resize(self.tasks.len(), None);
        for (at, task) in self.tasks.iter().enumerate().take(self.visible) {
            let id = self.id_of(at);
            if trace.introduced[at].replace(id) == Some(id) {
                continue;
            }
            let described = &self.scenario.tasks[at];
            let what = What::Task(Arc::new(TaskInfo {
                id,
                name: described.name.clone(),
                class: described.limits.class,
                processes: vec![number(task.first)],
            }));
            trace.tell(self.now, 0, self.cores[0].id, what);
        }
    }

    /// Emits a decision for each core whose owner the last plan changed, and the changed plans.
    pub(crate) fn tell_decision(&mut self) {
        let Some(mut trace) = self.trace.take() else { return };
        self.tell_tasks(&mut trace);
        for (at, core) in self.plan.cores.iter().enumerate() {
            let last = self.last_plan.cores.get(at).map(|last| last.owner);
            if last == Some(core.owner) {
                continue;
            }
            let decision = CoreDecision {
                core: core.id,
                from: last.flatten(),
                to: core.owner,
                mode: core.mode,
                reason: core.reason,
            };
            trace.tell(self.now, 0, self.cores[0].id, What::Decision(decision));
        }
        self.tell_plans(&mut trace);
        self.trace = Some(trace);
    }

    /// Tells which cores the plan lets each task use, where that changed.
    fn tell_plans(&self, trace: &mut Trace) {
        trace.planned.resize(self.tasks.len(), None);
        for (at, task) in self.plan.tasks.iter().enumerate().take(self.tasks.len()) {
            let cores = self.plan.owned(task.id).union(&task.shared_cores);
            let is_same = |(told, why): &(CoreSet, TaskReason)| {
                *told == cores && discriminant(why) == discriminant(&task.reason)
            };
            if trace.planned[at].as_ref().is_some_and(is_same) {
                continue;
            }
            trace.planned[at] = Some((cores, task.reason));
            let described = &self.scenario.tasks[at];
            let planned = Planned {
                process: number(self.tasks[at].first),
                original: described.limits.allowed,
                cores,
                reason: PlanReason::Task { task: task.id, reason: task.reason },
            };
            let what = What::Planned(Arc::new(planned));
            trace.tell(self.now, 0, self.cores[0].id, what);
        }
    }
}

/// The idle thread of a core.
fn nobody() -> Runner {
    Runner { thread: 0, process: 0, rank: Rank::NOBODY, name: ThreadName::default() }
}

/// A thread's number in the trace; 0 is the idle thread.
fn number(thread: usize) -> i32 {
    thread as i32 + 1
}

fn rank(rung: Rung) -> Rank {
    // The order of rungs is all that matters.
    match rung {
        Rung::Guardian => Rank::realtime(90),
        Rung::Scheduler => Rank::realtime(80),
        Rung::Softirq => Rank::realtime(70),
        Rung::Switcher => Rank::realtime(60),
        Rung::LcReleased => Rank::realtime(58),
        Rung::LcBoosted => Rank::realtime(55),
        Rung::Lc => Rank::realtime(50),
        Rung::LcLong => Rank::realtime(45),
        Rung::LcOverflow => Rank::realtime(40),
        Rung::LcOverflowLong => Rank::realtime(35),
        Rung::Dispatcher => Rank::realtime(30),
        Rung::LcBackground => Rank::realtime(25),
        Rung::FifoLow => Rank::realtime(20),
        Rung::LcFair | Rung::Original => Rank::FAIR,
        Rung::SchedIdle => Rank::BENEATH,
    }
}
