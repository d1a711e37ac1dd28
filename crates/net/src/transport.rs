//! What carries a channel: a transport implements these traits and nothing else.
//!
//! A transport promises that what it takes arrives in order and intact, or that it says it has ended. One that is lossy
//! ([`ChannelCaps::is_lossy`]) may lose, repeat and reorder frames, each of them whole: virtual sockets repair that. Order between
//! channels, the life of sockets, credit and recovery are the engine's. The two directions are apart, since one thread may
//! send while another receives.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use quell_net_engine::ChannelCaps;
pub use quell_net_engine::scheduler::PathSample;
pub use quell_net_engine::wire::PAYLOAD_MAX;
pub use rustix::event::PollFlags;

use crate::memory::Span;

/// A channel that is up: its two directions.
pub struct Transport {
    /// Sends.
    pub outgoing: Box<dyn Outgoing>,
    /// Receives.
    pub incoming: Box<dyn Incoming>,
    /// Says when to try again.
    pub readiness: Arc<dyn Readiness>,
    /// Its path across a network, if it has one on which it can be slowed down.
    pub path: Option<Arc<dyn Path>>,
    /// What it can do.
    pub caps: ChannelCaps,
    /// Its name in statistics.
    pub name: &'static str,
}

/// The sending direction of a channel.
pub trait Outgoing: Send {
    /// Takes as many of the bytes as there is room for, without waiting, and says how many.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where there is no room; with all others the channel has ended.
    fn enqueue(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Whether it takes memory that stays as it is by reference.
    fn takes_kept(&self) -> bool {
        false
    }

    /// As [`Outgoing::enqueue`], for transports of this library that take such memory: some of the bytes are in it.
    ///
    /// # Errors
    /// The same.
    fn enqueue_kept(&mut self, bytes: &[IoSlice<'_>], _kept: &[Kept]) -> io::Result<usize> {
        self.enqueue(bytes)
    }
}

/// Bytes to send that stay as they are as long as it refers to them; none where they do not.
#[derive(Debug)]
pub struct Kept(pub(crate) Option<Span>);

/// The receiving direction of a channel.
pub trait Incoming: Send {
    /// Puts what has arrived into memory, without waiting, and says how many bytes; zero at the end of the channel.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where nothing has arrived; with all others the channel has ended.
    fn dequeue(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// What has arrived in memory that the transport has filled already, without a copy; `None` for transports that have no
    /// such memory, which are asked to [`Incoming::dequeue`] then.
    ///
    /// # Errors
    /// As those of [`Incoming::dequeue`].
    fn take_filled(&mut self) -> Option<io::Result<Filled>> {
        None
    }

    /// `poll` has said that something has arrived, or was not asked for a while: called before the next
    /// [`Incoming::dequeue`], and does not wait.
    fn woken(&mut self) {}

    /// Whether asking in vain costs a system call: after a read that left memory over, `poll` is asked first.
    fn is_asked_by_poll(&self) -> bool {
        false
    }
}

/// Bytes in the memory that a transport of this library has filled; none at the end of the channel.
#[derive(Debug)]
pub struct Filled(pub(crate) Vec<Span>);

/// The network between the two ends of a channel. While bulk data is sent the endpoint's own thread asks about it, once a
/// millisecond, and has the channel send less than the slowest link carries.
pub trait Path: Send + Sync {
    /// What is known of it now; `None` before anything was sent.
    ///
    /// # Errors
    /// When the channel has ended.
    fn sample(&self) -> io::Result<Option<PathSample>>;

    /// Sends at most so many bytes per second from now on; without a limit if `None`.
    ///
    /// # Errors
    /// When the channel has ended, or cannot be slowed down.
    fn pace(&self, bytes_per_second: Option<u64>) -> io::Result<()>;
}

/// What a thread waits on while a channel has nothing to receive, or no room.
pub trait Readiness: Send + Sync {
    /// What `poll` is asked: it says yes when something has arrived.
    fn readable(&self) -> (BorrowedFd<'_>, PollFlags);

    /// What `poll` is asked: it says yes when there is room again.
    fn writable(&self) -> (BorrowedFd<'_>, PollFlags);

    /// A thread is about to sleep until something arrives. True if something has: then it does not.
    fn arm_readable(&self) -> bool {
        false
    }

    /// A thread is about to sleep until there is room. True if there is: then it does not.
    fn arm_writable(&self) -> bool {
        false
    }

    /// Whether there is room. Asked by a thread that waits awake.
    fn has_room(&self) -> bool {
        false
    }

    /// Whether the other end is at work on another core, or was just woken, so that it is worth waiting awake for a moment.
    fn is_peer_active(&self) -> bool {
        false
    }

    /// Ends the channel in both directions: a thread that sends or waits learns it.
    fn end(&self);
}
