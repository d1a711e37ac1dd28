//! Scheduler threads: the orders that one takes, and what others may see of it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use quell_control::protocol::LaneSchedulerStatus;
use quell_model::{CoreId, CoreSet, Nanos, TaskId};
use quell_os::own::place_scheduler;
use quell_os::sched::SchedAttr;
use quell_os::{ThreadRef, Tid, clock};

use super::slices::{Lane, NewThread, Seat};
use super::wait;
use crate::mailbox::{Mailbox, Postbox, pair};

/// An order to a scheduler thread.
pub enum Order {
    /// Schedules one lane more.
    Open(Box<Lane>),
    /// A thread joins a lane.
    Join(TaskId, NewThread),
    /// A thread ended or was restored.
    Remove(TaskId, ThreadRef),
    /// What the Plan gives a lane from now on.
    Sit(TaskId, Seat),
    /// A thread of a lane became another program.
    Unsettle(TaskId),
    /// Forgets a lane, with every thread on the rung that it has. The thread ends with its last lane; whether it does is
    /// the answer.
    Close(TaskId, Sender<bool>),
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
            if placed.is_ok() {
                let lanes = Lanes(first().into_iter().collect());
                let _ = ready.send(placed);
                match place.spins {
                    true => wait::spin(lanes, &mailbox, &own, companion),
                    false => wait::sleep(lanes, &mailbox, &own),
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
    pub fn take_orders(&mut self, mailbox: &Mailbox<Order>) -> bool {
        while let Some(order) = mailbox.take() {
            let of = match &order {
                Order::Open(lane) => lane.task(),
                Order::Join(task, _) | Order::Remove(task, _) | Order::Sit(task, _) => *task,
                Order::Unsettle(task) | Order::Close(task, _) => *task,
            };
            let known = self.0.iter().position(|lane| lane.task() == of);
            match (order, known) {
                (Order::Open(lane), known) => {
                    debug_assert!(known.is_none(), "lane {of} is opened twice");
                    self.0.push(*lane);
                }
                (Order::Close(_, reply), known) => {
                    known.map(|at| self.0.swap_remove(at));
                    let _ = reply.send(self.0.is_empty());
                    if self.0.is_empty() {
                        return false;
                    }
                }
                (Order::Join(_, new), Some(at)) => self.0[at].join(new),
                (Order::Remove(_, thread), Some(at)) => self.0[at].remove(&thread),
                (Order::Sit(_, seat), Some(at)) => self.0[at].sit(seat),
                (Order::Unsettle(_), Some(at)) => self.0[at].unsettle(),
                // It was closed meanwhile.
                (_, None) => {}
            }
        }
        true
    }
}
