//! Which threads wait where, kept up with what the host state reports.

use quell_model::{CoreId, Nanos};

use super::Checker;
use super::changes::WaiterChange;
use super::waiters::WaiterId;
use crate::host::{ClassIndex, Queues, ThreadState};

impl Checker {
    /// Has each thread that changed wait where it does now. One that gets a core, is moved or ends begins anew when it
    /// waits again; so does one that may use other cores than before.
    pub(super) fn place_waiters(&mut self, at: Nanos, is_keyframe: bool) {
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
            self.waiters.put(waiter, on, class);
        }
    }

    /// The thread's part in the episodes of its queue is known.
    fn remove_waiter(&mut self, slot: usize, on: CoreId) {
        let Some((waiter, _)) = self.waiters.at(slot) else { return };
        let Some(lasted) = self.waiters.take(slot) else { return };
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        for (part, time) in queue.parts.iter_mut().zip(lasted) {
            if part.episode.from.is_some() {
                part.episode.credit(waiter.tid, time);
            }
        }
    }
}
