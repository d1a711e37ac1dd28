//! What a back end remembers of each thread.

use std::collections::HashMap;

use quell_model::{CoreSet, Nanos, Plan, Role, Rung, TaskId};

use super::engine::Failure;
use super::intent::rank;
use super::{ApplyReport, Host, Inspection, Pin, ThreadSettings};
use crate::{ActError, SchedAttr};
use quell_observe::{ThreadState, ThreadView};
use quell_os::{ThreadRef, Tid};

/// How often at most a thread that runs elsewhere is read back: observers may be late.
const STRAGGLER_PAUSE: Nanos = Nanos::from_millis(10);

/// A refusal and when to try again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    pub errno: i32,
    pub until: Nanos,
    pause: Nanos,
}

impl Backoff {
    const FIRST: Nanos = Nanos::from_millis(100);
    const LONGEST: Nanos = Nanos::from_secs(10);

    /// Waits twice as long as after the refusal before.
    pub fn after(before: Option<Backoff>, errno: i32, now: Nanos) -> Backoff {
        let pause = before.map_or(Backoff::FIRST, |b| Nanos(b.pause.0 * 2).min(Backoff::LONGEST));
        Backoff { errno, until: now + pause, pause }
    }
}

/// A change whose effect the next observation has to confirm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect {
    /// The thread's transitions as the decision saw them.
    pub transitions: u64,
    /// When the change was made.
    pub at: Nanos,
}

impl Effect {
    /// Whether the thread is known to have changed state between decision and effect. Of a thread that
    /// has moved on since only its last change is known, so this counts too few rather than too many.
    fn was_stale(&self, view: &ThreadView) -> bool {
        view.transitions != self.transitions && view.since <= self.at
    }
}

/// One thread.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub thread: ThreadRef,
    pub task: TaskId,
    /// It counts as LC if its task does.
    pub lc: bool,
    /// Its role in the last Plan.
    pub role: Role,
    /// Its rung for a moment, in the last Plan.
    pub relief: Option<Rung>,
    /// What the executor said that it would show without Quell; `None` until asked.
    pub original: Option<ThreadSettings>,
    /// What Quell wrote last, and still believes to hold.
    pub sched: Option<SchedAttr>,
    pub cores: Option<CoreSet>,
    /// The generation of its task's want that it was brought to; 0 for none.
    pub settled: u32,
    /// It is a kernel thread of a runtime, placed like this.
    pub pin: Option<Pin>,
    /// Changed by the task meanwhile, so left alone.
    pub keeps_sched: bool,
    pub keeps_cores: bool,
    /// Its own affinity has no core of its task's.
    pub stranded: bool,
    pub gone: bool,
    /// A core of its affinity came or went, upon which the kernel may have rewritten it.
    pub doubted: bool,
    /// It changed state between the last decision on it and the effect.
    pub stale: bool,
    /// When it was last read back.
    pub verified: Nanos,
    pub refused: Option<Backoff>,
    pub effect: Option<Effect>,
    epoch: u32,
}

impl Record {
    pub fn new(view: &ThreadView, epoch: u32) -> Record {
        Record {
            thread: view.thread,
            task: view.task,
            lc: view.lc,
            role: Role::Event,
            relief: None,
            original: None,
            sched: None,
            cores: None,
            settled: 0,
            pin: None,
            keeps_sched: false,
            keeps_cores: false,
            stranded: false,
            gone: false,
            doubted: false,
            stale: false,
            verified: Nanos::ZERO,
            refused: None,
            effect: None,
            epoch,
        }
    }

    /// Policy and priority as far as known.
    pub fn present_sched(&self, original: &ThreadSettings) -> SchedAttr {
        self.sched.unwrap_or(original.sched)
    }

    /// Affinity as far as known.
    pub fn present_cores(&self, original: &ThreadSettings) -> CoreSet {
        self.cores.unwrap_or(original.cores)
    }

    /// Takes an observation and the Plan for the thread in: whether the last decision on the thread had been stale.
    pub fn observe(&mut self, view: &ThreadView, plan: &Plan, report: &mut ApplyReport) {
        let planned = (view.task, view.lc, plan.role(view.id), plan.relief(view.id));
        if (self.task, self.lc, self.role, self.relief) != planned {
            (self.task, self.lc, self.role, self.relief) = planned;
            self.settled = 0;
        }
        self.stale = self.effect.take().is_some_and(|effect| effect.was_stale(view));
        report.stale += u32::from(self.stale);
    }

    /// Nothing is to be done about it now.
    pub fn is_at_rest(&self, generation: u32, now: Nanos) -> bool {
        match self.refused {
            _ if self.gone => true,
            Some(refused) => now < refused.until,
            None => self.settled == generation,
        }
    }

    /// It runs where its affinity, as far as known, has no core: something rewrote that.
    pub fn is_straggler(&self, view: &ThreadView, now: Nanos) -> bool {
        view.state == ThreadState::Running
            && !self.keeps_cores
            && self.cores.is_some_and(|cores| !cores.contains(view.core))
            && now.since(self.verified) >= STRAGGLER_PAUSE
    }

    /// Forgets all that was found and done: the thread is looked at anew.
    pub fn reset(&mut self) {
        (self.original, self.sched, self.cores) = (None, None, None);
        self.settled = 0;
        self.doubted = false;
    }

    /// It is as its task's want of this generation has it.
    pub fn settle(&mut self, generation: u32) {
        self.settled = generation;
        self.refused = None;
    }

    /// Remembers what was written. Returns the rank before.
    pub fn note_sched(&mut self, attr: SchedAttr) -> u16 {
        let before = self.sched.or(self.original.map(|original| original.sched));
        self.sched = Some(attr);
        before.map_or(0, |before| rank(&before))
    }

    /// Asks what the thread is like when it is seen for the first time.
    pub fn inspect(&mut self, host: &mut dyn Host) -> Result<(), ActError> {
        let Inspection { present, original } = host.inspect(&self.thread)?;
        self.sched = (present.sched != original.sched).then_some(present.sched);
        self.cores = (present.cores != original.cores).then_some(present.cores);
        self.original = Some(original);
        self.verified = host.now();
        Ok(())
    }

    /// The thread could not be read.
    pub fn note_failed_look(&mut self, error: &ActError, now: Nanos, report: &mut ApplyReport) {
        match Failure::of(error) {
            Failure::Gone => {
                self.gone = true;
                report.gone += 1;
            }
            Failure::Raced => report.raced += 1,
            Failure::Halted => report.halted = true,
            Failure::Refused(errno) => {
                self.refused = Some(Backoff::after(self.refused, errno, now));
                report.refused += 1;
            }
        }
    }
}

/// All records, found by position in the observation in the common case, by number otherwise.
#[derive(Debug, Default)]
pub(super) struct Records {
    slots: Vec<Option<Record>>,
    free: Vec<u32>,
    by_tid: HashMap<Tid, u32>,
    by_position: Vec<u32>,
    epoch: u32,
    seen: usize,
}

impl Records {
    /// Begins a pass over an observation of so many threads.
    pub fn begin(&mut self, threads: usize) {
        self.epoch = self.epoch.wrapping_add(1);
        self.seen = 0;
        if self.by_position.len() < threads {
            self.by_position.resize(threads, u32::MAX);
        }
    }

    /// The record of the thread at this position of the observation, made if it is new. Another
    /// thread under a known number takes the place of the old one.
    pub fn find(&mut self, position: usize, view: &ThreadView) -> u32 {
        self.seen += 1;
        let epoch = self.epoch;
        let guess = self.by_position[position];
        if let Some(Some(record)) = self.slots.get_mut(guess as usize)
            && record.thread == view.thread
        {
            record.epoch = epoch;
            return guess;
        }
        let at = match self.by_tid.get(&view.thread.tid) {
            Some(&at) => at,
            None => self.insert(view),
        };
        if let Some(record) = &mut self.slots[at as usize] {
            if record.thread != view.thread {
                *record = Record::new(view, epoch);
            }
            record.epoch = epoch;
        }
        self.by_position[position] = at;
        at
    }

    fn insert(&mut self, view: &ThreadView) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        debug_assert!(self.slots[at as usize].is_none(), "a record in use gets another thread");
        self.slots[at as usize] = Some(Record::new(view, self.epoch));
        let before = self.by_tid.insert(view.thread.tid, at);
        debug_assert_eq!(before, None, "thread {} has two records", view.thread.tid);
        at
    }

    /// Drops the records of threads that the observation no longer has, and adds them to `dropped`.
    pub fn end(&mut self, dropped: &mut Vec<ThreadRef>) {
        if self.seen == self.by_tid.len() {
            return;
        }
        let epoch = self.epoch;
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Some(record) = slot
                && record.epoch != epoch
            {
                dropped.push(record.thread);
                self.by_tid.remove(&record.thread.tid);
                self.free.push(at as u32);
                *slot = None;
            }
        }
        self.debug_check();
    }

    /// Each record is found by its tid, and each place is used or free.
    fn debug_check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let used = self.slots.iter().flatten().count();
        debug_assert_eq!(used, self.by_tid.len(), "records, and tids that lead to one");
        debug_assert_eq!(used + self.free.len(), self.slots.len(), "records and free places");
    }

    /// Whether no thread of this task has a record. For assertions: it reads all of them.
    pub fn has_none_of(&self, task: TaskId) -> bool {
        self.iter().all(|record| record.task != task)
    }

    /// A record by its place.
    pub fn get(&self, at: u32) -> Option<&Record> {
        self.slots.get(at as usize)?.as_ref()
    }

    /// A record by its place.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut Record> {
        self.slots.get_mut(at as usize)?.as_mut()
    }

    /// The record of the thread at this position of the last observation.
    pub fn at_position(&self, position: usize) -> Option<&Record> {
        self.get(*self.by_position.get(position)?)
    }

    /// The record of a thread.
    pub fn of(&self, thread: &ThreadRef) -> Option<&Record> {
        self.get(*self.by_tid.get(&thread.tid)?).filter(|record| record.thread == *thread)
    }

    /// Places of all records, empty ones included, for walking round.
    pub fn places(&self) -> u32 {
        self.slots.len() as u32
    }

    /// All records.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.slots.iter_mut().flatten()
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.slots.iter().flatten()
    }

    /// Places a thread as a kernel thread of a runtime, or like any other. False for a thread that is not known.
    pub fn pin(&mut self, thread: &ThreadRef, pin: Option<Pin>) -> bool {
        let Some(&at) = self.by_tid.get(&thread.tid) else { return false };
        let Some(record) = self.get_mut(at).filter(|record| record.thread == *thread) else {
            return false;
        };
        if record.pin != pin {
            record.pin = pin;
            record.settled = 0;
        }
        true
    }

    /// Forgets the threads of a task.
    pub fn forget(&mut self, task: TaskId) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Some(record) = slot
                && record.task == task
            {
                self.by_tid.remove(&record.thread.tid);
                self.free.push(at as u32);
                *slot = None;
            }
        }
        self.debug_check();
    }
}
