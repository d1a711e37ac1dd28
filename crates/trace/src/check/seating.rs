//! Which threads wait where, kept up with what the events tell.

use quell_model::{CoreId, Nanos};

use super::Checker;
use super::host::{Queues, State};
use super::waiters::Likeness;
use crate::import::NOBODY_KNOWN;

impl Checker {
    /// Has each thread that was touched wait where it does now. One that gets a core, is moved or ends begins anew
    /// when it waits again; so does one that may use other cores than before.
    pub(super) fn seat(&mut self, at: Nanos) {
        let mut touched = std::mem::take(&mut self.host.touched);
        for thread in touched.drain(..) {
            self.seat_one(thread, at);
        }
        self.host.touched = touched;
        if self.host.queues == Queues::SizesAlone {
            for on in self.host.dirty.iter() {
                let waits = self.host.is_contended(on).then_some((on, Likeness::default()));
                self.seat_as(nobody(on), waits, at);
            }
        }
    }

    fn seat_one(&mut self, number: i32, at: Nanos) {
        let thread = self.host.thread(number);
        let waits = thread.filter(|thread| thread.state == State::Waiting).map(|thread| {
            let plan = self.managed.of(number, thread.runner.process);
            let likeness = Likeness {
                allowed: thread.allowed,
                rank: Some(thread.runner.rank),
                stays: thread.bound || self.host.is_own(number),
                plan: plan.map(|plan| (plan.planned, plan.original)),
            };
            (thread.core, likeness)
        });
        self.seat_as(number, waits, at);
    }

    fn seat_as(&mut self, thread: i32, waits: Option<(CoreId, Likeness)>, at: Nanos) {
        let was_on = self.waiters.core_of(thread);
        if let (Some(_), Some((on, likeness))) = (was_on, &waits)
            && self.waiters.is(thread, *on, likeness)
        {
            return;
        }
        if let Some(on) = was_on {
            self.settle(on, at);
            self.unseat(thread);
        }
        if let Some((on, likeness)) = waits {
            self.settle(on, at);
            self.waiters.put(thread, on, likeness);
        }
    }

    /// The thread's part in the episodes of its queue is known.
    fn unseat(&mut self, thread: i32) {
        let Some((on, stood)) = self.waiters.take(thread) else { return };
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        for (part, time) in queue.parts.iter_mut().zip(stood) {
            if part.episode.from.is_some() {
                part.episode.credit(named(thread), time);
            }
        }
    }
}

/// Who waits in the queue of a core of which only the length is told.
fn nobody(on: CoreId) -> i32 {
    i32::MIN + i32::from(on.0)
}

/// The number that a report gives to a waiter.
pub(super) fn named(waiter: i32) -> i32 {
    if waiter < NOBODY_KNOWN { NOBODY_KNOWN } else { waiter }
}
