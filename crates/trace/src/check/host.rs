//! The host as the events tell it: who runs, who waits where, which cores are idle.
//!
//! Every event states something (a thread runs here, that one waits there) rather than a difference, so that a
//! keyframe which was taken while the host went on is put right by the events that follow it.

use std::collections::{BTreeSet, HashMap};

use quell_model::{
    Activity, CORES_MAX, CoreId, CoreSet, Event, Keyframe, Left, Rank, Runner, Source, ThreadName,
    What,
};

/// Threads that are remembered, asleep or not: eight times the default of `pid_max` on small hosts. Others are
/// not judged.
const THREADS_MAX: usize = 1 << 18;

/// What a thread does, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has its core.
    Running,
    /// It is in the queue and wants the core.
    Waiting,
    /// It was woken and is not in the queue yet.
    Waking,
    /// It wants no core, or may have none: it sleeps, its quota is used up, it is between queues.
    Away,
}

/// A thread.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) runner: Runner,
    pub(crate) core: CoreId,
    pub(crate) state: State,
    /// The cores it may use; `None` while nobody said so.
    pub(crate) allowed: Option<CoreSet>,
    /// It may not leave its core now.
    pub(crate) bound: bool,
}

/// What the source tells of those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queues {
    /// Each core has a queue of threads.
    ByCore,
    /// How long the queues are; threads have no names.
    SizesAlone,
    /// All cores are searched for a thread that wants one: the core that it is filed under means nothing, and may
    /// well be idle.
    Shared,
}

impl Queues {
    /// Those of a source.
    pub(crate) fn of(source: Source) -> Queues {
        match source {
            Source::WastedCores => Queues::SizesAlone,
            Source::Simulator => Queues::Shared,
            _ => Queues::ByCore,
        }
    }
}

/// A core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Core {
    /// It is not on line.
    gone: bool,
    /// Who runs, the idle thread being 0; `None` while nobody said so.
    pub(crate) running: Option<i32>,
    /// How many wait in its queue.
    pub(crate) waiting: u32,
    /// How many of them are not SCHED_IDLE.
    above_idle: u32,
    /// Threads that were woken for it and are not in its queue yet.
    waking: u32,
    /// A wake-up is on its way, as the last keyframe says.
    wake_pending: bool,
    /// Threads that want it, the running one included, as the kernel last counted; `None` once that is stale.
    runnable: Option<u32>,
    /// The span of its top domain.
    pub(crate) domain: Option<CoreSet>,
    /// Decayed average load.
    pub(crate) average: u64,
}

/// Every core and thread.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    cores: Vec<Core>,
    threads: HashMap<i32, Thread>,
    /// The checker's own threads: on a core of theirs would be nobody if nobody checked.
    own: BTreeSet<i32>,
    pub(crate) queues: Queues,
    /// Cores with nothing to do.
    pub(crate) idle: CoreSet,
    /// Cores with nothing but SCHED_IDLE threads to run.
    pub(crate) lowly: CoreSet,
    /// Cores whose queue or running thread changed, or a thread in whose queue.
    pub(crate) dirty: CoreSet,
    /// The sets of cores that are idle, or run SCHED_IDLE threads only, changed.
    pub(crate) shifted: bool,
    /// Threads that may have begun or ceased to wait, or wait as others do now. The sets of changes are the
    /// reader's to clear.
    pub(crate) touched: Vec<i32>,
    /// A thread could not be remembered.
    pub(crate) overflowed: bool,
}

impl Host {
    pub(crate) fn new(cores: usize, own: BTreeSet<i32>, queues: Queues) -> Host {
        Host {
            cores: vec![Core::default(); cores.min(CORES_MAX)],
            threads: HashMap::new(),
            own,
            queues,
            idle: CoreSet::EMPTY,
            lowly: CoreSet::EMPTY,
            dirty: CoreSet::EMPTY,
            shifted: false,
            touched: Vec::new(),
            overflowed: false,
        }
    }

    pub(crate) fn core(&self, core: CoreId) -> Option<&Core> {
        self.cores.get(core.index())
    }

    pub(crate) fn thread(&self, thread: i32) -> Option<&Thread> {
        self.threads.get(&thread)
    }

    pub(crate) fn cores(&self) -> impl Iterator<Item = (CoreId, &Core)> {
        self.cores.iter().enumerate().map(|(at, core)| (CoreId(at as u16), core))
    }

    /// The thread that keeps a core's waiters waiting, if it is known.
    pub(crate) fn runner_of(&self, core: CoreId) -> Option<&Thread> {
        self.thread(self.core(core)?.running?)
    }

    /// All tids, for comparisons.
    #[cfg(test)]
    pub(crate) fn numbers(&self) -> Vec<i32> {
        self.threads.keys().copied().collect()
    }

    /// Notes every thread that waits as touched.
    pub(crate) fn touch_waiting(&mut self) {
        let waiting = self.threads.iter().filter(|(_, thread)| thread.state == State::Waiting);
        self.touched.extend(waiting.map(|(number, _)| *number));
    }

    /// Whether those in a core's queue are known to wait: not where the kernel counts fewer than the events tell,
    /// since then some of them are throttled and nobody says which.
    pub(crate) fn is_contended(&self, core: CoreId) -> bool {
        let Some(core) = self.core(core) else { return false };
        match self.queues {
            Queues::SizesAlone => return core.runnable >= Some(2),
            Queues::Shared => return true,
            Queues::ByCore => {}
        }
        match core.running {
            // A kernel that has a runnable thread in the queue does not run the idle thread.
            None | Some(0) => false,
            Some(_) if core.runnable.is_some_and(|runnable| runnable <= core.waiting) => false,
            // Without the checker that one waiter would run.
            Some(running) => !(core.waiting == 1 && self.own.contains(&running)),
        }
    }

    fn runs(&self, thread: i32) -> bool {
        self.thread(thread).is_some_and(|thread| thread.state == State::Running)
    }

    /// Whether a thread is the checker's.
    pub(crate) fn is_own(&self, thread: i32) -> bool {
        self.own.contains(&thread)
    }

    /// Takes what an event says, keyframes included.
    pub(crate) fn apply(&mut self, event: &Event) {
        match &event.what {
            What::Switch { next, left, how, .. } => self.switch(event.core, *next, *left, *how),
            What::Waking { thread, target, .. } => {
                self.introduce(*thread, *target);
                let seen = self.thread(thread.thread).map(|thread| thread.state);
                // A wake-up of a thread that has not left its core yet changes nothing.
                if seen == Some(State::Away) {
                    self.place(thread.thread, *target, State::Waking);
                }
            }
            What::Woken { thread, on, .. } => {
                self.introduce(*thread, *on);
                if !self.runs(thread.thread) {
                    self.place(thread.thread, *on, State::Waiting);
                }
                // The queue's size does not change when a sleeper returns whose dequeueing was delayed.
                self.count(*on, None);
            }
            What::Migrate { thread, to, .. } => {
                let state = self.thread(*thread).map(|thread| thread.state);
                if let Some(state) = state {
                    // A running thread is moved by stopping it first: it waits at its new core.
                    let state = if state == State::Running { State::Waiting } else { state };
                    self.place(*thread, *to, state);
                    self.count(*to, None);
                }
            }
            What::Fork { child, .. } => self.introduce(*child, event.core),
            What::Exec { thread } => self.introduce(*thread, event.core),
            // It goes on running, and may be preempted, until it is switched away for good.
            What::Exit { thread } if self.runs(*thread) => {}
            What::Exit { thread } => self.forget(*thread),
            What::Allowed { thread, cores } => self.allow(*thread, *cores),
            What::Queue { of, runnable, .. } => self.count(*of, Some(*runnable)),
            What::Load { of, average, .. } => {
                if let Some(core) = self.cores.get_mut(of.index()) {
                    core.average = *average;
                }
            }
            What::Online { of, online } => {
                if let Some(core) = self.cores.get_mut(of.index()) {
                    core.gone = !online;
                    self.dirty.insert(*of);
                }
            }
            What::Keyframe(keyframe) => self.resync(keyframe),
            _ => {}
        }
        self.settle_idle();
    }

    fn switch(&mut self, on: CoreId, next: Runner, left: i32, how: Left) {
        self.leave_core(left, on, how);
        if let Some(stale) = self.core(on).and_then(|core| core.running)
            && stale != left
            && self.runs(stale)
        {
            self.leave_core(stale, on, Left::Sleeping);
        }
        let Some(core) = self.cores.get_mut(on.index()) else { return };
        core.running = Some(next.thread);
        core.wake_pending = false;
        self.dirty.insert(on);
        if next.thread == 0 {
            self.count(on, Some(0));
            return;
        }
        self.introduce(next, on);
        self.place(next.thread, on, State::Running);
        if let Some(thread) = self.threads.get_mut(&next.thread) {
            thread.bound = false;
        }
    }

    /// A thread left its core; after a move the old core may still tell of it, and is not heard.
    fn leave_core(&mut self, thread: i32, on: CoreId, how: Left) {
        if thread == 0 || self.thread(thread).is_some_and(|thread| thread.core != on) {
            return;
        }
        match how {
            Left::Dead => self.forget(thread),
            Left::Preempted => {
                self.introduce(unnamed(thread), on);
                self.place(thread, on, State::Waiting);
            }
            Left::Sleeping | Left::Blocked | Left::Stopped => self.place(thread, on, State::Away),
        }
    }

    /// Notes a thread's name, process and rank.
    fn introduce(&mut self, runner: Runner, on: CoreId) {
        if runner.thread == 0 {
            return;
        }
        if let Some(known) = self.threads.get_mut(&runner.thread) {
            if runner.name == ThreadName::default() {
                return;
            }
            let (was, on) = (std::mem::replace(&mut known.runner, runner), known.core);
            if (was.rank, was.process) == (runner.rank, runner.process) {
                return;
            }
            if known.state == State::Waiting
                && let Some(core) = self.cores.get_mut(on.index())
            {
                core.above_idle += u32::from(runner.rank != Rank::BENEATH);
                core.above_idle -= u32::from(was.rank != Rank::BENEATH);
            }
            self.dirty.insert(on);
            self.touched.push(runner.thread);
        } else if self.threads.len() < THREADS_MAX {
            let thread =
                Thread { runner, core: on, state: State::Away, allowed: None, bound: false };
            self.threads.insert(runner.thread, thread);
        } else {
            self.overflowed = true;
        }
    }

    fn place(&mut self, number: i32, on: CoreId, state: State) {
        let Some(thread) = self.threads.get_mut(&number) else { return };
        let (was_on, was) = (thread.core, thread.state);
        (thread.core, thread.state) = (on, state);
        let is_above = thread.runner.rank != Rank::BENEATH;
        self.leave(was_on, was, is_above);
        if was == State::Waiting || state == State::Waiting {
            self.touched.push(number);
        }
        let Some(core) = self.cores.get_mut(on.index()) else { return };
        match state {
            State::Waiting => {
                core.waiting += 1;
                core.above_idle += u32::from(is_above);
            }
            State::Waking => core.waking += 1,
            State::Running | State::Away => {}
        }
        self.dirty.insert(on);
    }

    fn leave(&mut self, on: CoreId, was: State, is_above: bool) {
        let Some(core) = self.cores.get_mut(on.index()) else { return };
        match was {
            State::Waiting => {
                core.waiting -= 1;
                core.above_idle -= u32::from(is_above);
            }
            State::Waking => core.waking = core.waking.saturating_sub(1),
            State::Running | State::Away => {}
        }
        self.dirty.insert(on);
    }

    fn forget(&mut self, number: i32) {
        if let Some(thread) = self.threads.remove(&number) {
            self.leave(thread.core, thread.state, thread.runner.rank != Rank::BENEATH);
            self.touched.push(number);
        }
    }

    fn allow(&mut self, number: i32, cores: CoreSet) {
        self.introduce(unnamed(number), CoreId(0));
        if let Some(thread) = self.threads.get_mut(&number) {
            thread.allowed = Some(cores);
            self.dirty.insert(thread.core);
            self.touched.push(number);
        }
    }

    fn count(&mut self, of: CoreId, runnable: Option<u32>) {
        if let Some(core) = self.cores.get_mut(of.index()) {
            core.runnable = runnable;
            self.dirty.insert(of);
        }
    }

    /// Takes a keyframe for the truth: who is not in it sleeps.
    fn resync(&mut self, keyframe: &Keyframe) {
        for core in &mut self.cores {
            // The load, too: a core that is not in the keyframe is not on line.
            *core = Core { gone: true, ..Core::default() };
        }
        if self.threads.len() > THREADS_MAX / 2 {
            self.threads.retain(|_, thread| thread.state != State::Away);
            self.overflowed = false;
        }
        for thread in self.threads.values_mut() {
            thread.state = State::Away;
        }
        for seen in &keyframe.cores {
            let Some(core) = self.cores.get_mut(seen.core.index()) else { continue };
            core.gone = false;
            core.running = Some(seen.running);
            core.wake_pending = seen.wake_pending;
            core.runnable = Some(seen.runnable);
            core.domain = Some(seen.domain);
            core.average = seen.average;
        }
        for seen in &keyframe.threads {
            self.introduce(seen.thread, seen.core);
            let number = seen.thread.thread;
            let Some(thread) = self.threads.get_mut(&number) else { continue };
            thread.allowed = Some(seen.allowed);
            thread.bound = seen.bound;
            let state = match seen.state {
                Activity::Running => State::Running,
                Activity::Waiting => State::Waiting,
                Activity::Throttled | Activity::Delayed | Activity::Moving | Activity::Sleeping => {
                    State::Away
                }
            };
            // A thread that runs on one core cannot wait as well; a keyframe may list it twice.
            if thread.state == State::Away {
                self.place(number, seen.core, state);
            }
        }
        self.dirty = self.cores().map(|(core, _)| core).collect();
    }

    /// Keeps the sets of idle cores.
    fn settle_idle(&mut self) {
        for at in self.dirty.iter() {
            let Some(core) = self.core(at) else { continue };
            // On its way out a core runs the idle thread again and again.
            let quiet = !core.gone && core.waking == 0 && !core.wake_pending;
            let idle = match core.running {
                _ if self.queues == Queues::SizesAlone => core.runnable == Some(0),
                Some(0) if self.queues == Queues::Shared => quiet,
                Some(0) => quiet && core.runnable.unwrap_or(0) == 0,
                Some(running) if self.is_own(running) => quiet && core.waiting == 0,
                _ => false,
            };
            let lowly = quiet && self.runs_only_idle_policy(core);
            let shifted = set(&mut self.idle, at, idle) | set(&mut self.lowly, at, lowly);
            self.shifted |= shifted;
        }
    }

    fn runs_only_idle_policy(&self, core: &Core) -> bool {
        let is_lowly = |running: i32| {
            self.thread(running).is_some_and(|thread| thread.runner.rank == Rank::BENEATH)
        };
        core.above_idle == 0 && core.running.is_some_and(is_lowly)
    }
}

/// Whether that was a change.
fn set(cores: &mut CoreSet, core: CoreId, member: bool) -> bool {
    if cores.contains(core) == member {
        return false;
    }
    match member {
        true => cores.insert(core),
        false => cores.remove(core),
    }
    true
}

/// A thread of which only the number is known: fair, as nearly all are.
fn unnamed(thread: i32) -> Runner {
    Runner { thread, process: 0, rank: Rank::FAIR, name: ThreadName::default() }
}
