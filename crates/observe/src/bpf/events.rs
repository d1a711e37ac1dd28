//! The event ring.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use quell_model::{CoreId, Nanos, TaskId, ThreadId};

use super::Stall;
use super::abi::Event;
use super::locks::LockEvent;
use crate::{HostEvent, ObserveError};
use quell_os::{ThreadRef, Tid};

/// Stalls kept for a reader; of more, the oldest are forgotten.
const STALLS_MAX: usize = 65_536;

/// An event as the programs sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    Host(HostEvent),
    /// The thread became the leader of its process, and had this number before.
    Execed(ThreadRef, Tid),
    Stall(Stall),
    /// A burst exceeded the budget of its role while an event thread waits: it was so long then.
    Overran(ThreadId, Nanos),
    /// A demoted thread sleeps after as many short bursts as it needs.
    Proved(ThreadId),
    /// A background thread waits while a thread whose sleeps it ends sleeps.
    EndsSleep(ThreadId),
    /// An LC thread waits for a lock, or gets it.
    Lock(LockEvent),
    /// An LC thread sleeps uninterruptibly: the next reading shows it.
    Stopped,
}

/// Reads the ring. Events wait in an inbox until they are asked for.
pub(super) struct Events {
    ring: RingBuffer<'static>,
    map: MapHandle,
    inbox: Arc<Mutex<VecDeque<Raw>>>,
    stalls: VecDeque<Stall>,
}

impl Events {
    pub fn new(map: MapHandle) -> Result<Events, ObserveError> {
        let inbox = Arc::new(Mutex::new(VecDeque::new()));
        let build = || {
            let mut builder = RingBufferBuilder::new();
            let to = Arc::clone(&inbox);
            builder.add(&map, move |bytes| {
                to.lock().unwrap_or_else(PoisonError::into_inner).extend(parse(bytes));
                0
            })?;
            builder.build()
        };
        let ring = build().map_err(|error: libbpf_rs::Error| ObserveError::Kernel {
            what: "reading the BPF event ring".to_owned(),
            source: std::io::Error::other(error.to_string()),
        })?;
        Ok(Events { ring, map, inbox, stalls: VecDeque::new() })
    }

    /// Readable while the ring holds events; wakes only for those sent with a wake-up.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Moves what the ring holds to the inbox. Returns how many events that were.
    pub fn consume(&mut self) -> usize {
        usize::try_from(self.ring.consume_raw()).unwrap_or(0)
    }

    /// The next event other than a stall.
    pub fn next(&mut self) -> Option<Raw> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match inbox.pop_front()? {
                Raw::Stall(stall) => {
                    if self.stalls.len() == STALLS_MAX {
                        self.stalls.pop_front();
                    }
                    self.stalls.push_back(stall);
                }
                event => return Some(event),
            }
        }
    }

    /// The stalls seen since the last call, oldest first. Other events stay in the inbox.
    pub fn take_stalls(&mut self) -> Vec<Stall> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stalls: Vec<Stall> = self.stalls.drain(..).collect();
        inbox.retain(|event| match event {
            Raw::Stall(stall) => {
                stalls.push(*stall);
                false
            }
            _ => true,
        });
        stalls
    }
}

fn parse(bytes: &[u8]) -> Option<Raw> {
    let event = Event::parse(bytes)?;
    let core = CoreId(event.core as u16);
    let task = TaskId { index: event.task, generation: event.generation };
    let thread = ThreadId { index: event.slot, generation: event.reuse_count };
    let owner = ThreadId { index: event.owner_slot, generation: event.owner_reuse_count };
    let raw = match event.kind {
        1 => Raw::Host(HostEvent::Forked {
            parent: event.parent.thread()?,
            child: event.subject.thread()?,
            task,
            new_process: event.flags & 1 != 0,
            watched: event.flags & 2 != 0,
        }),
        2 => Raw::Host(HostEvent::Exited(event.subject.thread()?)),
        3 => Raw::Execed(event.subject.thread()?, event.parent.tid()),
        4 => Raw::Host(HostEvent::LcQueued(task)),
        5 => Raw::Host(HostEvent::CoreIdle(core)),
        6 => Raw::Stall(Stall {
            core,
            from: Nanos(event.from),
            to: Nanos(event.to),
            stolen: Nanos(event.stolen),
            process: event.subject.tgid(),
        }),
        7 => Raw::Overran(thread, Nanos(event.length)),
        8 => Raw::Proved(thread),
        9 => Raw::Lock(LockEvent { waiter: thread, owner: Some(owner) }),
        10 => Raw::Lock(LockEvent { waiter: thread, owner: None }),
        11 => Raw::Stopped,
        12 => Raw::EndsSleep(thread),
        _ => return None,
    };
    Some(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn what_is_no_event_is_left_out() {
        assert_eq!(parse(&[0; size_of::<Event>()]), None);
        assert_eq!(parse(&[4, 0, 0, 0]), None);
    }
}
