//! Reasons not to preempt the uthread that runs. While there is one it cannot leave its stack either.

use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use super::local::Local;

/// While it lives the uthread that runs here is not preempted. For this library's own short steps.
#[derive(Debug)]
pub(crate) struct Hold(*const Local);

/// Holds preemption off.
#[inline]
pub(crate) fn hold() -> Hold {
    Local::with(|local| local.map_or(Hold(ptr::null()), Hold::of))
}

impl Hold {
    #[inline]
    pub(super) fn of(local: &Local) -> Hold {
        local.preempt.set(local.preempt.get() + 1);
        // The compiler must not move what follows before this: the handler runs on this thread.
        compiler_fence(Ordering::SeqCst);
        Hold(local)
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a uthread that holds this leaves neither its stack nor its kthread.
        if let Some(local) = unsafe { self.0.as_ref() } {
            local.preempt.set(local.preempt.get() - 1);
        }
    }
}

/// Panics as [`leave`](super::local::leave) does where the running uthread must not block: for who could not undo what it does before it.
pub(crate) fn check_may_leave() {
    Local::with(|local| {
        if let Some(local) = local
            && local.runs_uthread()
            && local.preempt.get() != 0
        {
            guarded(local);
        }
    });
}

/// The running uthread leaves its stack for good, with preemption off until the scheduler has it off.
#[inline]
pub(crate) fn end() {
    Local::with(|local| {
        if let Some(local) = local {
            if local.preempt.get() != 0 {
                still_guarded(local);
            }
            // The scheduler lets go.
            std::mem::forget(Hold::of(local));
        }
    });
}

/// Somebody kept a `NoPreempt` of a uthread that has ended: dropping it would count in a kthread that runs another one, or is gone.
#[cold]
fn still_guarded(local: &Local) -> ! {
    let id = local.task().map_or(0, |task| task.id);
    match local.guarded.get() {
        Some(at) => eprintln!(
            "fatal runtime error: uthread {id} has ended with preemption off, since {at}, aborting"
        ),
        None => {
            eprintln!("fatal runtime error: uthread {id} has ended with preemption off, aborting")
        }
    }
    std::process::abort();
}

#[cold]
#[track_caller]
pub(super) fn guarded(local: &Local) -> ! {
    match local.guarded.get() {
        Some(at) => panic!("a uthread blocks while preemption is off, since {at}"),
        None => panic!("a uthread blocks within the allocator or a timer"),
    }
}
