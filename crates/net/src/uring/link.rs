//! A channel between the threads of the program and the driver's: what waits to be sent, and what has arrived.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFlags, eventfd};

use super::driver::Shared;
use super::ring::BUFFERS;
use crate::memory::{LARGE, Pool, Segment, Span};
use crate::threads;
use crate::transport::{Filled, Incoming, Kept, Outgoing, Readiness};

/// Bytes that wait to be sent, those that the kernel sends included: what an endpoint gathers at once.
pub(super) const SEND_MAX: usize = 256 << 10;
/// Bytes that have arrived and were not taken, and memory for those that may. Beyond that the connection's window closes.
pub(super) const RECEIVE_MAX: usize = BUFFERS * LARGE;
/// Bytes that arrive at once and are copied: what is kept where it arrived holds at most four times its memory.
pub(super) const COPY_BELOW: usize = LARGE / 4;

/// See the module.
pub(super) struct Link {
    pub socket: Arc<TcpStream>,
    driver: Arc<Shared>,
    state: Mutex<State>,
    /// Signalled for a thread that sleeps until something has arrived.
    data: OwnedFd,
    /// The same, until there is room.
    room: OwnedFd,
    /// The channel's index in the ring, once the driver has it.
    pub index: OnceLock<usize>,
}

#[derive(Default)]
pub(super) struct State {
    /// To be sent after what the kernel has.
    pub queued: VecDeque<Span>,
    pub queued_bytes: usize,
    /// Bytes that the kernel sends.
    pub sending_bytes: usize,
    /// What has arrived.
    received: VecDeque<Span>,
    pub received_bytes: usize,
    /// Pieces of memory that the kernel may fill.
    pub provided: usize,
    /// Nothing more arrives: the end of the connection, or why.
    end: Option<Result<(), io::ErrorKind>>,
    /// This side has ended the channel, and when.
    pub ended_at: Option<Instant>,
    /// The driver has let go of it.
    pub is_over: bool,
    /// The driver is to look at it.
    pub is_kicked: bool,
    is_data_armed: bool,
    is_room_armed: bool,
}

impl State {
    /// Whether nothing waits to be sent.
    pub fn is_sent(&self) -> bool {
        self.queued_bytes + self.sending_bytes == 0
    }

    /// Whether nothing more is sent or received.
    pub fn has_ended(&self) -> bool {
        self.end.is_some() || self.ended_at.is_some()
    }

    fn room(&self) -> usize {
        SEND_MAX.saturating_sub(self.queued_bytes + self.sending_bytes)
    }
}

impl Link {
    pub(super) fn new(socket: Arc<TcpStream>, driver: &Arc<Shared>) -> io::Result<Arc<Link>> {
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Arc::new(Link {
            socket,
            driver: Arc::clone(driver),
            state: Mutex::default(),
            data: bell()?,
            room: bell()?,
            index: OnceLock::new(),
        }))
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // Nothing in it panics halfway.
        threads::hold(|| act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Has the driver look.
    pub(super) fn kick(self: &Arc<Link>) {
        if !self.with(|state| state.is_over || std::mem::replace(&mut state.is_kicked, true)) {
            self.driver.kick(Arc::clone(self));
        }
    }

    /// Something has arrived, or the end.
    pub(super) fn deliver(&self, span: Option<Span>, end: Option<Result<(), io::ErrorKind>>) {
        self.with(|state| {
            if let Some(span) = span {
                state.received_bytes += span.len();
                state.received.push_back(span);
            }
            if let Some(end) = end {
                state.end.get_or_insert(end);
                // A thread that waits for room finds out as well.
                self.ring_for_room(state);
            }
            self.ring_for_data(state);
        });
    }

    /// The same with bytes that are copied.
    pub(super) fn deliver_copy(&self, bytes: &[u8]) {
        self.with(|state| {
            let grown = state.received.back_mut().map_or(0, |last| last.grow(bytes));
            if grown < bytes.len() {
                let spans = crate::memory::spans_of(&self.driver.pool, &bytes[grown..]);
                state.received.extend(spans);
            }
            state.received_bytes += bytes.len();
            self.ring_for_data(state);
        });
    }

    /// A send is over.
    pub(super) fn has_sent(&self) {
        self.with(|state| {
            state.sending_bytes = 0;
            self.ring_for_room(state);
        });
    }

    fn ring_for_data(&self, state: &mut State) {
        if std::mem::take(&mut state.is_data_armed) {
            ring(&self.data);
        }
    }

    fn ring_for_room(&self, state: &mut State) {
        if std::mem::take(&mut state.is_room_armed) {
            ring(&self.room);
        }
    }

    /// What has arrived.
    fn take(self: &Arc<Link>) -> io::Result<Vec<Span>> {
        let (taken, has_little) = self.with(|state| {
            let taken: Vec<Span> = state.received.drain(..).collect();
            state.received_bytes = 0;
            if taken.is_empty() {
                return match state.end {
                    None => (Err(io::ErrorKind::WouldBlock.into()), false),
                    Some(Ok(())) => (Ok(taken), false),
                    Some(Err(kind)) => (Err(kind.into()), false),
                };
            }
            (Ok(taken), state.provided <= BUFFERS / 2 && state.end.is_none())
        });
        if has_little {
            self.kick();
        }
        taken
    }

    /// Leaves bytes to the driver, as far as there is room: those that are kept by reference.
    fn queue(self: &Arc<Link>, bytes: &[IoSlice<'_>], kept: &[Kept]) -> io::Result<usize> {
        let room = self.with(|state| match (state.ended_at, &state.end) {
            (Some(_), _) => Err(io::Error::from(io::ErrorKind::BrokenPipe)),
            // It goes nowhere. The reader ends the channel, once it has read what came.
            (None, Some(_)) => Ok(None),
            (None, None) => Ok(Some(state.room())),
        })?;
        let room = match room {
            None => return Ok(bytes.iter().map(|slice| slice.len()).sum()),
            Some(0) => return Err(io::ErrorKind::WouldBlock.into()),
            Some(room) => room,
        };
        // Without the lock: only this thread queues.
        let mut gathered = Gathered::new(&self.driver.pool);
        let mut left = room;
        for (index, slice) in bytes.iter().enumerate() {
            let slice = &slice[..slice.len().min(left)];
            left -= slice.len();
            let kept = kept.get(index).and_then(|kept| kept.0.as_ref());
            gathered.add(slice, kept);
        }
        let (spans, taken) = (gathered.finish(), room - left);
        self.with(|state| {
            for span in spans {
                // Small ones share memory.
                let is_small = span.len() <= COPY_BELOW;
                let last = state.queued.back_mut().filter(|_| is_small);
                let grown = last.map_or(0, |last| last.grow(span.bytes()));
                if grown < span.len() {
                    state.queued.push_back(span.slice(grown, span.len()));
                }
            }
            state.queued_bytes += taken;
        });
        self.kick();
        Ok(taken)
    }
}

/// Bytes on their way to the driver: copied, or by reference.
struct Gathered<'a> {
    pool: &'a Arc<Pool>,
    spans: Vec<Span>,
    /// Copied bytes behind them.
    copied: Option<Segment>,
}

impl Gathered<'_> {
    fn new(pool: &Arc<Pool>) -> Gathered<'_> {
        Gathered { pool, spans: Vec::new(), copied: None }
    }

    /// Bytes, which are the last of `kept` if there is such.
    fn add(&mut self, mut bytes: &[u8], kept: Option<&Span>) {
        if let Some(kept) = kept.filter(|_| bytes.len() > COPY_BELOW) {
            // What was sent of it before is in front of them.
            let start = bytes.as_ptr().addr().wrapping_sub(kept.bytes().as_ptr().addr());
            if start.checked_add(bytes.len()).is_some_and(|end| end <= kept.len()) {
                self.spans.extend(self.copied.take().map(Segment::into_span));
                return self.spans.push(kept.slice(start, start + bytes.len()));
            }
        }
        while !bytes.is_empty() {
            let own = self.copied.get_or_insert_with(|| self.pool.segment(bytes.len()));
            bytes = &bytes[own.append(bytes)..];
            if own.room() == 0 {
                self.spans.extend(self.copied.take().map(Segment::into_span));
            }
        }
    }

    fn finish(mut self) -> Vec<Span> {
        self.spans.extend(self.copied.take().map(Segment::into_span));
        self.spans
    }
}

/// Signals an event. A full counter is signalled already.
fn ring(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// An event is not signalled any more.
fn silence(event: &OwnedFd) {
    // It may not have been.
    let _ = rustix::io::read(event, &mut [0; 8]);
}

/// The program's end that sends.
pub(super) struct UringOutgoing(pub Arc<Link>);

impl Outgoing for UringOutgoing {
    fn enqueue(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.queue(bytes, &[])
    }

    fn takes_kept(&self) -> bool {
        true
    }

    fn enqueue_kept(&mut self, bytes: &[IoSlice<'_>], kept: &[Kept]) -> io::Result<usize> {
        self.0.queue(bytes, kept)
    }
}

/// The program's end that receives.
pub(super) struct UringIncoming {
    pub link: Arc<Link>,
    /// Taken, and not read.
    pub rest: VecDeque<Span>,
}

impl Incoming for UringIncoming {
    fn dequeue(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = self.link.take()?.into();
        }
        let mut read = 0;
        for slice in into {
            let mut at = 0;
            while let Some(first) = self.rest.front_mut().filter(|_| at < slice.len()) {
                let part = first.split_to(first.len().min(slice.len() - at));
                slice[at..at + part.len()].copy_from_slice(part.bytes());
                at += part.len();
                if first.len() == 0 {
                    self.rest.pop_front();
                }
            }
            read += at;
        }
        Ok(read)
    }

    fn take_filled(&mut self) -> Option<io::Result<Filled>> {
        if !self.rest.is_empty() {
            return Some(Ok(Filled(self.rest.drain(..).collect())));
        }
        Some(self.link.take().map(Filled))
    }
}

/// When to try again. With the last of it the channel ends.
pub(super) struct UringReadiness(pub Arc<Link>);

impl Readiness for UringReadiness {
    fn readable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.0.data.as_fd(), PollFlags::IN)
    }

    fn writable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.0.room.as_fd(), PollFlags::IN)
    }

    fn arm_readable(&self) -> bool {
        self.0.with(|state| {
            let has_some = state.received_bytes > 0 || state.has_ended();
            if !has_some {
                silence(&self.0.data);
                state.is_data_armed = true;
            }
            has_some
        })
    }

    fn arm_writable(&self) -> bool {
        self.0.with(|state| {
            let has_room = state.room() > 0 || state.has_ended();
            if !has_room {
                silence(&self.0.room);
                state.is_room_armed = true;
            }
            has_room
        })
    }

    fn has_room(&self) -> bool {
        self.0.with(|state| state.room() > 0)
    }

    fn end(&self) {
        let link = &self.0;
        let is_first = link.with(|state| {
            let is_first = state.ended_at.is_none();
            state.ended_at.get_or_insert_with(Instant::now);
            state.end.get_or_insert(Err(io::ErrorKind::ConnectionAborted));
            link.ring_for_data(state);
            link.ring_for_room(state);
            if is_first && state.is_sent() {
                // The driver sends the rest first. It fails where the connection has ended already.
                let _ = link.socket.shutdown(Shutdown::Both);
            }
            is_first
        });
        if is_first {
            link.kick();
        }
    }
}

impl Drop for UringReadiness {
    fn drop(&mut self) {
        self.end();
    }
}
