//! A socket as the calls see it: try, and wait for its turn.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use quell_model::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::epoll::{Interest, Poller, Registration};
use super::op::Op;
use super::{Engine, Reactor, uring};
use crate::kthread::local::{checkpoint, hold};
use crate::kthread::{is_of_runtime, lock, now, with_reactor};
use crate::park::{in_uthread, park_current};

/// When a call that may take so long must end.
pub(crate) fn deadline_of(timeout: Option<Duration>) -> Option<Nanos> {
    let timeout = timeout?;
    let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    Some(Nanos(now().0.saturating_add(timeout)))
}

/// A socket and how to wait for it. Calls on it do not block: they say so each time, or it is one that never does. (One that
/// never does is not waited for in [`receive`](Source::receive): a ring would not either.)
#[derive(Debug)]
pub(crate) struct Source<S: AsFd> {
    /// With the poller of the kthread on which a uthread first waited for it, if that has no ring.
    registered: OnceLock<Registered>,
    registering: Mutex<()>,
    /// The last read left nothing behind: another one will wait.
    drained: AtomicBool,
    socket: S,
}

#[derive(Debug)]
struct Registered {
    reactor: Reactor,
    registration: Registration,
}

impl<S: AsFd> Drop for Source<S> {
    fn drop(&mut self) {
        let _held = hold();
        if let Some(Registered { reactor, registration }) = self.registered.get()
            && let Some(poller) = reactor.poller()
        {
            poller.deregister(self.socket.as_fd(), registration);
        }
    }
}

impl<S: AsFd> Source<S> {
    /// Calls on the socket must not block.
    pub(crate) fn new(socket: S) -> Source<S> {
        Source {
            registered: OnceLock::new(),
            registering: Mutex::new(()),
            drained: AtomicBool::new(false),
            socket,
        }
    }

    pub(crate) fn get(&self) -> &S {
        &self.socket
    }

    /// Whether a reactor of the running uthread's runtime waits for it, or will: that of another one may end before the wait does.
    pub(crate) fn is_served(&self) -> bool {
        self.registered.get().is_none_or(|it| is_of_runtime(&it.reactor))
    }

    /// Calls `attempt` until it does not say that it would block, and waits in between.
    ///
    /// # Errors
    /// Those of `attempt`; `WouldBlock` when the time is over, as a socket with a time-out answers.
    pub(crate) fn retry<R>(
        &self,
        interest: Interest,
        deadline: Option<Nanos>,
        mut attempt: impl FnMut(&S) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            let seen = self.registered.get().map_or(0, |it| it.registration.edges.seen(interest));
            match attempt(&self.socket) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait(interest, seen, deadline)?;
                }
                other => {
                    checkpoint();
                    return other;
                }
            }
        }
    }

    /// Receives, by the ring if there is one and nothing is there yet.
    ///
    /// # Errors
    /// Those of `recv`; `WouldBlock` when the time is over.
    pub(crate) fn receive(
        &self,
        buffer: &mut [u8],
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&S, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if buffer.is_empty() || !in_uthread() {
            let deadline = deadline_of(timeout);
            return self.retry(Interest::Read, deadline, |socket| attempt(socket, buffer));
        }
        // Relaxed: a hint; who waits for what is there does not wait long.
        if !self.drained.load(Ordering::Relaxed) {
            match attempt(&self.socket, buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => {
                    // Less than there was room for: nothing is left.
                    let drained = matches!(other, Ok(bytes) if bytes > 0 && bytes < buffer.len());
                    if drained {
                        self.drained.store(true, Ordering::Relaxed);
                    }
                    checkpoint();
                    return other;
                }
            }
        }
        let deadline = deadline_of(timeout);
        let length = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let (fd, start) = (self.socket.as_fd().as_raw_fd(), buffer.as_mut_ptr());
        let Some(entry) = super::of_ring(|ring| ring.receive_entry(fd, start, length)) else {
            return self.retry(Interest::Read, deadline, |socket| attempt(socket, buffer));
        };
        // SAFETY: the buffer and the socket are borrowed until this function returns.
        let Some((received, more)) = (unsafe { super::perform(entry, deadline) }) else {
            return self.retry(Interest::Read, deadline, |socket| attempt(socket, buffer));
        };
        // At the end, or after an error, there is nothing that a wait would bring.
        let drained = !more && received.as_ref().is_ok_and(|&bytes| bytes > 0);
        self.drained.store(drained, Ordering::Relaxed);
        received.map_err(|error| timed_out(error, deadline))
    }

    /// Waits until it is worth another try.
    ///
    /// # Errors
    /// `WouldBlock` when the time is over; those of the kernel when it cannot be waited for.
    fn wait(&self, interest: Interest, seen: u32, deadline: Option<Nanos>) -> io::Result<()> {
        if !in_uthread() {
            return wait_here(self.socket.as_fd(), interest, deadline);
        }
        if super::of_ring(|_| ()).is_none() {
            return self.wait_registered(interest, seen, deadline);
        }
        let events = match interest {
            Interest::Read => libc::POLLIN | libc::POLLRDHUP,
            Interest::Write => libc::POLLOUT,
        };
        let entry = uring::poll_entry(self.socket.as_fd().as_raw_fd(), events);
        // SAFETY: the entry points to nothing; the socket is borrowed, so its number stays its own.
        match unsafe { super::perform(entry, deadline) } {
            Some((done, _)) => done.map(drop).map_err(|error| timed_out(error, deadline)),
            None => self.wait_registered(interest, seen, deadline),
        }
    }

    fn wait_registered(
        &self,
        interest: Interest,
        seen: u32,
        deadline: Option<Nanos>,
    ) -> io::Result<()> {
        let Registered { reactor, registration } = self.register()?;
        if reactor.poller().is_none_or(Poller::is_closed) {
            // The runtime that it was registered with has ended.
            let fd = self.socket.as_fd();
            return super::offload(|| wait_here(fd, interest, deadline));
        }
        let op = Op::default();
        let (wait, what) = (&op, (registration, interest, seen));
        // The uthread may go on, and drop the socket, before `start` returns.
        let engine = Arc::clone(&reactor.engine);
        park_current(move |waiter| {
            let own = with_reactor(|current| Arc::ptr_eq(&current.engine, &engine));
            if let Engine::Epoll(poller) = &*engine {
                poller.start(wait, what, deadline, waiter, own);
            }
        });
        op.result().map(drop).map_err(|error| timed_out(error, deadline))
    }

    /// The registration, which is made now if there is none.
    fn register(&self) -> io::Result<&Registered> {
        if let Some(registered) = self.registered.get() {
            return Ok(registered);
        }
        let mut result = Ok(());
        super::on_kthread_stack(|| {
            let _one = lock(&self.registering);
            if self.registered.get().is_some() {
                return;
            }
            let reactor = with_reactor(|reactor| reactor.clone());
            let Engine::Epoll(poller) = &*reactor.engine else {
                result = Err(ErrorKind::Unsupported.into());
                return;
            };
            match poller.register(self.socket.as_fd()) {
                Ok(registration) => {
                    let _ = self.registered.set(Registered { reactor, registration });
                }
                Err(error) => result = Err(error),
            }
        });
        result?;
        self.registered.get().ok_or_else(|| ErrorKind::Unsupported.into())
    }
}

/// What a wait that was ended at its deadline answers: as a socket with a time-out does.
fn timed_out(error: io::Error, deadline: Option<Nanos>) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ECANCELED | libc::ETIME) if deadline.is_some() => ErrorKind::WouldBlock.into(),
        _ => error,
    }
}

/// Waits on this kernel thread.
fn wait_here(fd: BorrowedFd<'_>, interest: Interest, deadline: Option<Nanos>) -> io::Result<()> {
    let events = match interest {
        Interest::Read => PollFlags::IN | PollFlags::RDHUP,
        Interest::Write => PollFlags::OUT,
    };
    loop {
        let left = deadline.map(|deadline| deadline - now());
        let timeout = left.map(|left| Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as i64,
        });
        match poll(&mut [PollFd::from_borrowed_fd(fd, events)], timeout.as_ref()) {
            Ok(0) => return Err(ErrorKind::WouldBlock.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
