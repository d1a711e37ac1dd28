//! What subscribers receive: decisions and plan affinities as they are taken, and the current state.

use std::collections::BTreeMap;
use std::mem::discriminant;

use quell_control::subscribe::{
    CoreUpdate, DecisionUpdate, OriginalAffinity, PlanAffinity, THREADS_MAX, TaskUpdate,
};
use quell_model::{CoreDecision, CoreSet, Nanos, Plan, TaskId, TaskInfo, TaskPlan};
use quell_os::clock;

use super::Engine;
use crate::feed::{FeedState, FeedWriter, Record};

/// Memory of [`publish`] between ticks: the cores that each task owns in the last Plan and in this one.
pub type Owned = Vec<[CoreSet; 2]>;

/// Pushes the differences between two Plans. Allocates only when there are more tasks than ever.
pub fn publish(feed: &mut FeedWriter, owned: &mut Owned, now: Nanos, last: &Plan, plan: &Plan) {
    owned.clear();
    owned.resize(plan.tasks.len(), [CoreSet::EMPTY; 2]);
    for (side, plan) in [last, plan].into_iter().enumerate() {
        for core in &plan.cores {
            if let Some(owned) = core.owner.and_then(|owner| owned.get_mut(owner.at())) {
                owned[side].insert(core.id);
            }
        }
    }
    for (at, core) in plan.cores.iter().enumerate() {
        let before = last.cores.get(at);
        debug_assert!(before.is_none_or(|before| before.id == core.id), "cores change places");
        let from = before.and_then(|before| before.owner);
        if from != core.owner || before.is_some_and(|before| before.mode != core.mode) {
            let (core, to, mode, reason) = (core.id, core.owner, core.mode, core.reason);
            let decision = CoreDecision { core, from, to, mode, reason };
            feed.push(Record::Decision(DecisionUpdate { at_ns: now, decision }));
        }
    }
    for (at, (task, owned)) in plan.tasks.iter().zip(owned).enumerate() {
        let cores = owned[1].union(&task.shared_cores);
        let is_same = |before: &&TaskPlan| {
            before.id == task.id
                && discriminant(&before.reason) == discriminant(&task.reason)
                && owned[0].union(&before.shared_cores) == cores
        };
        if last.tasks.get(at).filter(is_same).is_none() {
            feed.push(Record::Affinity(planned(now, task, cores)));
        }
    }
}

fn planned(at_ns: Nanos, task: &TaskPlan, cores: CoreSet) -> PlanAffinity {
    PlanAffinity { at_ns, task: task.id, cores, reason: task.reason }
}

impl Engine {
    /// Notes that a task joined, left or changed.
    pub(super) fn publish_tasks(&mut self) {
        if let Some(feed) = self.parts.feed.as_mut().filter(|feed| feed.is_wanted()) {
            feed.push(Record::Tasks(clock::now()));
        }
    }

    /// Notes that threads of tasks or their affinities changed.
    pub(super) fn publish_threads(&self) {
        if let Some(feed) = &self.parts.feed {
            feed.note_threads();
        }
    }

    /// The current state, for subscribers.
    pub(super) fn feed_state(&self) -> FeedState {
        let at = self.seen.now;
        let core = |core: &quell_model::CorePlan| CoreUpdate {
            at_ns: at,
            core: core.id,
            owner: core.owner,
            mode: core.mode,
            reason: core.reason,
        };
        let alive = self.plan.tasks.iter().filter(|task| self.members.get(task.id).is_some());
        FeedState {
            at,
            tasks: self.task_updates(at),
            cores: self.plan.cores.iter().map(core).collect(),
            affinities: alive.map(|task| planned(at, task, self.plan.usable(task.id))).collect(),
        }
    }

    fn task_updates(&self, at_ns: Nanos) -> Vec<TaskUpdate> {
        let mut groups = self.original_affinities();
        let update = |(id, member): (TaskId, &super::members::Member)| {
            let groups = groups.remove(&id).unwrap_or_default();
            let processes = groups.keys().copied().take(TaskInfo::PROCESSES_MAX).collect();
            TaskUpdate {
                at_ns,
                id,
                name: member.name.clone(),
                class: self.seen.tasks[id.at()].limits.class,
                processes,
                affinities: bounded(groups),
            }
        };
        self.members.iter().map(update).collect()
    }

    /// By task and process: the number of threads, and those whose affinity is changed by what it was.
    fn original_affinities(&self) -> BTreeMap<TaskId, BTreeMap<i32, Process>> {
        let originals: std::collections::HashMap<_, _> = self.parts.executor.affinities().collect();
        let mut groups: BTreeMap<TaskId, BTreeMap<i32, Process>> = BTreeMap::new();
        for view in self.parts.sight.seen().threads() {
            let process =
                groups.entry(view.task).or_default().entry(view.thread.tgid.0).or_default();
            process.threads += 1;
            let Some(original) = originals.get(&view.thread.tid) else { continue };
            match process.changed.iter_mut().find(|(known, _)| known == original) {
                Some((_, threads)) => threads.push(view.thread.tid.0),
                None => process.changed.push((*original, vec![view.thread.tid.0])),
            }
        }
        groups
    }
}

/// Threads of one process.
#[derive(Default)]
struct Process {
    threads: usize,
    changed: Vec<(CoreSet, Vec<i32>)>,
}

/// At most [`THREADS_MAX`] threads: whole groups, so that no group claims to be less than it is.
fn bounded(groups: BTreeMap<i32, Process>) -> Vec<OriginalAffinity> {
    let mut room = THREADS_MAX;
    let groups = groups.into_iter().flat_map(|(process, Process { threads: all, changed })| {
        changed.into_iter().map(move |(cores, mut threads)| {
            threads.sort_unstable();
            OriginalAffinity { process, cores, whole_process: threads.len() == all, threads }
        })
    });
    let fits = |group: &OriginalAffinity| {
        let left = room.checked_sub(group.threads.len());
        room = left.unwrap_or(room);
        left.is_some()
    };
    groups.filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use quell_model::{Class, CoreId, CoreMode, CorePlan, Reason, Rung, TaskReason};

    use super::*;
    use crate::feed;

    const WEB: TaskId = TaskId { index: 0, generation: 3 };

    fn plan(owners: &[Option<TaskId>], shared: &str, reason: TaskReason) -> Plan {
        let core = |(at, owner): (usize, &Option<TaskId>)| CorePlan {
            id: CoreId(at as u16),
            owner: *owner,
            mode: CoreMode::Kernel,
            reason: Reason::Kept,
            yields: None,
        };
        let task = TaskPlan {
            id: WEB,
            class: Class::BestEffort,
            cap: 2,
            rung: Rung::Original,
            shared_cores: shared.parse().unwrap(),
            llc_ways: None,
            reason,
        };
        Plan {
            cores: owners.iter().enumerate().map(core).collect(),
            tasks: vec![task],
            ..Plan::default()
        }
    }

    /// What two Plans tell: cores that change hands, and the cores that the task may use.
    fn told(last: &Plan, plan: &Plan) -> (Vec<u16>, Vec<CoreSet>) {
        let (mut writer, reader) = feed::pair();
        publish(&mut writer, &mut Owned::default(), Nanos(5), last, plan);
        let (mut cores, mut affinities) = (Vec::new(), Vec::new());
        for record in reader.records() {
            match record {
                Record::Decision(made) => cores.push(made.decision.core.0),
                Record::Affinity(planned) => affinities.push(planned.cores),
                Record::Tasks(_) => panic!("no task changed"),
            }
        }
        (cores, affinities)
    }

    #[test]
    fn the_difference_of_two_plans_is_told_and_nothing_else() {
        let cores = |list: &str| vec![list.parse::<CoreSet>().unwrap()];
        let (none, web) = (None, Some(WEB));
        let guest = TaskReason::Guest;
        let first = plan(&[none, web], "", guest);
        assert_eq!(told(&Plan::default(), &first), (vec![1], cores("1")));
        assert_eq!(told(&first, &first), (vec![], vec![]));
        assert_eq!(told(&first, &plan(&[web, web], "", guest)), (vec![0], cores("0-1")));
        assert_eq!(told(&first, &plan(&[none, web], "0", guest)), (vec![], cores("0-1")));
        // Lost as owner and kept as guest: another decision, the same affinity.
        assert_eq!(told(&first, &plan(&[none, none], "1", guest)), (vec![1], vec![]));
        let late = |late| plan(&[none, web], "", TaskReason::DelaysLc(Nanos(late)));
        assert_eq!(told(&first, &late(1)), (vec![], cores("1")));
        assert_eq!(told(&late(1), &late(2)), (vec![], vec![]), "only the duration differs");
    }
}
