//! Where requests begin and end, for the hyperthread controller.

use std::marker::PhantomData;

use quell_model::Nanos;

use crate::kthread::local::Local;

/// A request is in service until this is dropped.
#[derive(Debug)]
#[must_use = "the request ends when it is dropped"]
pub struct RequestGuard {
    /// Of the request that this one is part of.
    before: Option<Nanos>,
    not_send: PhantomData<*const ()>,
}

/// A request begins to be served by this uthread. Within another request, it ends first. On an ordinary thread it is nothing.
pub fn begin() -> RequestGuard {
    let before = Local::with(|local| {
        let local = local?;
        let before = local.task()?.request.get();
        // The clock is in use.
        let _still = crate::kthread::local::hold();
        set(local, Some(local.time.now()));
        before
    });
    RequestGuard { before, not_send: PhantomData }
}

fn set(local: &Local, start: Option<Nanos>) {
    if let Some(task) = local.task() {
        task.request.set(start);
        local.tell_request(start);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        Local::with(|local| {
            if let Some(local) = local {
                set(local, self.before);
            }
        });
    }
}
