//! The watched threads as last read, and what they add up to.
//!
//! The slots that changed are named by the dirty bitmap; only those are copied. Each tick then walks the
//! threads that are awake, so that its cost follows what happens and not how many threads are watched.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_model::{
    Absence, Burst, BurstState, CoreId, Nanos, RECORD_TRANSITIONS, Role, Signal, Snapshot, TaskId,
    ThreadId, Waiter,
};

use super::abi::{RUNNING, SLEEPING, Slot, SlotCopy, WAITING};
use super::lane::SlotPlace;
use super::shared::take_marks;
use crate::{ThreadState, ThreadView};
use quell_os::ThreadRef;

/// The position of a slot without a view.
const NONE: u32 = u32::MAX;

/// What a view needs beside what everybody may see.
#[derive(Clone, Copy)]
struct Private {
    slot: u32,
    used: u32,
    /// Totals up to `since`; the view adds the stretch in progress.
    ran: Nanos,
    waited: Nanos,
    /// It ran since it woke up.
    has_run: bool,
    /// `ran` when its burst began.
    burst_ran: Nanos,
    /// `ran` at its last input in this burst.
    input_ran: Nanos,
    role: Role,
    /// A process of an LC task that is treated as BE: not one of the task's threads.
    guest: bool,
    /// It is stopped in the middle of a transaction of a file system.
    in_transaction: bool,
}

/// A task as it was at the last tick, to tell what crossed a threshold.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Before {
    congested: bool,
    runnable: bool,
    members: u32,
}

/// The watched threads.
pub(super) struct Views {
    views: Vec<ThreadView>,
    private: Vec<Private>,
    /// Where a slot's view is.
    at: Vec<u32>,
    /// One bit for each slot whose thread does not sleep.
    awake: Vec<u64>,
    /// One bit for each slot whose thread waits or sleeps inside the kernel.
    in_kernel: Vec<u64>,
    /// Threads by task place, guests not counted.
    members: Vec<u32>,
    before: Vec<Before>,
    /// Threads whose number or start time changed when they replaced their program.
    renamed: Vec<ThreadRef>,
    /// LC threads that exited or left their task, and that task.
    exited: Vec<(ThreadId, TaskId)>,
    /// The word of `awake` where the last look at long waits ended.
    asked: usize,
    /// Where the next look at long sleeps begins.
    asked_asleep: usize,
    /// Reads that were tried again because a writer was at it, and those given up.
    pub retries: u64,
    pub torn: u64,
}

impl Views {
    pub fn new(slots: usize, tasks: usize) -> Views {
        Views {
            views: Vec::with_capacity(slots.min(1024)),
            private: Vec::with_capacity(slots.min(1024)),
            at: vec![NONE; slots],
            awake: vec![0; slots.div_ceil(64)],
            in_kernel: vec![0; slots.div_ceil(64)],
            members: vec![0; tasks],
            before: vec![Before::default(); tasks],
            renamed: Vec::new(),
            exited: Vec::new(),
            asked: 0,
            asked_asleep: 0,
            retries: 0,
            torn: 0,
        }
    }

    /// Where the thread at this position of [`Views::all`] has its slot.
    pub fn place(&self, position: usize) -> Option<SlotPlace> {
        let private = self.private.get(position)?;
        Some(SlotPlace { slot: private.slot, used: private.used })
    }

    pub fn all(&self) -> &[ThreadView] {
        &self.views
    }

    /// The identities that threads had before they replaced their program, since the last call.
    pub fn take_renamed(&mut self) -> Option<ThreadRef> {
        self.renamed.pop()
    }

    /// Copies the slots that changed since the last call.
    pub fn refresh(&mut self, dirty: &[AtomicU64], slots: &[Slot]) {
        for (at, word) in dirty.iter().enumerate() {
            let mut bits = take_marks(word);
            while bits != 0 {
                let slot = at * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let (copy, retries) = slots[slot].read();
                self.retries += u64::from(retries);
                match copy {
                    Some(copy) => self.update(slot as u32, &copy),
                    None => {
                        // Looked at again next time.
                        self.torn += 1;
                        word.fetch_or(1 << (slot % 64), Ordering::Relaxed);
                    }
                }
            }
        }
    }

    fn update(&mut self, slot: u32, copy: &SlotCopy) {
        let known = self.at[slot as usize];
        if known != NONE && self.private[known as usize].used != copy.used {
            self.remove(slot);
        }
        let Some(thread) = copy.thread else {
            self.remove(slot);
            return;
        };
        let view = view(slot, thread, copy);
        let private = Private {
            slot,
            used: copy.used,
            ran: copy.ran,
            waited: copy.waited,
            has_run: !copy.woken,
            burst_ran: copy.burst_ran,
            input_ran: copy.input_ran,
            role: Role::ALL.get(usize::from(copy.role)).copied().unwrap_or_default(),
            guest: copy.guest,
            in_transaction: copy.in_transaction,
        };
        match self.at[slot as usize] {
            NONE => {
                self.at[slot as usize] = self.views.len() as u32;
                self.views.push(view);
                self.private.push(private);
                self.count(view.task, private.guest, 1);
            }
            at => {
                let at = at as usize;
                let (old, old_private) = (self.views[at], self.private[at]);
                if old.thread != thread {
                    self.renamed.push(old.thread);
                }
                if old.lc && (old.task != view.task || !view.lc) {
                    // It begins anew there.
                    self.exited.push((old.id, old.task));
                }
                if (old.task, old_private.guest) != (view.task, private.guest) {
                    self.count(old.task, old_private.guest, -1);
                    self.count(view.task, private.guest, 1);
                }
                self.views[at] = view;
                self.private[at] = private;
            }
        }
        let bit = 1 << (slot % 64);
        match view.state {
            ThreadState::Running | ThreadState::Waiting => self.awake[slot as usize / 64] |= bit,
            ThreadState::Sleeping | ThreadState::Unknown => self.awake[slot as usize / 64] &= !bit,
        }
        match copy.in_kernel {
            true => self.in_kernel[slot as usize / 64] |= bit,
            false => self.in_kernel[slot as usize / 64] &= !bit,
        }
    }

    fn remove(&mut self, slot: u32) {
        let at = std::mem::replace(&mut self.at[slot as usize], NONE);
        if at == NONE {
            return;
        }
        self.awake[slot as usize / 64] &= !(1 << (slot % 64));
        self.in_kernel[slot as usize / 64] &= !(1 << (slot % 64));
        let view = self.views.swap_remove(at as usize);
        let private = self.private.swap_remove(at as usize);
        self.count(view.task, private.guest, -1);
        if view.lc {
            self.exited.push((view.id, view.task));
        }
        if let Some(moved) = self.private.get(at as usize) {
            self.at[moved.slot as usize] = at;
        }
    }

    fn count(&mut self, task: TaskId, guest: bool, change: i32) {
        if let Some(members) = self.members.get_mut(task.at()).filter(|_| !guest) {
            *members = members.saturating_add_signed(change);
        }
    }

    /// Threads that wait since before then: about `most` of them, and others with the next call.
    pub fn waiting_since_before(&mut self, then: Nanos, most: usize) -> Vec<ThreadRef> {
        let mut found = Vec::new();
        let words = self.awake.len();
        for _ in 0..words {
            self.asked = (self.asked + 1) % words;
            let mut bits = self.awake[self.asked];
            while bits != 0 {
                let slot = self.asked * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let view = &self.views[self.at[slot] as usize];
                if view.state == ThreadState::Waiting && view.since < then {
                    found.push(view.thread);
                }
            }
            if found.len() >= most {
                break;
            }
        }
        found.truncate(most);
        found
    }

    /// Threads that sleep since before then, of the next so many: others with the next call.
    pub fn sleeping_since_before(
        &mut self,
        then: Nanos,
        most: usize,
    ) -> impl Iterator<Item = ThreadRef> {
        let from = if self.asked_asleep < self.views.len() { self.asked_asleep } else { 0 };
        let to = self.views.len().min(from + most);
        self.asked_asleep = to;
        let sleeps =
            move |view: &&ThreadView| view.state == ThreadState::Sleeping && view.since < then;
        self.views[from..to].iter().filter(sleeps).map(|view| view.thread)
    }

    /// Fills in the observed fields of the Snapshot's tasks. Returns whether any thread waits.
    pub fn summarise(&mut self, now: Nanos, seen: &mut Snapshot) -> bool {
        for (at, task) in seen.tasks.iter_mut().enumerate() {
            (task.running, task.waiting) = (0, 0);
            task.sleeping = self.members.get(at).copied().filter(|_| task.alive).unwrap_or(0);
            task.running_on = quell_model::CoreSet::EMPTY;
            task.queueing_delay = Signal::Absent(Absence::NotApplicable);
            task.longest_run = Signal::Absent(Absence::NotApplicable);
        }
        let mut waits = false;
        for (word, &bits) in self.awake.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let at = self.at[slot] as usize;
                let (view, private) = (&mut self.views[at], &self.private[at]);
                let stretch = now.since(view.since);
                waits |= view.state == ThreadState::Waiting;
                match view.state {
                    ThreadState::Running => {
                        view.ran = private.ran + stretch;
                        view.burst_whole = view.ran.since(private.burst_ran);
                        let stretch = view.ran.since(private.input_ran);
                        view.burst = Burst::weigh(view.burst_whole, stretch);
                    }
                    _ => view.waited = private.waited + stretch,
                }
                let task = seen.tasks.get_mut(view.task.at());
                let Some(task) = task.filter(|task| task.alive && task.id == view.task) else {
                    continue;
                };
                if private.guest {
                    continue;
                }
                task.sleeping = task.sleeping.saturating_sub(1);
                if view.state == ThreadState::Running {
                    task.running += 1;
                    task.running_on.insert(view.core);
                } else {
                    task.waiting += 1;
                    task.queueing_delay = longer(task.queueing_delay, stretch);
                }
                if private.has_run {
                    task.longest_run = longer(task.longest_run, now.since(view.awake_since));
                }
            }
        }
        self.tell_crossings(seen);
        waits
    }

    /// The thread of this slot, unless the slot was reused.
    pub fn view_of(&self, thread: ThreadId) -> Option<&ThreadView> {
        let index = *self.at.get(thread.index as usize)?;
        self.views.get(index as usize).filter(|view| view.id == thread)
    }

    /// The burst of a thread that was seen to exceed its budget, if it still runs and an LC thread waits for its core: the
    /// one with the highest role, of those one of the same process, of those the one that waits longest. Else a kernel
    /// thread may wait there. A burst that is long as a whole only is one for other tasks. `length` is what it was found to
    /// be then: the thread may have received something since.
    pub fn overrun(
        &self,
        thread: ThreadId,
        length: Nanos,
        kthread_waits: impl Fn(CoreId) -> bool,
    ) -> Option<Burst> {
        let view = self.view_of(thread).filter(|view| view.state == ThreadState::Running)?;
        let waits = |index: &usize| {
            let (other, private) = (&self.views[*index], &self.private[*index]);
            other.state == ThreadState::Waiting
                && other.lc
                && !private.guest
                && other.core == view.core
        };
        let is_foreign = |index: usize| self.views[index].thread.tgid != view.thread.tgid;
        let seen = burst(view);
        // Of an earlier burst it says nothing.
        let length = if length <= seen.whole { seen.length.max(length) } else { seen.length };
        let budget = self.role_of(thread).and_then(Role::budget);
        let is_backlog = budget.is_some_and(|budget| length < budget);
        let counts = |index: &usize| !is_backlog || self.views[*index].task != view.task;
        let first = self.awake().filter(waits).filter(counts).min_by_key(|index| {
            (self.private[*index].role, is_foreign(*index), self.views[*index].since)
        });
        let waiter = first.map(|index| Waiter {
            thread: self.views[index].id,
            task: self.views[index].task,
            same_process: !is_foreign(index),
            has_record: has_record(&self.views[index]),
        });
        let waited_for = waiter.is_some() || kthread_waits(view.core);
        waited_for.then_some(Burst { state: BurstState::Overran(waiter), length, ..seen })
    }

    /// The present burst of a thread, with another state than an overrun.
    pub fn burst_of(&self, thread: ThreadId, state: BurstState) -> Option<Burst> {
        self.view_of(thread).map(|view| Burst { state, ..burst(view) })
    }

    /// The burst of a thread that began to wait while one whose sleeps it ends sleeps, if it still waits.
    pub fn ends_sleep(&self, thread: ThreadId) -> Option<Burst> {
        let view = self.view_of(thread).filter(|view| view.state == ThreadState::Waiting)?;
        Some(Burst { state: BurstState::EndsSleep, ..burst(view) })
    }

    /// The role of a thread, as last read.
    pub fn role_of(&self, thread: ThreadId) -> Option<Role> {
        let index = *self.at.get(thread.index as usize)?;
        self.views.get(index as usize).filter(|view| view.id == thread)?;
        Some(self.private[index as usize].role)
    }

    /// Whether a thread that is stopped inside the kernel is in the middle of a transaction of a file system.
    pub fn is_in_transaction(&self, thread: ThreadId) -> bool {
        let index = self.at.get(thread.index as usize).copied().unwrap_or(NONE) as usize;
        let is_it = self.views.get(index).is_some_and(|view| view.id == thread);
        is_it && self.private.get(index).is_some_and(|private| private.in_transaction)
    }

    /// A thread is gone, or not of this task any more.
    pub fn note_exit(&mut self, thread: ThreadId, task: TaskId) {
        self.exited.push((thread, task));
    }

    /// LC threads that exited or left their task since the last call.
    pub fn drain_exited(&mut self) -> impl Iterator<Item = Burst> + '_ {
        self.exited.drain(..).map(|(thread, task)| Burst {
            thread,
            task,
            core: CoreId(0),
            length: Nanos::ZERO,
            whole: Nanos::ZERO,
            has_record: false,
            state: BurstState::Exited,
        })
    }

    /// Threads that wait or sleep inside the kernel.
    pub fn in_kernel(&self) -> impl Iterator<Item = &ThreadView> {
        self.positions(&self.in_kernel).map(|index| &self.views[index])
    }

    /// Positions of threads that do not sleep.
    fn awake(&self) -> impl Iterator<Item = usize> + '_ {
        self.positions(&self.awake)
    }

    /// Positions of the threads whose slots have a bit in this set.
    fn positions<'a>(&'a self, set: &'a [u64]) -> impl Iterator<Item = usize> + 'a {
        set.iter().enumerate().flat_map(move |(word, &bits)| {
            let mut bits = bits;
            std::iter::from_fn(move || {
                let slot = (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(self.at[slot] as usize)
            })
        })
    }

    fn tell_crossings(&mut self, seen: &mut Snapshot) {
        for (at, task) in seen.tasks.iter().enumerate() {
            let Some(before) = self.before.get_mut(at) else { break };
            let after = Before {
                congested: task.is_congested(),
                runnable: task.runnable() > 0,
                members: self.members[at],
            };
            if after != *before && task.alive && !seen.dirty.contains(&(at as u32)) {
                seen.dirty.push(at as u32);
            }
            *before = after;
        }
    }
}

fn longer(known: Signal<Nanos>, found: Nanos) -> Signal<Nanos> {
    Signal::Measured(known.value().map_or(found, |known| known.max(found)))
}

fn burst(view: &ThreadView) -> Burst {
    Burst {
        thread: view.id,
        task: view.task,
        core: view.core,
        length: view.burst,
        whole: view.burst_whole,
        has_record: has_record(view),
        state: BurstState::Proved,
    }
}

fn has_record(view: &ThreadView) -> bool {
    view.transitions >= RECORD_TRANSITIONS
}

fn view(slot: u32, thread: ThreadRef, copy: &SlotCopy) -> ThreadView {
    let stretch = copy.ran.since(copy.input_ran).max(copy.stretch_max);
    let burst_whole = copy.ran.since(copy.burst_ran);
    ThreadView {
        id: ThreadId { index: slot, generation: copy.used },
        thread,
        task: TaskId { index: copy.task, generation: copy.generation },
        lc: copy.lc,
        member: copy.member,
        state: match copy.state {
            RUNNING => ThreadState::Running,
            WAITING => ThreadState::Waiting,
            SLEEPING => ThreadState::Sleeping,
            _ => ThreadState::Unknown,
        },
        since: copy.since,
        awake_since: copy.awake_since,
        core: CoreId(copy.core as u16),
        ran: copy.ran,
        waited: copy.waited,
        burst: Burst::weigh(burst_whole, stretch),
        burst_whole,
        transitions: copy.transitions,
    }
}
