//! Green threads that use virtual sockets: what their runtime does for them in place of the kernel.
//!
//! A thread that waits for sockets sleeps in the kernel, and holds a lock meanwhile for no longer than some system calls. A
//! green thread must do neither as if it had its kernel thread for itself: others would wait with it. A runtime that says
//! once how its threads wait ([`serve`]) has all calls of this crate made on them wait in that way.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A runtime of green threads.
pub trait Threads: Send + Sync {
    /// Whether the caller is one of its threads.
    fn is_own(&self) -> bool;

    /// Something to wait with for a descriptor that becomes readable.
    fn sleeper(&self, descriptor: OwnedFd) -> Box<dyn Sleeper>;

    /// Calls `act`, which holds a lock that threads on the same kernel thread want: none of them runs there meanwhile.
    fn hold(&self, act: &mut dyn FnMut());

    /// Whether another of its threads could run here now: then the caller does not wait awake.
    fn is_wanted(&self) -> bool;

    /// Lets others run first.
    fn yield_now(&self);

    /// Waits so long.
    fn pause(&self, time: Duration);
}

/// What one green thread at a time waits with.
pub trait Sleeper: Send + Sync {
    /// What it waits for.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether it can still be used: what it waits with may have ended since.
    fn is_usable(&self) -> bool;

    /// Calls `attempt` until it does not say [`io::ErrorKind::WouldBlock`], at first and each time that the descriptor may have
    /// become readable.
    ///
    /// # Errors
    /// Those of `attempt` and of the wait; [`io::ErrorKind::WouldBlock`] when the time is over.
    fn wait(
        &self,
        until: Option<Instant>,
        attempt: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()>;
}

static THREADS: OnceLock<&'static dyn Threads> = OnceLock::new();

/// A runtime's threads wait in its way from now on. There is one runtime of green threads in a process: false if another one
/// was first.
pub fn serve(threads: &'static dyn Threads) -> bool {
    THREADS.set(threads).is_ok()
}

/// The runtime of the calling thread, if it is a green one.
pub(crate) fn own() -> Option<&'static dyn Threads> {
    THREADS.get().copied().filter(|threads| threads.is_own())
}

/// Calls `act`, which holds a lock.
pub(crate) fn hold<T>(act: impl FnOnce() -> T) -> T {
    let Some(threads) = own() else { return act() };
    let (mut act, mut result) = (Some(act), None);
    threads.hold(&mut || result = act.take().map(|act| act()));
    // The runtime's promise: `act` was called.
    result.unwrap_or_else(|| unreachable!("a runtime did not call what holds a lock"))
}

/// Lets other green threads run first.
pub(crate) fn yield_now() {
    if let Some(threads) = own() {
        threads.yield_now();
    }
}

/// Waits so long.
pub(crate) fn pause(time: Duration) {
    match own() {
        Some(threads) => threads.pause(time),
        None => std::thread::sleep(time),
    }
}
