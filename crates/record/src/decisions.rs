//! What a running daemon decides meanwhile, as events.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use quell_control::subscribe::{DecisionUpdate, Follower, PlanAffinity, TaskUpdate, Update};
use quell_model::{Nanos, PlanReason, Planned, TaskId, TaskInfo, What};
use quell_observe::recorder::WINDOW;

/// Interval at which tasks and plan affinities are repeated, so that a reader can start at any keyframe.
const REPEAT_EVERY: Nanos = Nanos::from_secs(1);

/// Follows a daemon from a thread of its own, so that one that is slow delays no event.
pub(crate) struct Decisions {
    follower: Follower,
    known: Known,
}

impl Decisions {
    /// Decisions from now on, of the daemon that listens there whenever one does.
    pub fn follow(socket: &Path, from: Nanos) -> std::io::Result<Decisions> {
        Ok(Decisions {
            follower: Follower::start(socket)?,
            known: Known { from, ..Known::default() },
        })
    }

    /// What came since the last call, in order. No event is older than the window before `now`.
    pub fn take(&mut self, now: Nanos, tell: &mut dyn FnMut(Nanos, What)) {
        self.known.earliest = self.known.from.max(now - WINDOW);
        for update in self.follower.take() {
            match update {
                Ok(update) => self.known.update(&update, tell),
                Err(_) => self.known.forget(now, tell),
            }
        }
        self.known.repeat(now, tell);
    }

    /// Lines that the daemon left out, and decisions that came after the window and were moved to its end.
    pub fn lost_and_late(&self) -> (u64, u64) {
        (self.known.lost, self.known.late)
    }
}

/// What was recorded of the daemon so far.
#[derive(Default)]
struct Known {
    /// Start of the recording.
    from: Nanos,
    /// No event may be older now.
    earliest: Nanos,
    tasks: BTreeMap<TaskId, (TaskUpdate, Option<PlanAffinity>)>,
    /// By process: its task, and the plan that was emitted.
    planned: BTreeMap<i32, (TaskId, Arc<Planned>)>,
    repeated_at: Nanos,
    lost: u64,
    late: u64,
}

impl Known {
    fn update(&mut self, update: &Update, tell: &mut dyn FnMut(Nanos, What)) {
        let at = update.at().max(self.earliest);
        match update {
            Update::Task(task) => {
                tell(at, task_event(task));
                let plan = self.tasks.get(&task.id).and_then(|(_, plan)| *plan);
                self.tasks.insert(task.id, (task.clone(), plan));
                self.plan(task.id, at, tell);
            }
            Update::PlanAffinity(planned) => {
                let Some((_, plan)) = self.tasks.get_mut(&planned.task) else { return };
                *plan = Some(*planned);
                self.plan(planned.task, at, tell);
            }
            Update::TaskLeft(left) => {
                self.tasks.remove(&left.id);
                self.plan(left.id, at, tell);
            }
            Update::Decision(DecisionUpdate { at_ns, decision }) if *at_ns >= self.from => {
                self.late += u64::from(at > *at_ns);
                tell(at, What::Decision(*decision));
            }
            Update::Lost(lost) => {
                self.lost += lost.count;
                self.forget(at, tell);
            }
            Update::Core(_) | Update::Decision(_) => {}
        }
    }

    /// Emits what the plan lets the processes of a task use, where that changed. A process some of whose threads
    /// have another affinity of their own is left out: the event is about all its threads.
    fn plan(&mut self, id: TaskId, at: Nanos, tell: &mut dyn FnMut(Nanos, What)) {
        let mut before = BTreeMap::new();
        self.planned.retain(|process, (task, planned)| {
            let keep = *task != id;
            if !keep {
                before.insert(*process, Arc::clone(planned));
            }
            keep
        });
        if let Some((task, Some(plan))) = self.tasks.get(&id) {
            for affinity in task.affinities.iter().filter(|affinity| affinity.whole_process) {
                let planned = Arc::new(Planned {
                    process: affinity.process,
                    original: affinity.cores,
                    cores: plan.cores,
                    reason: PlanReason::Task { task: id, reason: plan.reason },
                });
                if before.remove(&affinity.process).as_ref() != Some(&planned) {
                    tell(at, What::Planned(Arc::clone(&planned)));
                }
                self.planned.insert(affinity.process, (id, planned));
            }
        }
        for planned in before.into_values() {
            let free = Planned { cores: planned.original, ..(*planned).clone() };
            tell(at, What::Planned(Arc::new(free)));
        }
    }

    /// Nothing is known of the daemon any more: no plan restricts a process until its state comes again.
    fn forget(&mut self, at: Nanos, tell: &mut dyn FnMut(Nanos, What)) {
        for id in std::mem::take(&mut self.tasks).into_keys() {
            self.plan(id, at, tell);
        }
        debug_assert!(self.planned.is_empty(), "plans of no task: {:?}", self.planned);
    }

    fn repeat(&mut self, now: Nanos, tell: &mut dyn FnMut(Nanos, What)) {
        if now.since(self.repeated_at) < REPEAT_EVERY {
            return;
        }
        self.repeated_at = now;
        self.tasks.values().for_each(|(task, _)| tell(now, task_event(task)));
        self.planned.values().for_each(|(_, plan)| tell(now, What::Planned(Arc::clone(plan))));
    }
}

fn task_event(task: &TaskUpdate) -> What {
    let TaskUpdate { id, name, class, processes, .. } = task;
    let (name, processes) = (name.clone(), processes.clone());
    What::Task(Arc::new(TaskInfo { id: *id, name, class: *class, processes }))
}

#[cfg(test)]
mod tests {
    use quell_control::subscribe::{Lost, OriginalAffinity, TaskLeft};
    use quell_model::{
        Class, CoreDecision, CoreId, CoreMode, CoreSet, Reason, TaskReason, What as W,
    };

    use super::*;

    const WEB: TaskId = TaskId { index: 0, generation: 2 };
    const FROM: Nanos = Nanos(5_000_000_000);

    fn cores(list: &str) -> CoreSet {
        list.parse().unwrap()
    }

    fn task(at_ns: Nanos, original: &str, whole_process: bool) -> Update {
        let cores = cores(original);
        let affinity = OriginalAffinity { process: 7, cores, threads: vec![7], whole_process };
        Update::Task(TaskUpdate {
            at_ns,
            id: WEB,
            name: "web".to_owned(),
            class: Class::LatencyCritical,
            processes: vec![7],
            affinities: vec![affinity],
        })
    }

    fn planned(at_ns: Nanos, list: &str) -> Update {
        let (cores, reason) = (cores(list), TaskReason::Owner);
        Update::PlanAffinity(PlanAffinity { at_ns, task: WEB, cores, reason })
    }

    fn decision(at_ns: Nanos) -> Update {
        let (core, mode, reason) = (CoreId(1), CoreMode::Kernel, Reason::Guaranteed);
        let decision = CoreDecision { core, from: None, to: Some(WEB), mode, reason };
        Update::Decision(DecisionUpdate { at_ns, decision })
    }

    /// Each event in a word: `plan 1` lets process 7 use core 1.
    fn told(known: &mut Known, updates: &[Update]) -> Vec<(u64, String)> {
        let mut told = Vec::new();
        for update in updates {
            known.update(update, &mut |at, what| {
                let word = match what {
                    W::Task(task) => task.name.clone(),
                    W::Decision(made) => format!("core {}", made.core),
                    W::Planned(plan) => format!("plan {}", plan.original.intersection(&plan.cores)),
                    other => panic!("{other:?}"),
                };
                told.push(((at - FROM).0, word));
            });
        }
        told
    }

    fn known() -> Known {
        Known { from: FROM, earliest: FROM, ..Known::default() }
    }

    fn words(list: &[(u64, &str)]) -> Vec<(u64, String)> {
        list.iter().map(|(at, word)| (*at, (*word).to_owned())).collect()
    }

    #[test]
    fn decisions_have_their_own_times_and_older_ones_are_left_out() {
        let (mut known, old) = (known(), Nanos(FROM.0 - 1));
        let updates = [task(old, "0-1", true), decision(old), decision(FROM + Nanos(3))];
        assert_eq!(told(&mut known, &updates), words(&[(0, "web"), (3, "core 1")]));
        assert_eq!(known.late, 0);
        known.earliest = FROM + Nanos(10);
        assert_eq!(told(&mut known, &[decision(FROM + Nanos(9))]), words(&[(10, "core 1")]));
        assert_eq!(known.late, 1);
    }

    #[test]
    fn plans_are_told_by_process_once_and_end_with_the_task() {
        let (mut known, at) = (known(), |ns| FROM + Nanos(ns));
        let updates = [
            task(FROM, "0-1", true),
            planned(at(1), "1-3"),
            planned(at(2), "1,5"),
            planned(at(3), "0"),
            task(at(4), "0-1", false),
            task(at(5), "0-1", true),
            Update::TaskLeft(TaskLeft { at_ns: at(6), id: WEB }),
        ];
        let expected = [
            (0, "web"),
            (1, "plan 1"),
            (2, "plan 1"),
            (3, "plan 0"),
            (4, "web"),
            (4, "plan 0-1"),
            (5, "web"),
            (5, "plan 0"),
            (6, "plan 0-1"),
        ];
        assert_eq!(told(&mut known, &updates), words(&expected));
    }

    #[test]
    fn after_a_loss_nothing_is_known_until_the_state_comes_again() {
        let mut known = known();
        told(&mut known, &[task(FROM, "0-1", true), planned(FROM, "1")]);
        let lost = Update::Lost(Lost { at_ns: FROM + Nanos(2), count: 4 });
        assert_eq!(told(&mut known, &[lost]), words(&[(2, "plan 0-1")]));
        assert_eq!(known.lost, 4);
        let again = [task(FROM, "0-1", true), planned(FROM, "1")];
        assert_eq!(told(&mut known, &again), words(&[(0, "web"), (0, "plan 1")]));
    }

    #[test]
    fn tasks_and_plans_are_repeated_each_second() {
        let mut known = known();
        told(&mut known, &[task(FROM, "0-1", true), planned(FROM, "1")]);
        let mut count = |now: Nanos| {
            let mut count = 0;
            known.repeat(now, &mut |_, _| count += 1);
            count
        };
        assert_eq!([0, 500, 1_000].map(|ms| count(FROM + Nanos::from_millis(ms))), [2, 0, 2]);
    }
}
