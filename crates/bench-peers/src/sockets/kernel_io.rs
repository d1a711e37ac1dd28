//! Other ways to move a TCP connection's bytes than `write` and `read`: io_uring, and writes without a copy
//! (`MSG_ZEROCOPY`).

use std::io::{self, Read as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::options;

/// A TCP connection whose bytes move in another way.
pub trait KernelIo: Send + Sync {
    /// As of a socket.
    fn read(&self, into: &mut [u8]) -> io::Result<usize>;
    /// As of a socket.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Its socket.
    fn socket(&self) -> &TcpStream;
    /// Of the writes that were to be without a copy, the part that the kernel copied nevertheless.
    fn copied_share(&self) -> Option<f64> {
        None
    }
}

/// Where io_uring carries out a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the thread that asks, as far as it need not wait.
    Inline,
    /// On a worker thread of the kernel (`IOSQE_ASYNC`).
    Worker,
}

/// One request at a time for each direction, each with a ring of its own.
pub struct Uring {
    stream: TcpStream,
    place: Place,
    reads: Mutex<IoUring>,
    writes: Mutex<IoUring>,
}

impl Uring {
    /// Over a connection.
    ///
    /// # Errors
    /// When the kernel has no io_uring, or refuses it.
    pub fn new(stream: TcpStream, place: Place) -> Result<Uring> {
        let ring = || -> Result<IoUring> {
            let ring = IoUring::builder().setup_coop_taskrun().build(2);
            let ring = ring.context("set up io_uring")?;
            // Workers may use all cores by default, whatever their program may.
            let own = options::own_cores().context("read the own affinity")?;
            ring.submitter().register_iowq_aff(&own).context("keep io_uring's workers here")?;
            Ok(ring)
        };
        Ok(Uring { stream, place, reads: Mutex::new(ring()?), writes: Mutex::new(ring()?) })
    }

    /// # Safety
    /// The memory that the entry names lives until this returns.
    unsafe fn complete(&self, ring: &Mutex<IoUring>, entry: Entry) -> io::Result<usize> {
        let flags = if self.place == Place::Worker { Flags::ASYNC } else { Flags::empty() };
        let entry = entry.flags(flags);
        let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller keeps the memory, and this returns only when the request is done.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if error.kind() == io::ErrorKind::Interrupted
                        || error.raw_os_error() == Some(libc::EAGAIN)
                        || error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => {
                    // The kernel may still use the memory: there is no way to return.
                    eprintln!("error: io_uring: {error}");
                    std::process::abort();
                }
            }
            let completed = ring.completion().next();
            if let Some(completion) = completed {
                return usize::try_from(completion.result())
                    .map_err(|_| io::Error::from_raw_os_error(-completion.result()));
            }
        }
    }
}

impl KernelIo for Uring {
    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let (fd, length) = (Fd(self.stream.as_raw_fd()), length(into.len()));
        let entry = opcode::Recv::new(fd, into.as_mut_ptr(), length).build();
        // SAFETY: `into` is borrowed until this returns.
        unsafe { self.complete(&self.reads, entry) }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let (fd, length) = (Fd(self.stream.as_raw_fd()), length(bytes.len()));
        let entry = opcode::Send::new(fd, bytes.as_ptr(), length).flags(libc::MSG_NOSIGNAL).build();
        // SAFETY: `bytes` is borrowed until this returns.
        unsafe { self.complete(&self.writes, entry) }
    }

    fn socket(&self) -> &TcpStream {
        &self.stream
    }
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Writes without a copy. The program's bytes do not change, so that it need not wait for the kernel's word that they may.
pub struct ZeroCopy {
    stream: TcpStream,
    completed: AtomicU64,
    copied: AtomicU64,
}

/// `linux/socket.h`.
const MSG_ZEROCOPY: u32 = 0x0400_0000;

impl ZeroCopy {
    /// Over a connection.
    ///
    /// # Errors
    /// When the kernel does not do it.
    pub fn new(stream: TcpStream) -> Result<ZeroCopy> {
        options::set_zero_copy(&stream).context("set SO_ZEROCOPY")?;
        Ok(ZeroCopy { stream, completed: AtomicU64::new(0), copied: AtomicU64::new(0) })
    }

    /// Takes what the kernel has said of writes that are done.
    fn take_completions(&self) -> io::Result<()> {
        while let Some(done) = options::zero_copy_completion(&self.stream)? {
            // Relaxed: counts, read once by the thread that wrote.
            self.completed.fetch_add(done.writes, Ordering::Relaxed);
            if done.is_copied {
                self.copied.fetch_add(done.writes, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

impl KernelIo for ZeroCopy {
    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(into)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::from_bits_retain(MSG_ZEROCOPY);
        loop {
            let sent = send(&self.stream, bytes, flags);
            self.take_completions()?;
            match sent {
                // Too many writes wait for their completion.
                Err(Errno::NOBUFS) => {
                    poll(
                        &mut [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::ERR)],
                        None,
                    )?;
                }
                other => return Ok(other?),
            }
        }
    }

    fn socket(&self) -> &TcpStream {
        &self.stream
    }

    fn copied_share(&self) -> Option<f64> {
        let counts = [&self.copied, &self.completed].map(|it| it.load(Ordering::Relaxed) as f64);
        (counts[1] > 0.0).then(|| counts[0] / counts[1])
    }
}
