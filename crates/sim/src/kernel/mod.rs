//! The kernel: which thread runs where.
//!
//! Strict priority by rung, first in first out within the real-time rungs, slices below them. A task may use the cores that
//! it owns and those that it was let in beneath. `threads` moves threads between states, `place` finds cores
//! for threads and threads for cores, `rights` applies what the back end changed, `bursts` judges bursts by roles,
//! `helpers` wakes what runs beside requests, `programs` has threads go through steps, `recorded` through those of a recorded
//! host.
//!
//! That is the default: one queue for all cores. With `linux` each core has a queue of its own, and `per_core` stands in for
//! `place`.

mod bursts;
mod deadlock;
mod helpers;
pub mod linux;
mod per_core;
mod place;
mod programs;
mod recorded;
mod rights;
mod threads;

use std::collections::VecDeque;

use quell_model::{Class, CoreId, CoreSet, Nanos, Role, Rung};

pub(crate) use bursts::BurstRecord;
pub use deadlock::Deadlock;
pub(crate) use helpers::HelperThread;
pub(crate) use per_core::linux_of;
pub(crate) use programs::{ProgramState, programs_of};

use crate::chance::Chance;
use crate::machine::{Kind, ONE};
use crate::workload::Task;

/// A slice of a thread on a rung that shares in time.
pub(crate) const SLICE: Nanos = Nanos::from_millis(3);

/// Work left is kept in 1/1,024ths of a nanosecond, so that being slowed down again and again rounds nothing away.
pub(crate) const WORK_BITS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Sleeping,
    Waiting {
        since: Nanos,
    },
    /// On the core at this position.
    Running(usize),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub arrived: Nanos,
    /// Work left, in 1/1,024 ns on an idle host.
    pub left: u64,
}

/// What a thread works on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Nothing,
    /// Until somebody stops it.
    Endless,
    Request(Request),
    /// Looks for work until then.
    Polling(Nanos),
    /// Of a helper: work left, in 1/1,024 ns on an idle host.
    Burst(u64),
    /// Of a program's thread: work left of its step, in the same unit.
    Step(u64),
    /// Of a program's thread: it polls what it waits for, for this long while it has a core; [`Nanos::MAX`]: without end.
    Spin(Nanos),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread {
    pub task: usize,
    pub state: State,
    pub work: Work,
    /// The position of the core it ran on last.
    pub last_core: Option<usize>,
    /// Time run since it last slept: the whole of its burst.
    pub ran: Nanos,
    /// Its rung follows from this and from its task's.
    pub role: Role,
    /// Its number among all helpers, if it is one.
    pub helper: Option<u32>,
    /// The core on which a program starts it, and the thread that woke it, until the kernel puts it into a queue.
    pub start_core: Option<CoreId>,
    pub waker: Option<usize>,
}

/// A task in motion.
#[derive(Clone, Debug)]
pub(crate) struct TaskState {
    pub alive: bool,
    pub generation: u32,
    pub class: Class,
    pub rung: Rung,
    /// Its threads have roles, by their bursts.
    pub has_roles: bool,
    /// Threads whose role is not [`Role::Event`].
    pub demoted: u32,
    /// Threads of the kernel: each has its core, and policies do not see them.
    pub is_kernel: bool,
    /// Helpers for which its requests wait.
    pub held: u32,
    pub shared_cores: CoreSet,
    /// Cores that it owns, as the host has it.
    pub owned: CoreSet,
    /// Managed cores that it could be given.
    pub reach: CoreSet,
    /// Cores to which it bound its threads.
    pub bound: CoreSet,
    /// Cores that it may use now.
    pub allowed: CoreSet,
    /// Its threads are numbered from here on.
    pub first: usize,
    /// Who slept last wakes first: its core's cache is warm.
    pub sleepers: Vec<usize>,
    /// Threads that wait, the longest first.
    pub waiting: VecDeque<usize>,
    /// Requests that wait for a thread, the oldest first.
    pub backlog: VecDeque<Request>,
    /// By thread, where each has connections of its own: requests that wait for it.
    pub inboxes: Vec<VecDeque<Request>>,
    pub running: u32,
    pub running_on: CoreSet,
    /// Cores on which its threads look for work.
    pub polling_on: CoreSet,
    /// Chance for its requests alone, so that they do not depend on the policy.
    pub chance: Chance,
    /// When the next request arrives, in picoseconds.
    pub arrival_ps: u64,
    pub phase: usize,
    pub progress: Progress,
}

/// How far a task is in its phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Sum of the speeds of its threads.
    pub speed: u64,
    /// Work left of the phase.
    pub left: u64,
    pub since: Nanos,
}

impl TaskState {
    /// The next request for one of its threads.
    pub fn next_request(&mut self, thread: usize) -> Option<Request> {
        match self.inboxes.get_mut(thread - self.first) {
            Some(inbox) => inbox.pop_front(),
            None => self.backlog.pop_front(),
        }
    }

    /// Requests that wait for a thread.
    pub fn waiting_requests(&self) -> impl Iterator<Item = &Request> {
        self.backlog.iter().chain(self.inboxes.iter().flatten())
    }

    /// Whether a core could start something of it at once.
    pub fn is_hungry(&self) -> bool {
        !self.waiting.is_empty() || self.could_begin()
    }

    /// Whether a request waits for nothing but a core.
    pub fn could_begin(&self) -> bool {
        !self.backlog.is_empty() && !self.sleepers.is_empty() && self.held == 0
    }
}

/// A core in motion.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub id: CoreId,
    pub online: bool,
    /// Whose the host holds it to be.
    pub owner: Option<usize>,
    /// The other cores of its physical core, by position.
    pub siblings: Box<[usize]>,
    pub domain: usize,
    pub node: usize,
    /// What it does in a time against the fastest cores, in 1/1,024ths.
    pub capacity: u64,
    pub running: Option<usize>,
    /// What its execution units do.
    pub kind: Kind,
    /// How many times as long the thread takes, in 1/1,024ths, and the inverse in 1/2^20 ns of work a nanosecond.
    pub stretch: u64,
    pub speed: u64,
    /// What it counts for in its cell of the machine.
    pub counted: u64,
    /// Up to when its thread is booked; in the future while it is switched in.
    pub since: Nanos,
    /// When its request, slice and polling end.
    pub finish: Nanos,
    pub slice: Nanos,
    /// When its request began here.
    pub began: Option<Nanos>,
    pub idle_since: Nanos,
    /// Time that LC threads ran in the windows before and since `window`.
    pub lc_ran: [Nanos; 2],
    pub window: Nanos,
    /// Books of its whole time.
    pub idle: Nanos,
    pub offline: Nanos,
    pub switching: Nanos,
    /// Time that LC threads above the fair class ran.
    pub rt_ran: Nanos,
    /// Bytes fetched from memory, in thousandths.
    pub moved: u64,
}

/// The window of `lc_busy` is one to two of these.
pub(crate) const WINDOW: Nanos = Nanos::from_millis(50);

impl Core {
    pub fn new(id: CoreId, siblings: Box<[usize]>, domain: usize, node: usize) -> Core {
        Core {
            id,
            online: true,
            owner: None,
            siblings,
            domain,
            node,
            capacity: ONE,
            running: None,
            kind: Kind::Idle,
            stretch: ONE,
            speed: 1 << 20,
            counted: 0,
            since: Nanos::ZERO,
            finish: Nanos::MAX,
            slice: Nanos::MAX,
            began: None,
            idle_since: Nanos::ZERO,
            lc_ran: [Nanos::ZERO; 2],
            window: Nanos::ZERO,
            idle: Nanos::ZERO,
            offline: Nanos::ZERO,
            switching: Nanos::ZERO,
            rt_ran: Nanos::ZERO,
            moved: 0,
        }
    }

    /// The same core with this capacity, in 1/1,024ths.
    pub fn with_capacity(self, capacity: u16) -> Core {
        Core { capacity: u64::from(capacity), ..self }
    }

    /// Moves the window on.
    pub fn roll(&mut self, now: Nanos) {
        while now.since(self.window) >= WINDOW {
            self.window += WINDOW;
            self.lc_ran = [self.lc_ran[1], Nanos::ZERO];
        }
    }

    /// Books the time since it fell idle.
    pub fn book_idle(&mut self, now: Nanos) {
        let passed = now.since(self.idle_since);
        match self.online {
            true => self.idle += passed,
            false => self.offline += passed,
        }
    }
}

/// How long a thread on this rung runs before an equal has its slice; [`Nanos::MAX`]: until it blocks or a higher one
/// wakes. The scheduler of a lane ends slices on the lane's own core and arms no timer elsewhere.
pub(crate) fn slice_of(rung: Rung, task: &Task) -> Nanos {
    match rung {
        _ if rung <= Rung::LcOverflowLong => Nanos::MAX,
        Rung::Dispatcher if task.is_lane() => task.slice,
        Rung::FifoLow if task.is_lane() => Nanos::MAX,
        _ => SLICE,
    }
}
