//! Threads that go through the steps of a [`Program`], or of a recorded host.

use quell_model::Nanos;

use super::{State, WORK_BITS, Work};
use crate::chance::Chance;
use crate::engine::{Engine, Timer};
use crate::scenario::Scenario;
use crate::workload::{
    Load, Program, ProgramStep, RecordedThread, Recording, Sync, SyncKind, Task, Waiting,
};

/// Streams of chance from here on are those of program threads.
const STREAMS: u64 = 1 << 44;

/// What a thread that goes on works before its next step.
const GOES_ON: u64 = 1 << WORK_BITS;

/// A thread takes so many steps at most without time passing.
const STEPS_AT_ONCE: usize = 10_000;

/// A program in motion.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramState {
    /// By thread of its task.
    threads: Vec<ThreadState>,
    syncs: Vec<SyncState>,
    /// The task group of each kind of threads, where the kernel has such groups.
    groups: Vec<usize>,
    /// Threads that have not ended, of those whose end counts.
    alive: u32,
    /// When the last one ended.
    pub completed: Option<Nanos>,
}

#[derive(Clone, Debug)]
struct ThreadState {
    /// Its kind; `None`: it has ended, or was not forked yet.
    kind: Option<usize>,
    /// How many threads there were in this place, with this one.
    life: u32,
    step: usize,
    /// How often the repetitions that it is in were done, by their step.
    repeats: Vec<(usize, u32)>,
    /// What it polls, and the generation of the barrier that it waits for.
    polls: Option<(usize, u64)>,
    /// The index of the cores that it may use, of those of its recording.
    allowed: Option<u32>,
    /// Its end counts for that of the program.
    counts: bool,
    chance: Chance,
}

#[derive(Clone, Debug, Default)]
struct SyncState {
    tokens: u32,
    /// The place in its task and the [`ThreadState::life`] of the thread that has the token of a lock: it took the last one, and none
    /// was posted since.
    holder: Option<(usize, u32)>,
    arrived: u32,
    generation: u64,
    /// Threads that sleep for it, the first one first.
    sleepers: std::collections::VecDeque<usize>,
    /// Threads that poll it.
    pollers: Vec<usize>,
}

/// The programs of a scenario's tasks, before they start; their kinds of threads are in these task groups.
pub(crate) fn programs_of(scenario: &Scenario, groups: Vec<Vec<usize>>) -> Vec<ProgramState> {
    let mut stream = STREAMS;
    let mut groups = groups.into_iter();
    let states = scenario.tasks.iter().map(|task| {
        let groups = groups.next().unwrap_or_default();
        let Some(program) = task.load.program() else { return ProgramState::default() };
        let recording = recording_of(task);
        let counts: Option<Vec<bool>> = recording.map(Recording::counting);
        let thread = |nth: u32| ThreadState {
            kind: None,
            life: 0,
            step: 0,
            repeats: Vec::new(),
            polls: None,
            allowed: recorded_thread(task, nth as usize).and_then(|it| it.allowed),
            counts: counts.as_ref().is_none_or(|counts| counts[nth as usize]),
            chance: Chance::new(scenario.seed, stream + u64::from(nth)),
        };
        let threads = (0..task.threads).map(thread).collect();
        stream += u64::from(task.threads);
        let syncs = program.syncs.iter().map(SyncState::new).collect();
        ProgramState { threads, syncs, groups, alive: 0, completed: None }
    });
    states.collect()
}

impl Engine<'_> {
    fn program(&self, task: usize) -> Option<&Program> {
        self.scenario.tasks[task].load.program()
    }

    /// Starts the threads that a program has from the start.
    pub(crate) fn begin_program(&mut self, task: usize) {
        let Some(program) = self.program(task) else { return };
        let kinds = program.kinds.iter().enumerate();
        let starts: Vec<_> = kinds.map(|(kind, of)| (kind, of.count, of.start_core)).collect();
        for (kind, count, core) in starts {
            for _ in 0..count {
                self.start_thread(task, kind, core);
            }
        }
    }

    /// A thread of this kind begins, if there is one left.
    pub(super) fn start_thread(
        &mut self,
        task: usize,
        kind: usize,
        core: Option<quell_model::CoreId>,
    ) {
        let first = self.tasks[task].first;
        // Of a recording each thread has its own place.
        let is_recorded = recording_of(&self.scenario.tasks[task]).is_some();
        let state = &mut self.programs[task];
        let free = match is_recorded {
            true => Some(kind).filter(|own| state.threads[*own].kind.is_none()),
            false => state.threads.iter().position(|thread| thread.kind.is_none()),
        };
        let Some(free) = free else { return };
        state.begin(free, kind);
        let thread = first + free;
        if let (Some(linux), Some(group)) = (&mut self.linux, state.groups.get(kind)) {
            linux.join_group(thread, *group, self.now);
        }
        self.threads[thread].start_core = core;
        self.resume(thread);
    }

    /// A thread of a recording is asleep from the start, in its first step: until its sync is posted, or for a time.
    pub(super) fn begin_first_step(&mut self, task: usize, own: usize, sync: Option<usize>) {
        self.programs[task].begin(own, own);
        self.programs[task].threads[own].step = 1;
        let thread = self.tasks[task].first + own;
        if let Some(state) = sync.and_then(|sync| self.programs[task].syncs.get_mut(sync)) {
            state.sleepers.push_back(thread);
        }
    }

    /// A sleeping thread goes on with its next step.
    fn resume(&mut self, thread: usize) {
        let task = self.threads[thread].task;
        // What slept last is at the end, and there may be thousands.
        let sleepers = &mut self.tasks[task].sleepers;
        if let Some(place) = sleepers.iter().rposition(|other| *other == thread) {
            sleepers.remove(place);
        }
        self.wake(thread, Work::Step(GOES_ON));
    }

    /// The running thread has done its step: it goes on with the next ones until one takes time.
    pub(super) fn next_steps(&mut self, thread: usize, at: usize) {
        for _ in 0..STEPS_AT_ONCE {
            if !self.next_step(thread, at) {
                return;
            }
        }
        self.threads[thread].work = Work::Step(GOES_ON);
        self.begin_step(at);
    }

    fn begin_step(&mut self, at: usize) {
        self.cores[at].since = self.cores[at].since.max(self.now);
        self.begin(at);
    }

    /// Takes the next step; false if it takes time, or the thread no longer runs.
    fn next_step(&mut self, thread: usize, at: usize) -> bool {
        let task = self.threads[thread].task;
        let own = thread - self.tasks[task].first;
        let Some(kind) = self.programs[task].threads[own].kind else { return false };
        let index = self.programs[task].threads[own].step;
        let step = self.program(task).and_then(|it| it.kinds[kind].steps.get(index).copied());
        self.programs[task].threads[own].step += 1;
        let nth = own as u32;
        match step {
            None => self.end_program_thread(thread),
            Some(ProgramStep::Compute(service)) => {
                let takes = service.draw(&mut self.programs[task].threads[own].chance);
                self.threads[thread].work = Work::Step(takes.0 << WORK_BITS);
                self.begin_step(at);
                return false;
            }
            Some(ProgramStep::Sleep(service)) => {
                let takes = service.draw(&mut self.programs[task].threads[own].chance);
                self.timers.arm(self.layout.timer(Timer::Program(thread)), self.now + takes);
                self.sleep(thread);
                return false;
            }
            Some(ProgramStep::Take(sync)) => return self.take(thread, at, sync as usize),
            Some(ProgramStep::TakeOwn(sync)) => {
                return self.take(thread, at, (sync + nth) as usize);
            }
            Some(ProgramStep::Post(sync)) => self.post(task, sync as usize),
            Some(ProgramStep::TakeNext(sync)) => {
                return self.take(thread, at, (sync + nth + 1) as usize);
            }
            Some(ProgramStep::PostOwn(sync)) => self.post(task, (sync + nth) as usize),
            Some(ProgramStep::PostNext(sync)) => self.post(task, (sync + nth + 1) as usize),
            Some(ProgramStep::Fork(kind)) => self.start_thread(task, kind as usize, None),
            Some(ProgramStep::Exec) => return self.exec(thread, at),
            Some(ProgramStep::Yield) => return self.offer_core(thread, at),
            Some(ProgramStep::Allow(cores)) => self.allow_recorded(thread, cores),
            Some(ProgramStep::Repeat { from, times }) => {
                self.programs[task].threads[own].repeat(index, from as usize, times);
                return true;
            }
        }
        // What was woken may have taken the core.
        self.threads[thread].state == State::Running(at)
            && self.programs[task].threads[own].kind.is_some()
            || self.goes_on_later(thread)
    }

    /// A thread that lost its core between two steps takes the next one when it runs again.
    fn goes_on_later(&mut self, thread: usize) -> bool {
        if let State::Waiting { .. } = self.threads[thread].state {
            self.threads[thread].work = Work::Step(GOES_ON);
        }
        false
    }

    fn waits(&self, task: usize, sync: usize) -> Waiting {
        self.program(task).map_or(Waiting::Sleep, |program| program.syncs[sync].waits)
    }

    /// Takes one, or waits; true if the thread goes on at once.
    fn take(&mut self, thread: usize, at: usize, sync: usize) -> bool {
        let task = self.threads[thread].task;
        let Some(kind) = self.program(task).and_then(|it| it.syncs.get(sync)).map(|it| it.kind)
        else {
            return true;
        };
        let holder = self.as_holder(thread);
        let state = &mut self.programs[task].syncs[sync];
        match kind {
            SyncKind::Tokens { .. } if state.tokens > 0 => {
                state.tokens -= 1;
                state.holder = Some(holder);
                return true;
            }
            SyncKind::Tokens { .. } => {}
            SyncKind::Barrier { parties } => {
                state.arrived += 1;
                if state.arrived >= parties {
                    self.open_barrier(task, sync);
                    return self.threads[thread].state == State::Running(at)
                        || self.goes_on_later(thread);
                }
            }
        }
        let waits = self.waits(task, sync);
        if waits == Waiting::Sleep {
            self.programs[task].syncs[sync].sleepers.push_back(thread);
            self.sleep(thread);
            return false;
        }
        let generation = self.programs[task].syncs[sync].generation;
        let own = thread - self.tasks[task].first;
        self.programs[task].threads[own].polls = Some((sync, generation));
        self.programs[task].syncs[sync].pollers.push(thread);
        self.threads[thread].work = Work::Spin(waits.spins());
        self.begin_step(at);
        false
    }

    /// See [`SyncState::holder`].
    fn as_holder(&self, thread: usize) -> (usize, u32) {
        let task = self.threads[thread].task;
        let own = thread - self.tasks[task].first;
        (own, self.programs[task].threads[own].life)
    }

    /// All have come: those that sleep wake, those that poll go on.
    fn open_barrier(&mut self, task: usize, sync: usize) {
        let state = &mut self.programs[task].syncs[sync];
        state.arrived = 0;
        state.generation += 1;
        let (sleepers, pollers) =
            (std::mem::take(&mut state.sleepers), std::mem::take(&mut state.pollers));
        for thread in pollers {
            self.end_polling(thread);
        }
        for thread in sleepers {
            self.resume(thread);
        }
    }

    /// One more is there: the first thread that sleeps for it has it, else one that polls and runs.
    fn post(&mut self, task: usize, sync: usize) {
        let Some(state) = self.programs[task].syncs.get_mut(sync) else { return };
        if let Some(thread) = state.sleepers.pop_front() {
            self.programs[task].syncs[sync].holder = Some(self.as_holder(thread));
            return self.resume(thread);
        }
        state.tokens = state.tokens.saturating_add(1);
        state.holder = None;
        let runs = |thread: &usize| matches!(self.threads[*thread].state, State::Running(_));
        let poller = self.programs[task].syncs[sync].pollers.iter().copied().find(runs);
        if let Some(thread) = poller {
            self.poll(thread);
        }
    }

    /// A thread that polls looks: it goes on if it may.
    pub(super) fn poll(&mut self, thread: usize) {
        let task = self.threads[thread].task;
        let own = thread - self.tasks[task].first;
        let Some((sync, generation)) = self.programs[task].threads[own].polls else { return };
        let holder = self.as_holder(thread);
        let state = &mut self.programs[task].syncs[sync];
        if state.generation == generation {
            if state.tokens == 0 {
                return;
            }
            state.tokens -= 1;
            state.holder = Some(holder);
        }
        state.pollers.retain(|other| *other != thread);
        self.end_polling(thread);
    }

    fn end_polling(&mut self, thread: usize) {
        let task = self.threads[thread].task;
        let own = thread - self.tasks[task].first;
        self.programs[task].threads[own].polls = None;
        if let State::Running(at) = self.threads[thread].state {
            self.account(at);
            self.threads[thread].work = Work::Step(GOES_ON);
            self.begin_step(at);
        } else {
            self.threads[thread].work = Work::Step(GOES_ON);
        }
    }

    /// A thread that runs has polled for long enough: it offers its core and polls on, or sleeps.
    pub(super) fn has_polled_enough(&mut self, thread: usize, at: usize) {
        let task = self.threads[thread].task;
        let own = thread - self.tasks[task].first;
        let Some((sync, _)) = self.programs[task].threads[own].polls else { return };
        let waits = self.waits(task, sync);
        if waits == Waiting::SpinThenSleep {
            let state = &mut self.programs[task].syncs[sync];
            state.pollers.retain(|other| *other != thread);
            state.sleepers.push_back(thread);
            self.programs[task].threads[own].polls = None;
            return self.sleep(thread);
        }
        // With the core to itself it would offer it in vain: until the next tick others come by preemption.
        let alone = self.linux.as_ref().filter(|linux| linux.queued(self.cores[at].id) < 2);
        let spins = alone.map_or(waits.spins(), |linux| linux.next_tick(self.now).since(self.now));
        self.threads[thread].work = Work::Spin(spins);
        if self.offer_core(thread, at) {
            self.begin_step(at);
        }
    }

    /// The sleep of a thread is over.
    pub(crate) fn program_due(&mut self, thread: usize) {
        let task = self.threads[thread].task;
        if self.tasks[task].alive && self.threads[thread].state == State::Sleeping {
            self.resume(thread);
        }
    }

    /// `sched_yield`; true if the thread goes on at once.
    fn offer_core(&mut self, thread: usize, at: usize) -> bool {
        let id = self.cores[at].id;
        if self.linux.as_ref().is_none_or(|linux| linux.queued(id) < 2) {
            return true;
        }
        self.account(at);
        if let Some(linux) = &mut self.linux {
            linux.yield_now(thread, self.now);
        }
        self.follow_linux();
        if self.threads[thread].state == State::Running(at) {
            return true;
        }
        if !matches!(self.threads[thread].work, Work::Spin(_)) {
            self.goes_on_later(thread);
        }
        false
    }

    /// `execve`; true if the thread goes on at once.
    fn exec(&mut self, thread: usize, at: usize) -> bool {
        let Some(linux) = &mut self.linux else { return true };
        linux.exec(thread, self.now);
        self.follow_linux();
        self.threads[thread].state == State::Running(at) || self.goes_on_later(thread)
    }

    fn end_program_thread(&mut self, thread: usize) {
        let task = self.threads[thread].task;
        let own = thread - self.tasks[task].first;
        let state = &mut self.programs[task];
        state.threads[own].kind = None;
        let counts = state.threads[own].counts;
        state.alive -= u32::from(counts);
        if counts && state.alive == 0 {
            state.completed = Some(self.now);
        }
        self.sleep(thread);
        if let Some(linux) = &mut self.linux {
            linux.reset(thread, self.now);
        }
    }

    /// The threads of a program that left do nothing any more.
    pub(crate) fn end_program(&mut self, task: usize) {
        let Some(program) = self.program(task) else { return };
        let begins: Vec<SyncState> = program.syncs.iter().map(SyncState::new).collect();
        for thread in self.threads_of(task) {
            self.timers.arm(self.layout.timer(Timer::Program(thread)), Nanos::MAX);
        }
        let state = &mut self.programs[task];
        state.alive = 0;
        state.syncs = begins;
        for thread in &mut state.threads {
            (thread.kind, thread.polls) = (None, None);
        }
    }
}

/// What a task replays, if it does.
pub(super) fn recording_of(task: &Task) -> Option<&Recording> {
    match &task.load {
        Load::Recorded(recording) => Some(recording),
        Load::Program(_) | Load::Hog | Load::Open { .. } => None,
    }
}

/// A thread of what a task replays.
pub(super) fn recorded_thread(task: &Task, own: usize) -> Option<&RecordedThread> {
    recording_of(task)?.threads.get(own)
}

impl ProgramState {
    /// The threads that have not ended, by place in their task, with the sync that each waits for; `None`: one of them can go on, or
    /// none is left.
    pub(super) fn blocked(&self, first: usize) -> Option<Vec<(usize, usize)>> {
        let mut waits = Vec::new();
        for (place, thread) in self.threads.iter().enumerate() {
            if thread.kind.is_none() {
                continue;
            }
            let sync = match thread.polls {
                Some((sync, generation)) => {
                    let state = &self.syncs[sync];
                    (state.generation == generation && state.tokens == 0).then_some(sync)?
                }
                None => {
                    let sleeps = |state: &SyncState| state.sleepers.contains(&(first + place));
                    self.syncs.iter().position(sleeps)?
                }
            };
            waits.push((place, sync));
        }
        (!waits.is_empty()).then_some(waits)
    }

    /// A thread by its kind and its place in the task, from 1.
    pub(super) fn name_of(&self, program: &Program, place: usize) -> String {
        self.name_of_life(program, (place, self.threads[place].life))
    }

    /// The thread that has the token of a lock.
    pub(super) fn holder_name(&self, program: &Program, sync: usize) -> Option<String> {
        self.syncs[sync].holder.map(|holder| self.name_of_life(program, holder))
    }

    /// A thread that ended has no kind any more, and another one may have its place.
    fn name_of_life(&self, program: &Program, (place, life): (usize, u32)) -> String {
        let thread = &self.threads[place];
        let kind = thread.kind.filter(|_| thread.life == life);
        let kind = kind.and_then(|kind| program.kinds.get(kind));
        format!("{} {}", kind.map_or("a thread that ended:", |kind| &kind.name), place + 1)
    }

    /// Threads that wait at a barrier.
    pub(super) fn arrived(&self, sync: usize) -> u32 {
        self.syncs[sync].arrived
    }

    /// The index of the cores that a thread of a recording may use, if it restricts it.
    pub(super) fn allowed(&self, own: usize) -> Option<u32> {
        self.threads.get(own)?.allowed
    }

    /// The threads of a recording may use the cores of its begin, also when its task joins again.
    pub(super) fn begin_again(&mut self, recording: &Recording) {
        for (thread, recorded) in self.threads.iter_mut().zip(&recording.threads) {
            thread.allowed = recorded.allowed;
        }
    }

    pub(super) fn set_allowed(&mut self, own: usize, cores: u32) {
        self.threads[own].allowed = Some(cores);
    }

    /// The thread in this place begins as one of this kind.
    fn begin(&mut self, place: usize, kind: usize) {
        let thread = &mut self.threads[place];
        (thread.kind, thread.step, thread.polls) = (Some(kind), 0, None);
        thread.life = thread.life.wrapping_add(1);
        thread.repeats.clear();
        if thread.counts {
            self.alive += 1;
            self.completed = None;
        }
    }
}

impl SyncState {
    fn new(sync: &Sync) -> SyncState {
        let tokens = match sync.kind {
            SyncKind::Tokens { initial } => initial,
            SyncKind::Barrier { .. } => 0,
        };
        SyncState { tokens, ..SyncState::default() }
    }
}

impl ThreadState {
    /// The thread is at the repetition in step `index`.
    fn repeat(&mut self, index: usize, from: usize, times: u32) {
        let done = match self.repeats.last_mut() {
            Some((at, done)) if *at == index => {
                *done += 1;
                *done
            }
            _ => {
                self.repeats.push((index, 1));
                1
            }
        };
        match done < times {
            true => self.step = from,
            false => {
                self.repeats.pop();
            }
        }
    }
}
