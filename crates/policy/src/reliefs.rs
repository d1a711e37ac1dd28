//! Reliefs: what LC threads wait for inside the kernel is released soon.
//!
//! Priority by rung cannot help an LC thread that sleeps for something a BE thread holds, while the BE thread
//! waits for its core. Two rules let that thread go first, for a bounded time each:
//!
//! - **Locks.** The kernel names the owner of a mutex or semaphore. The owner goes before the threads of the waiting
//!   thread's rung until that one is woken, for [`LOCK_TIME`] at most. The waiting thread is one rung higher meanwhile, so
//!   that it preempts the owner as that one releases the lock, and not only once it is lowered: batch work that takes
//!   the lock again and again would own it again by then.
//! - **Starvation.** Journals, semaphores held by readers and RCU name no owner. While an LC thread sleeps uninterruptibly
//!   for longer than [`STARVED_AFTER`], BE threads that have waited inside the kernel for as long run for [`STARVED_TIME`],
//!   one after the other and no more than a fiftieth of a core's time. Those in the middle of a file system's transaction come
//!   sooner, after [`TRANSACTION_AFTER`], and some of them one behind the other, in a fiftieth of their own: a service that
//!   writes waits for all of them.
//!
//! Source: priority inheritance (Sha, Rajkumar, Lehoczky, 1990), for locks that have none; `perf lock contention` for the owners.

#[cfg(test)]
mod tests;

use quell_model::{
    Class, CoreId, InKernel, KernelStop, LockState, LockWait, Nanos, Plan, Relief, ReliefCause,
    Rung, Snapshot, TaskId, ThreadId,
};
use serde::{Deserialize, Serialize};

use crate::BadState;
use crate::state::{ensure, put, take};

/// Longest relief for a lock.
pub const LOCK_TIME: Nanos = Nanos::from_millis(1);

/// How long an LC thread sleeps and a BE thread waits inside the kernel before the BE thread may hold up the LC thread:
/// longer than most accesses to a disk.
pub const STARVED_AFTER: Nanos = Nanos::from_millis(5);

/// The same for a BE thread in the middle of a transaction: longer than most of them last.
pub const TRANSACTION_AFTER: Nanos = Nanos::from_millis(1);

/// So much of a core's time threads in transactions may have ahead of their share: ten reliefs.
pub const TRANSACTION_AHEAD: Nanos = Nanos(10 * STARVED_TIME.0);

/// Relief of a BE thread that starves inside the kernel.
pub const STARVED_TIME: Nanos = Nanos(500_000);

/// Such reliefs have one in so many parts of a core's time.
pub const STARVED_SHARE: u64 = 50;

/// Reliefs at once. With more locks contended at once than this, some owners wait.
pub const RELIEFS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Active {
    relief: Relief,
    until: Nanos,
    /// Of a thread that starved: its core, and how it was stopped.
    core: Option<(CoreId, KernelStop)>,
}

/// Decides on reliefs.
#[derive(Debug, Default)]
pub struct Reliefs {
    /// Ordered by thread.
    active: Vec<Active>,
    /// When the next thread that is stopped so may be relieved on a core. Those of which that is past are left out.
    spared: Vec<((CoreId, KernelStop), Nanos)>,
}

impl Reliefs {
    /// Fills [`Plan::reliefs`]; `plan.tasks` is decided already. Returns when to look again.
    pub fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Nanos {
        self.end_reliefs(now, seen);
        for wait in &seen.locks {
            self.take_lock(now, wait, seen, plan);
        }
        let looks = self.relieve_starved(now, seen);
        plan.reliefs.clear();
        plan.reliefs.extend(self.active.iter().map(|active| active.relief));
        debug_assert!(plan.reliefs.is_sorted_by(|a, b| a.thread < b.thread), "reliefs in disorder");
        self.active.iter().map(|active| active.until).min().unwrap_or(Nanos::MAX).min(looks)
    }

    /// Ends what is over. A relief that ended late, since nobody looked sooner, spares its core for longer.
    fn end_reliefs(&mut self, now: Nanos, seen: &Snapshot) {
        let Reliefs { active, spared } = self;
        active.retain(|active| {
            let goes_on = now < active.until && is_alive(seen, active.relief.task);
            if let (false, Some(core)) = (goes_on, active.core) {
                let since = active.relief.since;
                let time = Nanos(STARVED_SHARE * now.since(since).max(STARVED_TIME).0);
                match spared.iter_mut().find(|(known, _)| *known == core) {
                    Some((_, until)) => *until = since.max(*until) + time,
                    None => spared.push((core, since + time)),
                }
            }
            goes_on
        });
        spared.retain(|(_, until)| now < *until);
    }

    fn take_lock(&mut self, now: Nanos, wait: &LockWait, seen: &Snapshot, plan: &Plan) {
        let cause = ReliefCause::Lock(wait.waiter);
        match wait.state {
            LockState::Released => self.active.retain(|active| active.relief.cause != cause),
            LockState::Owned { owner, task } => {
                // Within a task the observer tells only of threads with a lower role.
                let is_below = task == wait.task
                    || rung(plan, owner, task) > rung(plan, wait.waiter, wait.task);
                let passes = is_below && is_alive(seen, task);
                let rungs = ahead_of(plan, wait.task).filter(|_| passes);
                let Some([first, second]) = rungs else { return };
                let both = [(wait.waiter, wait.task, first), (owner, task, second)];
                for (thread, task, rung) in both {
                    let relief = Relief { thread, task, rung, since: now, cause };
                    self.add(Active { relief, until: now + LOCK_TIME, core: None });
                }
            }
        }
    }

    /// Returns when the next thread will have starved.
    fn relieve_starved(&mut self, now: Nanos, seen: &Snapshot) -> Nanos {
        let of = |stop| seen.in_kernel.iter().filter(move |stopped| stopped.stop == stop);
        let Some(sleeper) = of(KernelStop::Sleeps).map(|stopped| stopped.since).min() else {
            return Nanos::MAX;
        };
        // A thread that runs now may wait by then, without an event.
        let mut next = if sleeper + STARVED_AFTER > now { sleeper } else { now } + STARVED_AFTER;
        let kinds = [
            (KernelStop::InTransaction, TRANSACTION_AFTER, STARVED_SHARE * TRANSACTION_AHEAD.0),
            (KernelStop::Waits, STARVED_AFTER, 0),
        ];
        for (stop, after, ahead) in kinds {
            for waiting in of(stop).filter(|waiting| is_alive(seen, waiting.task)) {
                let starved = waiting.since.max(sleeper) + after;
                let has_relief =
                    |active: &Active| active.core.is_some_and(|(core, _)| core == waiting.core);
                if self.active.iter().any(has_relief) {
                    continue;
                }
                let spared = self.spared.iter().find(|(known, _)| *known == (waiting.core, stop));
                let spared = spared.map_or(0, |(_, until)| until.0.saturating_sub(ahead));
                let due = starved.max(Nanos(spared));
                match due <= now {
                    true => self.relieve(now, waiting),
                    false => next = next.min(due),
                }
            }
        }
        next
    }

    fn relieve(&mut self, now: Nanos, waiting: &InKernel) {
        let InKernel { thread, task, core, stop, .. } = *waiting;
        let cause = ReliefCause::Starved;
        let relief = Relief { thread, task, rung: Rung::LcBoosted, since: now, cause };
        self.add(Active { relief, until: now + STARVED_TIME, core: Some((core, stop)) });
    }

    /// Of two reliefs of one thread the later counts, on the higher rung.
    fn add(&mut self, mut added: Active) {
        match self.active.binary_search_by_key(&added.relief.thread, |active| active.relief.thread)
        {
            Ok(index) => {
                let known = self.active[index];
                added.relief.rung = added.relief.rung.min(known.relief.rung);
                added.until = added.until.max(known.until);
                self.active[index] = added;
            }
            Err(_) if self.active.len() >= RELIEFS_MAX => {}
            Err(index) => self.active.insert(index, added),
        }
    }

    /// As [`crate::Policy::save`].
    pub fn save(&self, state: &mut Vec<u8>) {
        put(&self.active, state);
        put(&self.spared, state);
    }

    /// As [`crate::Policy::restore`].
    ///
    /// # Errors
    /// When the bytes are not such tables.
    pub fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let active: Vec<Active> = take(state)?;
        ensure(active.len() <= RELIEFS_MAX, "more reliefs than there are at once")?;
        let ordered = active.is_sorted_by(|a, b| a.relief.thread < b.relief.thread);
        ensure(ordered, "reliefs out of order")?;
        self.spared = take(state)?;
        self.active = active;
        Ok(())
    }
}

/// The rungs of the waiting thread of this LC task and of the lock's owner meanwhile, both before the task's other threads:
/// an equal would queue behind those that run. A guest's lock does not stop event threads of the core's owner.
fn ahead_of(plan: &Plan, task: TaskId) -> Option<[Rung; 2]> {
    let planned = plan.tasks.get(task.at()).filter(|planned| planned.id == task)?;
    match planned.rung {
        _ if planned.class != Class::LatencyCritical => None,
        Rung::Lc => Some([Rung::LcReleased, Rung::LcBoosted]),
        Rung::LcOverflow => Some([Rung::Lc, Rung::LcLong]),
        _ => None,
    }
}

/// The rung of a thread by its task and role.
fn rung(plan: &Plan, thread: ThreadId, task: TaskId) -> Rung {
    let planned = plan.tasks.get(task.at()).filter(|planned| planned.id == task);
    planned.map_or(Rung::SchedIdle, |planned| planned.rung.of_role(plan.role(thread)))
}

fn is_alive(seen: &Snapshot, task: TaskId) -> bool {
    seen.tasks.get(task.at()).is_some_and(|view| view.id == task && view.alive)
}
