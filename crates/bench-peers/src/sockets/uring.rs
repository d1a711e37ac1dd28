//! TCP connections on io_uring, as a program would use it that is written for it: each thread has a ring, small writes leave
//! together with the next wait, a reader of many sockets has one receive for each that goes on, into memory that it provides.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd as _, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use anyhow::{Context as _, Result, ensure};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode};

use super::pattern::Pattern;

/// Sends of one call at most.
const SENDS_MAX: usize = 64;
/// Bytes of small sends that wait for the next call. A write of as many is sent at once, from where it is.
const PENDING_MAX: usize = 64 << 10;
/// Entries of a ring.
const ENTRIES: u32 = 256;
/// Pieces of memory that a reader of many sockets provides.
const BUFFERS: usize = 128;
/// Bytes of each.
const BUFFER_BYTES: usize = 16 << 10;
/// The number of that memory.
const GROUP: u16 = 0;
/// The completion of a receive; sends have the numbers of their places.
const RECEIVED: u64 = u64::MAX;

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// A connection.
pub struct UringSocket {
    stream: TcpStream,
    /// Its first bytes are sent at once: another thread may go on.
    has_begun: AtomicBool,
}

impl UringSocket {
    pub fn new(stream: TcpStream) -> UringSocket {
        UringSocket { stream, has_begun: AtomicBool::new(false) }
    }

    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        // Relaxed: each thread that writes was given the connection by the one before.
        let is_first = !self.has_begun.swap(true, Ordering::Relaxed);
        with_ring(|ring| match is_first || bytes.len() >= PENDING_MAX {
            true => ring.send(self.stream.as_raw_fd(), bytes),
            false => ring.queue(self.stream.as_raw_fd(), bytes),
        })?;
        Ok(bytes.len())
    }

    /// What was written before leaves in the same call.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        with_ring(|ring| ring.receive(self.stream.as_raw_fd(), into))
    }

    pub fn flush(&self) -> io::Result<()> {
        with_ring(|ring| ring.submit(None).map(drop))
    }

    pub fn end(&self) -> io::Result<()> {
        self.flush()?;
        self.stream.shutdown(Shutdown::Write)
    }
}

fn with_ring<T>(act: impl FnOnce(&mut Ring) -> io::Result<T>) -> io::Result<T> {
    RING.with_borrow_mut(|ring| {
        if ring.is_none() {
            *ring = Some(Ring { ring: new_ring()?, pending: Vec::new(), spare: Vec::new() });
        }
        match ring {
            Some(ring) => act(ring),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    })
}

fn new_ring() -> io::Result<IoUring> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)
}

/// The ring of a thread, and its small writes that wait. Between calls the kernel has none of its operations.
struct Ring {
    ring: IoUring,
    pending: Vec<(RawFd, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Ring {
    fn queue(&mut self, fd: RawFd, bytes: &[u8]) -> io::Result<()> {
        let waits = |place: &(RawFd, Vec<u8>)| place.0 == fd;
        let (earlier, last) = match self.pending.split_last() {
            Some((last, earlier)) => (earlier.iter().any(waits), Some(last)),
            None => (false, None),
        };
        // Sends of one socket follow each other only as neighbours.
        if earlier && last.is_some_and(|last| last.0 != fd) {
            self.submit(None)?;
        }
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.clear();
        memory.extend_from_slice(bytes);
        self.pending.push((fd, memory));
        let waiting: usize = self.pending.iter().map(|(_, memory)| memory.len()).sum();
        if self.pending.len() >= SENDS_MAX || waiting >= PENDING_MAX {
            self.submit(None)?;
        }
        Ok(())
    }

    fn send(&mut self, fd: RawFd, mut bytes: &[u8]) -> io::Result<()> {
        self.submit(None)?;
        while !bytes.is_empty() {
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let send = opcode::Send::new(Fd(fd), bytes.as_ptr(), length).flags(send_flags());
            let sent = self.submit(Some(send.build()))?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    fn receive(&mut self, fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
        let length = u32::try_from(into.len()).unwrap_or(u32::MAX);
        let receive = opcode::Recv::new(Fd(fd), into.as_mut_ptr(), length);
        self.submit(Some(receive.build()))
    }

    /// Sends what waits, and does one thing more; returns its result once all are completed.
    fn submit(&mut self, last: Option<Entry>) -> io::Result<usize> {
        let count = self.pending.len() + usize::from(last.is_some());
        if count == 0 {
            return Ok(0);
        }
        for (place, (fd, memory)) in self.pending.iter().enumerate() {
            let length = u32::try_from(memory.len()).unwrap_or(u32::MAX);
            let send = opcode::Send::new(Fd(*fd), memory.as_ptr(), length).flags(send_flags());
            let is_followed = self.pending.get(place + 1).is_some_and(|next| next.0 == *fd);
            let flags = if is_followed { Flags::IO_LINK } else { Flags::empty() };
            let entry = send.build().user_data(place as u64).flags(flags);
            // SAFETY: `pending` stays as it is until all are completed, below.
            unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        }
        if let Some(last) = last {
            // SAFETY: its memory is the caller's, which this function returns to once it is completed.
            unsafe { self.ring.submission().push(&last.user_data(RECEIVED)) }
                .map_err(io::Error::other)?;
        }
        let (mut done, mut result) = (0, Ok(0));
        while done < count {
            match self.ring.submit_and_wait(count - done) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel may use memory that is not this function's.
                Err(_) => std::process::abort(),
            }
            for completion in self.ring.completion() {
                done += 1;
                let value = value_of(completion.result());
                let number = completion.user_data();
                let wanted = self.pending.get(number as usize).map(|(_, memory)| memory.len());
                match (value, wanted) {
                    (Err(error), _) => result = Err(error),
                    (Ok(value), None) => result = result.map(|_| value),
                    (Ok(value), Some(wanted)) if value < wanted => {
                        result = Err(io::ErrorKind::WriteZero.into());
                    }
                    (Ok(_), Some(_)) => {}
                }
            }
        }
        self.spare.extend(self.pending.drain(..).map(|(_, memory)| memory));
        result
    }
}

fn send_flags() -> i32 {
    libc::MSG_WAITALL | libc::MSG_NOSIGNAL
}

fn value_of(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// Reads all sockets to their ends. Returns how many bytes there were.
///
/// # Errors
/// When one fails, or other bytes arrive than were sent.
pub fn read_messages(sockets: Vec<UringSocket>, pattern: &Pattern) -> Result<u64> {
    let mut ring = new_ring().context("set a ring up")?;
    let mut memory = Memory::new(&ring)?;
    // The bytes of each that have come.
    let mut open: BTreeMap<u64, (UringSocket, u64)> =
        (0..).zip(sockets.into_iter().map(|socket| (socket, 0))).collect();
    for (token, (socket, _)) in &open {
        receive_on(&mut ring, *token, socket)?;
    }
    let mut total = 0;
    while !open.is_empty() {
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("wait for messages"),
        }
        for completion in ring.completion().collect::<Vec<_>>() {
            let (token, flags) = (completion.user_data(), completion.flags());
            let Some((socket, offset)) = open.get_mut(&token) else { continue };
            match completion.result() {
                0 => {
                    open.remove(&token);
                    continue;
                }
                result if result == -libc::ENOBUFS => {}
                result => {
                    let length = value_of(result)?;
                    let number = cqueue::buffer_select(flags).context("no memory was filled")?;
                    pattern.check(*offset, memory.filled(number, length)?)?;
                    memory.provide(number);
                    *offset += length as u64;
                    total += length as u64;
                }
            }
            if !cqueue::more(flags) {
                receive_on(&mut ring, token, socket)?;
            }
        }
    }
    Ok(total)
}

fn receive_on(ring: &mut IoUring, token: u64, socket: &UringSocket) -> Result<()> {
    let fd = Fd(socket.stream.as_raw_fd());
    let entry = opcode::RecvMulti::new(fd, GROUP).build().user_data(token);
    // SAFETY: it points to nothing; the memory of its group lives as long as the ring.
    while unsafe { ring.submission().push(&entry) }.is_err() {
        ring.submit().context("receive")?;
    }
    Ok(())
}

/// Memory that the kernel fills, and the queue of what it may fill.
struct Memory {
    queue: NonNull<BufRingEntry>,
    layout: Layout,
    bytes: NonNull<u8>,
    bytes_layout: Layout,
    tail: u16,
}

impl Memory {
    fn new(ring: &IoUring) -> Result<Memory> {
        let page = rustix::param::page_size();
        let zeroed = |bytes: usize| -> Result<(NonNull<u8>, Layout)> {
            let layout = Layout::from_size_align(bytes.next_multiple_of(page), page)?;
            // SAFETY: the layout is not empty.
            let memory = NonNull::new(unsafe { alloc_zeroed(layout) });
            Ok((memory.unwrap_or_else(|| handle_alloc_error(layout)), layout))
        };
        let (queue, layout) = zeroed(BUFFERS * size_of::<BufRingEntry>())?;
        let (bytes, bytes_layout) = zeroed(BUFFERS * BUFFER_BYTES)?;
        let mut memory = Memory { queue: queue.cast(), layout, bytes, bytes_layout, tail: 0 };
        let address = queue.as_ptr().expose_provenance() as u64;
        // SAFETY: of so many entries; it lives until the process is about to end.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, BUFFERS as u16, GROUP, 0) }
            .context("provide memory")?;
        (0..BUFFERS as u16).for_each(|number| memory.provide(number));
        Ok(memory)
    }

    /// What the kernel has filled, until it is provided again.
    fn filled(&self, number: u16, length: usize) -> Result<&[u8]> {
        ensure!(usize::from(number) < BUFFERS && length <= BUFFER_BYTES, "no such memory");
        // SAFETY: within the memory, which the kernel does not use now.
        Ok(unsafe {
            let start = self.bytes.as_ptr().add(usize::from(number) * BUFFER_BYTES);
            std::slice::from_raw_parts(start, length)
        })
    }

    /// The kernel may fill it.
    fn provide(&mut self, number: u16) {
        let place = usize::from(self.tail) % BUFFERS;
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `number` is of a piece that the kernel does not have, so the queue has a place for it.
        unsafe {
            let start = self.bytes.as_ptr().add(usize::from(number) * BUFFER_BYTES);
            let entry = &mut *self.queue.as_ptr().add(place);
            entry.set_addr(start.expose_provenance() as u64);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(number);
            let tail = AtomicU16::from_ptr(BufRingEntry::tail(self.queue.as_ptr()).cast_mut());
            // Release: pairs with the kernel's acquire, which reads the entry after it.
            tail.store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: of these layouts. Each receive is over: its socket has ended. Where one failed the process ends.
        unsafe {
            dealloc(self.queue.as_ptr().cast(), self.layout);
            dealloc(self.bytes.as_ptr(), self.bytes_layout);
        }
    }
}
