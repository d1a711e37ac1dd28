//! The tables into the Plan.

use quell_model::{
    Class, CoreId, CoreMode, CorePlan, CoreSet, Nanos, Plan, Reason, Rung, Snapshot, TaskId,
    TaskPlan, TaskReason,
};

use super::Allocator;
use super::constants::{HOLD_MIN, REFUSAL_MIN};
use super::tables::{CoreState, NONE, TaskState};
use crate::Advice;
use crate::explain::Change;

/// What the tasks of one tick leave unused, and why.
#[derive(Default)]
struct Unused {
    /// Cores that some task may use beneath their owner.
    shared_cores: CoreSet,
    /// Cores that a ban keeps some task off.
    banned: CoreSet,
    /// Cores that a task at its cap would take.
    capped: CoreSet,
}

impl Allocator {
    /// Writes the whole Plan.
    pub(super) fn write(&mut self, now: Nanos, seen: &Snapshot, advice: &Advice, plan: &mut Plan) {
        let mut unused = Unused::default();
        plan.tasks.clear();
        for (place, view) in seen.tasks.iter().enumerate() {
            let planned = match self.tasks[place].alive {
                true => self.plan_task(place as u32, now, &mut unused),
                false => no_task(view.id, view.limits.class),
            };
            plan.tasks.push(planned);
        }
        plan.cores.clear();
        for at in 0..self.host.topology.len() {
            let id = self.host.topology.cores()[at].id;
            let planned = if self.usable.contains(id) {
                self.plan_core(id, now, advice, &unused)
            } else {
                let view = seen.cores.get(at).filter(|view| view.id == id);
                let offline = view.is_some_and(|view| view.managed && !view.online);
                let offline = offline && self.host.managed.contains(id);
                let reason = if offline { Reason::Offline } else { Reason::Unmanaged };
                CorePlan { id, owner: None, mode: CoreMode::Unmanaged, reason, yields: None }
            };
            self.note(&planned, now);
            plan.cores.push(planned);
        }
        for (core, began) in &advice.yields {
            if let Some(at) = self.host.topology.position(*core) {
                plan.cores[at].yields = Some(*began);
            }
        }
    }

    fn plan_task(&mut self, place: u32, now: Nanos, unused: &mut Unused) -> TaskPlan {
        let task = self.task(place);
        let (rung, shared_cores) = match task.class {
            _ if task.is_lane() => self.place_lane(place, now),
            Class::LatencyCritical => self.place_lc(task),
            Class::BestEffort => (Rung::SchedIdle, self.place_be(place)),
        };
        let shares = self.host.caps.shares_cores;
        let task = &mut self.tasks[place as usize];
        if task.is_banned {
            unused.banned = unused.banned.union(&task.banned);
        }
        if task.runnable > task.owned_len && task.owned_len >= task.cap {
            unused.capped = unused.capped.union(&task.allowed);
        }
        if !shared_cores.is_empty() {
            unused.shared_cores = unused.shared_cores.union(&shared_cores);
        }
        let shielded = shares && !task.allowed.intersection(&self.shielded).is_empty();
        let reason = task_reason(task, &shared_cores, shielded);
        task.planned = (rung, reason);
        let (id, class, cap) = (task.id, task.class, task.cap);
        TaskPlan { id, class, cap, rung, shared_cores, llc_ways: None, reason }
    }

    /// An LC task's rung, and the cores that it shares.
    fn place_lc(&self, task: &TaskState) -> (Rung, CoreSet) {
        if !self.host.caps.shares_cores {
            (Rung::Lc, CoreSet::EMPTY)
        } else if task.is_guest {
            (Rung::LcOverflow, task.hosts)
        } else if task.owned_len > 0 {
            (Rung::Lc, CoreSet::EMPTY)
        } else {
            let open = task.open();
            let fits = task.cap >= task.allowed_len;
            (Rung::Original, if fits { open } else { limited(open, task.cap, &task.hosts) })
        }
    }

    /// A lane's rung, and the core on which it waits while it owns none. It waits where it was, so that a core that
    /// comes back costs no move, and rather not a core of another lane.
    fn place_lane(&mut self, place: u32, now: Nanos) -> (Rung, CoreSet) {
        let task = self.task(place);
        if task.owned_len > 0 {
            let owned = task.owned;
            self.tasks[place as usize].hosts = owned;
            return (Rung::Dispatcher, CoreSet::EMPTY);
        }
        if !self.host.caps.shares_cores {
            return (Rung::FifoLow, CoreSet::EMPTY);
        }
        let open = if task.is_be() { self.open_beneath(place) } else { self.open(place) };
        let task = self.task(place);
        let owned_by_lane = |core: &CoreId| self.owner_of(*core).is_some_and(TaskState::is_lane);
        let calm: CoreSet = open.iter().filter(|core| !owned_by_lane(core)).collect();
        let idle: CoreSet = open.iter().filter(|core| self.core(*core).idle).collect();
        let kept = open.intersection(&task.hosts);
        // What waits for as long as an LC task holds a core at least does not wait beside an idle one.
        let starves = task.waiting > 0 && task.waiting == task.runnable;
        let moves = starves && task.delay >= HOLD_MIN && !idle.is_empty();
        let (delay, cap, before) = (task.delay, task.cap, task.hosts);
        let order = if moves { [idle, kept, calm, open] } else { [kept, calm, open, open] };
        let from = order.into_iter().find(|cores| !cores.is_empty());
        let chosen = limited(from.unwrap_or_default(), cap, &before);
        if starves && !moves {
            self.revisit(now + HOLD_MIN.since(delay).max(REFUSAL_MIN));
        }
        self.tasks[place as usize].hosts = chosen;
        (Rung::FifoLow, chosen)
    }

    /// Where a BE task may run beneath others.
    fn place_be(&mut self, place: u32) -> CoreSet {
        if !self.host.caps.shares_cores {
            return CoreSet::EMPTY;
        }
        let mut open = self.open_beneath(place);
        let task = self.task(place);
        if task.owned_len > 0 {
            open = open.difference(&task.owned);
        }
        if task.cap >= task.allowed_len {
            return open;
        }
        // The same cores as before while they do, else those that it had, then those that LC leaves.
        let room = task.cap.saturating_sub(task.owned_len);
        if task.hosts_len == room && task.hosts.is_subset(&open) {
            return task.hosts;
        }
        let preferred = task.hosts.union(&self.be_owned);
        let kept = open.intersection(&task.hosts);
        let open = match task.give_up {
            Some(core) if open.len() > room as usize => open.difference(&CoreSet::of(core)),
            _ => open,
        };
        let chosen = limited(open.intersection(&preferred), room, &kept);
        let chosen = limited(open, room, &chosen);
        let task = &mut self.tasks[place as usize];
        (task.hosts, task.hosts_len) = (chosen, chosen.len() as u32);
        chosen
    }

    /// Cores that a BE task may share or use by itself, as far as advice that keeps it off LC can be
    /// followed.
    fn open_beneath(&mut self, place: u32) -> CoreSet {
        let task = self.task(place);
        let open = self.open(place);
        if task.off_lc.is_none() {
            return open;
        }
        let away = open.difference(&self.lc_owned);
        if away.is_empty() && !self.host.caps.freezes_tasks {
            let id = task.id;
            self.decline(id, &open, None);
            return self.open(place);
        }
        away
    }

    fn plan_core(&self, id: CoreId, now: Nanos, advice: &Advice, unused: &Unused) -> CorePlan {
        let state = self.core(id);
        let yields = None;
        let owner = self.owner_of(id);
        let mode = owner.map_or(CoreMode::Kernel, |task| task.limits.scheduler.core_mode());
        if let Some(errno) = self.refused_to_better(state, now) {
            let reason = Reason::Refused(errno);
            let owner = owner.map(|task| task.id);
            return CorePlan { id, owner, mode, reason, yields };
        }
        if let Some(task) = owner {
            let guaranteed = state.reserved == state.owner || task.owned_len <= task.guaranteed;
            let reason = match task.class {
                _ if guaranteed => Reason::Guaranteed,
                _ if state.since == now => state.reason,
                Class::LatencyCritical => Reason::Kept,
                Class::BestEffort => Reason::Leftover,
            };
            return CorePlan { id, owner: Some(task.id), mode, reason, yields };
        }
        let used = unused.shared_cores.contains(id);
        let (mode, reason) = if used {
            (CoreMode::Kernel, Reason::Unwanted)
        } else if self.shielded.contains(id) {
            (CoreMode::Idled, Reason::BannedFor(CoreId(state.shields)))
        } else if unused.banned.contains(id) {
            (CoreMode::Idled, Reason::BannedFor(advice.protected_by(id)))
        } else if unused.capped.contains(id) {
            (CoreMode::Idled, Reason::Capped)
        } else {
            (CoreMode::Kernel, Reason::Unwanted)
        };
        CorePlan { id, owner: None, mode, reason, yields }
    }

    /// The errno with which the core was refused to a task that has more right to it than its owner.
    fn refused_to_better(&self, state: &CoreState, now: Nanos) -> Option<i32> {
        let refusal = state.refusal;
        if refusal.task == NONE || refusal.task == state.owner || now >= refusal.until {
            return None;
        }
        let refused = self.task(refusal.task);
        let owner = (state.owner != NONE).then(|| self.task(state.owner));
        let better = owner.is_none_or(TaskState::is_be) || refused.is_short();
        (refused.unmet() > 0 && better).then_some(refusal.errno)
    }

    /// Keeps what explanations need, and logs a change of owner.
    fn note(&mut self, planned: &CorePlan, at: Nanos) {
        let (core, to, reason) = (planned.id, planned.owner, planned.reason);
        let last = &mut self.cores[core.index()].planned;
        let (from, _) = std::mem::replace(last, (to, reason));
        if from != to {
            self.log(Change { at, core, from, to, mode: planned.mode, reason });
        }
    }
}

/// At most `room` of the cores, those of `before` first, so that the choice stays.
pub(super) fn limited(cores: CoreSet, room: u32, before: &CoreSet) -> CoreSet {
    let kept = cores.intersection(before);
    let new = cores.difference(&kept);
    kept.iter().chain(new.iter()).take(room as usize).collect()
}

/// `shielded`: siblings that it could use are kept free of BE.
fn task_reason(task: &TaskState, shared_cores: &CoreSet, shielded: bool) -> TaskReason {
    let capped =
        task.cap < task.limits.core_limit() && task.unmet() == 0 && task.runnable > task.owned_len;
    match (task.off_lc, task.owned_len > 0) {
        _ if task.ran_away.is_some() => TaskReason::RanAway(task.longest_run),
        (Some(delay), _) => TaskReason::DelaysLc(delay),
        _ if task.is_banned => task.ban_reason,
        _ if shielded && task.is_be() => TaskReason::Hyperthread,
        _ if capped => TaskReason::Capped,
        _ if task.is_guest => TaskReason::Guest,
        (None, true) => TaskReason::Owner,
        _ if shared_cores.is_empty() => TaskReason::NoCore,
        _ if task.is_be() || task.is_lane() => TaskReason::Guest,
        _ => TaskReason::Configured,
    }
}

fn no_task(id: TaskId, class: Class) -> TaskPlan {
    let (rung, reason) = (Rung::Original, TaskReason::NoCore);
    TaskPlan { id, class, cap: 0, rung, shared_cores: CoreSet::EMPTY, llc_ways: None, reason }
}
