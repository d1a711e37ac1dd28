//! The reconciliation that all back ends share: which threads lack something, in which order, and
//! what became of it.
//!
//! A pass compares generations, not settings: a task's want gets a new generation when a Plan moves
//! it, a thread is settled once it was brought to that generation. So a steady tick costs a few
//! loads a thread.

use std::collections::VecDeque;

use quell_model::{BeRung, CoreSet, Nanos, Plan, Rung, TaskId};

use super::intent::{Lack, Style, Turn, rank};
use super::outcome::Outcomes;
use super::record::{Backoff, Effect, Record, Records};
use super::target::{Moved, Targets, Want};
use super::turns::Turns;
use super::verify::Verifier;
use super::{ApplyReport, CoreOutcome, Host, Notice, TaskInfo, TaskStatus};
use crate::{ActError, SchedAttr};
use quell_observe::ThreadView;
use quell_os::ThreadRef;

/// Threads served in one tick; at some 5 us each the tick stays within a few milliseconds.
const BATCH_MAX: usize = 512;
/// New threads looked at in one tick. A look costs two system calls and a /proc file.
const LOOKS_MAX: u32 = 256;
/// Notices kept for the daemon; when it does not fetch them the oldest go.
const NOTICES_MAX: usize = 256;

/// What the engine keeps of a task.
#[derive(Debug)]
pub(super) struct TaskState {
    pub info: TaskInfo,
    pub status: TaskStatus,
    /// Real-time priority was refused.
    pub unelevated: Option<Backoff>,
    /// The freezer or the cpuset was refused.
    pub group_refused: Option<Backoff>,
    /// What was written to its cpuset last.
    pub group_cores: Option<CoreSet>,
    /// Whether its cpu group was given the least weight.
    pub group_idle: Option<bool>,
    /// Where its threads go that are no kernel threads of a runtime; empty for a task that is no runtime.
    pub helpers: CoreSet,
}

/// State of a back end.
#[derive(Debug)]
pub(super) struct Engine {
    pub style: Style,
    be: BeRung,
    pub targets: Targets,
    last_plan: Plan,
    pub records: Records,
    pub tasks: Vec<Option<TaskState>>,
    pub outcomes: Outcomes,
    batch: Vec<Item>,
    dropped: Vec<ThreadRef>,
    notices: VecDeque<Notice>,
    verifier: Verifier,
    pub turns: Turns,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    turn: Turn,
    record: u32,
    transitions: u64,
}

impl Engine {
    pub fn new(style: Style, be: BeRung) -> Engine {
        Engine {
            style,
            be,
            targets: Targets::default(),
            last_plan: Plan::default(),
            records: Records::default(),
            tasks: Vec::new(),
            outcomes: Outcomes::default(),
            batch: Vec::with_capacity(BATCH_MAX),
            dropped: Vec::new(),
            notices: VecDeque::new(),
            verifier: Verifier::default(),
            turns: Turns::default(),
        }
    }

    pub fn admit(&mut self, info: TaskInfo) {
        let at = info.id.at();
        if self.tasks.len() <= at {
            self.tasks.resize_with(at + 1, || None);
        }
        if let Some(known) = self.tasks[at].as_mut().filter(|known| known.info.id == info.id) {
            known.info = info;
            self.targets.touch(known.info.id);
            return self.forget_plan();
        }
        debug_assert!(
            self.tasks[at].as_ref().is_none_or(|old| self.records.has_none_of(old.info.id)),
            "a task has the place of one whose threads are still changed"
        );
        self.tasks[at] = Some(TaskState {
            info,
            status: TaskStatus::default(),
            unelevated: None,
            group_refused: None,
            group_cores: None,
            group_idle: None,
            helpers: CoreSet::EMPTY,
        });
        self.forget_plan();
    }

    pub fn place_helpers(&mut self, task: TaskId, cores: CoreSet) {
        if let Some(state) = self.task_mut(task).filter(|state| state.helpers != cores) {
            state.helpers = cores;
            self.targets.touch(task);
        }
    }

    /// Gives background threads of LC tasks a real-time rung of their own, or the fair class.
    pub fn elevate_background(&mut self, on: bool) {
        let background = if on { Rung::LcBackground } else { Rung::LcFair };
        if std::mem::replace(&mut self.style.background, background) != background {
            let tasks: Vec<TaskId> =
                self.tasks.iter().flatten().map(|state| state.info.id).collect();
            tasks.into_iter().for_each(|id| self.targets.touch(id));
        }
    }

    /// Has the next Plan taken in anew, even if it equals the last.
    pub fn forget_plan(&mut self) {
        self.last_plan.tasks.clear();
    }

    pub fn task(&self, id: TaskId) -> Option<&TaskState> {
        self.tasks.get(id.at())?.as_ref().filter(|state| state.info.id == id)
    }

    pub fn task_mut(&mut self, id: TaskId) -> Option<&mut TaskState> {
        self.tasks.get_mut(id.at())?.as_mut().filter(|state| state.info.id == id)
    }

    pub fn outcomes(&self) -> &[CoreOutcome] {
        self.outcomes.cores()
    }

    pub fn drain_notices(&mut self, sink: &mut dyn FnMut(Notice)) {
        self.notices.drain(..).for_each(sink);
    }

    pub fn notice(&mut self, notice: Notice) {
        if self.notices.len() >= NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    pub fn forked(
        &mut self,
        parent: &ThreadRef,
        child: &ThreadRef,
        watched: bool,
        host: &mut dyn Host,
    ) {
        // A child that is gone already needs nothing, and one that could not be recorded is
        // recorded when it is first changed.
        let _ = host.adopt(child, parent);
        if !watched {
            host.give_back(&[*child]);
        }
    }

    /// Second step of a tick: takes the observation in, and serves the threads.
    pub fn serve_threads(
        &mut self,
        threads: &[ThreadView],
        host: &mut dyn Host,
        report: &mut ApplyReport,
    ) {
        let now = host.now();
        self.end_pauses(now);
        self.gather(threads, now, host, report);
        self.batch.sort_unstable_by_key(|item| item.turn);
        self.run_batch(host, report);
    }

    /// Last step of a tick: the slow read-back, and the outcomes.
    pub fn conclude(
        &mut self,
        plan: &Plan,
        threads: &[ThreadView],
        host: &mut dyn Host,
        report: &mut ApplyReport,
    ) {
        let mut verifier = std::mem::take(&mut self.verifier);
        verifier.run(self, host, report);
        self.verifier = verifier;
        self.outcomes.settle(plan, threads, &self.targets, &self.tasks, &self.records);
    }

    /// First step of a tick: takes the Plan in.
    pub fn take_in(&mut self, plan: &Plan) {
        if *plan == self.last_plan {
            return;
        }
        let mut targets = std::mem::take(&mut self.targets);
        let moved = self.aim(&mut targets, plan);
        self.targets = targets;
        self.outcomes.take_in(plan, &self.last_plan, &moved.cores);
        // Field by field: a derived `clone_from` would allocate anew.
        self.last_plan.cores.clone_from(&plan.cores);
        self.last_plan.tasks.clone_from(&plan.tasks);
        self.last_plan.roles.clone_from(&plan.roles);
        self.last_plan.reliefs.clone_from(&plan.reliefs);
        if moved.plugged.is_empty() {
            return;
        }
        for state in self.tasks.iter_mut().flatten() {
            state.group_cores = None;
        }
        // The kernel widens the affinity of a thread whose last core goes away, and leaves it wide:
        // what was written there before no longer tells what holds.
        for record in self.records.iter_mut() {
            if record.cores.is_some_and(|cores| !cores.intersection(&moved.plugged).is_empty()) {
                record.doubted = true;
            }
        }
    }

    /// Computes the wants of a Plan.
    pub fn aim(&self, targets: &mut Targets, plan: &Plan) -> Moved {
        targets.update(plan, |id| Some(self.task(id)?.info.away), self.be)
    }

    /// Starts the counts of this tick, and lets refused tasks be tried again when their pause is over.
    fn end_pauses(&mut self, now: Nanos) {
        for at in 0..self.tasks.len() {
            let Some(state) = &mut self.tasks[at] else { continue };
            let id = state.info.id;
            let unsettled = std::mem::take(&mut state.status.unsettled);
            state.status.threads = 0;
            state.status.stranded = 0;
            state.status.changed_by_task = 0;
            let Some(refused) = state.unelevated else { continue };
            if state.status.unelevated.is_none() && unsettled == 0 {
                state.unelevated = None;
                self.notice(Notice::Elevated(id));
            } else if state.status.unelevated.is_some() && now >= refused.until {
                state.status.unelevated = None;
                self.targets.touch(id);
            }
        }
    }

    fn gather(
        &mut self,
        threads: &[ThreadView],
        now: Nanos,
        host: &mut dyn Host,
        report: &mut ApplyReport,
    ) {
        let Engine { style, targets, records, tasks, batch, dropped, verifier, last_plan, .. } =
            self;
        batch.clear();
        dropped.clear();
        records.begin(threads.len());
        let mut looks = LOOKS_MAX;
        for (position, view) in threads.iter().enumerate() {
            let at = records.find(position, view);
            let Some((want, generation)) = targets.of(view.task) else { continue };
            let Some(state) = tasks.get_mut(view.task.at()).and_then(Option::as_mut) else {
                continue;
            };
            let Some(record) = records.get_mut(at) else { continue };
            record.observe(view, last_plan, report);
            state.status.count(record);
            if record.is_straggler(view, now) {
                verifier.hurry(at);
            }
            if record.is_at_rest(generation, now) {
                continue;
            }
            state.status.unsettled += 1;
            if record.original.is_none() {
                if looks == 0 {
                    report.deferred += 1;
                    continue;
                }
                looks -= 1;
                if let Err(error) = record.inspect(host) {
                    record.note_failed_look(&error, now, report);
                    continue;
                }
            }
            let Some(lack) = state.lack(record, want, style) else { continue };
            record.stranded = lack.place.stranded;
            if lack.is_nothing() {
                record.settle(generation);
                debug_assert!(state.status.unsettled > 0, "more threads settle than did not");
                state.status.unsettled -= 1;
                continue;
            }
            batch.push(Item { turn: lack.turn, record: at, transitions: view.transitions });
        }
        records.end(dropped);
        if !dropped.is_empty() {
            host.give_back(dropped);
        }
    }

    fn run_batch(&mut self, host: &mut dyn Host, report: &mut ApplyReport) {
        let batch = std::mem::take(&mut self.batch);
        for (done, item) in batch.iter().enumerate() {
            if done >= BATCH_MAX || report.halted {
                report.deferred += (batch.len() - done) as u32;
                break;
            }
            self.serve(item, host, report);
        }
        self.batch = batch;
    }

    /// Brings one thread to its task's want. The lack is computed anew: a refusal earlier in the
    /// batch may have taken the task's elevation.
    fn serve(&mut self, item: &Item, host: &mut dyn Host, report: &mut ApplyReport) {
        let Some(record) = self.records.get_mut(item.record) else { return };
        let Some((want, generation)) = self.targets.of(record.task) else { return };
        let Some(state) = self.tasks.get_mut(record.task.at()).and_then(Option::as_mut) else {
            return;
        };
        let Some(lack) = state.lack(record, want, &self.style) else { return };
        debug_assert_eq!(want.task, record.task, "a thread gets what another task's should be");

        let mut failure = None;
        if let Some(attr) = lack.sched {
            match host.set_sched(&record.thread, attr) {
                Ok(()) => report.count_sched(record.note_sched(attr), &attr),
                Err(error) => failure = Some((Attempt::Sched(attr), Failure::of(&error))),
            }
        }
        let lost = failure.is_some_and(|(_, failure)| !matches!(failure, Failure::Refused(_)));
        if let Some(cores) = lack.cores.filter(|_| !lost) {
            match host.set_affinity(&record.thread, &cores) {
                Ok(()) => {
                    record.cores = Some(cores);
                    report.moved += 1;
                }
                Err(error) => failure = Some((Attempt::Cores, Failure::of(&error))),
            }
        }
        let now = host.now();
        record.effect = Some(Effect { transitions: item.transitions, at: now });
        match failure {
            None => {
                record.settle(generation);
                debug_assert!(state.status.unsettled > 0, "more threads settle than did not");
                state.status.unsettled = state.status.unsettled.saturating_sub(1);
            }
            Some((attempt, failure)) => self.fail(item.record, attempt, failure, now, report),
        }
    }

    fn fail(
        &mut self,
        at: u32,
        attempt: Attempt,
        failure: Failure,
        now: Nanos,
        report: &mut ApplyReport,
    ) {
        let Some(record) = self.records.get_mut(at) else { return };
        let errno = match failure {
            Failure::Gone => {
                record.gone = true;
                report.gone += 1;
                return;
            }
            Failure::Raced => {
                report.raced += 1;
                // Whoever changed it: the read-back finds out, and whether to leave it so.
                record.reconsider(&attempt);
                self.verifier.hurry(at);
                return;
            }
            Failure::Halted => {
                report.halted = true;
                return;
            }
            Failure::Refused(errno) => errno,
        };
        report.refused += 1;
        let (task, thread) = (record.task, record.thread);
        if attempt.is_elevation() {
            // The task as a whole is tried again after a pause; the thread rests as it is.
            let generation = self.targets.of(task).map_or(0, |(_, generation)| generation);
            record.settle(generation);
            let Some(state) = self.task_mut(task) else { return };
            let before = state.unelevated;
            state.unelevated = Some(Backoff::after(before, errno, now));
            state.status.unelevated = Some(errno);
            if before.is_none() {
                self.notice(Notice::Unelevated { task, errno });
            }
            return;
        }
        let before = record.refused;
        record.refused = Some(Backoff::after(before, errno, now));
        if before.is_none() {
            let what = attempt.name();
            let target = format!("/proc/{}/task/{}", thread.tgid, thread.tid).into();
            self.notice(Notice::Refused { task, what, target, errno });
        }
    }
}

impl Record {
    /// A write found another value than expected. Before the first write of a kind that only means
    /// that the look at the thread is outdated.
    fn reconsider(&mut self, attempt: &Attempt) {
        let wrote = match attempt {
            Attempt::Sched(_) => self.sched.is_some(),
            Attempt::Cores => self.cores.is_some(),
        };
        if !wrote {
            self.original = None;
        }
    }
}

impl TaskState {
    /// What a thread of this task lacks; `None` before it was looked at.
    pub fn lack(&self, record: &Record, want: &Want, style: &Style) -> Option<Lack> {
        let original = record.original?;
        let by_group = style.places_by_group && self.info.groups.cpuset.is_some();
        let helps = record.pin.is_none() && !self.helpers.intersection(&original.cores).is_empty();
        let want = &if helps { want.of_helper(self.helpers) } else { *want };
        let (may_elevate, switched) =
            (self.status.unelevated.is_none(), self.info.switched.is_some());
        Some(Lack::of(record, &original, want, style, may_elevate, by_group, switched))
    }
}

impl TaskStatus {
    fn count(&mut self, record: &Record) {
        self.threads += 1;
        self.stranded += u32::from(record.stranded);
        self.changed_by_task += u32::from(record.keeps_sched || record.keeps_cores);
    }
}

impl ApplyReport {
    fn count_sched(&mut self, was: u16, now: &SchedAttr) {
        match rank(now) > was {
            true => self.raised += 1,
            false => self.lowered += 1,
        }
    }
}

#[derive(Clone, Copy)]
enum Attempt {
    Sched(SchedAttr),
    Cores,
}

impl Attempt {
    fn is_elevation(&self) -> bool {
        matches!(self, Attempt::Sched(attr) if attr.policy.is_realtime())
    }

    fn name(&self) -> &'static str {
        match self {
            Attempt::Sched(_) => "policy",
            Attempt::Cores => "affinity",
        }
    }
}

/// A failed change, by what is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The thread is gone: nothing.
    Gone,
    /// The number is somebody else's now: look again.
    Raced,
    /// The host said no: pause.
    Refused(i32),
    /// No change can be made at all now: stop the batch.
    Halted,
}

impl Failure {
    pub fn of(error: &ActError) -> Failure {
        match error {
            ActError::Gone(_) => Failure::Gone,
            ActError::Raced { .. } => Failure::Raced,
            ActError::Refused { errno, .. } => Failure::Refused(*errno),
            ActError::Unguarded | ActError::Journal(_) => Failure::Halted,
            // No back end sets the policy of such a thread.
            ActError::Lent(_) | ActError::Revoked(_) => Failure::Refused(libc::EBUSY),
        }
    }
}
