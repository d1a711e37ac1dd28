//! What advisors suggest to the allocator.

use quell_model::{CoreId, CoreSet, Nanos, TaskId, TaskReason};

/// Whom a ban keeps off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanScope {
    /// Every task; a core within a guarantee stays its task's own.
    Everyone,
    /// Every task treated as BE.
    BestEffort,
    /// One task.
    Task(TaskId),
}

/// A suggestion to put a task on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// The task.
    pub task: TaskId,
    /// The core.
    pub core: CoreId,
    /// Higher is better; counts up to ±1000, which is as much as a fully warm cache.
    pub score: i32,
}

/// One task's share of the advice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskAdvice {
    pub cap: u32,
    pub banned: CoreSet,
    pub reason: TaskReason,
    /// Delay that it caused LC threads, when it is to stay off their cores.
    pub off_lc: Option<Nanos>,
    /// The core that goes first if the cap takes one.
    pub give_up: Option<CoreId>,
    touched: bool,
}

impl TaskAdvice {
    const NONE: TaskAdvice = TaskAdvice {
        cap: u32::MAX,
        banned: CoreSet::EMPTY,
        reason: TaskReason::Banned,
        off_lc: None,
        give_up: None,
        touched: false,
    };
}

/// Caps, bans and preferences for one tick. Filled by advisors, read by the allocator. Several
/// advisors add up: the lowest cap and the union of bans hold, whatever their order.
#[derive(Clone, Debug)]
pub struct Advice {
    tasks: Vec<TaskAdvice>,
    touched: Vec<u32>,
    pub(crate) everyone: CoreSet,
    pub(crate) best_effort: CoreSet,
    pub(crate) best_effort_reason: TaskReason,
    protects: Vec<CoreId>,
    pub(crate) preferences: Vec<Preference>,
    /// Cores to keep idle, and the core that each protects; strongest advice first.
    pub(crate) shields: Vec<(CoreId, CoreId)>,
    /// Cores whose request, begun then, has had its quantum.
    pub(crate) yields: Vec<(CoreId, Nanos)>,
    pub(crate) revisit: Nanos,
}

impl Default for Advice {
    fn default() -> Self {
        Advice {
            tasks: Vec::new(),
            touched: Vec::new(),
            everyone: CoreSet::EMPTY,
            best_effort: CoreSet::EMPTY,
            best_effort_reason: TaskReason::Banned,
            protects: Vec::new(),
            preferences: Vec::new(),
            shields: Vec::new(),
            yields: Vec::new(),
            revisit: Nanos::MAX,
        }
    }
}

impl Advice {
    /// Forgets the last tick's advice and makes room for `tasks` places and core numbers below `cores`.
    pub fn clear(&mut self, tasks: usize, cores: usize) {
        for place in self.touched.drain(..) {
            self.tasks[place as usize] = TaskAdvice::NONE;
        }
        if self.tasks.len() != tasks {
            self.tasks.resize(tasks, TaskAdvice::NONE);
            self.touched.reserve(tasks);
        }
        if self.protects.len() < cores {
            self.protects.extend((self.protects.len()..cores).map(|core| CoreId(core as u16)));
            self.shields.reserve(cores);
            self.yields.reserve(cores);
        }
        let is_left = |advice: &TaskAdvice| advice.touched;
        debug_assert!(!self.tasks.iter().any(is_left), "advice of the last tick is left");
        self.everyone = CoreSet::EMPTY;
        self.best_effort = CoreSet::EMPTY;
        self.best_effort_reason = TaskReason::Banned;
        self.preferences.clear();
        self.shields.clear();
        self.yields.clear();
        self.revisit = Nanos::MAX;
    }

    /// At most `cores` cores for the task.
    pub fn cap(&mut self, task: TaskId, cores: u32) {
        if let Some(advice) = self.task_mut(task) {
            advice.cap = advice.cap.min(cores);
        }
    }

    /// At most `cores` cores for the task; if it has to give one up, `first`.
    pub fn cap_without(&mut self, task: TaskId, cores: u32, first: CoreId) {
        self.cap(task, cores);
        if let Some(advice) = self.task_mut(task) {
            advice.give_up = Some(first);
        }
    }

    /// Keeps a sibling idle while the request on the core `protects` is served (free of BE, where cores are
    /// shared). Say the most urgent first: it is the last to be given up.
    pub fn keep_idle(&mut self, sibling: CoreId, protects: CoreId) {
        self.shields.push((sibling, protects));
    }

    /// Has the request on `core` that began at `began` let others of its task go first.
    pub fn yield_to_others(&mut self, core: CoreId, began: Nanos) {
        self.yields.push((core, began));
    }

    /// Keeps `scope` off `core`, to protect the core `protects` (the same one, or its sibling). `reason`
    /// is what the plan of a task says that thereby lost a core.
    pub fn ban(&mut self, scope: BanScope, core: CoreId, protects: CoreId, reason: TaskReason) {
        let Some(slot) = self.protects.get_mut(core.index()) else { return };
        *slot = protects;
        match scope {
            BanScope::Everyone => self.everyone.insert(core),
            BanScope::BestEffort => {
                self.best_effort.insert(core);
                self.best_effort_reason = reason;
            }
            BanScope::Task(task) => {
                if let Some(advice) = self.task_mut(task) {
                    advice.banned.insert(core);
                    advice.reason = reason;
                }
            }
        }
    }

    /// Keeps a BE task off every core that an LC task owns, because it delayed LC threads by `delay`.
    pub fn keep_off_lc(&mut self, task: TaskId, delay: Nanos) {
        if let Some(advice) = self.task_mut(task) {
            advice.off_lc = advice.off_lc.max(Some(delay));
        }
    }

    /// Prefers a core for a task.
    pub fn prefer(&mut self, task: TaskId, core: CoreId, score: i32) {
        self.preferences.push(Preference { task, core, score });
    }

    /// Asks for a tick at `at`, because the advice may change then without any event.
    pub fn revisit(&mut self, at: Nanos) {
        self.revisit = self.revisit.min(at);
    }

    pub(crate) fn of(&self, place: usize) -> &TaskAdvice {
        self.tasks.get(place).unwrap_or(&TaskAdvice::NONE)
    }

    /// Whether anything was said about the task itself.
    pub(crate) fn concerns(&self, place: usize) -> bool {
        self.of(place).touched
    }

    /// The core that the ban of `core` protects.
    pub(crate) fn protected_by(&self, core: CoreId) -> CoreId {
        self.protects.get(core.index()).copied().unwrap_or(core)
    }

    fn task_mut(&mut self, task: TaskId) -> Option<&mut TaskAdvice> {
        let advice = self.tasks.get_mut(task.at())?;
        if !advice.touched {
            advice.touched = true;
            self.touched.push(task.index);
        }
        Some(advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: TaskId = TaskId { index: 1, generation: 0 };

    #[test]
    fn the_lowest_cap_and_all_bans_hold() {
        let mut advice = Advice::default();
        advice.clear(2, 4);
        advice.cap(TASK, 3);
        advice.cap(TASK, 1);
        advice.cap(TASK, 2);
        advice.ban(BanScope::Task(TASK), CoreId(2), CoreId(3), TaskReason::Banned);
        advice.ban(BanScope::Task(TASK), CoreId(0), CoreId(0), TaskReason::Banned);
        assert_eq!(advice.of(1).cap, 1);
        assert_eq!(advice.of(1).banned.to_string(), "0,2");
        assert_eq!(advice.protected_by(CoreId(2)), CoreId(3));
    }

    #[test]
    fn nothing_of_the_last_tick_remains() {
        let mut advice = Advice::default();
        advice.clear(2, 4);
        advice.cap(TASK, 3);
        advice.keep_off_lc(TASK, Nanos(1));
        advice.ban(BanScope::Everyone, CoreId(1), CoreId(0), TaskReason::Banned);
        advice.clear(2, 4);
        assert_eq!((advice.of(1).cap, advice.of(1).off_lc), (u32::MAX, None));
        assert!(advice.everyone.is_empty());
    }

    #[test]
    fn advice_for_nobody_is_ignored() {
        let mut advice = Advice::default();
        advice.clear(1, 1);
        advice.cap(TaskId { index: 9, generation: 0 }, 0);
        advice.ban(BanScope::Everyone, CoreId(9), CoreId(0), TaskReason::Banned);
        assert!(advice.everyone.is_empty());
    }
}
