//! Roles of the threads of LC tasks: order follows bursts.
//!
//! A thread keeps the rung of its task while its bursts ([`Burst::weigh`]) are short. Three rules change that, and only for
//! single threads:
//!
//! - **Demotion.** A burst beyond the budget of the thread's role, while another LC thread or a kernel thread waits that
//!   the lower rung no longer holds up, costs the role at once. A burst that delays none costs nothing, however long it is.
//!   What a thread of the same task has to bear while a backlog is worked off, one of another task has not.
//! - **Promotion.** The first demotion ends with the burst that caused it. Each relapse doubles how many short bursts
//!   in a row earn the higher role back, and each second without a relapse halves that number.
//! - **Record.** A thread that has slept a few times only has none, and does not cost one that has its role.
//! - **Locks.** A thread that exceeds the budget of an event thread may spin until a background thread of its process
//!   releases a lock. If one waits, it goes before all for one budget.
//! - **Sleeps.** A thread may sleep until a background thread of its process wakes it (a lock, the end of a collector's
//!   pause). One that has ended such a sleep goes before all for a tenth of the time, while it waits behind LC threads
//!   and the other sleeps again.
//! - **A tenth for others.** Where LC threads above the fair class hold a core for more than nine tenths of a window,
//!   one with a long burst spends some milliseconds in the fair class: kernel threads and foreign threads of the core run.
//!   Before a kernel thread has waited for 100 ms, so do all, those with short bursts last ([`others`]).
//!   Likewise a guest goes before a demoted thread of the core's owner for at most a tenth of the time.
//!
//! A role that the operator gave a thread is left only for a boost and for the tenth of others.
//!
//! Tasks with a scheduler of their own (lanes, runtimes) have no roles.

mod boost;
mod others;
#[cfg(test)]
mod tests;

use quell_model::{
    Burst, BurstState, CORES_MAX, Class, CoreId, Nanos, Plan, Role, Rung, Snapshot, TaskId,
    TaskScheduler, ThreadId, ThreadPlan, Waiter,
};
use serde::{Deserialize, Serialize};

use others::Lowered;
pub use others::{
    FAIR_TIME, KERNEL_TIME, KERNEL_WAITS, KERNEL_WAITS_SHORT, RT_SHARE_HARD, RT_SHARE_MAX,
    RT_WINDOW,
};

use crate::BadState;
use crate::state::{ensure, put, take};

/// Threads below [`Role::Event`] that are remembered. At more, further threads keep their role.
pub const THREADS_MAX: usize = 4_096;

/// No further thread gets a role by the operator while so many are remembered: bursts need places, too.
pub const ASSIGNED_MAX: usize = THREADS_MAX / 2;

/// Relapses double the number of short bursts up to this: some seconds of the event rate of a busy worker.
pub const NEEDS_MAX: u32 = 1 << 14;

/// A long event thread needs no more than this: one whose bursts are mostly short is an event thread again within
/// milliseconds, one whose bursts are long half of the time practically never. Without this bound a worker with rare long
/// bursts would stay below helpers with short ones (Go's `sysmon`), which then preempt it at each wake-up.
pub const NEEDS_LONG_MAX: u32 = 16;

/// A relapse loses half of its weight in this time.
pub const FORGIVE_AFTER: Nanos = Nanos::from_secs(1);

/// A guest goes before a demoted thread of the core's owner for [`LEND_TIME`] in each [`LEND_PERIOD`], and so does a
/// background thread that ends sleeps before event threads.
pub const LEND_TIME: Nanos = Nanos::from_millis(1);

/// See [`LEND_TIME`].
pub const LEND_PERIOD: Nanos = Nanos::from_millis(10);

/// A thread that lost a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Demoted {
    planned: ThreadPlan,
    /// The operator gave it this role.
    assigned: Option<Role>,
    /// The role after [`Role::Fair`].
    earned: Role,
    /// The present role ends then, whatever the thread does.
    until: Option<Nanos>,
    /// It was promoted since the last demotion, so the next one is a relapse.
    promoted: bool,
    /// When `needs` is halved, and a thread that needs none is forgotten.
    forgive_at: Nanos,
    /// Guests of the core do not go before it until then.
    lends_from: Nanos,
    /// It began to wait on this core while a thread sleeps whose sleeps it ends: it is boosted now and then until then.
    ends_sleep: Option<(CoreId, Nanos)>,
    /// When it was boosted for that last.
    boosted_at: Nanos,
    /// It is in the fair class for a kernel thread of this core.
    for_kernel: Option<CoreId>,
}

/// Decides the roles of threads. Remembers only those that exceeded a budget.
#[derive(Debug, Default)]
pub struct Roles {
    /// Ordered by thread.
    demoted: Vec<Demoted>,
    /// When the next thread that ends sleeps may be boosted on a core. Cores of which that is past are left out.
    boosted: Vec<(CoreId, Nanos)>,
    /// Full cores that background threads left, each once.
    lowered: Vec<Lowered>,
}

impl Roles {
    /// Fills [`Plan::roles`]; `plan.tasks` is decided already. Returns when to look again.
    pub fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Nanos {
        self.demoted.retain(|thread| has_roles(seen, thread.planned.task));
        for burst in seen.bursts.iter().filter(|burst| has_roles(seen, burst.task)) {
            self.forget_if_of_other_task(burst);
            match burst.state {
                BurstState::Overran(waiter) => self.demote(now, burst, plan, waiter),
                BurstState::Proved => self.promote(now, burst),
                BurstState::EndsSleep => self.note_ends_sleep(burst, now),
                BurstState::Exited => self.forget(burst.thread),
                BurstState::Assigned(role) => self.assign(now, burst, role),
            }
        }
        let mut next = self.leave_core_to_others(now, seen);
        next = next.min(self.end_for_kernel(now, seen)).min(self.end_times(now));
        next = next.min(self.boost_wakers(now, seen, plan));
        plan.roles.clear();
        let listed = self.demoted.iter().filter(|thread| thread.planned.role != Role::Event);
        plan.roles.extend(listed.map(|thread| self.plan(thread, now, seen)));
        debug_assert!(plan.roles.is_sorted_by(|a, b| a.thread < b.thread), "roles out of order");
        next
    }

    /// A burst exceeded its budget while `waiter` waits; `None`: a kernel thread.
    fn demote(&mut self, now: Nanos, burst: &Burst, plan: &Plan, waiter: Option<Waiter>) {
        let role = self.role(burst.thread);
        let is_foreign = waiter.is_some_and(|waiter| waiter.task != burst.task);
        let length = if is_foreign { burst.whole } else { burst.length };
        let target = role_of(length);
        let Some(own) = rung_of(plan, burst.task) else { return };
        if role == Role::Boosted {
            return self.end_boost(burst.thread, now);
        }
        let lowered = own.of_role(target);
        let mut lends = false;
        let helps = match waiter {
            None => lowered == Rung::LcFair,
            Some(waiter) => {
                if self.favours_record(burst, waiter, now) {
                    return;
                }
                let waiter_role = self.role(waiter.thread);
                if waiter_role == Role::Background && target == Role::LongEvent && !is_foreign {
                    // One with a backlog does not wait for a lock.
                    if burst.is_one_stretch() {
                        self.boost(waiter, own, now);
                    }
                    return;
                }
                let Some(theirs) = rung_of(plan, waiter.task) else { return };
                let waiting = theirs.of_role(waiter_role);
                lends = own == Rung::Lc && theirs == Rung::LcOverflow && lowered > waiting;
                waiter_role != Role::Boosted && passes(lowered, waiting)
            }
        };
        let keeps = role == Role::Fair || self.is_assigned(burst.thread);
        if target <= role || keeps || !helps || (lends && self.lent(burst, now)) {
            return;
        }
        let Some(thread) = self.entry(burst.thread, burst.task, now) else { return };
        if std::mem::take(&mut thread.promoted) {
            thread.planned.needs = (thread.planned.needs * 2).clamp(1, NEEDS_MAX);
        }
        thread.forgive_at = now + FORGIVE_AFTER;
        let planned = &mut thread.planned;
        (planned.role, planned.since, planned.burst) = (target, now, length);
        if lends {
            thread.until = Some(now + LEND_TIME);
            thread.lends_from = now + LEND_PERIOD;
        }
    }

    /// Threads without a record do not cost one with a record its role, unless that one relapsed. Returns whether that keeps
    /// the runner's role. The other way round the waiting thread gets its role back: a server whose `fork` took long would
    /// share the core with the child that it made.
    fn favours_record(&mut self, burst: &Burst, waiter: Waiter, now: Nanos) -> bool {
        let relapsed = |roles: &Roles, thread: ThreadId| {
            roles.find(thread).is_ok_and(|index| roles.demoted[index].planned.needs > 0)
        };
        if burst.has_record && !waiter.has_record {
            return !relapsed(self, burst.thread);
        }
        if waiter.has_record
            && !burst.has_record
            && !relapsed(self, waiter.thread)
            && let Ok(index) = self.find(waiter.thread)
            && self.demoted[index].planned.role != Role::Fair
            && self.demoted[index].assigned.is_none()
        {
            self.demoted[index].become_role(Role::Event, now);
        }
        false
    }

    /// Whether a guest went before this thread in the present period.
    fn lent(&self, burst: &Burst, now: Nanos) -> bool {
        self.find(burst.thread).is_ok_and(|index| now < self.demoted[index].lends_from)
    }

    fn is_assigned(&self, thread: ThreadId) -> bool {
        self.find(thread).is_ok_and(|index| self.demoted[index].assigned.is_some())
    }

    /// The operator gave a thread a role, or took that back: then its bursts decide from here on.
    fn assign(&mut self, now: Nanos, burst: &Burst, role: Option<Role>) {
        let known = self.find(burst.thread).ok().and_then(|index| self.demoted[index].assigned);
        let full = known.is_none() && self.demoted.len() >= ASSIGNED_MAX;
        if known == role || full {
            return;
        }
        let Some(thread) = self.entry(burst.thread, burst.task, now) else { return };
        (thread.assigned, thread.promoted) = (role, false);
        thread.forgive_at = now + FORGIVE_AFTER;
        (thread.planned.needs, thread.planned.burst) = (0, Nanos::ZERO);
        if thread.planned.role != role.unwrap_or_default() {
            thread.become_role(role.unwrap_or_default(), now);
        }
    }

    /// Bursts were short again.
    fn promote(&mut self, now: Nanos, burst: &Burst) {
        let Ok(index) = self.find(burst.thread) else { return };
        let thread = &mut self.demoted[index];
        let role = match thread.planned.role {
            _ if thread.assigned.is_some() => return,
            // Its time in the fair class is for others, whatever it does.
            Role::Fair => return,
            _ if thread.planned.needs == 0 => Role::Event,
            role => role.above(),
        };
        thread.promoted = true;
        thread.become_role(role, now);
    }

    /// Ends what lasts for a fixed time, and forgives. Returns the next such end.
    fn end_times(&mut self, now: Nanos) -> Nanos {
        let is_forgotten = |thread: &Demoted| {
            let planned = &thread.planned;
            let is_event = planned.role == Role::Event && planned.needs == 0;
            is_event && thread.assigned.is_none() && thread.forgive_at <= now
        };
        self.demoted.retain(|thread| !is_forgotten(thread));
        let mut next = Nanos::MAX;
        for thread in &mut self.demoted {
            if thread.until.is_some_and(|until| until <= now) {
                let role = match (thread.planned.role, thread.assigned) {
                    (_, Some(role)) => role,
                    (Role::Fair, None) => thread.earned,
                    (Role::Boosted, None) => Role::Background,
                    _ => Role::LongEvent,
                };
                thread.become_role(role, now);
            }
            if thread.forgive_at <= now {
                thread.planned.needs /= 2;
                thread.forgive_at = now + FORGIVE_AFTER;
            }
            next = next.min(thread.until.unwrap_or(Nanos::MAX));
            if thread.planned.needs > 0 {
                next = next.min(thread.forgive_at);
            }
        }
        next
    }

    /// What the Plan says of a thread.
    fn plan(&self, thread: &Demoted, now: Nanos, seen: &Snapshot) -> ThreadPlan {
        let mut planned = thread.plan();
        if planned.role == Role::Background && self.is_lowered(planned.task, now, seen) {
            planned.role = Role::Fair;
        }
        planned
    }

    fn find(&self, thread: ThreadId) -> Result<usize, usize> {
        self.demoted.binary_search_by_key(&thread, |known| known.planned.thread)
    }

    fn role(&self, thread: ThreadId) -> Role {
        self.find(thread).map_or(Role::Event, |index| self.demoted[index].planned.role)
    }

    /// The entry of a thread, made if there is none; `None` if the table is full.
    fn entry(&mut self, thread: ThreadId, task: TaskId, now: Nanos) -> Option<&mut Demoted> {
        let index = match self.find(thread) {
            Ok(index) => index,
            Err(_) if self.demoted.len() >= THREADS_MAX => return None,
            Err(index) => {
                self.demoted.insert(index, Demoted::new(thread, task, now));
                index
            }
        };
        Some(&mut self.demoted[index])
    }

    fn forget(&mut self, thread: ThreadId) {
        if let Ok(index) = self.find(thread) {
            self.demoted.remove(index);
        }
    }

    /// A thread may be given to another task.
    fn forget_if_of_other_task(&mut self, burst: &Burst) {
        if let Ok(index) = self.find(burst.thread)
            && self.demoted[index].planned.task != burst.task
        {
            self.demoted.remove(index);
        }
    }

    /// As [`crate::Policy::save`].
    pub fn save(&self, state: &mut Vec<u8>) {
        put(&self.demoted, state);
        put(&self.boosted, state);
        put(&self.lowered, state);
    }

    /// As [`crate::Policy::restore`].
    ///
    /// # Errors
    /// When the bytes are not such a table.
    pub fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let demoted: Vec<Demoted> = take(state)?;
        ensure(demoted.len() <= THREADS_MAX, "more demoted threads than are remembered")?;
        let ordered = demoted.is_sorted_by(|a, b| a.planned.thread < b.planned.thread);
        ensure(ordered, "demoted threads out of order")?;
        let bounded = demoted.iter().all(|thread| thread.planned.needs <= NEEDS_MAX);
        ensure(bounded, "a thread that needs more short bursts than any")?;
        let boosted = take(state)?;
        let lowered: Vec<Lowered> = take(state)?;
        ensure(lowered.len() <= CORES_MAX, "more full cores than any host has")?;
        (self.demoted, self.boosted, self.lowered) = (demoted, boosted, lowered);
        Ok(())
    }
}

impl Demoted {
    fn new(thread: ThreadId, task: TaskId, now: Nanos) -> Demoted {
        Demoted {
            planned: ThreadPlan {
                thread,
                task,
                role: Role::Event,
                since: now,
                burst: Nanos::ZERO,
                needs: 0,
            },
            assigned: None,
            earned: Role::Event,
            until: None,
            promoted: false,
            forgive_at: now + FORGIVE_AFTER,
            lends_from: Nanos::ZERO,
            ends_sleep: None,
            boosted_at: Nanos::ZERO,
            for_kernel: None,
        }
    }

    fn plan(&self) -> ThreadPlan {
        let needs = match (self.assigned, self.planned.role) {
            (Some(_), _) => ThreadPlan::ASSIGNED,
            (None, Role::LongEvent) => self.planned.needs.min(NEEDS_LONG_MAX),
            _ => self.planned.needs,
        };
        ThreadPlan { needs, ..self.planned }
    }

    fn become_role(&mut self, role: Role, now: Nanos) {
        (self.planned.role, self.planned.since, self.until) = (role, now, None);
        self.for_kernel = None;
        if matches!(role, Role::Event | Role::LongEvent) {
            self.ends_sleep = None;
        }
    }
}

/// Whether a thread on the lowered rung no longer holds up one that waits on the other: among equals the kernel shares the
/// core in the fair class; above it a lowered thread stays ahead of them.
fn passes(lowered: Rung, waiting: Rung) -> bool {
    lowered > waiting || (lowered == waiting && lowered == Rung::LcFair)
}

/// The highest role whose budget a burst of this length keeps.
fn role_of(length: Nanos) -> Role {
    let keeps = |role: &Role| role.budget().is_none_or(|budget| length < budget);
    Role::ALL.into_iter().find(keeps).unwrap_or(Role::Background)
}

/// The rung of an LC task in this Plan.
fn rung_of(plan: &Plan, task: TaskId) -> Option<Rung> {
    let planned = plan.tasks.get(task.at()).filter(|planned| planned.id == task)?;
    (planned.class == Class::LatencyCritical).then_some(planned.rung)
}

/// Whether the kernel orders the threads of this task, and it is LC and alive.
fn has_roles(seen: &Snapshot, task: TaskId) -> bool {
    seen.tasks.get(task.at()).is_some_and(|view| {
        view.id == task
            && view.alive
            && view.limits.class == Class::LatencyCritical
            && view.limits.scheduler == TaskScheduler::Kernel
    })
}
