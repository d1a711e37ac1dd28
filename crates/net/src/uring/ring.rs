//! The ring of the driver's thread, and the memory that the kernel reads and fills for it. All of the unsafe code is here.
//!
//! The ring owns what the kernel uses: the memory of a send until it is completed, and the memory that is provided for what
//! arrives until the kernel has filled it. Linux: io_uring/net.c, io_uring/kbuf.c; `io_uring_enter(2)`.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{BufRingEntry, CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use crate::memory::{LARGE, Segment, Span};

/// Entries of the submission queue; more are a call more.
const ENTRIES: u32 = 256;
/// Entries of the completion queue; the kernel keeps what is beyond.
const COMPLETIONS: u32 = 2_048;
/// Pieces of memory that are provided for one channel at most: few enough for a cache. A power of two.
pub(super) const BUFFERS: usize = 4;
/// `IORING_ENTER_GETEVENTS`: complete what can be.
const GET_EVENTS: u32 = 1;
/// How long a ring that ends waits until the kernel uses its memory no more.
const CANCEL_TIME: Duration = Duration::from_secs(2);

/// What a completion is about: the lowest bits of its number, below the channel's index.
const KIND_BITS: u32 = 2;
const IGNORED: u64 = 0;
const WOKEN: u64 = 1;
const RECEIVED: u64 = 2;
const SENT: u64 = 3;

/// What was completed.
pub(super) enum Event {
    /// The descriptor of [`Ring::listen`] was signalled.
    Woken,
    /// Bytes have arrived in provided memory; none at the end of the connection.
    Received { index: usize, segment: Option<Segment>, bytes: usize },
    /// Nothing more is received until [`Ring::receive`]: why, if not for want of memory.
    Stopped { index: usize, error: Option<io::Error> },
    /// All of a send has left, or it has failed.
    Sent { index: usize, result: io::Result<()> },
}

/// See the module.
pub(super) struct Ring {
    ring: IoUring,
    channels: Vec<Option<Channel>>,
    listens: bool,
}

/// What the kernel has of a channel.
struct Channel {
    socket: Arc<TcpStream>,
    provided: Provided,
    is_receiving: bool,
    sending: Option<Box<Sending>>,
}

/// A send that the kernel has.
struct Sending {
    spans: Vec<Span>,
    /// What is left of them.
    vectors: Vec<libc::iovec>,
    /// Points to `vectors`.
    header: libc::msghdr,
    left: usize,
}

// SAFETY: the pointers are to memory that the value itself owns, in `spans` and `vectors`.
unsafe impl Send for Sending {}

/// Memory that the kernel fills, in a queue that it reads (`struct io_uring_buf_ring`).
struct Provided {
    queue: NonNull<BufRingEntry>,
    layout: Layout,
    /// By their numbers in the queue.
    segments: [Option<Segment>; BUFFERS],
    tail: u16,
}

// SAFETY: the queue is memory of its own, which this process uses from the thread that has the value.
unsafe impl Send for Provided {}

impl Ring {
    /// A ring of the calling thread, which alone may use it.
    ///
    /// # Errors
    /// When the kernel has none, forbids it, or has an older one than that of Linux 6.1.
    pub(super) fn new() -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(COMPLETIONS).dontfork().setup_submit_all();
        // Completions run where this thread asks for them, and interrupt nothing.
        builder.setup_single_issuer().setup_defer_taskrun();
        Ok(Ring { ring: builder.build(ENTRIES)?, channels: Vec::new(), listens: false })
    }

    /// A connection, which the ring keeps open. Returns its index.
    ///
    /// # Errors
    /// When the kernel refuses its queue of memory.
    pub(super) fn add(&mut self, socket: Arc<TcpStream>) -> io::Result<usize> {
        let free = self.channels.iter().position(Option::is_none);
        let index = free.unwrap_or(self.channels.len());
        let group = u16::try_from(index).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        let provided = Provided::new()?;
        let address = provided.queue.as_ptr().expose_provenance() as u64;
        // SAFETY: the queue has so many entries, and is freed after it was unregistered, or with the ring.
        unsafe {
            self.ring.submitter().register_buf_ring_with_flags(address, BUFFERS as u16, group, 0)
        }?;
        let channel = Channel { socket, provided, is_receiving: false, sending: None };
        match self.channels.get_mut(index) {
            Some(place) => *place = Some(channel),
            None => self.channels.push(Some(channel)),
        }
        Ok(index)
    }

    /// Whether the kernel uses no memory of a channel.
    pub(super) fn is_idle(&self, index: usize) -> bool {
        self.channel(index).is_none_or(|it| !it.is_receiving && it.sending.is_none())
    }

    /// Frees a channel that is idle.
    pub(super) fn remove(&mut self, index: usize) {
        debug_assert!(self.is_idle(index), "the kernel uses its memory");
        let Some(channel) = self.channels.get_mut(index).and_then(Option::take) else { return };
        if let Err(error) = self.ring.submitter().unregister_buf_ring(index as u16) {
            // Its index and its memory stay taken, as the kernel has them.
            tracing::error!("memory of a channel is not freed: {error}");
            self.channels[index] = Some(channel);
        }
    }

    fn channel(&self, index: usize) -> Option<&Channel> {
        self.channels.get(index)?.as_ref()
    }

    /// Pieces of memory that the kernel may fill for a channel.
    pub(super) fn provided(&self, index: usize) -> usize {
        self.channel(index).map_or(0, |channel| channel.provided.count())
    }

    /// One more, which is empty. It is returned where there are enough.
    pub(super) fn provide(&mut self, index: usize, segment: Segment) -> Option<Segment> {
        match self.channels.get_mut(index) {
            Some(Some(channel)) => channel.provided.push(segment),
            _ => Some(segment),
        }
    }

    /// Begins to receive, unless it does already, until [`Event::Stopped`].
    pub(super) fn receive(&mut self, index: usize) {
        let Some(Some(channel)) = self.channels.get_mut(index) else { return };
        if std::mem::replace(&mut channel.is_receiving, true) {
            return;
        }
        let fd = Fd(channel.socket.as_raw_fd());
        let entry = opcode::RecvMulti::new(fd, index as u16).build();
        self.push(entry.user_data(number(index, RECEIVED)));
    }

    /// Ends that.
    pub(super) fn cancel_receive(&mut self, index: usize) {
        if self.channel(index).is_some_and(|channel| channel.is_receiving) {
            let which = CancelBuilder::user_data(number(index, RECEIVED));
            self.push(opcode::AsyncCancel2::new(which).build().user_data(IGNORED));
        }
    }

    /// Sends bytes, all of them, on a channel that has no send.
    pub(super) fn send(&mut self, index: usize, spans: Vec<Span>) {
        let Some(Some(channel)) = self.channels.get_mut(index) else { return };
        debug_assert!(channel.sending.is_none(), "one send after the other");
        channel.sending = Some(Sending::new(spans));
        self.push_send(index);
    }

    fn push_send(&mut self, index: usize) {
        let Some(Some(channel)) = self.channels.get_mut(index) else { return };
        let Some(sending) = &mut channel.sending else { return };
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let fd = Fd(channel.socket.as_raw_fd());
        let header = sending.aim();
        let entry = opcode::SendMsg::new(fd, header).flags(flags).build();
        self.push(entry.user_data(number(index, SENT)));
    }

    /// Reports [`Event::Woken`] each time that a descriptor, which stays open as long as the ring, is signalled.
    pub(super) fn listen(&mut self, bell: BorrowedFd<'_>) {
        if !std::mem::replace(&mut self.listens, true) {
            let poll = opcode::PollAdd::new(Fd(bell.as_raw_fd()), libc::POLLIN as u32);
            self.push(poll.multi(true).build().user_data(WOKEN));
        }
    }

    fn push(&mut self, entry: Entry) {
        // SAFETY: what the entry points to is owned by `channels`, and stays until its completion was taken.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            if let Err(error) = self.enter(0, None) {
                tracing::error!("io_uring takes nothing: {error}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Passes all that was begun to the kernel, and waits for a completion if it `sleeps`.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub(super) fn submit(&mut self, sleeps: bool, timeout: Option<Duration>) -> io::Result<()> {
        self.enter(usize::from(sleeps), timeout)
    }

    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        self.ring.submission().sync();
        let submitter = self.ring.submitter();
        let result = match timeout.filter(|_| want > 0) {
            Some(timeout) => {
                let time = Timespec::from(timeout);
                submitter.submit_with_args(want, &SubmitArgs::new().timespec(&time))
            }
            None if want > 0 => submitter.submit_and_wait(want),
            None => {
                let entries = self.ring.submission().len() as u32;
                let submitter = self.ring.submitter();
                // SAFETY: as many entries as there are, and no argument.
                unsafe { submitter.enter::<()>(entries, 0, GET_EVENTS, None) }
            }
        };
        match result.map_err(|error| (error.raw_os_error(), error)) {
            // A signal, the end of the time, completions that have to be taken first.
            Ok(_) | Err((Some(libc::EINTR | libc::ETIME | libc::EBUSY), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// Takes what was completed.
    pub(super) fn events(&mut self) -> Vec<Event> {
        let completions: Vec<cqueue::Entry> = self.ring.completion().collect();
        let mut events = Vec::with_capacity(completions.len());
        for completion in completions {
            let (number, result) = (completion.user_data(), completion.result());
            let index = (number >> KIND_BITS) as usize;
            match number & ((1 << KIND_BITS) - 1) {
                WOKEN => {
                    self.listens &= cqueue::more(completion.flags());
                    events.push(Event::Woken);
                }
                RECEIVED => self.received(index, result, completion.flags(), &mut events),
                SENT => events.extend(self.sent(index, result)),
                _ => {}
            }
        }
        events
    }

    fn received(&mut self, index: usize, result: i32, flags: u32, events: &mut Vec<Event>) {
        let Some(Some(channel)) = self.channels.get_mut(index) else { return };
        let bytes = usize::try_from(result).unwrap_or(0);
        let segment = cqueue::buffer_select(flags).and_then(|it| channel.provided.take(it));
        let has_ended = result == 0;
        if bytes > 0 || has_ended {
            events.push(Event::Received { index, segment, bytes });
        }
        if !cqueue::more(flags) {
            channel.is_receiving = false;
            let error = match -result {
                libc::ENOBUFS | libc::ECANCELED | libc::EINTR | libc::EAGAIN => None,
                error => (error > 0).then(|| io::Error::from_raw_os_error(error)),
            };
            events.push(Event::Stopped { index, error });
        }
    }

    /// What of a send has left; the rest follows.
    fn sent(&mut self, index: usize, result: i32) -> Option<Event> {
        let channel = self.channels.get_mut(index)?.as_mut()?;
        let sending = channel.sending.as_mut()?;
        let is_all = match (usize::try_from(result), -result) {
            (Ok(0), _) => Err(io::ErrorKind::WriteZero.into()),
            (Ok(sent), _) => Ok(sending.advance(sent)),
            (Err(_), libc::EINTR | libc::EAGAIN) => Ok(false),
            (Err(_), error) => Err(io::Error::from_raw_os_error(error)),
        };
        if let Ok(false) = is_all {
            self.push_send(index);
            return None;
        }
        channel.sending = None;
        Some(Event::Sent { index, result: is_all.map(|_| ()) })
    }

    fn has_memory_in_use(&self) -> bool {
        (0..self.channels.len()).any(|index| !self.is_idle(index))
    }
}

impl Drop for Ring {
    /// The kernel uses memory of the ring until each operation is completed.
    fn drop(&mut self) {
        let until = std::time::Instant::now() + CANCEL_TIME;
        if self.has_memory_in_use() {
            self.push(opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(IGNORED));
        }
        while self.has_memory_in_use() && std::time::Instant::now() < until {
            if self.enter(1, Some(CANCEL_TIME)).is_err() {
                break;
            }
            // What was sent in part is not sent on.
            for completion in self.ring.completion().collect::<Vec<_>>() {
                let index = (completion.user_data() >> KIND_BITS) as usize;
                let Some(Some(channel)) = self.channels.get_mut(index) else { continue };
                match completion.user_data() & ((1 << KIND_BITS) - 1) {
                    RECEIVED => channel.is_receiving &= cqueue::more(completion.flags()),
                    SENT => channel.sending = None,
                    _ => {}
                }
            }
        }
        if self.has_memory_in_use() {
            tracing::error!("io_uring does not end: the memory of its channels is lost");
            std::mem::forget(std::mem::take(&mut self.channels));
        }
    }
}

fn number(index: usize, kind: u64) -> u64 {
    ((index as u64) << KIND_BITS) | kind
}

impl Sending {
    fn new(spans: Vec<Span>) -> Box<Sending> {
        let vector = |span: &Span| libc::iovec {
            // Only read: the type is for both directions.
            iov_base: span.bytes().as_ptr().cast_mut().cast(),
            iov_len: span.len(),
        };
        let vectors = spans.iter().map(vector).collect();
        let left = spans.iter().map(Span::len).sum();
        // SAFETY: all zeros are a header without an address, memory and control data.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Sending { spans, vectors, header, left })
    }

    /// The header of what is left.
    fn aim(&mut self) -> *const libc::msghdr {
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.vectors.len() as _;
        &raw const self.header
    }

    /// So many bytes have left. Whether these were all.
    fn advance(&mut self, mut sent: usize) -> bool {
        self.left -= sent.min(self.left);
        while let Some(first) = self.vectors.first_mut() {
            if sent < first.iov_len {
                // SAFETY: within the vector's memory.
                first.iov_base = unsafe { first.iov_base.byte_add(sent) };
                first.iov_len -= sent;
                break;
            }
            sent -= first.iov_len;
            self.vectors.remove(0);
        }
        if self.left == 0 {
            self.spans.clear();
        }
        self.left == 0
    }
}

impl Provided {
    fn new() -> io::Result<Provided> {
        let page = rustix::param::page_size();
        // The kernel wants whole pages.
        let layout = Layout::from_size_align(page, page).map_err(io::Error::other)?;
        debug_assert!(layout.size() >= BUFFERS * size_of::<BufRingEntry>());
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let queue = NonNull::new(memory.cast()).unwrap_or_else(|| handle_alloc_error(layout));
        Ok(Provided { queue, layout, segments: [const { None }; BUFFERS], tail: 0 })
    }

    fn count(&self) -> usize {
        self.segments.iter().flatten().count()
    }

    /// Lets the kernel fill a segment, unless it has enough.
    fn push(&mut self, mut segment: Segment) -> Option<Segment> {
        let Some(number) = self.segments.iter().position(Option::is_none) else {
            return Some(segment);
        };
        let memory = segment.free_mut();
        debug_assert_eq!(memory.len(), LARGE);
        let (address, length) = (memory.as_mut_ptr().expose_provenance(), memory.len());
        self.segments[number] = Some(segment);
        let place = usize::from(self.tail) % BUFFERS;
        // SAFETY: within the queue; the kernel reads an entry once the tail is beyond it, and there are never more than it has
        // room for. The segment's memory stays where it is, and is not looked at until the kernel has reported it.
        unsafe {
            let entry = &mut *self.queue.as_ptr().add(place);
            entry.set_addr(address as u64);
            entry.set_len(length as u32);
            entry.set_bid(number as u16);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is in the first entry, which is initialised, and is aligned; the kernel only reads it.
        let tail =
            unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.queue.as_ptr()).cast_mut()) };
        // Release: pairs with the kernel's acquire, which reads the entry after it.
        tail.store(self.tail, Ordering::Release);
        None
    }

    /// A segment that the kernel has filled.
    fn take(&mut self, number: u16) -> Option<Segment> {
        self.segments.get_mut(usize::from(number))?.take()
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        // SAFETY: of this layout. The kernel does not write to it, and what it reads of it was unregistered before, or is kept by
        // the kernel itself until its end of the ring is gone.
        unsafe { dealloc(self.queue.as_ptr().cast(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_that_left_in_part_goes_on_behind_it() {
        let bytes: Vec<u8> = (0..2 * LARGE + 100).map(|at| (at / 3) as u8).collect();
        let mut sending = Sending::new(crate::memory::spans_of(&Arc::default(), &bytes));
        let mut sent = 0;
        for part in [1, LARGE - 1, LARGE + 7, 92] {
            let first = sending.vectors[0];
            // SAFETY: it points into the spans, which `sending` owns.
            let memory = unsafe {
                std::slice::from_raw_parts(first.iov_base.cast_const().cast::<u8>(), first.iov_len)
            };
            assert_eq!(memory, &bytes[sent..sent + first.iov_len]);
            assert!(!sending.advance(part), "{sent} are not all");
            sent += part;
        }
        assert_eq!(sending.left, bytes.len() - sent);
        assert!(sending.advance(sending.left));
        assert!(sending.vectors.is_empty() && sending.spans.is_empty());
    }
}
