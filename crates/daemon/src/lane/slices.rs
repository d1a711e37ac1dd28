//! One lane as its scheduler thread has it: sees, asks the policy, hands the core over.
//!
//! The member whose slice it is has the rung `Dispatcher`, all others `FifoLow`, both as SCHED_RR, so that threads of
//! one rung take turns among themselves. Where it sleeps before its slice is over,
//! the kernel runs one of those at once; the scheduler is woken, and corrects which one it is. *Raise first, then lower*:
//! at no time is a third thread above both.

use std::sync::Arc;

use quell_act::{ActError, SwitchHandle};
use quell_model::{CoreId, Nanos, TaskId};
use quell_observe::bpf::{LaneReader, LaneThread, SlotPlace};
use quell_os::{ThreadRef, clock};
use quell_policy::lanes::{LanePolicy, Look, Member, Members, Seen};
use rtrb::{Consumer, Producer};

use super::counters::Counters;
use super::lead::Lead;
use super::{PARKED, RUNS};

/// How often a policy is asked in a row before the lane goes on with what it has: after a switch it is asked again, and a
/// state may change at any time.
const ROUNDS: u32 = 4;

/// When a change that was refused for want of a guardian, or a slot that could not be read, is tried again: a guardian
/// starts within milliseconds.
const AGAIN_AFTER: Nanos = Nanos::from_millis(1);

/// What the Plan gives a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// No core of its own: members wait on the lower rung, where the back end puts them.
    Waits,
    /// This core, on which its slices are dealt out.
    Owns(CoreId),
}

/// A thread that joins a lane, parked.
pub struct NewThread {
    /// Whose.
    pub member: Member,
    /// Its slot in BPF's table.
    pub slot: SlotPlace,
    /// The right to switch it.
    pub handle: SwitchHandle,
}

/// The engine's order to a lane.
pub enum LaneOrder {
    /// A thread joins.
    Join(NewThread),
    /// A thread ended or was restored.
    Remove(ThreadRef),
    /// What the Plan gives the lane from now on.
    Sit(Seat),
    /// A thread became another program.
    Unsettle,
}

/// A thread that its lane lets go.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// The lane's task.
    pub task: TaskId,
    /// Which thread.
    pub thread: ThreadRef,
    /// Why.
    pub why: &'static str,
}

struct Thread {
    known: LaneThread,
    member: Member,
    handle: SwitchHandle,
}

/// See the module.
pub struct Lane {
    task: TaskId,
    reader: LaneReader,
    policy: Box<dyn LanePolicy>,
    counters: Arc<Counters>,
    orders: Consumer<LaneOrder>,
    departures: Producer<Departure>,
    threads: Vec<Thread>,
    seat: Seat,
    /// Whose slice it is, since when.
    turn: Option<(Member, Nanos)>,
    /// The member on the upper rung: it stays there when the lane falls idle.
    raised: Option<Member>,
    /// Rungs or states have to be looked at again at this time.
    unsettled: Option<Nanos>,
    look: Look,
    /// The slice was given since the scheduler last slept.
    fresh: bool,
    /// What is added to a slice on the way to sleep.
    lead: Lead,
    /// For how long the threads of whose slice it is had run when it began.
    ran_before: Nanos,
    /// Counts switches: which of a member's threads comes first.
    rotation: usize,
    /// What the reader's count of changes was when states were last read.
    changes: u64,
    /// States or threads changed since the policy was last asked.
    news: bool,
}

impl Lane {
    /// A lane without threads and without a core.
    pub fn new(
        task: TaskId,
        reader: LaneReader,
        policy: Box<dyn LanePolicy>,
        counters: Arc<Counters>,
        orders: Consumer<LaneOrder>,
        departures: Producer<Departure>,
    ) -> Lane {
        Lane {
            task,
            reader,
            policy,
            counters,
            orders,
            departures,
            threads: Vec::new(),
            seat: Seat::Waits,
            turn: None,
            raised: None,
            unsettled: None,
            look: Look::OnChange,
            fresh: false,
            lead: Lead::default(),
            ran_before: Nanos::ZERO,
            rotation: 0,
            changes: u64::MAX,
            news: true,
        }
    }

    /// Its task.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// What it sees with.
    pub fn reader(&mut self) -> &mut LaneReader {
        &mut self.reader
    }

    /// What turns on its core are made of, as far as was found.
    pub fn set_lead(&mut self, lead: Lead) {
        self.lead = lead;
    }

    /// The core that it has for itself.
    pub fn owned(&self) -> Option<CoreId> {
        match self.seat {
            Seat::Owns(core) => Some(core),
            Seat::Waits => None,
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

    /// Carries out the engine's orders.
    pub fn take_orders(&mut self) {
        while let Ok(order) = self.orders.pop() {
            match order {
                LaneOrder::Join(new) => self.join(new),
                LaneOrder::Remove(thread) => self.remove(&thread),
                LaneOrder::Sit(seat) => self.sit(seat),
                LaneOrder::Unsettle => self.unsettle(),
            }
        }
    }

    /// Takes a thread in.
    fn join(&mut self, new: NewThread) {
        let NewThread { member, slot, mut handle } = new;
        debug_assert_eq!(handle.shown(), PARKED, "threads join parked");
        if self.raised == Some(member) && handle.switch_to(RUNS).is_err() {
            // It is switched again, and a refusal judged, when rungs are looked at one by one.
            self.unsettled = Some(Nanos::ZERO);
        }
        let known = LaneThread::new(handle.thread(), slot);
        self.threads.push(Thread { known, member, handle });
        self.changed();
    }

    /// Forgets a thread that ended or was restored.
    fn remove(&mut self, thread: &ThreadRef) {
        self.threads.retain(|it| it.known.thread != *thread);
        self.changed();
    }

    fn changed(&mut self) {
        self.counters.has_threads(self.threads.len());
        // As no count is: states are read anew.
        self.changes = u64::MAX;
        self.news = true;
    }

    /// Rungs have to be looked at one by one: a thread became another program.
    fn unsettle(&mut self) {
        self.unsettled = Some(Nanos::ZERO);
    }

    /// Gets a core of its own, or loses it: its members then step down, and no time is waited for.
    fn sit(&mut self, seat: Seat) {
        self.seat = seat;
        self.news = true;
        if seat != Seat::Waits {
            return;
        }
        self.end_turn(clock::now());
        (self.look, self.fresh) = (Look::OnChange, false);
        if self.raised.take().is_some() {
            self.put(PARKED, |_| true);
        }
        debug_assert!(
            self.unsettled.is_some() || self.threads.iter().all(|it| it.handle.shown() == PARKED),
            "a member stays on the upper rung of a core that is not the lane's"
        );
    }

    /// Reads the states of its threads if any changed.
    pub fn refresh(&mut self) {
        let changes = self.reader.changes();
        if changes == self.changes {
            return;
        }
        self.news = true;
        self.changes = changes;
        for thread in &mut self.threads {
            if !self.reader.update(&mut thread.known) {
                // A writer that never leaves its slot is on a core that was stolen.
                self.unsettled = Some(clock::now() + AGAIN_AFTER);
            }
        }
    }

    /// Whether something changed since its policy was asked.
    pub fn has_news(&self) -> bool {
        self.news && self.owned().is_some()
    }

    /// Asks its policy, and does as it says. `due` is when it wanted to be asked, if it is asked by time.
    pub fn attend(&mut self, mut due: Option<Nanos>) {
        if self.unsettled.is_some_and(|at| at <= clock::now()) {
            self.settle();
            self.changes = u64::MAX;
            self.refresh();
        }
        for _ in 0..ROUNDS {
            self.news = false;
            if self.owned().is_none() {
                return;
            }
            let now = clock::now();
            let turn =
                self.policy.decide(&Seen { now, runnable: self.runnable(), turn: self.turn });
            self.look = turn.look;
            self.counters.looked();
            if turn.member == self.turn.map(|(member, _)| member) {
                return;
            }
            self.end_turn(now);
            let Some(next) = turn.member else { return };
            self.hand_over(next, now, due.take());
            self.refresh();
        }
    }

    fn end_turn(&mut self, now: Nanos) {
        if let Some((member, since)) = self.turn.take() {
            self.counters.ended(member, now.since(since));
        }
    }

    fn runnable(&self) -> Members {
        let mut runnable = Members::NONE;
        self.threads
            .iter()
            .filter(|it| it.known.runnable)
            .for_each(|it| runnable.insert(it.member));
        runnable
    }

    /// Gives the core to a member.
    fn hand_over(&mut self, next: Member, decided: Nanos, due: Option<Nanos>) {
        let before = self.raised.filter(|before| *before != next);
        if self.raised != Some(next) {
            self.raise(next);
            if let Some(before) = before {
                self.put(PARKED, |it| it.member == before);
            }
        }
        debug_assert!(self.turn.is_none(), "{next:?} begins, and a slice of another is not over");
        self.raised = Some(next);
        let now = clock::now();
        self.turn = Some((next, now));
        self.fresh = true;
        self.counters.began(next);
        if before.is_some() {
            self.counters.handed_over(now.since(decided), due.map(|due| now.since(due)));
        }
    }

    /// Puts each thread on the rung that is its own, the raised first.
    fn settle(&mut self) {
        let raised = self.raised;
        self.unsettled = None;
        self.put(RUNS, |it| Some(it.member) == raised);
        self.put(PARKED, |it| Some(it.member) != raised);
    }

    /// Raises a member's threads, another one first each time: those of one priority run in the order in which they
    /// came there.
    fn raise(&mut self, member: Member) {
        let count = self.threads.iter().filter(|it| it.member == member).count();
        self.rotation = self.rotation.wrapping_add(1);
        let first = self.rotation % count.max(1);
        for later in [true, false] {
            let mut nth = 0..;
            let meant =
                |it: &Thread| it.member == member && (nth.next().unwrap_or(0) >= first) == later;
            self.put(RUNS, meant);
            if first == 0 {
                break;
            }
        }
    }

    /// Puts those threads on a rung. Those that are the lane's no more leave it.
    fn put(&mut self, rung: usize, mut meant: impl FnMut(&Thread) -> bool) {
        let Lane { threads, counters, departures, unsettled, task, .. } = self;
        let mut left = false;
        for thread in threads.iter_mut().filter(|it| meant(it)) {
            let why = match thread.handle.switch_to(rung) {
                // The engine's order follows.
                Ok(_) | Err(ActError::Gone(_)) => continue,
                Err(ActError::Unguarded) => {
                    *unsettled = Some(clock::now() + AGAIN_AFTER);
                    counters.not_guarded();
                    continue;
                }
                // Restored already.
                Err(ActError::Revoked(_)) => None,
                Err(ActError::Raced { .. }) => Some("it changed its own scheduling"),
                Err(err) => {
                    tracing::warn!("{err}");
                    Some("the host refuses to change its scheduling")
                }
            };
            let of = thread.known.thread;
            // A full ring has the engine's read-back find it.
            let _ = why.map(|why| departures.push(Departure { task: *task, thread: of, why }));
            // Gone from the list below.
            (thread.member, left) = (GONE, true);
        }
        if left {
            self.threads.retain(|it| it.member != GONE);
            self.changed();
        }
    }

    /// Has the scheduler woken for what the lane waits for; what happened before it asked is news.
    pub fn ask_to_be_told(&self) {
        let owns = self.owned().is_some();
        self.reader.wake_on(owns, owns && self.look.on_wake());
    }

    /// A scheduler on the lane's own core is about to sleep: only now can the member run whose slice it is. It counts
    /// from here, or a slice that is shorter than a switch would be over before it began, and no member would ever run.
    /// Whether a slice begins with this.
    pub fn let_run(&mut self) -> bool {
        let Some((member, since)) = self.turn.filter(|_| std::mem::take(&mut self.fresh)) else {
            return false;
        };
        self.ran_before = self.ran(member);
        let begin = clock::now() + self.lead.time();
        let later = |at: Nanos| at + begin.since(since);
        self.turn = Some((member, begin));
        self.look = match self.look {
            Look::OnChange => Look::OnChange,
            Look::At(at) => Look::At(later(at)),
            Look::AtOrOnWake(at) => Look::AtOrOnWake(later(at)),
        };
        true
    }

    /// The slice of a lane whose scheduler was on its core is over, by time: what did its member have of it?
    pub fn learn(&mut self) {
        let Some((member, since)) = self.turn.filter(|_| !self.fresh) else { return };
        let had = self.ran(member).since(self.ran_before);
        if let Some(until) = self.look.at() {
            self.lead.learn(until.since(since), had);
        }
    }

    /// For how long a member's threads have run.
    fn ran(&self, member: Member) -> Nanos {
        let its = self.threads.iter().filter(|it| it.member == member);
        Nanos(its.map(|it| self.reader.ran(&it.known).0).sum())
    }

    /// Counts how late a look by time was.
    pub fn note_late(&self, by: Nanos) {
        self.counters.came_late(by);
    }
}

/// No member: lanes have fewer.
const GONE: Member = Member(u8::MAX);
