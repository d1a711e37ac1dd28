//! Roles of threads, from the Plan to the observer: BPF reports bursts by the role of each thread.

use std::cmp::Ordering;

use quell_model::{
    Burst, BurstState, CoreId, Nanos, ReliefCause, Role, TaskId, ThreadId, ThreadPlan,
};
use quell_os::ThreadRef;

use super::Engine;

/// How often the roles of the Plan are compared with those of the observer, which loses one where a write was refused or
/// a thread was watched anew.
const COMPARE: Nanos = Nanos::from_millis(100);

impl Engine {
    /// Tells the observer which roles changed with this Plan.
    pub(super) fn note_roles(&mut self) {
        let observer = self.parts.sight.observer();
        let mut ended = false;
        changed(&self.last_plan.roles, &self.plan.roles, |planned, role, needs| {
            // Only the proof that a thread needs may differ.
            self.ticks.role_changes += u64::from(self.last_plan.role(planned.thread) != role);
            ended |= observer.set_role(planned.thread, planned.task, role, needs);
        });
        self.hurry |= ended;
    }

    /// Counts the reliefs that begin with this Plan.
    pub(super) fn count_reliefs(&mut self) {
        for relief in &self.plan.reliefs {
            if self.last_plan.reliefs.contains(relief) {
                continue;
            }
            let Some(member) = self.members.get_mut(relief.task) else { continue };
            match relief.cause {
                // The thread that waits for the lock.
                ReliefCause::Lock(waiter) if waiter == relief.thread => {}
                ReliefCause::Lock(_) => member.reliefs.lock += 1,
                ReliefCause::Starved => member.reliefs.starved += 1,
            }
        }
    }

    /// The threads of a task that have roles: not those of BE processes that it created.
    pub(super) fn threads_of(&self, id: TaskId) -> Vec<(ThreadRef, ThreadId)> {
        let threads = self.parts.sight.seen().threads().iter();
        let threads = threads.filter(|view| view.task == id && view.lc);
        threads.map(|view| (view.thread, view.id)).collect()
    }

    /// Tells the policy, with the next Snapshot, which roles the operator gives threads of a task.
    pub(super) fn assign_roles(&mut self, id: TaskId, roles: &[(ThreadId, Option<Role>)]) -> bool {
        if !self.parts.host.caps.bursts {
            return false;
        }
        // One that exited meanwhile would never be told of again.
        let mut alive: Vec<ThreadId> = self.threads_of(id).into_iter().map(|(_, id)| id).collect();
        alive.sort_unstable();
        let roles = roles.iter().filter(|(thread, _)| alive.binary_search(thread).is_ok());
        self.seen.bursts.extend(roles.map(|&(thread, role)| Burst {
            thread,
            task: id,
            core: CoreId(0),
            length: Nanos::ZERO,
            whole: Nanos::ZERO,
            has_record: true,
            state: BurstState::Assigned(role),
        }));
        self.hurry = true;
        true
    }

    /// Tells roles again that the observer does not have.
    pub(super) fn compare_roles(&mut self, now: Nanos) {
        if now < self.roles_due {
            return;
        }
        self.roles_due = now + COMPARE;
        let observer = self.parts.sight.observer();
        for planned in &self.plan.roles {
            if !observer.has_role(planned.thread, planned.role) {
                let ThreadPlan { thread, task, role, needs, .. } = *planned;
                self.hurry |= observer.set_role(thread, task, role, needs);
            }
        }
    }
}

/// Walks two tables ordered by thread, and calls `tell` for each thread whose role or proof differs.
fn changed(
    before: &[ThreadPlan],
    now: &[ThreadPlan],
    mut tell: impl FnMut(&ThreadPlan, Role, u32),
) {
    let (mut before, mut now) = (before.iter().peekable(), now.iter().peekable());
    loop {
        let order = match (before.peek(), now.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.thread.cmp(&new.thread),
        };
        let old = before.next_if(|_| order != Ordering::Greater);
        let new = now.next_if(|_| order != Ordering::Less);
        match (old, new) {
            (Some(old), None) => tell(old, Role::Event, 0),
            (old, Some(new)) => {
                let known = old.map(|old| (old.role, old.needs));
                if known != Some((new.role, new.needs)) {
                    tell(new, new.role, new.needs);
                }
            }
            (None, None) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quell_model::{TaskId, ThreadId};

    use super::*;

    fn table(roles: &std::collections::BTreeMap<u32, u8>) -> Vec<ThreadPlan> {
        let planned = |(&index, &role): (&u32, &u8)| ThreadPlan {
            thread: ThreadId { index, generation: 0 },
            task: TaskId { index: 0, generation: 0 },
            role: Role::ALL[usize::from(role)],
            since: Nanos::ZERO,
            burst: Nanos::ZERO,
            needs: 0,
        };
        roles.iter().map(planned).collect()
    }

    proptest! {
        #[test]
        fn changes_lead_from_one_table_to_the_other(
            before in proptest::collection::btree_map(0u32..20, 1u8..4, 0..12),
            now in proptest::collection::btree_map(0u32..20, 1u8..4, 0..12),
        ) {
            let mut roles = before.clone();
            changed(&table(&before), &table(&now), |planned, role, _| {
                let index = planned.thread.index;
                match role {
                    Role::Event => roles.remove(&index),
                    role => roles.insert(index, role.code() as u8),
                };
            });
            prop_assert_eq!(roles, now);
        }
    }
}
