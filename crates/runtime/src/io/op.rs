//! One wait of one uthread for one completion.

use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomPinned;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use io_uring::types::Timespec;
use quell_model::Nanos;

use super::uring::timespec;
use crate::park::UthreadRef;

/// A wait for one completion. It lives on the stack of the uthread that waits, and reactors know it by address: the uthread
/// does not leave before its completion was seen, so that no completion can find another wait in its place, whatever
/// becomes of descriptors meanwhile.
#[derive(Debug, Default)]
pub(super) struct Op {
    waiter: UnsafeCell<Option<UthreadRef>>,
    /// Not negative, or a negated `errno`.
    result: AtomicI32,
    /// The kernel said that the socket had more to be received.
    more: AtomicBool,
    /// Between begin and completion. Only the uthread that waits looks at it when it is not known to wait.
    in_flight: AtomicBool,
    /// Read by the kernel when it takes the entry that ends the wait.
    deadline: UnsafeCell<Timespec>,
    _pinned: PhantomPinned,
}

// SAFETY: `waiter` and `deadline` are touched by `begin` and `complete` alone, which the lock of the reactor that has the wait orders.
unsafe impl Sync for Op {}

impl Op {
    /// Leaves the uthread here until [`complete`](Op::complete). Called under the lock of the reactor, or before it is handed to
    /// the one thread that completes it.
    pub(super) fn begin(&self, waiter: UthreadRef, deadline: Option<Nanos>) {
        // SAFETY: nobody else knows the operation yet.
        unsafe {
            *self.waiter.get() = Some(waiter);
            *self.deadline.get() = timespec(deadline.unwrap_or_default());
        }
        self.in_flight.store(true, Ordering::Relaxed);
    }

    /// The deadline that it began with, for the kernel.
    pub(super) fn deadline(&self) -> *const Timespec {
        self.deadline.get()
    }

    /// Ends the wait; the uthread is to be made ready. From then on the operation may be gone.
    ///
    /// # Safety
    /// `op` has begun and was not completed, and the caller holds the lock under which it began, or is the only one who
    /// completes it.
    pub(super) unsafe fn complete(op: *const Op, result: i32, more: bool) -> Option<UthreadRef> {
        // SAFETY: it has begun and not ended, so its uthread has not left it; the caller alone touches `waiter`.
        let (op, waiter) = unsafe { (&*op, (*(*op).waiter.get()).take()) };
        // Relaxed: the uthread reads them after it was made ready, which orders them.
        op.result.store(result, Ordering::Relaxed);
        op.more.store(more, Ordering::Relaxed);
        op.in_flight.store(false, Ordering::Relaxed);
        waiter
    }

    /// Whether the socket had more, as far as the kernel says.
    pub(super) fn more(&self) -> bool {
        self.more.load(Ordering::Relaxed)
    }

    /// What it was completed with.
    pub(super) fn result(&self) -> io::Result<usize> {
        let result = self.result.load(Ordering::Relaxed);
        usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()))
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if *self.in_flight.get_mut() {
            // The kernel may yet write into the frames that are being left: nothing sound can follow.
            eprintln!("quell-runtime: a uthread left a wait for I/O that is not over");
            std::process::abort();
        }
    }
}
