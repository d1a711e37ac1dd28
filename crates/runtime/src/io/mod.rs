//! Waiting for sockets and files: a reactor for each kthread, and the waits of uthreads.
//!
//! A call tries first, without blocking, and parks only when there is nothing to be had. Threads that are none of a runtime
//! block in the kernel as with std.

mod epoll;
mod offload;
mod op;
mod source;
#[cfg(test)]
mod tests;
mod uring;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use io_uring::squeue::Entry;
use quell_model::Nanos;
use rustix::event::{EventfdFlags, eventfd};

pub(crate) use epoll::Interest;
pub(crate) use offload::{offload, on_kthread_stack};
pub(crate) use source::{Source, deadline_of};

use crate::kthread::local::hold;
use crate::kthread::with_reactor;
use crate::park::{UthreadRef, park_current};
use crate::runtime::Io;
use op::Op;

/// What one kthread waits with. The kthread polls it between uthreads; thieves may do so as well.
#[derive(Clone, Debug)]
pub(crate) struct Reactor {
    engine: Arc<Engine>,
    bell: Arc<OwnedFd>,
}

#[derive(Debug)]
enum Engine {
    Uring(uring::Ring),
    Epoll(epoll::Poller),
}

impl Reactor {
    /// A reactor of this kind; io_uring where there is a choice and it is there.
    ///
    /// # Errors
    /// When the kernel has no such thing or refuses it.
    pub(crate) fn new(io: Io) -> std::io::Result<Reactor> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ring = match io {
            Io::Epoll => None,
            Io::Uring => Some(uring::Ring::new(Arc::clone(&bell))?),
            Io::Auto => uring::Ring::new(Arc::clone(&bell)).ok(),
        };
        let engine = match ring {
            Some(ring) => Engine::Uring(ring),
            None => Engine::Epoll(epoll::Poller::new(Arc::clone(&bell))?),
        };
        Ok(Reactor { engine: Arc::new(engine), bell })
    }

    /// Moves what has become ready by now to `ready`; never waits. `own`: called by the kthread that it belongs to, which
    /// is to do so at least every 50 µs while uthreads run, and again before it waits.
    pub(crate) fn poll(&self, own: bool, now: Nanos, ready: &mut Vec<UthreadRef>) {
        match &*self.engine {
            Engine::Uring(ring) => ring.poll(own, ready),
            Engine::Epoll(poller) => poller.poll(now, ready),
        }
    }

    /// Waits until there is something to poll, the bell rings, or until then; sometimes for nothing.
    pub(crate) fn wait(&self, until: Option<Nanos>) {
        match &*self.engine {
            Engine::Uring(ring) => ring.wait(until),
            Engine::Epoll(poller) => poller.wait(until),
        }
    }

    /// Wakes [`Reactor::wait`] from any thread.
    pub(crate) fn bell(&self) -> Bell {
        Bell(Arc::clone(&self.bell))
    }

    /// Since when the oldest completion waits that was not polled, as far as it was looked at. Never waits.
    pub(crate) fn oldest(&self, now: Nanos) -> Option<Nanos> {
        match &*self.engine {
            Engine::Uring(ring) => ring.oldest(now),
            Engine::Epoll(poller) => poller.oldest(now),
        }
    }

    /// Whether any uthread waits for it: if not, it need not be polled.
    pub(crate) fn is_idle(&self) -> bool {
        match &*self.engine {
            Engine::Uring(ring) => ring.is_idle(),
            Engine::Epoll(poller) => poller.is_idle(),
        }
    }

    /// Whether it is the same.
    pub(crate) fn is(&self, other: &Reactor) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine)
    }

    /// Its kthread ends: who still uses what is registered here must wait elsewhere.
    pub(crate) fn close(&self) {
        if let Engine::Epoll(poller) = &*self.engine {
            poller.close();
        }
    }

    fn poller(&self) -> Option<&epoll::Poller> {
        match &*self.engine {
            Engine::Epoll(poller) => Some(poller),
            Engine::Uring(_) => None,
        }
    }

    fn ring(&self) -> Option<&uring::Ring> {
        match &*self.engine {
            Engine::Uring(ring) => Some(ring),
            Engine::Epoll(_) => None,
        }
    }
}

/// Wakes one reactor.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    /// Wakes it, now or the next time that it waits.
    pub(crate) fn ring(&self) {
        ring(&self.0);
    }
}

fn ring(bell: &OwnedFd) {
    // A full counter is a bell that rings.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// What `f` says of the running kthread's ring; `None` if there is none. Only in a uthread.
fn of_ring<R>(f: impl FnOnce(&uring::Ring) -> R) -> Option<R> {
    let _held = hold();
    with_reactor(|reactor| reactor.ring().map(f))
}

/// Has the kernel carry out `entry` while the running uthread is parked. `None`: the running kthread has no ring. At the
/// deadline it is ended with `ECANCELED`, unless it was completed before. Also, whether the socket had more to be received, as
/// far as the kernel says.
///
/// # Safety
/// What `entry` points to stays valid, and untouched if the kernel writes to it, until this returns.
pub(crate) unsafe fn perform(
    entry: Entry,
    deadline: Option<Nanos>,
) -> Option<(std::io::Result<usize>, bool)> {
    let op = Op::default();
    let mut has_ring = true;
    park_current(|waiter| {
        let mut waiter = Some(waiter);
        with_reactor(|reactor| match (reactor.ring(), waiter.take()) {
            // SAFETY: the caller promises it for the entry; the operation outlives its completion, for which we are parked.
            (Some(ring), Some(waiter)) => unsafe { ring.start(&op, entry, deadline, waiter) },
            (_, left) => waiter = left,
        });
        if let Some(waiter) = waiter {
            has_ring = false;
            waiter.ready();
        }
    });
    has_ring.then(|| (op.result(), op.more()))
}
