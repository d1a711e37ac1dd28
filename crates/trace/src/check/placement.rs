//! Which threads wait where, kept up with what the host state reports.

use quell_model::{CoreId, Nanos, What};

use super::Checker;
use super::cause::Cause;
use super::changes::WaiterChange;
use super::verdict::judge;
use super::waiters::WaiterId;
use crate::host::{ClassIndex, Queues, ThreadState};

impl Checker {
    /// Has each thread that changed wait where it does now. One that gets a core, is moved or ends begins anew when it
    /// waits again; so does one that may use other cores than before.
    pub(super) fn place_waiters(&mut self, at: Nanos, what: &What) {
        let is_keyframe = matches!(what, What::Keyframe(_));
        if self.host.queues() == Queues::SizesOnly {
            return self.place_unnamed(at);
        }
        let mut changes = std::mem::take(&mut self.changes.waiters);
        for change in changes.drain(..) {
            let WaiterChange { waiter, state, core, class } = change;
            let on = self.host.cores()[core].id;
            // A move that only a keyframe shows.
            if is_keyframe
                && state.is_placed()
                && let Some((_, was_on)) = self.waiters.at(waiter.slot)
                && was_on != on
            {
                self.changes.relieved.push(was_on);
            }
            let place = (state == ThreadState::Waiting).then_some((on, class));
            self.note_arrival(waiter, place, at, what);
            self.place_waiter(waiter, place, at);
        }
        self.changes.waiters = changes;
    }

    /// As [`Checker::place_waiters`], where one stands for all that wait on a core.
    fn place_unnamed(&mut self, at: Nanos) {
        for index in 0..self.changes.cores.len() {
            let on = self.changes.cores[index];
            let waits = self.host.contended().contains(on);
            let place = waits.then_some((on, ClassIndex::DEFAULT));
            self.place_waiter(WaiterId::unnamed(on), place, at);
        }
    }

    fn place_waiter(&mut self, waiter: WaiterId, place: Option<(CoreId, ClassIndex)>, at: Nanos) {
        if let Some((on, class)) = place
            && self.waiters.is(waiter, on, class)
        {
            return;
        }
        if let Some((known, was_on)) = self.waiters.at(waiter.slot) {
            debug_assert_eq!(known.serial, waiter.serial, "a slot's thread ended unreported");
            self.settle(was_on, at);
            self.remove_waiter(waiter.slot, was_on);
        }
        if let Some((on, class)) = place {
            self.settle(on, at);
            let came = self.arrivals.wait(waiter, on, at);
            self.waiters.put(waiter, (on, class), came, at);
        }
    }

    /// Notes how a thread came to the core on which it begins to wait.
    fn note_arrival(
        &mut self,
        waiter: WaiterId,
        place: Option<(CoreId, ClassIndex)>,
        at: Nanos,
        what: &What,
    ) {
        let Some((on, class)) =
            place.filter(|(on, _)| self.waiters.at(waiter.slot) != Some((waiter, *on)))
        else {
            return;
        };
        let beside_idle = self.changes.busy_wakeup.as_ref();
        let woken = beside_idle.map_or(Cause::Placed, |wakeup| self.log.cause_of(wakeup));
        let cause = match what {
            What::Woken { thread, is_new: true, .. } if thread.thread == waiter.tid => {
                if beside_idle.is_some() {
                    Cause::Forked
                } else {
                    Cause::Placed
                }
            }
            // In a stream without `sched_wakeup` its waiting begins at `sched_waking`.
            What::Woken { thread, .. } | What::Waking { thread, .. }
                if thread.thread == waiter.tid =>
            {
                woken
            }
            What::Migrate { thread, to, cause, .. } if (*thread, *to) == (waiter.tid, on) => {
                if self.waits_beside_idle(on, class) {
                    Cause::Migrated(*cause)
                } else {
                    Cause::Placed
                }
            }
            What::Keyframe(_) => Cause::Seen,
            _ if self.arrivals.is_known(waiter, on) => return,
            What::Switch { .. } => Cause::Preempted,
            _ => Cause::Seen,
        };
        self.arrivals.came(waiter, on, at, cause);
    }

    /// Whether a core idles now that a thread of this class might use instead of this one.
    fn waits_beside_idle(&self, on: CoreId, class: ClassIndex) -> bool {
        let Some(core) = self.host.core(on) else { return false };
        judge(&self.host, &self.domains, class, core).is_some()
    }

    /// The thread's part in the episodes of its queue is known.
    fn remove_waiter(&mut self, slot: usize, on: CoreId) {
        let Some(waited) = self.waiters.take(slot) else { return };
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        for (part, waited) in queue.parts.iter_mut().zip(&waited) {
            if part.episode.from.is_some() {
                part.episode.credit(waited);
            }
        }
    }
}
