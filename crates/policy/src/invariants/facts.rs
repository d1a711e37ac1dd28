//! What the judge derives from a Snapshot and a Plan before it judges.

use quell_model::{
    Class, CorePlan, CoreSet, CoreView, Outcome, Plan, Rung, Snapshot, TaskPlan, TaskReason,
    TaskScheduler, TaskView,
};

use crate::Host;

/// One task's numbers.
#[derive(Clone, Copy, Default)]
pub(super) struct Facts {
    /// Cores that the Plan gives it.
    pub owned: u32,
    /// Cores that its guarantee can count; none for a runaway.
    pub guaranteed: u32,
    /// It owns a core whose grant was not seen to take effect.
    pub pending: bool,
}

/// Fills one entry per task place.
pub(super) fn collect(host: &Host, seen: &Snapshot, plan: &Plan, facts: &mut Vec<Facts>) {
    let usable = usable(host, seen);
    facts.clear();
    facts.extend(seen.tasks.iter().zip(&plan.tasks).enumerate().map(|(place, (view, task))| {
        let most = view.limits.allowed.intersection(&usable).len() as u32;
        let ran_away = matches!(task.reason, TaskReason::RanAway(_));
        let counts = is_live(view, place) && !ran_away;
        let guaranteed = view.limits.guaranteed.min(view.limits.core_limit()).min(most);
        Facts { guaranteed: if counts { guaranteed } else { 0 }, ..Facts::default() }
    }));
    for (core, view) in plan.cores.iter().zip(&seen.cores) {
        if let Some(fact) = core.owner.and_then(|owner| facts.get_mut(owner.at())) {
            fact.owned += 1;
            fact.pending |= view.outcome == Outcome::Pending;
        }
    }
}

fn usable(host: &Host, seen: &Snapshot) -> CoreSet {
    let open = seen.cores.iter().filter(|view| view.managed && view.online);
    open.map(|view| view.id).collect::<CoreSet>().intersection(&host.managed)
}

/// Everything that a check looks at.
pub(super) struct Scene<'a> {
    pub host: &'a Host,
    pub seen: &'a Snapshot,
    pub plan: &'a Plan,
    pub facts: &'a [Facts],
    /// Managed cores that are online.
    pub usable: CoreSet,
}

/// One task in a scene.
#[derive(Clone, Copy)]
pub(super) struct Actor<'a> {
    pub view: &'a TaskView,
    pub plan: &'a TaskPlan,
    pub facts: Facts,
}

impl<'a> Scene<'a> {
    pub fn new(host: &'a Host, seen: &'a Snapshot, plan: &'a Plan, facts: &'a [Facts]) -> Self {
        Scene { host, seen, plan, facts, usable: usable(host, seen) }
    }

    pub fn shares(&self) -> bool {
        self.host.caps.shares_cores
    }

    /// Live tasks.
    pub fn actors(&self) -> impl Iterator<Item = Actor<'a>> {
        let (seen, plan, facts) = (self.seen, self.plan, self.facts);
        let tasks = seen.tasks.iter().zip(&plan.tasks).zip(facts).enumerate();
        let live = tasks.filter(|(place, ((view, _), _))| is_live(view, *place));
        live.map(|(_, ((view, plan), facts))| Actor { view, plan, facts: *facts })
    }

    /// Usable cores, as planned and as seen.
    pub fn cores(&self) -> impl Iterator<Item = (&'a CorePlan, &'a CoreView)> {
        let (usable, cores) = (self.usable, self.plan.cores.iter().zip(&self.seen.cores));
        cores.filter(move |(core, _)| usable.contains(core.id))
    }

    pub fn owner(&self, core: &CorePlan) -> Option<Actor<'a>> {
        let at = core.owner?.at();
        let (view, plan) = (self.seen.tasks.get(at)?, self.plan.tasks.get(at)?);
        Some(Actor { view, plan, facts: self.facts[at] })
    }

    /// Whether a task of the class other than `except` has threads that may run beneath this core's owner.
    pub fn used_beneath(&self, core: &CorePlan, class: Class, except: &Actor<'_>) -> bool {
        self.actors().any(|actor| {
            actor.plan.id != except.plan.id
                && actor.plan.class == class
                && actor.view.runnable() > 0
                && actor.plan.shared_cores.contains(core.id)
        })
    }
}

impl Actor<'_> {
    pub fn is_lc(&self) -> bool {
        self.plan.class == Class::LatencyCritical
    }

    pub fn is_lane(&self) -> bool {
        self.view.limits.scheduler == TaskScheduler::Lane
    }

    pub fn is_guest(&self) -> bool {
        self.plan.rung == Rung::LcOverflow
    }

    /// Cores that count as its own or shared by right.
    pub fn held(&self) -> u32 {
        let shared = !self.is_lc() || self.is_guest();
        self.facts.owned + if shared { self.plan.shared_cores.len() as u32 } else { 0 }
    }

    /// Has more runnable threads than cores, within its cap.
    pub fn is_unmet(&self) -> bool {
        runnable(self.view).min(self.plan.cap) > self.held()
    }

    /// Claims a core by right: see the module above.
    pub fn claims(&self) -> bool {
        let without = self.facts.owned == 0 && self.plan.shared_cores.is_empty();
        let congested = self.view.is_congested() || (self.view.waiting > 0 && without);
        congested && self.is_unmet() && !self.facts.pending && !self.is_held_off()
    }

    /// The Plan says that advice keeps it off cores.
    fn is_held_off(&self) -> bool {
        let reason = self.plan.reason;
        let banned = matches!(reason, TaskReason::Banned | TaskReason::Hyperthread);
        banned || matches!(reason, TaskReason::DelaysLc(_) | TaskReason::RanAway(_))
    }

    /// Owns more cores than it has threads for.
    pub fn has_spare(&self) -> bool {
        runnable(self.view) < self.facts.owned
    }

    /// Holds cores beyond its guarantee.
    pub fn bursts(&self) -> bool {
        self.facts.owned > self.facts.guaranteed
    }
}

/// A task that claims another's place counts as gone.
pub(super) fn is_live(view: &TaskView, place: usize) -> bool {
    view.alive && view.id.at() == place
}

pub(super) fn runnable(view: &TaskView) -> u32 {
    view.running.saturating_add(view.waiting)
}
