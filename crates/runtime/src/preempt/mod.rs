//! Where asynchronous preemption must not happen.
//!
//! By default uthreads are switched at calls of this library alone, and nothing here matters. With
//! [`Builder::preempt_every`](crate::Builder::preempt_every) they are interrupted anywhere: see there and `docs/reference/runtime-preemption.md`.

mod allocator;
pub(crate) mod tick;

pub use allocator::Allocator;

use std::marker::PhantomData;
use std::panic::Location;

use crate::kthread::local::{self, Hold, Local};

/// No uthread is preempted here while it lives; to block meanwhile panics, and says where it was made.
///
/// It is not `Send`, so that it cannot leave its uthread. One that outlives it all the same, in a `std::thread_local!` or by
/// `std::mem::forget`, ends the process as the uthread ends, with a message that says where it was made.
#[derive(Debug)]
#[must_use = "preemption is on again when it is dropped"]
pub struct NoPreempt {
    before: Option<&'static Location<'static>>,
    _hold: Hold,
    not_send: PhantomData<*const ()>,
}

impl NoPreempt {
    /// Turns preemption of this uthread off until it is dropped.
    #[track_caller]
    pub fn new() -> NoPreempt {
        let hold = local::hold();
        let here = Location::caller();
        let before = Local::with(|local| local?.guarded.replace(Some(here)));
        NoPreempt { before, _hold: hold, not_send: PhantomData }
    }
}

/// Calls `f`, a function of C or one that uses what belongs to the thread, with preemption off.
///
/// ```
/// use quell_runtime::preempt;
/// preempt::off(|| println!("standard output belongs to the thread that has locked it"));
/// ```
#[track_caller]
pub fn off<R>(f: impl FnOnce() -> R) -> R {
    let _off = NoPreempt::new();
    f()
}

impl Default for NoPreempt {
    #[track_caller]
    fn default() -> NoPreempt {
        NoPreempt::new()
    }
}

impl Drop for NoPreempt {
    fn drop(&mut self) {
        Local::with(|local| local.map(|local| local.guarded.set(self.before)));
    }
}
