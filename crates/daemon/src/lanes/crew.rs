//! What a scheduler thread does for its lanes: sees, asks the policy, hands the core over.
//!
//! Membership is what BPF says: a slot's place is its lane and the place's generation its member, which new threads
//! inherit from their creators before they first run. So whoever is in the slots is on the lane, and nobody else.
//!
//! The member whose turn it is has the rung `Dispatcher` (as SCHED_RR, so that its threads take turns among
//! themselves even where it is alone), all others `Parked`. Where it sleeps before its turn is over,
//! the kernel runs one of those at once; the scheduler is told, and corrects who it is. *Raise first, then lower*:
//! at no time is a third thread above both.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_act::{ActError, Applied, Executor};
use quell_model::{Children, CoreId, CoreSet, Nanos, TaskId};
use quell_observe::bpf::BpfObserver;
use quell_observe::{HostEvent, Observer, ThreadState, ThreadView};
use quell_os::sched::SchedAttr;
use quell_os::{ThreadRef, clock};
use quell_policy::lanes::{LanePolicy, Look, Member, Members, Seen};

use super::counters::Counters;
use super::lead::Lead;
use super::probe;

/// How often a policy is asked in a row before the lane goes on with what it has: after a switch it is asked again, and a
/// state may change at any time.
const ROUNDS: u32 = 4;

/// When a change that was refused for want of a guardian is tried again: one starts within milliseconds.
const AGAIN_AFTER: Nanos = Nanos::from_millis(1);

/// The two rungs of a lane's threads.
#[derive(Clone, Copy, Debug)]
pub struct Rungs {
    /// Whose turn it is.
    pub runs: SchedAttr,
    /// All others.
    pub parked: SchedAttr,
}

/// A lane, as its scheduler thread has it.
pub struct Lane {
    core: CoreId,
    policy: Box<dyn LanePolicy>,
    /// Whose turn it is, since when.
    turn: Option<(Member, Nanos)>,
    /// Who is on the upper rung: stays there when the lane falls idle.
    raised: Option<Member>,
    /// Rungs have to be looked at one by one, at this time: a change was refused, or a thread is another one.
    unsettled: Option<Nanos>,
    look: Look,
    /// The turn was given since the scheduler last slept.
    fresh: bool,
    /// What is added to a slice on the way to sleep.
    lead: Lead,
    /// For how long the threads of whose turn it is had run when it began.
    ran_before: Nanos,
    /// Counts hand-overs: which of a member's threads comes first.
    rotation: usize,
    /// The changes that were seen when its policy was last asked.
    seen: u64,
    counters: Arc<Counters>,
}

impl Lane {
    /// A lane without threads.
    pub fn new(core: CoreId, policy: Box<dyn LanePolicy>, counters: Arc<Counters>) -> Lane {
        Lane {
            core,
            policy,
            turn: None,
            raised: None,
            unsettled: None,
            look: Look::OnChange,
            fresh: false,
            lead: Lead::default(),
            ran_before: Nanos::ZERO,
            rotation: 0,
            seen: 0,
            counters,
        }
    }

    /// When its policy wants to be asked.
    pub fn look(&self) -> Look {
        self.look
    }

    /// When it has to be attended to, by time.
    pub fn due(&self) -> Option<Nanos> {
        self.look.at().into_iter().chain(self.unsettled).min()
    }
}

/// The lanes of one scheduler thread, and all it needs for them.
pub struct Crew {
    observer: BpfObserver,
    executor: Arc<Mutex<Executor>>,
    rungs: Rungs,
    children: Children,
    lanes: Vec<Lane>,
    /// The changes seen so far.
    changes: u64,
    events: Vec<HostEvent>,
    lost: Vec<(ThreadRef, &'static str)>,
}

impl Crew {
    /// A crew for these lanes.
    pub fn new(
        observer: BpfObserver,
        executor: Arc<Mutex<Executor>>,
        rungs: Rungs,
        children: Children,
        lanes: Vec<Lane>,
    ) -> Crew {
        let (events, lost) = (Vec::with_capacity(64), Vec::with_capacity(16));
        Crew { observer, executor, rungs, children, lanes, changes: 0, events, lost }
    }

    /// Its lanes.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// What it sees with.
    pub fn observer(&self) -> &BpfObserver {
        &self.observer
    }

    /// Finds what turns are made of on the calling scheduler thread's core, before its lane has any thread.
    pub fn try_turns(&mut self, at: usize) {
        let unused = TaskId { index: self.lanes.len() as u32, generation: 0 };
        let lane = &mut self.lanes[at];
        // Without it, lanes learn from their members alone.
        if let Some(lead) = probe::lead(&mut self.observer, lane.core, self.rungs.runs, unused) {
            tracing::debug!("core {}: {lead:?}", lane.core);
            lane.lead = lead;
        }
    }

    /// Puts threads on a lane, parked. What cannot be put there is said.
    pub fn join(&mut self, lane: usize, member: Member, threads: &[ThreadRef]) -> Vec<String> {
        let mut problems = Vec::new();
        let place = TaskId { index: lane as u32, generation: u32::from(member.0) };
        for thread in threads {
            let problem = match self.observer.watch(*thread, place, false, self.children) {
                Err(err) => err.to_string(),
                Ok(()) => match self.take(*thread, lane, member) {
                    Ok(_) => continue,
                    Err(err) => {
                        self.observer.unwatch(*thread);
                        err.to_string()
                    }
                },
            };
            // Threads end while a program is put on a lane; that is no problem.
            if ThreadRef::of(thread.tgid, thread.tid).is_ok_and(|there| there == *thread) {
                problems.push(problem);
            }
        }
        self.refresh();
        // From now on the lane has threads, whenever it is looked at.
        self.runnable(lane);
        problems
    }

    /// Gives a thread its core and its rung.
    fn take(&self, thread: ThreadRef, lane: usize, member: Member) -> Result<Applied, ActError> {
        let lane = &self.lanes[lane];
        let rung = if lane.raised == Some(member) { self.rungs.runs } else { self.rungs.parked };
        let mut executor = lock(&self.executor);
        executor.set_sched(&thread, rung)?;
        executor.set_affinity(&thread, &CoreSet::of(lane.core))
    }

    /// Takes a thread off its lane, which goes on with the others.
    pub fn lose(&mut self, thread: ThreadRef, why: &str) {
        let known = self.observer.threads().iter().find(|view| view.thread == thread);
        let Some(lane) = known.and_then(|view| self.lanes.get(view.task.at())) else { return };
        lane.counters.note(format!("thread {} left the lane: {why}", thread.tid));
        self.observer.unwatch(thread);
        let mut executor = lock(&self.executor);
        executor.undo_thread(&thread);
        drop(executor);
        self.refresh();
    }

    /// Follows forks, exits and what was lost. From here on an event rings.
    pub fn take_events(&mut self) {
        let events = &mut self.events;
        self.observer.drain_events(&mut |event| events.push(event));
        for at in 0..self.events.len() {
            match self.events[at] {
                HostEvent::Forked { parent, child, task, watched, .. } => {
                    self.follow(parent, child, task, watched);
                }
                HostEvent::Exited(thread) => lock(&self.executor).forget(&thread),
                HostEvent::Execed(_) => {
                    self.lanes.iter_mut().for_each(|lane| lane.unsettled = Some(Nanos::ZERO))
                }
                HostEvent::Lost(_) => self.sweep(),
                HostEvent::LcQueued(_) | HostEvent::CoreIdle(_) => {}
            }
        }
        self.events.clear();
    }

    /// A member has a new thread, or a process that is left alone.
    fn follow(&mut self, parent: ThreadRef, child: ThreadRef, place: TaskId, watched: bool) {
        // One that is gone already needs nothing.
        let _ = lock(&self.executor).adopt(&child, &parent);
        if !watched {
            lock(&self.executor).undo_thread(&child);
            return;
        }
        if place.at() >= self.lanes.len() {
            return;
        }
        match self.take(child, place.at(), Member(place.generation as u8)) {
            Ok(_) | Err(ActError::Gone(_)) => {}
            Err(ActError::Unguarded) => {
                self.lanes[place.at()].unsettled = Some(clock::now() + AGAIN_AFTER)
            }
            Err(err) => self.lose(child, &err.to_string()),
        }
    }

    /// Events were lost: finds threads that nobody told of among the processes that are known.
    fn sweep(&mut self) {
        let known: Vec<ThreadView> = self.observer.threads().to_vec();
        for view in &known {
            let threads = ThreadRef::all_of(view.thread.tgid).unwrap_or_default();
            let is_new = |thread: &ThreadRef| known.iter().all(|view| view.thread != *thread);
            let new: Vec<ThreadRef> = threads.into_iter().filter(is_new).collect();
            if self.children == Children::Adopt && view.task.at() < self.lanes.len() {
                self.join(view.task.at(), member_of(view), &new);
            }
        }
    }

    /// Asks a lane's policy, and does as it says. `due` is when it wanted to be asked, if it is asked by time.
    pub fn attend(&mut self, at: usize, mut due: Option<Nanos>) {
        if self.lanes[at].unsettled.is_some_and(|at| at <= clock::now()) {
            self.settle(at);
        }
        for _ in 0..ROUNDS {
            let now = clock::now();
            let runnable = self.runnable(at);
            let lane = &mut self.lanes[at];
            lane.seen = self.changes;
            let turn = lane.policy.decide(&Seen { now, runnable, turn: lane.turn });
            lane.look = turn.look;
            lane.counters.looked();
            let before = lane.turn.map(|(member, _)| member);
            if turn.member == before {
                break;
            }
            if let Some((member, since)) = lane.turn.take() {
                lane.counters.ended(member, now.since(since));
            }
            let Some(next) = turn.member else { break };
            self.hand_over(at, next, now, due.take());
            self.refresh();
        }
    }

    fn runnable(&self, lane: usize) -> Members {
        let mut runnable = Members::NONE;
        let mut threads = 0;
        for view in self.observer.threads().iter().filter(|view| view.task.at() == lane) {
            threads += 1;
            debug_assert!(
                view.task.generation <= u32::from(u8::MAX),
                "{} is no member of a lane",
                view.task
            );
            if view.state != ThreadState::Sleeping {
                runnable.insert(member_of(view));
            }
        }
        self.lanes[lane].counters.has_threads(threads);
        runnable
    }

    /// Gives the core to a member.
    fn hand_over(&mut self, at: usize, next: Member, decided: Nanos, due: Option<Nanos>) {
        let lane = &self.lanes[at];
        let before = lane.raised.filter(|before| *before != next);
        if lane.raised != Some(next) {
            self.raise(at, next);
            if let Some(before) = before {
                self.put(at, self.rungs.parked, |view| member_of(view) == before);
            }
        }
        let lane = &mut self.lanes[at];
        debug_assert!(lane.turn.is_none(), "{next:?} begins, and a turn of another is not over");
        lane.raised = Some(next);
        let now = clock::now();
        lane.turn = Some((next, now));
        lane.fresh = true;
        lane.counters.began(next);
        if before.is_some() {
            lane.counters.handed_over(now.since(decided), due.map(|due| now.since(due)));
        }
        self.let_go();
    }

    /// Puts each thread on the rung that is its own, the raised first.
    fn settle(&mut self, at: usize) {
        let raised = self.lanes[at].raised;
        self.lanes[at].unsettled = None;
        self.put(at, self.rungs.runs, |view| Some(member_of(view)) == raised);
        self.put(at, self.rungs.parked, |view| Some(member_of(view)) != raised);
        self.let_go();
    }

    /// Raises a member's threads, another one first each time: those of one priority run in the order in which they
    /// came there.
    fn raise(&mut self, at: usize, member: Member) {
        let is_its = |view: &ThreadView| view.task.at() == at && member_of(view) == member;
        let count = self.observer.threads().iter().filter(|view| is_its(view)).count();
        let lane = &mut self.lanes[at];
        lane.rotation = lane.rotation.wrapping_add(1);
        let first = lane.rotation % count.max(1);
        for later in [true, false] {
            let mut nth = 0..;
            let meant = |view: &ThreadView| {
                member_of(view) == member && (nth.next().unwrap_or(0) >= first) == later
            };
            self.put(at, self.rungs.runs, meant);
            if first == 0 {
                break;
            }
        }
    }

    /// Puts those threads of a lane on a rung.
    fn put(&mut self, at: usize, rung: SchedAttr, mut meant: impl FnMut(&ThreadView) -> bool) {
        let mut executor = lock(&self.executor);
        let lane = &mut self.lanes[at];
        for view in self.observer.threads() {
            if view.task.at() != at || !meant(view) {
                continue;
            }
            match executor.set_sched(&view.thread, rung) {
                // Who is gone is told of by its event.
                Ok(_) | Err(ActError::Gone(_)) => {}
                Err(ActError::Unguarded) => {
                    lane.unsettled = Some(clock::now() + AGAIN_AFTER);
                    lane.counters.not_guarded();
                }
                Err(ActError::Raced { .. }) => {
                    self.lost.push((view.thread, "it changed its own scheduling"));
                }
                Err(err) => {
                    tracing::warn!("{err}");
                    self.lost.push((view.thread, "the host refuses to change its scheduling"));
                }
            }
        }
    }

    /// Lets those go that are the lane's no more.
    fn let_go(&mut self) {
        while let Some((thread, why)) = self.lost.pop() {
            self.lose(thread, why);
        }
    }

    /// Has the scheduler woken for what a lane waits for; what happened before it asked is news.
    pub fn ask_to_be_told(&self, at: usize) {
        let place = TaskId { index: at as u32, generation: 0 };
        self.observer.tell_lane(place, true, self.lanes[at].look.on_wake());
    }

    /// A scheduler on the lane's own core is about to sleep: only now can the member run whose turn it is. Its turn counts
    /// from here, or a slice that is shorter than a hand-over would be over before it began, and nobody would ever run.
    /// Whether a turn begins with this.
    pub fn let_run(&mut self, at: usize) -> bool {
        let lane = &mut self.lanes[at];
        let Some((member, since)) = lane.turn.filter(|_| std::mem::take(&mut lane.fresh)) else {
            return false;
        };
        let ran_before = self.ran(at, member);
        let lane = &mut self.lanes[at];
        lane.ran_before = ran_before;
        let begin = clock::now() + lane.lead.time();
        let later = |at: Nanos| at + begin.since(since);
        lane.turn = Some((member, begin));
        lane.look = match lane.look {
            Look::OnChange => Look::OnChange,
            Look::At(at) => Look::At(later(at)),
            Look::AtOrOnWake(at) => Look::AtOrOnWake(later(at)),
        };
        true
    }

    /// The turn of a lane whose scheduler was on its core is over, by time: what did its member have of it?
    pub fn learn(&mut self, at: usize) {
        let lane = &self.lanes[at];
        let Some((member, since)) = lane.turn.filter(|_| !lane.fresh) else { return };
        let had = self.ran(at, member).since(lane.ran_before);
        let lane = &mut self.lanes[at];
        if let Some(until) = lane.look.at() {
            lane.lead.learn(until.since(since), had);
        }
    }

    /// For how long a member's threads have run.
    fn ran(&self, at: usize, member: Member) -> Nanos {
        let is_its = |view: &&ThreadView| view.task.at() == at && member_of(view) == member;
        Nanos(self.observer.threads().iter().filter(is_its).map(|view| view.ran.0).sum())
    }

    /// Brings what is seen up to date.
    pub fn refresh(&mut self) {
        self.changes = self.observer.refresh();
    }

    /// Whether something changed since a lane's policy was asked.
    pub fn has_news(&self, at: usize) -> bool {
        self.lanes[at].seen != self.changes
    }

    /// Counts how late a look by time was.
    pub fn note_late(&self, at: usize, by: Nanos) {
        self.lanes[at].counters.came_late(by);
    }
}

/// Whose thread it is.
fn member_of(view: &ThreadView) -> Member {
    Member(view.task.generation as u8)
}

/// A thread that panicked with the executor in its hands left the journal in order: each change is recorded first.
pub fn lock(executor: &Mutex<Executor>) -> MutexGuard<'_, Executor> {
    executor.lock().unwrap_or_else(PoisonError::into_inner)
}
