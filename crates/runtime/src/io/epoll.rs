//! Waiting with epoll, where io_uring is missing.
//!
//! Each kthread has an epoll instance. A socket registers with that of the kthread on which it first waits, for good and
//! edge-triggered, so that waiting again costs no call. Each edge is counted: a uthread notes the count before it tries, and
//! waits only for a count beyond that, so that no edge is lost between the try and the wait.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use quell_model::Nanos;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::op::Op;
use crate::kthread::{lock, now};
use crate::park::UthreadRef;

/// Events that one call takes.
const BATCH: usize = 128;

/// So soon after it was polled nothing has waited for long, and looking costs a call.
const FRESH: Nanos = Nanos::from_micros(10);

/// What a uthread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// There is something to read or accept, or the end.
    Read = 0,
    /// There is room to write, or the connection is made, or broken.
    Write = 1,
}

/// Edges of one descriptor, counted by [`Interest`].
#[derive(Debug, Default)]
pub(super) struct Edges([AtomicU32; 2]);

impl Edges {
    /// How many there were. Acquire: pairs with the count in `turn`; what the kernel did before the edge is seen by the try
    /// that follows.
    pub(super) fn seen(&self, interest: Interest) -> u32 {
        self.0[interest as usize].load(Ordering::Acquire)
    }
}

/// A place for a descriptor. It is used again, so its key has a generation.
#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    edges: Option<Arc<Edges>>,
    waiting: [Vec<Waiting>; 2],
}

#[derive(Debug)]
struct Waiting {
    op: *const Op,
    deadline: Option<(Nanos, u64)>,
}

// SAFETY: an address that is only used as `Op::complete` allows.
unsafe impl Send for Waiting {}

/// Where a deadline's wait is.
#[derive(Debug)]
struct Place {
    slot: u32,
    interest: Interest,
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    deadlines: BTreeMap<(Nanos, u64), Place>,
    /// Waits with a deadline so far: makes equal deadlines differ.
    timed: u64,
    /// Uthreads that were woken on the way to something else.
    done: Vec<UthreadRef>,
}

/// The epoll instance of one kthread.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    bell: Arc<OwnedFd>,
    table: Mutex<Table>,
    /// Waits whose uthread was not handed out by `poll`.
    waits: AtomicUsize,
    /// When an event was first seen to wait, or 0.
    since: AtomicU64,
    /// When it was polled.
    polled: AtomicU64,
    /// Nobody polls it any more.
    closed: AtomicBool,
}

/// That a descriptor is known to a poller, until dropped. To be dropped before the descriptor is closed: its duplicates would
/// keep it known.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) edges: Arc<Edges>,
    slot: u32,
}

impl Poller {
    /// A poller that this bell wakes.
    ///
    /// # Errors
    /// Those of `epoll_create1`.
    pub(super) fn new(bell: Arc<OwnedFd>) -> io::Result<Poller> {
        Ok(Poller {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell,
            table: Mutex::default(),
            waits: AtomicUsize::new(0),
            since: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waits.load(Ordering::Relaxed) == 0
    }

    /// From now on nobody polls it.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Makes a descriptor known.
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub(super) fn register(&self, fd: BorrowedFd<'_>) -> io::Result<Registration> {
        let edges = Arc::new(Edges::default());
        let mut table = lock(&self.table);
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None => {
                table.slots.push(Slot::default());
                (table.slots.len() - 1) as u32
            }
        };
        let place = &mut table.slots[slot as usize];
        let data = EventData::new_u64(u64::from(place.generation) << 32 | u64::from(slot));
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        if let Err(error) = epoll::add(&self.epoll, fd, data, flags) {
            table.free.push(slot);
            return Err(error.into());
        }
        place.edges = Some(Arc::clone(&edges));
        Ok(Registration { edges, slot })
    }

    /// Makes it unknown. Nobody waits for it: who waits borrows it.
    pub(super) fn deregister(&self, fd: BorrowedFd<'_>, registration: &Registration) {
        let mut table = lock(&self.table);
        // Fails for nothing that is known.
        let _ = epoll::delete(&self.epoll, fd);
        let place = &mut table.slots[registration.slot as usize];
        // An event that was taken before this and is looked at after is another's.
        place.generation = place.generation.wrapping_add(1);
        place.edges = None;
        table.free.push(registration.slot);
    }

    /// Waits for more edges than were seen, at the latest until the deadline: then it is completed with `-ETIME`. Another
    /// kthread than the poller's own wakes it if it may wait for less than this.
    pub(super) fn start(
        &self,
        op: &Op,
        (registration, interest, seen): (&Registration, Interest, u32),
        deadline: Option<Nanos>,
        waiter: UthreadRef,
        own: bool,
    ) {
        let mut table = lock(&self.table);
        if registration.edges.seen(interest) != seen {
            // At once, not through the poller: it may be another kthread's, which sleeps.
            drop(table);
            waiter.ready();
            return;
        }
        op.begin(waiter, None);
        let deadline = deadline.map(|deadline| {
            table.timed += 1;
            let key = (deadline, table.timed);
            table.deadlines.insert(key, Place { slot: registration.slot, interest });
            key
        });
        let slot = &mut table.slots[registration.slot as usize];
        slot.waiting[interest as usize].push(Waiting { op, deadline });
        let others = self.waits.fetch_add(1, Ordering::Relaxed);
        let first = deadline.is_some()
            && table.deadlines.first_key_value().map(|(&key, _)| key) == deadline;
        drop(table);
        if !own && (others == 0 || first) {
            super::ring(&self.bell);
        }
    }

    /// Moves who was woken to `ready`. Skipped while another thread does the same.
    pub(super) fn poll(&self, at: Nanos, ready: &mut Vec<UthreadRef>) {
        let mut table = match self.table.try_lock() {
            Ok(table) => table,
            Err(TryLockError::Poisoned(table)) => table.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !self.is_idle() {
            self.turn(&mut table);
            self.expire(&mut table, at);
        }
        self.since.store(0, Ordering::Relaxed);
        self.polled.store(at.0, Ordering::Relaxed);
        self.waits.fetch_sub(table.done.len(), Ordering::Relaxed);
        ready.append(&mut table.done);
    }

    /// Waits for an event, a deadline or the bell. Only the kthread of the poller calls it.
    pub(super) fn wait(&self, until: Option<Nanos>) {
        let first = {
            let table = lock(&self.table);
            if !table.done.is_empty() {
                return;
            }
            table.deadlines.first_key_value().map(|(&(at, _), _)| at)
        };
        let until = until.into_iter().chain(first).min();
        let left = until.map(|until| until - now());
        let left = left.map(|left| Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as i64,
        });
        // The bell beside the instance, not in it: a thief who takes events must not take that one.
        let mut fds = [
            PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN),
        ];
        // A time-out, a signal and an event mean the same to the caller, who polls.
        let _ = poll(&mut fds, left.as_ref());
        if fds[0].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
        }
        // Also if nobody waits for it: an edge that is left would end each wait.
        if !fds[1].revents().is_empty() {
            self.turn(&mut lock(&self.table));
        }
    }

    /// Since when an event waits to be polled, as far as it was looked at.
    pub(super) fn oldest(&self, at: Nanos) -> Option<Nanos> {
        let polled = Nanos(self.polled.load(Ordering::Relaxed));
        if at - polled < FRESH {
            return None;
        }
        let mut fds = [PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let waits = !self.is_idle() && poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0);
        let since = match (waits, self.since.load(Ordering::Relaxed)) {
            (false, _) => 0,
            (true, 0) => at.0,
            (true, since) => since,
        };
        self.since.store(since, Ordering::Relaxed);
        waits.then_some(Nanos(since))
    }

    /// Takes the events and wakes who waits for them.
    fn turn(&self, table: &mut Table) {
        loop {
            let mut events = Vec::<Event>::with_capacity(BATCH);
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            let taken =
                epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none));
            let Ok(taken) = taken else { return };
            for event in &events {
                let (data, flags) = (event.data.u64(), event.flags);
                self.wake(table, data, flags);
            }
            if taken < BATCH {
                return;
            }
        }
    }

    fn wake(&self, table: &mut Table, data: u64, flags: EventFlags) {
        let Table { slots, deadlines, done, .. } = table;
        let Some(slot) = slots.get_mut(data as u32 as usize) else { return };
        if slot.generation != (data >> 32) as u32 {
            return;
        }
        let Some(edges) = &slot.edges else { return };
        let ends = EventFlags::HUP | EventFlags::ERR;
        let read = flags.intersects(EventFlags::IN | EventFlags::RDHUP | ends);
        let write = flags.intersects(EventFlags::OUT | ends);
        for (at, edge) in [read, write].into_iter().enumerate() {
            if !edge {
                continue;
            }
            // Release: pairs with `Edges::seen`.
            edges.0[at].fetch_add(1, Ordering::Release);
            for waiting in slot.waiting[at].drain(..) {
                if let Some(key) = waiting.deadline {
                    deadlines.remove(&key);
                }
                // SAFETY: it began in `start` and ends here, both under the lock of the table.
                done.extend(unsafe { Op::complete(waiting.op, 0, false) });
            }
        }
    }

    /// Wakes those whose deadline has come.
    fn expire(&self, table: &mut Table, at: Nanos) {
        while let Some(entry) = table.deadlines.first_entry() {
            let key = *entry.key();
            if key.0 > at {
                return;
            }
            let Place { slot, interest } = entry.remove();
            let waiting = &mut table.slots[slot as usize].waiting[interest as usize];
            let Some(found) = waiting.iter().position(|one| one.deadline == Some(key)) else {
                continue;
            };
            let op = waiting.swap_remove(found).op;
            // SAFETY: it began in `start` and ends here, both under the lock of the table.
            table.done.extend(unsafe { Op::complete(op, -libc::ETIME, false) });
        }
    }
}
