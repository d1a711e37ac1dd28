//! Lanes under the engine: which core each has, and whose threads its scheduler may switch.
//!
//! The engine lends a thread once the back end has it on the lane's core, takes back what the task or its administrator
//! changed, and passes on what the Plan gives each lane. It never switches a member, and waits for no scheduler but to end
//! a switch under way (microseconds) before a restore.

use std::sync::Arc;

use quell_act::{ActError, Executor};
use quell_control::config::LanePattern;
use quell_control::protocol::LaneStatus;
use quell_model::{Children, CoreId, Nanos, Plan, TaskId};
use quell_observe::bpf::{BpfObserver, LaneReader, SlotPlace};
use quell_observe::{Observer, ThreadView};
use quell_os::sched::SchedAttr;
use quell_os::{ThreadRef, clock};
use quell_policy::lanes::Member;
use rtrb::Consumer;

use super::{Engine, Sight};
use crate::lane::{Counters, Departure, LaneOrder, NewThread, Pulse, Seat};
use crate::mailbox::Line;

/// Threads lent in one tick; at some 30 us each the tick stays within a millisecond or two.
const LENT_MAX: usize = 64;
/// When a thread that could not be lent is tried again.
const AGAIN_AFTER: Nanos = Nanos::from_millis(1);

/// What the engine knows of a lane whose scheduler runs.
pub struct Link {
    /// The lane's task.
    pub task: TaskId,
    /// Orders to its scheduler.
    pub scheduler: Line<LaneOrder>,
    /// Threads that its scheduler lets go.
    pub departures: Consumer<Departure>,
    /// Whether that lives.
    pub pulse: Arc<Pulse>,
    /// What it counts.
    pub counters: Arc<Counters>,
    /// The names of its members, in order.
    pub names: Vec<String>,
    /// Its policy.
    pub policy: &'static str,
    /// How its scheduler waits.
    pub pattern: LanePattern,
    /// The last order about its core.
    pub seat: Seat,
    /// Where its members are: its own core, or the one on which they wait.
    pub core: Option<CoreId>,
    /// Threads that are lent to it.
    pub lent: Vec<ThreadRef>,
}

impl Link {
    /// What it does, in a sentence.
    pub fn why(&self) -> String {
        let members = self.names.join(", ");
        match (self.seat, self.core) {
            (Seat::Owns(core), _) => {
                format!("its members {members} share core {core} by slices ({})", self.policy)
            }
            (Seat::Waits, Some(core)) => format!(
                "its members {members} wait below the owner of core {core}; no slices are dealt out meanwhile"
            ),
            (Seat::Waits, None) => format!("no core is left for its members {members}"),
        }
    }

    /// As the status shows it.
    pub fn status(&self) -> LaneStatus {
        LaneStatus {
            core: self.core.map(|core| core.0),
            scheduling: matches!(self.seat, Seat::Owns(_)),
            policy: self.policy.to_owned(),
            pattern: match self.pattern {
                LanePattern::Shared => "shared",
                LanePattern::Dedicated => "dedicated",
            }
            .to_owned(),
            scheduler: self.pulse.status(clock::now()),
            ..self.counters.status(&self.names)
        }
    }
}

/// The lanes.
pub struct Lanes {
    list: Vec<Link>,
    /// The rungs that are lent: parked, and with the slice. `None` for a back end that elevates nobody.
    rungs: Option<[SchedAttr; 2]>,
    /// Threads may have to be lent, from this time on.
    pending: Option<Nanos>,
    /// Threads that could not be lent.
    refused: Vec<Departure>,
}

impl Lanes {
    /// No lanes yet.
    pub fn new(rungs: Option<[SchedAttr; 2]>) -> Lanes {
        Lanes { list: Vec::new(), rungs, pending: None, refused: Vec::new() }
    }

    /// Opens a task's ring of events: what the lane sees with.
    ///
    /// # Errors
    /// In words: this host or its back end has no lanes.
    pub fn open(&mut self, task: TaskId, sight: &mut Sight) -> Result<LaneReader, String> {
        if self.rungs.is_none() {
            return Err(
                "lanes need backend = \"elevation\": members are switched by priority".into()
            );
        }
        let Sight::Bpf(bpf) = sight else {
            return Err("lanes see who sleeps with BPF; `quell doctor` says what it takes".into());
        };
        bpf.open_lane(task).map_err(|err| err.to_string())
    }

    /// A lane's scheduler runs.
    pub fn add(&mut self, link: Link) {
        debug_assert!(self.of(link.task).is_none(), "task {} is two lanes", link.task);
        self.list.push(link);
        self.look_for_threads();
    }

    /// The lane of a task.
    pub fn of(&self, task: TaskId) -> Option<&Link> {
        self.list.iter().find(|link| link.task == task)
    }

    /// Threads may have come that are to be lent.
    pub fn look_for_threads(&mut self) {
        self.pending = Some(Nanos::ZERO);
    }

    /// A lane ends: its threads, which are returned, are restored next.
    pub fn remove(&mut self, task: TaskId, sight: &mut Sight) -> Vec<ThreadRef> {
        if let Sight::Bpf(bpf) = sight {
            bpf.close_lane(task);
        }
        let at = self.list.iter().position(|link| link.task == task);
        at.map_or(Vec::new(), |at| self.list.swap_remove(at).lent)
    }

    /// How late the latest of all schedulers is: one that hangs is to be ended with the daemon.
    pub fn late(&self, now: Nanos) -> Nanos {
        self.list.iter().map(|link| link.pulse.late(now)).max().unwrap_or_default()
    }

    /// When a tick is due because of lanes.
    pub fn due(&self) -> Option<Nanos> {
        self.pending
    }

    /// A thread is gone.
    pub fn exited(&mut self, thread: &ThreadRef) {
        for link in &mut self.list {
            if let Some(at) = link.lent.iter().position(|lent| lent == thread) {
                link.lent.swap_remove(at);
                link.scheduler.tell(LaneOrder::Remove(*thread));
            }
        }
    }

    /// Events were lost, so threads may have come and gone.
    pub fn lost_events(&mut self, seen: &[ThreadView]) {
        for link in &mut self.list {
            let Link { lent, scheduler, .. } = link;
            lent.retain(|thread| {
                let is_there = seen.iter().any(|view| view.thread == *thread);
                is_there || !scheduler.tell(LaneOrder::Remove(*thread))
            });
        }
        self.look_for_threads();
    }

    /// A process became another program: its first thread may have the number of another one.
    pub fn execed(&mut self) {
        for link in &mut self.list {
            link.scheduler.tell(LaneOrder::Unsettle);
        }
        if !self.list.is_empty() {
            self.look_for_threads();
        }
    }

    /// Orders for lanes that lose their core, before the back end acts.
    pub fn stand_up(&mut self, plan: &Plan) {
        self.tell(plan, |seat| seat == Seat::Waits);
    }

    /// Orders for lanes that get a core, once the back end has acted.
    pub fn sit_down(&mut self, plan: &Plan) {
        self.tell(plan, |seat| seat != Seat::Waits);
    }

    fn tell(&mut self, plan: &Plan, meant: impl Fn(Seat) -> bool) {
        for link in &mut self.list {
            let owned = plan.owned(link.task).first();
            let seat = owned.map_or(Seat::Waits, Seat::Owns);
            let waits = || plan.tasks.get(link.task.at())?.shared_cores.first();
            link.core = owned.or_else(waits);
            // A full postbox gets it in the next tick.
            if seat != link.seat && meant(seat) && link.scheduler.tell(LaneOrder::Sit(seat)) {
                link.seat = seat;
            }
        }
    }

    /// Lends the threads of lanes that are not lent yet.
    pub fn lend(&mut self, sight: &Sight, executor: &mut Executor, now: Nanos) {
        if self.pending.is_none_or(|at| now < at) {
            return;
        }
        self.pending = None;
        let (Sight::Bpf(bpf), Some(rungs)) = (sight, self.rungs) else { return };
        let mut lent = 0;
        for link in &mut self.list {
            for at in 0..bpf.threads().len() {
                let view = &bpf.threads()[at];
                if view.task != link.task || link.lent.contains(&view.thread) {
                    continue;
                }
                lent += 1;
                let done =
                    lent <= LENT_MAX && link.lend(at, bpf, executor, rungs, &mut self.refused);
                if !done {
                    self.pending = Some(now + AGAIN_AFTER);
                }
            }
        }
    }

    /// The next thread that its scheduler lets go.
    pub fn departure(&mut self) -> Option<Departure> {
        let by_scheduler = self.list.iter_mut().find_map(|link| link.departures.pop().ok());
        by_scheduler.or_else(|| self.refused.pop())
    }

    /// A thread leaves its lane; whether it was on one.
    pub fn let_go(&mut self, departure: &Departure) -> bool {
        let Departure { task, thread, why } = departure;
        let Some(link) = self.list.iter_mut().find(|link| link.task == *task) else { return false };
        link.lent.retain(|lent| lent != thread);
        link.scheduler.tell(LaneOrder::Remove(*thread));
        link.counters.note(format!("thread {} left the lane: {why}", thread.tid));
        true
    }
}

impl Link {
    /// Lends the thread at this position of the observation. False if that is to be tried again.
    fn lend(
        &mut self,
        position: usize,
        bpf: &BpfObserver,
        executor: &mut Executor,
        rungs: [SchedAttr; 2],
        refused: &mut Vec<Departure>,
    ) -> bool {
        let view = &bpf.threads()[position];
        let (thread, member) = (view.thread, Member(view.member));
        let Some(slot) = bpf.slot_place(position) else { return false };
        debug_assert!(member.at() < self.names.len(), "{member:?} of {} members", self.names.len());
        match executor.lend(&thread, rungs) {
            Ok(handle) => {
                let new = NewThread { member, slot, handle };
                let sent = self.scheduler.tell(LaneOrder::Join(new));
                match sent {
                    true => self.lent.push(thread),
                    false => executor.revoke(&thread),
                }
                sent
            }
            // Its event follows.
            Err(ActError::Gone(_)) => true,
            Err(ActError::Unguarded) => {
                self.counters.not_guarded();
                false
            }
            Err(err) => {
                tracing::warn!("{err}");
                let why = "the host refuses to change its scheduling";
                refused.push(Departure { task: self.task, thread, why });
                true
            }
        }
    }
}

impl Engine {
    /// Begins to follow threads as a member of a lane.
    pub fn watch_member(&mut self, id: TaskId, member: u8, threads: &[ThreadRef]) -> Vec<String> {
        let children = self.members.get(id).map_or(Children::Leave, |member| member.children);
        let mut problems = Vec::new();
        for thread in threads {
            let lc = self.is_lc(id);
            let observer = self.parts.sight.observer();
            if let Err(err) = observer.watch_member(*thread, id, member, lc, children) {
                problems.push(format!("thread {}: {err}", thread.tid));
            }
        }
        self.lanes.look_for_threads();
        self.seen.dirty.push(id.index);
        problems
    }

    /// Watches a thread of Quell's own as one of a lane that has no members yet; returns its slot.
    pub fn watch_probe(&mut self, id: TaskId, thread: ThreadRef) -> Option<SlotPlace> {
        let Sight::Bpf(bpf) = &mut self.parts.sight else { return None };
        bpf.watch(thread, id, false, Children::Leave).ok()?;
        bpf.refresh();
        bpf.slot_place(bpf.threads().iter().position(|view| view.thread == thread)?)
    }

    /// Threads that their schedulers let go go back to what they are by themselves.
    pub(super) fn take_departures(&mut self) {
        while let Some(departure) = self.lanes.departure() {
            self.let_go(&departure);
        }
    }

    /// Takes a thread off its lane, which goes on with the others.
    pub(super) fn let_go(&mut self, departure: &Departure) {
        if !self.lanes.let_go(departure) {
            return;
        }
        let (thread, task) = (departure.thread, departure.task);
        self.parts.sight.observer().unwatch(thread);
        self.parts.executor.undo_thread(&thread);
        let what = format!("thread {} left the lane: {}", thread.tid, departure.why);
        self.members.problem(task, &mut self.events, what);
        self.seen.dirty.push(task.index);
    }
}
