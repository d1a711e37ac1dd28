//! What the allocator remembers of cores and tasks from tick to tick.

use quell_model::{
    Absence, Class, CoreId, CoreSet, Limits, Nanos, Outcome, Reason, Rung, Signal, TaskId,
    TaskReason, TaskScheduler,
};
use serde::{Deserialize, Serialize};

use super::constants::{HOLD_MAX, HOLD_MIN, REFUSAL_MAX, REFUSAL_MIN};

/// No task, in a table of places.
pub(super) const NONE: u32 = u32::MAX;

/// One core, by its number.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct CoreState {
    /// Place of the task whose core it is.
    pub owner: u32,
    /// Place of the task whose guarantee it serves.
    pub reserved: u32,
    /// Since when the owner, or nobody, has it.
    pub since: Nanos,
    /// Why it last changed hands.
    pub reason: Reason,
    /// Owner and reason in the last Plan.
    pub planned: (Option<TaskId>, Reason),
    /// Tasks that ran here last, most recent first, and when they were last seen.
    pub history: [(u32, Nanos); 2],
    /// Place of the task that runs here.
    pub running: u32,
    /// Place of the task whose request it serves, even while a kernel thread interrupts that.
    pub serving: u32,
    /// Whether nothing runs here.
    pub idle: bool,
    /// What became of the last Plan.
    pub outcome: Outcome,
    pub refusal: Refusal,
    /// The core for which it is kept idle, while it is.
    #[serde(skip)]
    pub shields: u16,
}

impl CoreState {
    pub const NEW: CoreState = CoreState {
        owner: NONE,
        reserved: NONE,
        since: Nanos::ZERO,
        reason: Reason::Unwanted,
        planned: (None, Reason::Unmanaged),
        history: [(NONE, Nanos::ZERO); 2],
        running: NONE,
        serving: NONE,
        idle: false,
        outcome: Outcome::Done,
        refusal: Refusal { task: NONE, errno: 0, until: Nanos::ZERO, wait: Nanos::ZERO },
        shields: 0,
    };

    /// Notes that a task runs here.
    pub fn ran(&mut self, place: u32, now: Nanos) {
        if self.history[0].0 != place {
            self.history[1] = self.history[0];
        }
        self.history[0] = (place, now);
    }

    /// Whether the back end lately refused this core for the task.
    pub fn refuses(&self, place: u32, now: Nanos) -> bool {
        self.refusal.task == place && now < self.refusal.until
    }
}

/// The last refusal of a core.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub task: u32,
    pub errno: i32,
    pub until: Nanos,
    wait: Nanos,
}

impl Refusal {
    /// Whether its wait is one that [`Refusal::note`] makes.
    pub fn is_bounded(&self) -> bool {
        self.wait <= REFUSAL_MAX
    }

    /// Notes a refusal; the next one before a success doubles the wait.
    pub fn note(&mut self, task: u32, errno: i32, now: Nanos) {
        let again = self.task == task;
        let wait = if again { Nanos((self.wait.0 * 2).min(REFUSAL_MAX.0)) } else { REFUSAL_MIN };
        *self = Refusal { task, errno, until: now + wait, wait };
    }
}

/// How long something is kept after its last use. Grows while it is given back too early.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Hold {
    pub length: Nanos,
    ended: Option<Nanos>,
}

impl Hold {
    const NEW: Hold = Hold { length: HOLD_MIN, ended: None };

    /// Whether its length is one that [`Hold::begin`] makes.
    pub fn is_bounded(&self) -> bool {
        self.length <= HOLD_MAX
    }

    /// Wanted again: doubles the hold if it was given back too early, else forgets old mistakes.
    pub fn begin(&mut self, now: Nanos) {
        let Some(ended) = self.ended.take() else { return };
        let early = now.since(ended).0 < 4 * self.length.0;
        self.length = if early { Nanos((self.length.0 * 2).min(HOLD_MAX.0)) } else { HOLD_MIN };
    }

    /// Given back.
    pub fn end(&mut self, now: Nanos) {
        self.ended = Some(now);
    }
}

/// One task, by its place. What is not saved is either made anew each tick or follows from the cores.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct TaskState {
    pub id: TaskId,
    pub alive: bool,
    /// The class that it is treated as.
    pub class: Class,
    pub limits: Limits,
    /// Guaranteed cores that can count: within its maximum and its allowed cores, none for a runaway.
    pub guaranteed: u32,
    /// Cores that it may own at most this tick.
    pub cap: u32,
    pub runnable: u32,
    pub waiting: u32,
    /// Its oldest wait reached the target, or it waits without a core.
    pub congested: bool,
    /// Since when it is congested.
    pub since: Nanos,
    /// Some of its threads waited at the last tick as well.
    pub stood: bool,
    /// Age of its oldest wait as seen, and its value or zero.
    pub signal: Signal<Nanos>,
    pub delay: Nanos,
    /// Since when it counts as run away.
    pub ran_away: Option<Nanos>,
    pub longest_run: Nanos,
    /// Allowed cores that are managed and online.
    #[serde(skip)]
    pub allowed: CoreSet,
    #[serde(skip)]
    pub allowed_len: u32,
    /// Of those, the ones that advice keeps it off, and whether there is any.
    #[serde(skip)]
    pub banned: CoreSet,
    #[serde(skip)]
    pub is_banned: bool,
    pub ban_reason: TaskReason,
    /// The core that goes first if its cap takes one.
    #[serde(skip)]
    pub give_up: Option<CoreId>,
    pub off_lc: Option<Nanos>,
    #[serde(skip)]
    pub owned: CoreSet,
    #[serde(skip)]
    pub owned_len: u32,
    #[serde(skip)]
    pub reserved: CoreSet,
    #[serde(skip)]
    pub reserved_len: u32,
    /// The core last granted and when.
    pub granted: (CoreId, Nanos),
    /// Burst cores: start of the current window and the most runnable threads seen in it.
    pub window: Nanos,
    pub peak: u32,
    pub burst_hold: Hold,
    /// LC: cores of others that it shares as a guest. BE under a cap: cores that it was let in on. A lane: the core
    /// that it owned or waited on last.
    pub hosts: CoreSet,
    /// BE: how many those are.
    pub hosts_len: u32,
    /// LC cores that it might share, while guests are chosen.
    #[serde(skip)]
    pub offered: CoreSet,
    /// The guest keeps its rights until then.
    pub guest_until: Nanos,
    pub guest_hold: Hold,
    pub is_guest: bool,
    /// Rung and reason in the last Plan.
    pub planned: (Rung, TaskReason),
}

impl TaskState {
    /// A place without a task.
    pub fn empty(id: TaskId, limits: Limits) -> TaskState {
        TaskState {
            id,
            alive: false,
            class: limits.class,
            limits,
            guaranteed: 0,
            cap: 0,
            runnable: 0,
            waiting: 0,
            congested: false,
            since: Nanos::ZERO,
            stood: false,
            signal: Signal::Absent(Absence::NotApplicable),
            delay: Nanos::ZERO,
            ran_away: None,
            longest_run: Nanos::ZERO,
            allowed: CoreSet::EMPTY,
            allowed_len: 0,
            banned: CoreSet::EMPTY,
            is_banned: false,
            ban_reason: TaskReason::Banned,
            give_up: None,
            off_lc: None,
            owned: CoreSet::EMPTY,
            owned_len: 0,
            reserved: CoreSet::EMPTY,
            reserved_len: 0,
            granted: (CoreId(0), Nanos::ZERO),
            window: Nanos::ZERO,
            peak: 0,
            burst_hold: Hold::NEW,
            hosts: CoreSet::EMPTY,
            hosts_len: 0,
            offered: CoreSet::EMPTY,
            guest_until: Nanos::ZERO,
            guest_hold: Hold::NEW,
            is_guest: false,
            planned: (Rung::Original, TaskReason::NoCore),
        }
    }

    pub fn is_lc(&self) -> bool {
        self.alive && self.class == Class::LatencyCritical
    }

    /// Its members share one core by slices.
    pub fn is_lane(&self) -> bool {
        self.limits.scheduler == TaskScheduler::Lane
    }

    pub fn is_be(&self) -> bool {
        self.alive && self.class == Class::BestEffort
    }

    /// Cores in use beyond the guarantee; negative while it is short of it.
    pub fn burst(&self) -> i64 {
        i64::from(self.owned_len) - i64::from(self.guaranteed)
    }

    /// Owns fewer cores than guaranteed and has threads for more.
    pub fn is_short(&self) -> bool {
        self.owned_len < self.guaranteed && self.runnable > self.owned_len
    }

    /// Cores that it could use more than it owns, within its cap.
    pub fn unmet(&self) -> u32 {
        self.runnable.min(self.cap).saturating_sub(self.owned_len)
    }

    /// Cores that it claims with the right to take them from others.
    pub fn claims(&self) -> u32 {
        // It may have lost its last core since its congestion was judged.
        let without = self.waiting > 0 && self.owned_len == 0;
        if self.congested || without || self.is_short() { self.unmet() } else { 0 }
    }

    /// Allowed cores that no ban keeps it off.
    pub fn open(&self) -> CoreSet {
        if self.is_banned { self.allowed.difference(&self.banned) } else { self.allowed }
    }
}
