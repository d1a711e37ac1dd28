//! The event ring.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use quell_model::{CoreId, Nanos, TaskId};

use super::Stall;
use super::abi::identity;
use crate::fields::{wide, word};
use crate::{HostEvent, ObserveError};
use quell_os::{ThreadRef, Tid};

/// The size of `struct event` in `bpf/quell.h`.
const EVENT_BYTES: usize = 80;

/// Stalls kept for a reader; of more, the oldest are forgotten.
const STALLS_MAX: usize = 65_536;

/// An event as the programs sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    Host(HostEvent),
    /// The thread became the leader of its process, and had this number before.
    Execed(ThreadRef, Tid),
    Stall(Stall),
    /// What the scheduler of a lane waited for happened: it finds what in the slots.
    Lane,
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
    if bytes.len() < EVENT_BYTES {
        return None;
    }
    let who = |at: usize| identity(word(bytes, at), word(bytes, at + 4), wide(bytes, at + 8));
    let core = CoreId(word(bytes, 4) as u16);
    let task = TaskId { index: word(bytes, 8), generation: word(bytes, 12) };
    let flags = word(bytes, 48);
    let event = match word(bytes, 0) {
        1 => Raw::Host(HostEvent::Forked {
            parent: who(32)?,
            child: who(16)?,
            task,
            new_process: flags & 1 != 0,
            watched: flags & 2 != 0,
        }),
        2 => Raw::Host(HostEvent::Exited(who(16)?)),
        3 => Raw::Execed(who(16)?, Tid(word(bytes, 32) as i32)),
        4 => Raw::Host(HostEvent::LcQueued(task)),
        5 => Raw::Host(HostEvent::CoreIdle(core)),
        6 => Raw::Stall(Stall {
            core,
            from: Nanos(wide(bytes, 56)),
            to: Nanos(wide(bytes, 64)),
            stolen: Nanos(wide(bytes, 72)),
            process: Tid(word(bytes, 20) as i32),
        }),
        7 => Raw::Lane,
        _ => return None,
    };
    Some(event)
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
        assert_eq!(parse(&[0; EVENT_BYTES]), None);
        assert_eq!(parse(&[4, 0, 0, 0]), None);
    }
}
