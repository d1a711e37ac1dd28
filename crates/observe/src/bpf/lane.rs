//! What the scheduler of a lane sees of its threads, on a thread of its own.
//!
//! The slots are those that the observer reads; a lane reads its own alone. A counter of its task grows whenever one of
//! its threads begins or ceases to be runnable, so that a look at an unchanged lane is one load. What ends the sleep of
//! a scheduler comes over a ring that no other one reads.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, RingBuffer};
use quell_model::{Nanos, TaskId};

use super::abi::{LANE_SLEEPS, LANE_WAKES, SLEEPING, Slot, Task};
use super::object::{self, refused};
use super::programs::Programs;
use super::table::Table;
use crate::ObserveError;
use quell_os::ThreadRef;

/// `QUELL_LANE_RINGS` of `bpf/quell.h`.
const RINGS: usize = 64;

/// Where a thread has its slot: the slot, and how often it had been freed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    pub(super) slot: u32,
    pub(super) used: u32,
}

/// A thread of a lane as its scheduler last saw it.
#[derive(Clone, Copy, Debug)]
pub struct LaneThread {
    /// Which thread.
    pub thread: ThreadRef,
    /// Neither asleep nor stopped nor gone.
    pub runnable: bool,
    place: SlotPlace,
    sequence: u32,
}

impl LaneThread {
    /// A thread that has not been looked at.
    pub fn new(thread: ThreadRef, place: SlotPlace) -> LaneThread {
        // Odd, as no slot that is read is.
        LaneThread { thread, runnable: false, place, sequence: 1 }
    }
}

/// See the module.
pub struct LaneReader {
    slots: Arc<Table<Slot>>,
    tasks: Arc<Table<Task>>,
    task: TaskId,
    ring: RingBuffer<'static>,
    map: MapHandle,
}

impl LaneReader {
    /// Grows whenever a thread of the lane begins or ceases to be runnable.
    pub fn changes(&self) -> u64 {
        // Acquire: the slots are read after it. Counted while the slot is held, which a reader waits for.
        self.tasks[self.task.at()].changes.load(Ordering::Acquire)
    }

    /// Brings what is known of a thread up to date; false where a writer never left its slot, to be tried again.
    pub fn update(&self, known: &mut LaneThread) -> bool {
        let Some(slot) = self.slots.get(known.place.slot as usize) else { return true };
        let sequence = slot.sequence();
        if sequence == known.sequence {
            return true;
        }
        let Some(copy) = slot.read().0 else { return false };
        // A write since was counted after `changes` was loaded, or is seen here already: both are looked at again.
        known.sequence = sequence;
        let is_it = copy.used == known.place.used && copy.thread == Some(known.thread);
        known.runnable = is_it && copy.state != SLEEPING && copy.task == self.task.index;
        true
    }

    /// How long the thread has run, stretches that ended; zero for one that is gone.
    pub fn ran(&self, known: &LaneThread) -> Nanos {
        let slot = self.slots.get(known.place.slot as usize);
        let copy = slot.and_then(|slot| slot.read().0);
        let copy = copy.filter(|copy| copy.used == known.place.used);
        copy.map_or(Nanos::ZERO, |copy| copy.ran)
    }

    /// Has [`LaneReader::fd`] become readable once a thread of the lane goes to sleep, or once one wakes up, or neither.
    /// Once; what happened before this call does not count, so [`LaneReader::changes`] is to be read after it and before a
    /// sleep.
    pub fn wake_on(&self, sleeps: bool, wakes: bool) {
        let task = &self.tasks[self.task.at()];
        let wanted = if sleeps { LANE_SLEEPS } else { 0 } | if wakes { LANE_WAKES } else { 0 };
        if task.lane.load(Ordering::Relaxed) != wanted {
            task.lane.store(wanted, Ordering::Relaxed);
        }
        // Before the changes are read; pairs with the exchange that ends each write of a slot.
        fence(Ordering::SeqCst);
    }

    /// Readable when something happened that [`LaneReader::wake_on`] asked for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Takes what made [`LaneReader::fd`] readable.
    pub fn drain(&mut self) -> usize {
        usize::try_from(self.ring.consume_raw()).unwrap_or(0)
    }
}

/// Which rings of the outer map are taken, by the lane that has each.
pub(super) struct LaneRings {
    outer: MapHandle,
    taken: [Option<TaskId>; RINGS],
}

impl LaneRings {
    pub fn new(outer: MapHandle) -> LaneRings {
        LaneRings { outer, taken: [None; RINGS] }
    }

    pub fn open(&mut self, task: TaskId, programs: &Programs) -> Result<LaneReader, ObserveError> {
        self.close(task, programs);
        let free = self.taken.iter().position(Option::is_none);
        let (Some(at), Some(shared)) = (free, programs.tasks.get(task.at())) else {
            return Err(ObserveError::Full { limit: RINGS });
        };
        let bytes = rustix::param::page_size() as u32;
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::RingBuf, Some("lane_ring"), 0, 0, bytes, &options)
            .map_err(|error| refused("making the ring of a lane", &error))?;
        let ring = object::ring(&map, |_| {})?;
        let inner = map.as_fd().as_raw_fd().to_ne_bytes();
        self.outer
            .update(&(at as u32).to_ne_bytes(), &inner, MapFlags::ANY)
            .map_err(|error| refused("taking the ring of a lane", &error))?;
        self.taken[at] = Some(task);
        shared.lane.store(0, Ordering::Relaxed);
        shared.ring.store(at as u32 + 1, Ordering::Relaxed);
        let (slots, tasks) = (Arc::clone(&programs.slots), Arc::clone(&programs.tasks));
        Ok(LaneReader { slots, tasks, task, ring, map })
    }

    pub fn close(&mut self, task: TaskId, programs: &Programs) {
        let Some(at) = self.taken.iter().position(|lane| *lane == Some(task)) else { return };
        if let Some(shared) = programs.tasks.get(task.at()) {
            shared.lane.store(0, Ordering::Relaxed);
            shared.ring.store(0, Ordering::Relaxed);
        }
        // An entry that stays is overwritten by the next lane.
        let _ = self.outer.delete(&(at as u32).to_ne_bytes());
        self.taken[at] = None;
    }
}
