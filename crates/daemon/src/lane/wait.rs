//! How a scheduler thread waits for the end of a slice.
//!
//! *Shared*: asleep on the lane's own core, above its members; the timer that ends its sleep takes the core from
//! them. Where nothing has to end, no timer runs, and only an event of the kernel or an order ends the sleep.
//! *Dedicated*: spinning on another core, for several lanes.

use quell_model::{CoreId, CoreSet, Nanos};
use quell_os::{clock, own};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::scheduler::{Companion, Lanes, Order, Pulse};
use super::slices::Lane;
use crate::mailbox::Mailbox;

/// How often a spinning scheduler looks for orders.
const ORDERS_EVERY: Nanos = Nanos::from_micros(20);

/// What a slice in the shared pattern has at least, counted from the scheduler's call to sleep: the shortest slice there is.
/// With less, a scheduler that is slow to fall asleep would find its time passed each time, and no member would ever run.
const SLICE_MIN: Nanos = Nanos::from_micros(5);

/// The shared pattern: one lane.
pub(super) fn sleep(mut lanes: Lanes, mailbox: &mut Mailbox<Order>, pulse: &Pulse) {
    let mut due = None;
    let mut core = None;
    while lanes.take_orders(mailbox) {
        let Some(lane) = lanes.0.first_mut() else {
            rest(mailbox, None, None, Nanos::ZERO);
            continue;
        };
        follow(lane, &mut core);
        lane.reader().drain();
        lane.refresh();
        if due.is_some() {
            lane.learn();
        }
        lane.attend(due.take());
        lane.ask_to_be_told();
        lane.refresh();
        if lane.has_news() {
            continue;
        }
        let begins = lane.let_run();
        let at = lane.due();
        pulse.due(at.unwrap_or(Nanos::MAX));
        rest(mailbox, Some(lane), at, if begins { SLICE_MIN } else { Nanos::ZERO });
        let now = clock::now();
        // Woken by an event it may be awake long before what it slept for: from now on it counts as late.
        pulse.due(now);
        if let Some(at) = lane.look().at().filter(|at| *at <= now) {
            due = Some(at);
            lane.note_late(now.since(at));
        }
    }
}

/// Goes to the core that its lane got.
fn follow(lane: &Lane, core: &mut Option<CoreId>) {
    let owned = lane.owned();
    if owned.is_none() || owned == *core {
        return;
    }
    let moved = owned.map(|core| own::keep_to(&CoreSet::of(core)));
    match moved {
        Some(Err(err)) => tracing::warn!("the scheduler of a lane stays off its core: {err}"),
        _ => *core = owned,
    }
}

/// Sleeps until a time, an event or an order; by time not shorter than `least`.
fn rest(mailbox: &Mailbox<Order>, lane: Option<&mut Lane>, at: Option<Nanos>, least: Nanos) {
    let timeout = at.map(|at| {
        let left = at.since(clock::now()).max(least);
        Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as i64,
        }
    });
    let bell = mailbox.bell();
    let events = lane.map_or(bell, |lane| lane.reader().fd());
    let mut fds = [
        PollFd::from_borrowed_fd(bell, PollFlags::IN),
        PollFd::from_borrowed_fd(events, PollFlags::IN),
    ];
    // An interrupted sleep is a look that comes early.
    let _ = poll(&mut fds, timeout.as_ref());
    if fds[0].revents().contains(PollFlags::IN) {
        mailbox.hush();
    }
}

/// The dedicated pattern: several lanes.
pub(super) fn spin(
    mut lanes: Lanes,
    mailbox: &mut Mailbox<Order>,
    pulse: &Pulse,
    companion: Option<Companion>,
) {
    let mut companion = companion.unwrap_or_else(|| Box::new(|| {}));
    let mut orders_at = Nanos::ZERO;
    loop {
        let now = clock::now();
        pulse.due(now);
        if now >= orders_at {
            orders_at = now + ORDERS_EVERY;
            if !lanes.take_orders(mailbox) {
                return;
            }
            // To those of the same rung: the thread that manages the tasks, if it has work.
            std::thread::yield_now();
        }
        for lane in &mut lanes.0 {
            lane.refresh();
            let due = lane.look().at().filter(|at| *at <= now);
            if let Some(at) = due {
                lane.note_late(now.since(at));
            }
            if lane.has_news() || lane.due().is_some_and(|at| at <= now) {
                lane.attend(due);
            }
        }
        companion();
        std::hint::spin_loop();
    }
}
