//! From changes of a recorded host to the steps of its threads.

use std::collections::{BTreeMap, HashMap};

use quell_model::{CoreId, CoreSet, Event, Meta, MoveCause, Nanos, Rank, Runner, What};
use quell_sim::{
    Program, ProgramStep, RecordedClass, RecordedFigures, RecordedStart, RecordedThread, Recording,
    Sync, SyncKind, ThreadKind, Waiting,
};
use quell_trace::host::{
    HostCore, HostState, HostThread, HostVisitor, Occupant, ThreadIndex, ThreadState,
};

use super::thread::ThreadSteps;
use super::{ReplayError, SETS_MAX, THREADS_MAX};

/// Softirqs of timers (`TIMER_SOFTIRQ`, `HRTIMER_SOFTIRQ`): what they wake, a timer wakes.
const TIMERS: [u8; 2] = [1, 8];

/// Beginnings of names of kernel threads that interrupts and ticks wake, whichever thread runs then. Of other wake-ups nothing
/// says whether the thread that ran had to do with them: it counts as the waker.
const WOKEN_BY_INTERRUPTS: [&[u8]; 4] = [b"rcu_", b"ksoftirqd/", b"kcompactd", b"irq/"];

/// Gathers the steps of all threads.
#[derive(Debug)]
pub(super) struct Extract {
    /// Since when; `None` before the chosen part.
    from: Option<Nanos>,
    threads: Vec<Known>,
    /// By slot of the host: the thread that is in it.
    slots: Vec<Option<u32>>,
    cores: Vec<CoreId>,
    all: CoreSet,
    /// By core: an interrupt's handler runs, or a timer's.
    interrupted: Vec<[bool; 2]>,
    sets: Vec<CoreSet>,
    set_indices: HashMap<CoreSet, u32>,
    migrations: BTreeMap<MoveCause, u64>,
    lost: Option<Loss>,
    /// Steps of all threads, and the most of them.
    steps: usize,
    steps_max: usize,
}

/// Events that are missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub core: CoreId,
    /// How many, where that is known.
    pub count: Option<u64>,
    /// When that was noticed.
    pub at: Nanos,
}

/// A thread of the host.
#[derive(Debug)]
struct Known {
    index: ThreadIndex,
    name: String,
    rank: Rank,
    /// The cores that it may use now, and the index of those at first where they are not all.
    allowed: Option<CoreSet>,
    first_set: Option<u32>,
    has_ended: bool,
    steps: ThreadSteps,
}

impl Extract {
    pub fn new(meta: &Meta, steps_max: usize) -> Extract {
        let cores: Vec<CoreId> = meta.topology.cores().iter().map(|core| core.id).collect();
        Extract {
            from: None,
            threads: Vec::new(),
            slots: Vec::new(),
            interrupted: vec![[false; 2]; cores.len()],
            cores,
            all: meta.topology.all(),
            sets: Vec::new(),
            set_indices: HashMap::new(),
            migrations: BTreeMap::new(),
            lost: None,
            steps: 0,
            steps_max,
        }
    }

    /// The chosen part begins, unless it has.
    pub fn begin(&mut self, host: &HostState, from: Nanos) {
        if self.from.is_some() {
            return;
        }
        self.from = Some(from);
        for thread in host.threads() {
            self.add(thread, from);
            self.allow_tid(host, thread.tid(), from);
        }
    }

    pub fn has_begun(&self) -> bool {
        self.from.is_some()
    }

    /// What was lost since the begin, or before it and is not known again.
    pub fn lost(&self, host: &HostState) -> Option<Loss> {
        let unknown = || Some(Loss { core: host.lost().first()?, count: None, at: host.now() });
        self.lost.or_else(unknown)
    }

    pub fn check_size(&self) -> Result<(), ReplayError> {
        if self.threads.len() > THREADS_MAX {
            return Err(ReplayError::TooLarge { most: THREADS_MAX, what: "threads" });
        }
        if self.sets.len() > SETS_MAX {
            return Err(ReplayError::TooLarge { most: SETS_MAX, what: "sets of cores" });
        }
        if self.steps > self.steps_max {
            return Err(ReplayError::TooLarge { most: self.steps_max, what: "steps" });
        }
        Ok(())
    }

    /// Takes the next event, and lets the host take it.
    pub fn push(&mut self, host: &mut HostState, event: &Event) {
        let at = event.at.max(host.now());
        let here = host.topology().position(event.core);
        let waker = here.and_then(|here| self.running(host, here));
        self.note_interrupt(here, &event.what);
        match &event.what {
            What::Waking { thread, by, .. } => {
                let is_tick = self.is_interrupt(here) || is_woken_by_interrupts(thread);
                let by_thread =
                    waker.filter(|(_, tid)| tid == by && *tid != thread.thread && !is_tick);
                let before = host.thread_by_tid(thread.thread).map(|it| it.state);
                host.push(event, self);
                if let Some((waker, _)) = by_thread {
                    self.woken(host, waker, thread.thread, before, at);
                }
            }
            What::Fork { parent, child } => {
                host.push(event, self);
                if let Some((parent, _)) = waker.filter(|(_, tid)| tid == parent) {
                    self.forked(host, parent, child.thread, at);
                }
            }
            What::Exec { .. } => {
                if let Some((thread, _)) = waker {
                    self.step_now(host, thread, at, ProgramStep::Exec);
                }
                host.push(event, self);
            }
            What::Allowed { thread, .. } => {
                host.push(event, self);
                self.allow_tid(host, *thread, at);
            }
            What::Keyframe(frame) => {
                host.push(event, self);
                // One that must not migrate now shows one core, whatever it may use later.
                for listed in frame.threads.iter().filter(|listed| !listed.bound) {
                    self.allow_tid(host, listed.thread.thread, at);
                }
            }
            _ => host.push(event, self),
        }
    }

    fn note_interrupt(&mut self, here: Option<usize>, what: &What) {
        let Some(here) = here else { return };
        match what {
            What::Interrupt { begins, .. } => self.interrupted[here][0] = *begins,
            What::Softirq { vector, begins } if TIMERS.contains(vector) => {
                self.interrupted[here][1] = *begins;
            }
            _ => {}
        }
    }

    fn is_interrupt(&self, core: Option<usize>) -> bool {
        core.is_none_or(|core| self.interrupted[core].contains(&true))
    }

    /// The thread that runs on a core, and its tid.
    fn running(&self, host: &HostState, core: usize) -> Option<(usize, i32)> {
        let Occupant::Thread(thread) = host.occupant(core) else { return None };
        Some((self.known(thread)?, thread.tid()))
    }

    fn known(&self, thread: &HostThread) -> Option<usize> {
        let known = self.slots.get(thread.index.index()).copied().flatten()?;
        Some(known as usize)
    }

    fn add(&mut self, thread: &HostThread, from: Nanos) {
        let slot = thread.index.index();
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        self.slots[slot] = Some(self.threads.len() as u32);
        let steps = ThreadSteps::new(from);
        let (name, rank) = (thread.comm().to_string(), thread.prio());
        let index = thread.index;
        self.threads.push(Known {
            index,
            name,
            rank,
            allowed: None,
            first_set: None,
            has_ended: false,
            steps,
        });
    }

    /// One thread wakes another one, which did `before` when it was woken.
    fn woken(
        &mut self,
        host: &HostState,
        waker: usize,
        wakee: i32,
        before: Option<ThreadState>,
        at: Nanos,
    ) {
        let Some(thread) = host.thread_by_tid(wakee) else { return };
        let Some(wakee) = self.known(thread) else { return };
        let post = ProgramStep::Post(wakee as u32);
        match before {
            // It was about to sleep.
            Some(ThreadState::Running) => {
                self.step_now(host, waker, at, post);
                self.step_now(host, wakee, at, ProgramStep::Take(wakee as u32));
            }
            // It is awake already.
            Some(ThreadState::Waiting | ThreadState::Waking | ThreadState::New) => {}
            Some(ThreadState::Migrating | ThreadState::Throttled) => {}
            _ => {
                if self.threads[wakee].steps.wake() {
                    self.step_now(host, waker, at, post);
                }
            }
        }
    }

    fn forked(&mut self, host: &HostState, parent: usize, child: i32, at: Nanos) {
        let child = host.thread_by_tid(child).and_then(|thread| self.known(thread));
        let Some(child) = child.filter(|child| self.threads[*child].steps.is_fresh()) else {
            return;
        };
        let steps = &mut self.threads[child].steps;
        (steps.start, steps.until) = (Some(RecordedStart::Forked), at);
        self.step_now(host, parent, at, ProgramStep::Fork(child as u32));
    }

    /// Changes the steps of a thread: the one place that adds steps, so that all of them are counted.
    fn change(&mut self, known: usize, change: impl FnOnce(&mut ThreadSteps)) {
        let steps = &mut self.threads[known].steps;
        let before = steps.steps.len();
        change(steps);
        self.steps += steps.steps.len().saturating_sub(before);
    }

    /// A thread does this now, at its place in the burst where it runs.
    fn step_now(&mut self, host: &HostState, known: usize, at: Nanos, step: ProgramStep) {
        let thread = host.thread(self.threads[known].index);
        let is_here = self.known(thread) == Some(known);
        if is_here && thread.state == ThreadState::Running {
            let (from, on) = (self.since(thread), self.start_on(thread));
            self.change(known, |steps| steps.advance(from, at.max(from), known as u32, on));
        }
        self.change(known, |steps| steps.step(step));
    }

    /// Since when a thread is in its state, in the chosen part.
    fn since(&self, thread: &HostThread) -> Nanos {
        thread.since.max(self.from.unwrap_or_default())
    }

    fn start_on(&self, thread: &HostThread) -> RecordedStart {
        RecordedStart::Runnable(self.cores[thread.core])
    }

    /// The host knows by now where the thread of this tid may run.
    fn allow_tid(&mut self, host: &HostState, tid: i32, at: Nanos) {
        let Some(thread) = host.thread_by_tid(tid) else { return };
        let Some(known) = self.known(thread) else { return };
        let Some(cores) = host.allowed(thread) else { return };
        let before = self.threads[known].allowed.replace(cores);
        if before.is_some_and(|before| before != cores) {
            let set = self.set_of(&cores);
            self.step_now(host, known, at, ProgramStep::Allow(set));
        } else if before.is_none() && cores != self.all {
            self.threads[known].first_set = Some(self.set_of(&cores));
        }
    }

    /// The index of a set of cores. That of all is empty, which allows all cores of other hosts, too.
    fn set_of(&mut self, cores: &CoreSet) -> u32 {
        let set = if *cores == self.all { CoreSet::EMPTY } else { *cores };
        let next = self.sets.len() as u32;
        let index = *self.set_indices.entry(set).or_insert(next);
        if index == next {
            self.sets.push(set);
        }
        index
    }

    /// The trace is over: bursts that still run are steps, too.
    ///
    /// # Errors
    /// When these steps are too many.
    pub fn end(&mut self, host: &mut HostState) -> Result<(), ReplayError> {
        host.finish(self);
        for known in 0..self.threads.len() {
            self.change(known, ThreadSteps::end_burst);
        }
        self.check_size()
    }

    /// All of it, after the end.
    pub fn finish(mut self, host: &HostState, meta: &Meta, wasted: Nanos) -> Recording {
        let from = self.from.unwrap_or_default();
        let mut figures = RecordedFigures {
            kernel: meta.kernel.clone(),
            cores: self.cores.len() as u32,
            length: host.now().since(from),
            wasted,
            migrations: std::mem::take(&mut self.migrations),
            ..RecordedFigures::default()
        };
        for known in &self.threads {
            figures.ran += known.steps.ran;
        }
        // Threads that did nothing are left out.
        let does = |known: &Known| {
            known.steps.start == Some(RecordedStart::Forked) || !known.steps.steps.is_empty()
        };
        let mut next = 0;
        let place = |known: &Known| {
            next += u32::from(does(known));
            does(known).then(|| next - 1)
        };
        let places: Vec<Option<u32>> = self.threads.iter().map(place).collect();
        let kept = || self.threads.iter().filter(|known| does(known));
        let does_any_end = kept().any(|known| known.has_ended);
        let ends = |known: &Known| known.has_ended || !does_any_end;
        let until = kept().filter(|known| ends(known)).map(|known| known.steps.ran_until);
        figures.completed = until.max().unwrap_or_default().since(from);
        let first_core = self.cores.first().copied().unwrap_or(CoreId(0));
        let (mut kinds, mut threads) = (Vec::new(), Vec::new());
        for known in self.threads.into_iter().filter(does) {
            threads.push(RecordedThread {
                start: known.steps.start.unwrap_or(RecordedStart::Runnable(first_core)),
                class: class_of(known.rank),
                allowed: known.first_set,
                ended: known.has_ended.then(|| known.steps.ran_until.since(from)),
            });
            let steps = known.steps.steps.into_iter().filter_map(|step| renumbered(step, &places));
            kinds.push(ThreadKind {
                session: None,
                name: known.name,
                count: 0,
                start_core: None,
                steps: steps.collect(),
            });
        }
        let sync = Sync { kind: SyncKind::Tokens { initial: 0 }, waits: Waiting::Sleep };
        let program = Program { syncs: vec![sync; kinds.len()], kinds, sync_names: Vec::new() };
        Recording { program, threads, cores: self.sets, figures }
    }
}

/// A step with the places of threads in place of their numbers; `None` if it is about one that is left out.
fn renumbered(step: ProgramStep, places: &[Option<u32>]) -> Option<ProgramStep> {
    let place = |thread: u32| places.get(thread as usize).copied().flatten();
    match step {
        ProgramStep::Take(thread) => place(thread).map(ProgramStep::Take),
        ProgramStep::Post(thread) => place(thread).map(ProgramStep::Post),
        ProgramStep::Fork(thread) => place(thread).map(ProgramStep::Fork),
        other => Some(other),
    }
}

/// Whether interrupts and ticks wake a thread of this name.
fn is_woken_by_interrupts(thread: &Runner) -> bool {
    WOKEN_BY_INTERRUPTS.iter().any(|begins| thread.name.as_bytes().starts_with(begins))
}

fn class_of(rank: Rank) -> RecordedClass {
    match rank {
        _ if rank < Rank::FAIR => {
            // A deadline is above them all.
            let priority = 100 - rank.number().clamp(1, 99);
            RecordedClass::RealTime(priority as u8)
        }
        Rank::BENEATH => RecordedClass::Idle,
        _ => RecordedClass::Fair,
    }
}

impl HostVisitor for Extract {
    fn thread_appeared(&mut self, thread: &HostThread, _: Nanos) {
        if let Some(from) = self.from {
            self.add(thread, from);
        }
    }

    fn thread_described(&mut self, thread: &HostThread, _: Nanos) {
        if let Some(known) = self.known(thread) {
            let known = &mut self.threads[known];
            (known.name, known.rank) = (thread.comm().to_string(), thread.prio());
        }
    }

    fn thread_ended(&mut self, thread: &HostThread, _: Nanos) {
        if let Some(known) = self.known(thread) {
            self.threads[known].has_ended = true;
            self.slots[thread.index.index()] = None;
        }
    }

    fn thread_span(&mut self, thread: &HostThread, until: Nanos) {
        let Some(known) = self.known(thread) else { return };
        let from = self.since(thread);
        if until <= from {
            return;
        }
        let on = self.start_on(thread);
        self.change(known, |steps| match thread.state {
            ThreadState::Running => steps.run(from, until, known as u32, on),
            ThreadState::Waiting | ThreadState::Waking | ThreadState::Migrating => {
                steps.wait(from, until, known as u32, on);
            }
            // Its parent has not started it yet.
            ThreadState::New => steps.until = until,
            _ => steps.sleep(from, until),
        });
    }

    fn migrated(&mut self, _: Option<&HostThread>, _: usize, _: usize, cause: MoveCause, _: Nanos) {
        if self.from.is_some() {
            *self.migrations.entry(cause).or_default() += 1;
        }
    }

    fn core_lost(&mut self, core: &HostCore, _: Nanos, at: Nanos, count: u64) {
        if self.from.is_some() && self.lost.is_none() {
            self.lost = Some(Loss { core: core.id, count: Some(count), at });
        }
    }
}
