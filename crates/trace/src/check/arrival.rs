//! How each thread came to the core on which it runs or waits.

use quell_model::{CoreId, Nanos};

use super::cause::Cause;
use super::waiters::WaiterId;

/// A thread has run a full turn on its core when it has run there for so long. It is the base slice of EEVDF and the
/// minimum granularity of CFS on eight and more cores (`sysctl_sched_base_slice`, `sysctl_sched_min_granularity`).
const TURN: Nanos = Nanos::from_millis(3);

/// How a thread came to its core.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// 0 where nothing is known.
    serial: u32,
    on: CoreId,
    at: Nanos,
    cause: Cause,
    /// For how long it ran there since, up to its last preemption.
    ran: Nanos,
}

/// The arrivals of all threads, by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals(Vec<Arrival>);

impl Arrivals {
    const NONE: Arrival =
        Arrival { serial: 0, on: CoreId(0), at: Nanos::ZERO, cause: Cause::Seen, ran: Nanos::ZERO };

    /// A thread came to this core.
    pub(super) fn came(&mut self, waiter: WaiterId, on: CoreId, at: Nanos, cause: Cause) {
        if self.0.len() <= waiter.slot {
            self.0.resize(waiter.slot + 1, Arrivals::NONE);
        }
        let serial = waiter.serial;
        self.0[waiter.slot] = Arrival { serial, on, at, cause, ran: Nanos::ZERO };
    }

    /// A thread was preempted on this core, where it ran from `from` to `to`.
    pub(super) fn ran(&mut self, waiter: WaiterId, on: CoreId, from: Nanos, to: Nanos) {
        if !self.is_known(waiter, on) {
            self.came(waiter, on, from, Cause::Preempted);
        }
        let ran = &mut self.0[waiter.slot].ran;
        ran.0 = ran.0.saturating_add(to.since(from).0);
    }

    /// A thread sleeps: how it came to its core does not matter when it waits again.
    pub(super) fn left(&mut self, slot: usize) {
        if let Some(known) = self.0.get_mut(slot) {
            *known = Arrivals::NONE;
        }
    }

    /// Whether it is known how a thread came to this core.
    pub(super) fn is_known(&self, waiter: WaiterId, on: CoreId) -> bool {
        let known = self.0.get(waiter.slot);
        known.is_some_and(|known| (known.serial, known.on) == (waiter.serial, on))
    }

    /// Why a thread begins to wait on this core now, if no pass of the balancer says more, and since when it is here.
    pub(super) fn wait(&self, waiter: WaiterId, on: CoreId, now: Nanos) -> (Cause, Nanos) {
        if !self.is_known(waiter, on) {
            return (Cause::Seen, now);
        }
        let Arrival { at, cause, ran, .. } = self.0[waiter.slot];
        let is_recent = cause.is_arrival() && ran < TURN;
        let cause = if is_recent || ran == Nanos::ZERO { cause } else { Cause::Preempted };
        (cause, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_counts_until_a_full_turn_on_the_same_core() {
        let thread = WaiterId { slot: 3, serial: 7, tid: 30 };
        let (here, there) = (CoreId(1), CoreId(2));
        let ms = Nanos::from_millis;
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.wait(thread, here, ms(5)), (Cause::Seen, ms(5)));
        arrivals.came(thread, here, ms(10), Cause::Forked);
        assert_eq!(arrivals.wait(thread, here, ms(10)), (Cause::Forked, ms(10)));
        arrivals.ran(thread, here, ms(12), ms(14));
        assert_eq!(arrivals.wait(thread, here, ms(14)), (Cause::Forked, ms(10)));
        arrivals.ran(thread, here, ms(16), ms(17));
        assert_eq!(arrivals.wait(thread, here, ms(17)), (Cause::Preempted, ms(10)));
        assert_eq!(arrivals.wait(thread, there, ms(17)), (Cause::Seen, ms(17)));
        let other = WaiterId { serial: 8, ..thread };
        assert_eq!(arrivals.wait(other, here, ms(18)), (Cause::Seen, ms(18)));
    }

    #[test]
    fn a_thread_that_was_first_seen_running_is_preempted_here() {
        let thread = WaiterId { slot: 0, serial: 1, tid: 9 };
        let mut arrivals = Arrivals::default();
        arrivals.ran(thread, CoreId(0), Nanos(5), Nanos(6));
        assert_eq!(arrivals.wait(thread, CoreId(0), Nanos(6)), (Cause::Preempted, Nanos(5)));
    }
}
