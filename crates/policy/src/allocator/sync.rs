//! The Snapshot into the tables. Snapshots are not trusted: what contradicts itself counts as absent.

use quell_model::{
    Absence, Class, CoreId, CoreSet, Nanos, Outcome, Signal, Snapshot, TaskId, TaskScheduler,
    TaskView,
};

use super::Allocator;
use super::constants::RUNAWAY_HOLD_MIN;
use super::tables::{NONE, TaskState};

impl Allocator {
    /// Brings cores and tasks up to date, and takes cores from tasks that may no longer have them.
    pub(super) fn sync(&mut self, now: Nanos, seen: &Snapshot) {
        self.vetoes.clear();
        self.vetoes_left_out = 0;
        let moved = self.sync_usable(now, seen);
        self.sync_tasks(now, seen, moved);
        self.sync_cores(now, seen);
        self.fell_idle = seen.went_idle.intersection(&self.usable);
    }

    /// The cores that can be planned at all; true if they changed.
    fn sync_usable(&mut self, now: Nanos, seen: &Snapshot) -> bool {
        let mut usable = CoreSet::EMPTY;
        for (core, view) in self.host.topology.cores().iter().zip(&seen.cores) {
            if core.id == view.id && view.managed && view.online {
                usable.insert(core.id);
            }
        }
        let usable = usable.intersection(&self.host.managed);
        if usable == self.usable {
            return false;
        }
        let lost = self.usable.difference(&usable);
        let gained = usable.difference(&self.usable);
        self.usable = usable;
        lost.iter().for_each(|core| self.give_back(core, now));
        self.free = self.free.union(&gained).intersection(&usable);
        self.stale = true;
        true
    }

    fn sync_tasks(&mut self, now: Nanos, seen: &Snapshot, moved: bool) {
        while self.tasks.len() > seen.tasks.len() {
            self.retire(self.tasks.len() as u32 - 1, now);
            self.tasks.pop();
        }
        for (place, view) in seen.tasks.iter().enumerate() {
            if place == self.tasks.len() {
                self.tasks.push(TaskState::empty(view.id, view.limits));
            }
            let at = place as u32;
            let alive = view.alive && view.id.at() == place;
            let known = self.tasks[place].alive;
            if known && (!alive || self.tasks[place].id != view.id) {
                self.retire(at, now);
            }
            if !alive {
                self.tasks[place].id = view.id;
                continue;
            }
            let task = &mut self.tasks[place];
            let joined = !task.alive;
            if joined {
                *task = TaskState::empty(view.id, view.limits);
                task.alive = true;
            }
            let ran_away = task.ran_away.is_some();
            // Where single threads have roles, the task as a whole is not judged.
            let has_roles = self.host.caps.bursts && view.limits.scheduler == TaskScheduler::Kernel;
            let recheck = if has_roles { Nanos::MAX } else { task.judge_runaway(now, view) };
            let turned = task.ran_away.is_some() != ran_away;
            if joined || moved || turned || task.limits != view.limits {
                self.refit(at, now, view);
            }
            self.tasks[place].measure(now, view);
            self.revisit(recheck);
            self.revisit_wait(at, now);
        }
    }

    /// Fits what the task has to changed limits, class or usable cores.
    fn refit(&mut self, place: u32, now: Nanos, view: &TaskView) {
        let usable = self.usable;
        let task = &mut self.tasks[place as usize];
        task.limits = view.limits;
        let class = if task.ran_away.is_some() { Class::BestEffort } else { view.limits.class };
        let turned = class != task.class;
        task.class = class;
        task.allowed = view.limits.allowed.intersection(&usable);
        task.allowed_len = task.allowed.len() as u32;
        let most = view.limits.core_limit().min(task.allowed_len);
        task.guaranteed = match task.ran_away {
            Some(_) => 0,
            None => view.limits.guaranteed.min(most),
        };
        (task.hosts, task.hosts_len) = (CoreSet::EMPTY, 0);
        task.is_guest = false;
        let lost = if turned { task.owned } else { task.owned.difference(&task.allowed) };
        lost.iter().for_each(|core| self.give_back(core, now));
        self.stale = true;
    }

    /// A wait below the target is looked at again when it reaches it.
    fn revisit_wait(&mut self, place: u32, now: Nanos) {
        let task = self.task(place);
        if task.waiting > 0 && !task.congested && task.delay < task.limits.times.delay_target {
            self.revisit(now + (task.limits.times.delay_target - task.delay));
        }
    }

    fn sync_cores(&mut self, now: Nanos, seen: &Snapshot) {
        for (at, view) in seen.cores.iter().take(self.host.topology.len()).enumerate() {
            let core = self.host.topology.cores()[at].id;
            if !self.usable.contains(core) {
                continue;
            }
            let known = |id: &TaskId| {
                self.tasks.get(id.at()).is_some_and(|task| task.alive && task.id == *id)
            };
            let running = view.running.filter(known);
            let serving = view.serving.filter(known);
            let state = &mut self.cores[core.index()];
            state.running = running.map_or(NONE, |id| id.index);
            state.serving = serving.map_or(NONE, |id| id.index);
            state.idle = view.idle_since.is_some() && running.is_none();
            let before = std::mem::replace(&mut state.outcome, view.outcome);
            if state.running != NONE {
                state.ran(state.running, now);
            }
            if view.outcome == Outcome::Done && state.owner == state.refusal.task {
                state.refusal.task = NONE;
            }
            if let Outcome::Refused { errno } = view.outcome {
                let fresh = before != view.outcome || state.since == self.last;
                if state.owner != NONE && fresh {
                    self.refused(core, errno, now);
                }
            }
            // Nothing else may happen until then: a free core that nobody tries again makes no event.
            let refusal = self.core(core).refusal;
            if refusal.task != NONE && now < refusal.until {
                self.revisit(refusal.until);
            }
        }
    }

    /// The back end refused a core: it is not tried for this task for a while. A guaranteed core on a
    /// shared host stays planned, since nothing is lost meanwhile: BE runs beneath.
    fn refused(&mut self, core: CoreId, errno: i32, now: Nanos) {
        let owner = self.core(core).owner;
        let task = self.task(owner);
        let shared = self.host.caps.shares_cores;
        if shared && (task.is_be() || task.owned_len <= task.guaranteed) {
            return;
        }
        self.cores[core.index()].refusal.note(owner, errno, now);
        self.give_back(core, now);
    }
}

impl TaskState {
    fn measure(&mut self, now: Nanos, view: &TaskView) {
        let waited = self.waiting > 0;
        self.runnable = view.running.saturating_add(view.waiting);
        self.waiting = view.waiting;
        self.signal = view.queueing_delay;
        self.delay = view.queueing_delay.value().unwrap_or(Nanos::ZERO);
        // Without a delay, a queue that stands for two ticks counts, as in Shenango (NSDI'19).
        self.stood = waited && view.waiting > 0 && view.queueing_delay.value().is_none();
        let congested =
            view.is_congested() || self.stood || (view.waiting > 0 && self.owned_len == 0);
        if congested && !self.congested {
            self.since = now;
        }
        self.congested = congested;
        self.peak = self.peak.max(self.runnable);
    }

    /// Decides whether the task counts as run away; returns when to look again.
    ///
    /// It turns BE when one of its threads ran `runaway_after` without sleeping. It turns back when none
    /// ran half as long any more, and not before a hold, so that it cannot flap from tick to tick.
    fn judge_runaway(&mut self, now: Nanos, view: &TaskView) -> Nanos {
        let bound = view.limits.times.runaway_after;
        if view.limits.class != Class::LatencyCritical || bound == Nanos::ZERO {
            self.ran_away = None;
            return Nanos::MAX;
        }
        let longest = match view.longest_run {
            Signal::Absent(Absence::NotApplicable) => Some(Nanos::ZERO),
            signal => signal.value(),
        };
        let Some(longest) = longest else { return Nanos::MAX };
        self.longest_run = longest;
        let hold = bound.max(RUNAWAY_HOLD_MIN);
        match self.ran_away {
            None if longest >= bound => {
                self.ran_away = Some(now);
                now + hold
            }
            None if view.running > 0 => now + (bound - longest),
            None => Nanos::MAX,
            Some(since) if now.since(since) < hold => since + hold,
            Some(_) if longest.0 < bound.0 / 2 => {
                self.ran_away = None;
                Nanos::MAX
            }
            Some(_) => now + Nanos(hold.0 / 2),
        }
    }
}
