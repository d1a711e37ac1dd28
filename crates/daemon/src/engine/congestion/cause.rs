//! Why the plan cannot help a congested task: pure, from what was seen and planned.

use quell_control::protocol::CongestionCause;
use quell_model::{
    Class, CoreSet, CoreView, Outcome, Plan, Reason, Snapshot, TaskPlan, TaskReason, TaskView,
};

/// A cause, and what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionDetail {
    /// The cause.
    pub cause: CongestionCause,
    /// The cores that it is about.
    pub cores: CoreSet,
    /// The host's reason, where it refuses.
    pub errno: Option<i32>,
}

impl CongestionDetail {
    fn new(cause: CongestionCause, cores: CoreSet) -> CongestionDetail {
        CongestionDetail { cause, cores, errno: None }
    }
}

/// Why the plan gives a congested LC task no more: the first that holds, hardest obstacle first.
pub fn find(view: &TaskView, seen: &Snapshot, plan: &Plan) -> CongestionDetail {
    let usable = usable(view, seen);
    if usable.is_empty() {
        return CongestionDetail::new(CongestionCause::NoCore, view.limits.allowed);
    }
    let owned = plan.owned(view.id);
    let own_plan = plan.tasks.get(view.id.at()).filter(|task| task.id == view.id);
    let reason = own_plan.map(|task| task.reason);
    if matches!(reason, Some(TaskReason::RanAway(_))) {
        return CongestionDetail::new(CongestionCause::RanAway, usable);
    }
    if let Some((cores, errno)) = refused(&usable, &owned, seen, plan) {
        return CongestionDetail { cause: CongestionCause::Refused, cores, errno: Some(errno) };
    }
    let most = view.limits.core_limit().min(usable.len() as u32);
    let held = owned.len() as u32;
    if held > 0 && view.runnable() <= held {
        return CongestionDetail::new(CongestionCause::EnoughCores, owned);
    }
    if own_plan.is_some_and(|task| task.cap < most && held >= task.cap) {
        return CongestionDetail::new(CongestionCause::Advice, usable.difference(&owned));
    }
    if held >= most {
        return CongestionDetail::new(CongestionCause::AtMaximum, owned);
    }
    let others = usable.difference(&owned);
    let open = others.difference(&lc_owned(&others, plan));
    if open.is_empty() {
        return CongestionDetail::new(CongestionCause::LcOwned, others);
    }
    let kept_off = matches!(
        reason,
        Some(TaskReason::Banned | TaskReason::DelaysLc(_) | TaskReason::Hyperthread)
    );
    let cause = if kept_off { CongestionCause::Advice } else { CongestionCause::Policy };
    CongestionDetail::new(cause, open)
}

/// The cores that the task may use and that can be planned.
fn usable(view: &TaskView, seen: &Snapshot) -> CoreSet {
    let open = |core: &&CoreView| core.managed && core.online;
    let open: CoreSet = seen.cores.iter().filter(open).map(|core| core.id).collect();
    open.intersection(&view.limits.allowed)
}

/// Cores that the host refuses: owned ones on which the plan failed, and those that the plan names so.
fn refused(
    usable: &CoreSet,
    owned: &CoreSet,
    seen: &Snapshot,
    plan: &Plan,
) -> Option<(CoreSet, i32)> {
    let mut found = None;
    for (core, view) in plan.cores.iter().zip(&seen.cores) {
        let errno = match (core.reason, view.outcome) {
            _ if !usable.contains(core.id) => continue,
            (Reason::Refused(errno), _) => errno,
            (_, Outcome::Refused { errno }) if owned.contains(core.id) => errno,
            _ => continue,
        };
        found.get_or_insert((CoreSet::EMPTY, errno)).0.insert(core.id);
    }
    found
}

/// Those of the cores that are an LC task's.
fn lc_owned(cores: &CoreSet, plan: &Plan) -> CoreSet {
    let is_lc = |task: &TaskPlan| task.class == Class::LatencyCritical;
    let owners = plan.cores.iter().filter(|core| cores.contains(core.id));
    let lc =
        owners.filter(|core| core.owner.and_then(|id| plan.tasks.get(id.at())).is_some_and(is_lc));
    lc.map(|core| core.id).collect()
}

#[cfg(test)]
pub mod tests {
    use quell_model::{
        CoreId, CoreMode, CorePlan, Limits, Nanos, Rung, Signal, TaskId, TimeLimits,
    };

    use super::*;

    pub const LC: TaskId = TaskId { index: 0, generation: 0 };
    const OTHER: TaskId = TaskId { index: 1, generation: 0 };

    pub fn limits(allowed: CoreSet) -> Limits {
        Limits {
            class: Class::LatencyCritical,
            max: allowed.len() as u32,
            times: TimeLimits::default(),
            allowed,
            ..Limits::NONE
        }
    }

    pub fn seen_of(cores: u16, tasks: &[TaskView]) -> Snapshot {
        let cores = (0..cores).map(|core| CoreView::new(CoreId(core))).collect();
        Snapshot { cores, tasks: tasks.to_vec(), ..Snapshot::default() }
    }

    /// A plan in which each task has its class and at most its `max`, and these cores their owners.
    pub fn plan_of(seen: &Snapshot, owners: &[(u16, TaskId)]) -> Plan {
        let owner = |core: &CoreView| {
            owners.iter().find(|(owned, _)| CoreId(*owned) == core.id).map(|(_, id)| *id)
        };
        let core = |core: &CoreView| CorePlan {
            id: core.id,
            owner: owner(core),
            mode: CoreMode::Kernel,
            reason: Reason::Kept,
            yields: None,
        };
        let task = |task: &TaskView| TaskPlan {
            id: task.id,
            class: task.limits.class,
            cap: task.limits.max,
            rung: Rung::Lc,
            shared_cores: CoreSet::EMPTY,
            llc_ways: None,
            reason: TaskReason::Owner,
        };
        Plan {
            cores: seen.cores.iter().map(core).collect(),
            tasks: seen.tasks.iter().map(task).collect(),
            ..Plan::default()
        }
    }

    fn cores(list: &str) -> CoreSet {
        list.parse().unwrap()
    }

    /// Two tasks on four cores; the first runs one thread and has three waiting.
    fn scene() -> (Snapshot, Plan) {
        let mut first = TaskView::new(LC, limits(cores("0-3")));
        (first.running, first.waiting) = (1, 3);
        first.queueing_delay = Signal::Measured(Nanos::from_millis(1));
        let second = TaskView::new(OTHER, limits(cores("0-3")));
        let seen = seen_of(4, &[first, second]);
        let plan = plan_of(&seen, &[(0, LC), (1, OTHER), (2, OTHER), (3, OTHER)]);
        (seen, plan)
    }

    fn finding(seen: &Snapshot, plan: &Plan) -> (CongestionCause, String) {
        let found = find(&seen.tasks[0], seen, plan);
        (found.cause, found.cores.to_string())
    }

    #[test]
    fn cores_of_other_lc_tasks_are_named() {
        let (seen, plan) = scene();
        assert_eq!(finding(&seen, &plan), (CongestionCause::LcOwned, "1-3".to_owned()));
    }

    #[test]
    fn a_guest_that_owns_nothing_has_not_enough() {
        let (mut seen, mut plan) = scene();
        (seen.tasks[0].running, seen.tasks[0].waiting) = (0, 1);
        plan.cores[0].owner = Some(OTHER);
        (plan.tasks[0].rung, plan.tasks[0].shared_cores) = (Rung::LcOverflow, cores("0-3"));
        assert_eq!(finding(&seen, &plan), (CongestionCause::LcOwned, "0-3".to_owned()));
    }

    #[test]
    fn max_and_all_allowed_cores_are_a_maximum() {
        let (mut seen, mut plan) = scene();
        (seen.tasks[0].limits.max, plan.tasks[0].cap) = (1, 1);
        assert_eq!(finding(&seen, &plan), (CongestionCause::AtMaximum, "0".to_owned()));
        let (mut seen, plan) = scene();
        seen.tasks[0].limits.allowed = cores("0");
        assert_eq!(finding(&seen, &plan), (CongestionCause::AtMaximum, "0".to_owned()));
    }

    #[test]
    fn a_cap_or_ban_by_advice_is_advice() {
        let (seen, mut plan) = scene();
        plan.tasks[0].cap = 1;
        assert_eq!(finding(&seen, &plan).0, CongestionCause::Advice);
        let (seen, mut plan) = scene();
        plan.cores[3].owner = None;
        plan.tasks[0].reason = TaskReason::Banned;
        assert_eq!(finding(&seen, &plan), (CongestionCause::Advice, "3".to_owned()));
    }

    #[test]
    fn a_core_that_the_policy_could_give_is_the_policys() {
        let (mut seen, mut plan) = scene();
        plan.cores[3].owner = None;
        assert_eq!(finding(&seen, &plan), (CongestionCause::Policy, "3".to_owned()));
        plan.cores[3].owner = Some(OTHER);
        plan.tasks[1].class = Class::BestEffort;
        assert_eq!(finding(&seen, &plan), (CongestionCause::Policy, "1-3".to_owned()));
        seen.cores[1].online = false;
        assert_eq!(finding(&seen, &plan), (CongestionCause::Policy, "2-3".to_owned()));
    }

    #[test]
    fn a_refusal_carries_its_errno() {
        let (mut seen, plan) = scene();
        seen.cores[0].outcome = Outcome::Refused { errno: 1 };
        let found = find(&seen.tasks[0], &seen, &plan);
        assert_eq!((found.cause, found.errno), (CongestionCause::Refused, Some(1)));
        let (mut seen, mut plan) = scene();
        seen.cores[1].outcome = Outcome::Refused { errno: 1 };
        assert_eq!(finding(&seen, &plan).0, CongestionCause::LcOwned, "refused to another");
        plan.cores[1].reason = Reason::Refused(16);
        let found = find(&seen.tasks[0], &seen, &plan);
        assert_eq!((found.errno, found.cores.to_string()), (Some(16), "1".to_owned()));
    }

    #[test]
    fn offline_cores_a_runaway_and_enough_cores_are_told_apart() {
        let (mut seen, plan) = scene();
        seen.tasks[0].limits.allowed = cores("2");
        seen.cores[2].online = false;
        assert_eq!(finding(&seen, &plan), (CongestionCause::NoCore, "2".to_owned()));
        let (seen, mut plan) = scene();
        plan.tasks[0].reason = TaskReason::RanAway(Nanos::from_secs(1));
        assert_eq!(finding(&seen, &plan).0, CongestionCause::RanAway);
        let (mut seen, plan) = scene();
        (seen.tasks[0].running, seen.tasks[0].waiting) = (0, 1);
        assert_eq!(finding(&seen, &plan), (CongestionCause::EnoughCores, "0".to_owned()));
    }
}
