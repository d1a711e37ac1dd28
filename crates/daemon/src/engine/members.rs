//! The tasks of the engine: joining, watching, leaving.

use std::collections::VecDeque;

use quell_act::backend::TaskInfo;
use quell_control::protocol::ReliefCounts;
use quell_model::{Children, Class, CoreSet, Limits, Nanos, TaskId, TaskScheduler, TaskView};
use quell_observe::bpf::TaskTimes;
use quell_os::ThreadRef;

use super::Engine;
use crate::command::Newcomer;
use crate::contract::Contract;
use crate::events::Events;

/// Problems kept per task.
const PROBLEMS_KEPT: usize = 8;

/// Threads handled between two heartbeats: tens of microseconds each at worst.
const BATCH: usize = 512;

/// The task places.
#[derive(Default)]
pub struct Members {
    places: Vec<Place>,
}

/// One place, with or without a task.
struct Place {
    id: TaskId,
    member: Option<Member>,
}

/// One task.
pub struct Member {
    /// The operator's name for it.
    pub name: String,
    /// What its new processes become.
    pub children: Children,
    /// What went wrong with it, newest last.
    pub problems: VecDeque<String>,
    /// How often its threads went first for a moment.
    pub reliefs: ReliefCounts,
    /// Running and waiting time as told so far.
    told: (Nanos, Nanos),
    /// What its place had counted before; `None` without BPF.
    before: Option<TaskTimes>,
}

impl Member {
    /// The totals to tell, given those seen now. They never run backwards, although a stretch that ends while
    /// they are read may be seen twice for a moment.
    pub fn tell(&mut self, (ran, waited): (Nanos, Nanos)) -> (Nanos, Nanos) {
        self.told = (self.told.0.max(ran), self.told.1.max(waited));
        self.told
    }

    /// Its part of what its place counted.
    pub fn part_of(&self, counted: Option<TaskTimes>) -> Option<TaskTimes> {
        let (counted, before) = (counted?, self.before.as_ref()?);
        debug_assert_eq!(counted.ran_on.len(), before.ran_on.len(), "{}: cores counted", self.name);
        let ran_on = counted.ran_on.iter().zip(&before.ran_on);
        Some(TaskTimes {
            ran_on: ran_on.map(|(&now, &before)| now.since(before)).collect(),
            waited: counted.waited.since(before.waited),
        })
    }
}

impl Members {
    /// The task of this identity.
    pub fn get(&self, id: TaskId) -> Option<&Member> {
        self.places.get(id.at()).filter(|place| place.id == id)?.member.as_ref()
    }

    /// The task of this identity, to change.
    pub fn get_mut(&mut self, id: TaskId) -> Option<&mut Member> {
        self.places.get_mut(id.at()).filter(|place| place.id == id)?.member.as_mut()
    }

    /// The live tasks.
    pub fn iter(&self) -> impl Iterator<Item = (TaskId, &Member)> {
        self.places.iter().filter_map(|place| Some((place.id, place.member.as_ref()?)))
    }

    /// The name of a task, or its number.
    pub fn name(&self, id: TaskId) -> String {
        self.get(id).map_or_else(|| id.to_string(), |member| member.name.clone())
    }

    /// Notes what went wrong with a task, once.
    pub fn problem(&mut self, id: TaskId, events: &mut Events, what: String) {
        events.tell(format!("task {}: {what}", self.name(id)));
        let Some(member) = self.get_mut(id) else { return };
        if member.problems.back() != Some(&what) {
            member.problems.push_back(what);
        }
        if member.problems.len() > PROBLEMS_KEPT {
            member.problems.pop_front();
        }
        debug_assert!(member.problems.len() <= PROBLEMS_KEPT, "{}", member.name);
    }

    fn join(&mut self, member: impl FnOnce(TaskId) -> Member) -> TaskId {
        if let Some(free) = self.places.iter_mut().find(|place| place.member.is_none()) {
            free.id.generation += 1;
            free.member = Some(member(free.id));
            let id = free.id;
            self.debug_check();
            return id;
        }
        let id = TaskId { index: self.places.len() as u32, generation: 0 };
        self.places.push(Place { id, member: Some(member(id)) });
        self.debug_check();
        id
    }

    /// Identities lead to their own places, and a name to one task. Release builds compile this to nothing.
    fn debug_check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (index, place) in self.places.iter().enumerate() {
            debug_assert_eq!(place.id.at(), index, "a task's identity leads to another place");
        }
        let mut names: Vec<&str> = self.iter().map(|(_, member)| member.name.as_str()).collect();
        names.sort_unstable();
        debug_assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a name twice: {names:?}");
    }

    fn leave(&mut self, id: TaskId) {
        if let Some(place) = self.places.get_mut(id.at()).filter(|place| place.id == id) {
            place.member = None;
        }
    }
}

impl Engine {
    /// A sign of life, unless the scheduler of a lane is overdue: one that hangs is ended with the daemon.
    pub(super) fn beat(&mut self, now: Nanos) {
        if self.lanes.late(now) < Nanos(self.settings.watchdog_timeout.0 / 2)
            && let Some(guardians) = &mut self.parts.guardians
        {
            guardians.tick(now);
        }
    }

    /// Whether a task is latency-critical by configuration.
    pub(super) fn is_lc(&self, id: TaskId) -> bool {
        let view = self.seen.tasks.get(id.at()).filter(|view| view.id == id);
        view.is_some_and(|view| view.limits.class == Class::LatencyCritical)
    }

    /// Makes room for a task.
    pub fn join(&mut self, newcomer: Newcomer) -> TaskId {
        let allowed = newcomer.limits.allowed;
        self.events.tell(format!("task {} joins as {}", newcomer.name, newcomer.limits.class));
        let sight = &self.parts.sight;
        let id = self.members.join(|id| Member {
            name: newcomer.name,
            children: newcomer.children,
            problems: VecDeque::new(),
            reliefs: ReliefCounts::default(),
            told: (Nanos::ZERO, Nanos::ZERO),
            before: sight.task_times(id),
        });
        let view = TaskView::new(id, newcomer.limits);
        match self.seen.tasks.get_mut(id.at()) {
            Some(place) => {
                debug_assert!(
                    !place.alive,
                    "task {id} joins in the place of {}, which is alive",
                    place.id
                );
                *place = view;
            }
            None => {
                debug_assert_eq!(self.seen.tasks.len(), id.at(), "the Snapshot lacks a place");
                self.seen.tasks.push(view);
            }
        }
        debug_assert!(!self.runtimes.has(id), "task {id} is a runtime before it registered");
        if let Some(recorder) = &mut self.parts.recorder {
            recorder.name(id, &self.members.name(id));
        }
        self.publish_tasks();
        self.parts.sight.allow(id, &allowed);
        self.seen.dirty.push(id.index);
        id
    }

    /// Tells how the task's threads may be handled.
    pub fn admit(&mut self, info: TaskInfo) {
        self.parts.back_end.admit(info);
    }

    /// Changes what a task asks for.
    pub fn set_limits(&mut self, id: TaskId, limits: Limits) {
        if let Some(view) = self.seen.tasks.get_mut(id.at()).filter(|view| view.id == id) {
            // No configuration says that a task is a runtime: that is so while one is registered.
            let scheduler = match self.runtimes.has(id) {
                true => TaskScheduler::Runtime,
                false => limits.scheduler,
            };
            view.limits = Limits { scheduler, ..limits };
            self.seen.dirty.push(id.index);
        }
    }

    /// Makes a task a runtime, or a task like any other. Answers with the contract before, for who has time to drop it.
    pub fn set_runtime(
        &mut self,
        id: TaskId,
        contract: Option<Box<Contract>>,
    ) -> Option<Box<Contract>> {
        let lc = contract.is_some() && self.is_lc(id);
        let back_end = &mut self.parts.back_end;
        let before = self.runtimes.remove(id, &mut |thread, pin| back_end.pin(thread, pin));
        // Kernel threads at work leave no time on their cores, real-time priority or not. BE shares its cores fairly.
        let unmanaged = self.parts.host.topology.all().difference(&self.parts.host.managed);
        back_end.place_helpers(id, if lc { unmanaged } else { CoreSet::EMPTY });
        let registers = contract.is_some();
        if (registers || before.is_some())
            && let Some(view) = self.seen.tasks.get_mut(id.at()).filter(|view| view.id == id)
        {
            view.limits.scheduler =
                if registers { TaskScheduler::Runtime } else { TaskScheduler::Kernel };
            self.seen.dirty.push(id.index);
        }
        if let Some(contract) = contract {
            self.runtimes.add(id, contract, quell_os::clock::now());
        }
        debug_assert_eq!(self.runtimes.has(id), registers, "runtime of task {id}");
        before
    }

    /// Begins to follow threads as members of a task.
    pub fn watch(&mut self, id: TaskId, threads: &[ThreadRef]) -> Vec<String> {
        let Some(children) = self.members.get(id).map(|member| member.children) else {
            return vec![format!("there is no task {id}")];
        };
        let lc = self.is_lc(id);
        let mut problems = Vec::new();
        for (at, thread) in threads.iter().enumerate() {
            if at % BATCH == BATCH - 1 {
                self.beat(quell_os::clock::now());
            }
            if let Err(err) = self.parts.sight.observer().watch(*thread, id, lc, children) {
                problems.push(format!("thread {}: {err}", thread.tid));
            }
        }
        self.publish_threads();
        self.seen.dirty.push(id.index);
        problems
    }

    /// Gives a task's threads back as they were found, and forgets it.
    pub fn leave(&mut self, id: TaskId) -> Vec<String> {
        let Some(member) = self.members.get(id) else {
            return vec![format!("there is no task {id}")];
        };
        let name = member.name.clone();
        // Once read, so that threads born a moment ago are given back too.
        self.take_events();
        self.parts.sight.observer().read(&mut self.seen);
        drop(self.set_runtime(id, None));
        let lent = self.lanes.remove(id, &mut self.parts.sight);
        let report = self.parts.back_end.release(id, &mut self.parts.executor);
        // Those that the back end has not seen yet.
        self.parts.executor.undo_matching(|thread| lent.contains(thread));
        let threads: Vec<ThreadRef> = self
            .parts
            .sight
            .seen()
            .threads()
            .iter()
            .filter(|view| view.task == id)
            .map(|view| view.thread)
            .collect();
        for (at, thread) in threads.into_iter().enumerate() {
            if at % BATCH == BATCH - 1 {
                self.beat(quell_os::clock::now());
            }
            self.parts.sight.observer().unwatch(thread);
        }
        self.members.leave(id);
        self.hints.set(id, None);
        debug_assert_eq!(
            self.seen.tasks[id.at()].id,
            id,
            "another task has the place of one that leaves"
        );
        debug_assert!(!self.runtimes.has(id), "task {id} left, and its runtime holds grants");
        self.seen.tasks[id.at()].alive = false;
        self.publish_tasks();
        self.seen.dirty.push(id.index);
        self.events.tell(format!("task {name} left; {} changes taken back", report.restored.len()));
        vec![format!("{name}: given back ({} changes undone)", report.restored.len())]
    }
}
