//! Scheduler threads: the orders that one takes, and what others may see of it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use quell_control::protocol::LaneSchedulerStatus;
use quell_model::{CoreId, CoreSet, Nanos, TaskId};
use quell_os::own::place_scheduler;
use quell_os::sched::SchedAttr;
use quell_os::{Tid, clock};

use super::slices::Lane;
use super::wait;
use crate::mailbox::{Mailbox, Postbox, Reply, pair};

/// The manager's order to a scheduler thread; the engine's go to each lane ([`super::LaneOrder`]).
pub enum Order {
    /// Schedules one lane more.
    Open(Box<Lane>),
    /// Forgets a lane, with every thread on the rung that it has. The thread ends with its last lane; whether it does is
    /// the answer.
    Close(TaskId, Reply<bool>),
}

/// What others may see of a scheduler thread.
#[derive(Debug)]
pub struct Pulse {
    /// When it has to run next at the latest: [`Nanos::MAX`] while nothing has to end.
    due: AtomicU64,
    tid: AtomicI32,
    began: Nanos,
}

impl Pulse {
    /// How late it is.
    pub fn late(&self, now: Nanos) -> Nanos {
        // Relaxed here and below: a time alone, nothing is published by it.
        now.since(Nanos(self.due.load(Relaxed)))
    }

    /// What it has used so far.
    pub fn status(&self, now: Nanos) -> LaneSchedulerStatus {
        let tid = self.tid.load(Relaxed);
        LaneSchedulerStatus {
            tid,
            uptime_ns: now.since(self.began).0,
            cpu_ns: clock::thread_cpu_of(Tid(tid)).ok().map(|cpu| cpu.0),
        }
    }

    /// To be said before whatever may hang: each look, and each sleep.
    pub(super) fn due(&self, at: Nanos) {
        self.due.store(at.0, Relaxed);
    }
}

/// Something else that runs within the loop of a dedicated scheduler, again and again: short, and without sleeping.
pub type Companion = Box<dyn FnMut() + Send>;

/// Where a scheduler thread runs, and how it waits.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its core at first; one that sleeps follows its lane.
    pub core: CoreId,
    /// Its rung.
    pub rung: SchedAttr,
    /// It spins, and stays.
    pub spins: bool,
}

/// A running scheduler thread.
pub struct Scheduler {
    /// Orders to it.
    pub postbox: Postbox<Order>,
    /// Whether it lives.
    pub pulse: Arc<Pulse>,
    handle: JoinHandle<()>,
}

impl Scheduler {
    /// Starts a scheduler thread. `first` runs there before anything else, and names its first lane.
    ///
    /// # Errors
    /// When it cannot be made or not be given its place.
    pub fn start(
        place: Place,
        first: impl FnOnce() -> Option<Lane> + Send + 'static,
        companion: Option<Companion>,
    ) -> io::Result<Scheduler> {
        let (postbox, mailbox) = pair()?;
        let (due, tid) = (AtomicU64::new(u64::MAX), AtomicI32::new(0));
        let pulse = Arc::new(Pulse { due, tid, began: clock::now() });
        let own = Arc::clone(&pulse);
        let (ready, started) = crossbeam_channel::bounded(1);
        let name = format!("quell-lane-{}", place.core);
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            own.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
            let placed = place_scheduler(&CoreSet::of(place.core), &place.rung);
            let mut mailbox = mailbox;
            if placed.is_ok() {
                let lanes = Lanes(first().into_iter().collect());
                let _ = ready.send(placed);
                match place.spins {
                    true => wait::spin(lanes, &mut mailbox, &own, companion),
                    false => wait::sleep(lanes, &mut mailbox, &own),
                }
            } else {
                let _ = ready.send(placed);
            }
            // Once it ends nothing is due any more.
            own.due(Nanos::MAX);
        })?;
        match started.recv() {
            Ok(Ok(())) => Ok(Scheduler { postbox, pulse, handle }),
            Ok(Err(err)) => Err(err),
            Err(_) => Err(io::Error::other("a lane's scheduler thread ended at its start")),
        }
    }

    /// Has it forget a lane; waits for its end if that was the last. Whether it ended.
    pub fn close(self, task: TaskId) -> Option<Scheduler> {
        // One that does not answer is gone.
        let ended = self.postbox.call(|reply| Order::Close(task, reply)).unwrap_or(true);
        match ended {
            true => {
                let _ = self.handle.join();
                None
            }
            false => Some(self),
        }
    }
}

/// The lanes of a scheduler thread.
pub(super) struct Lanes(pub Vec<Lane>);

impl Lanes {
    /// Carries out orders. False once the thread has to end.
    pub fn take_orders(&mut self, mailbox: &mut Mailbox<Order>) -> bool {
        while let Some(order) = mailbox.take() {
            match order {
                Order::Open(lane) => {
                    let known = self.0.iter().any(|known| known.task() == lane.task());
                    debug_assert!(!known, "lane {} is opened twice", lane.task());
                    self.0.push(*lane);
                }
                Order::Close(task, reply) => {
                    self.0.retain(|lane| lane.task() != task);
                    let _ = reply.send(self.0.is_empty());
                    if self.0.is_empty() {
                        return false;
                    }
                }
            }
        }
        self.0.iter_mut().for_each(Lane::take_orders);
        true
    }
}
