//! `Semaphore`.

use std::collections::VecDeque;
use std::time::Duration;

use super::Brief;
use crate::kthread::local;
use crate::park::{Waiter, block_until, deadline_after};

/// Permits that are taken and given back; who waits gets them in the order of coming.
#[derive(Debug)]
pub struct Semaphore {
    state: Brief<State>,
}

#[derive(Debug)]
struct State {
    permits: usize,
    queue: VecDeque<(usize, Waiter)>,
}

impl State {
    fn enter(&mut self, count: usize) -> bool {
        let may = self.queue.is_empty() && self.permits >= count;
        if may {
            self.permits -= count;
        }
        may
    }
}

/// A permit that is given back when this is dropped.
#[derive(Debug)]
#[must_use = "the permit is given back when it is dropped"]
pub struct SemaphoreGuard<'a>(&'a Semaphore);

impl Drop for SemaphoreGuard<'_> {
    fn drop(&mut self) {
        self.0.release(1);
    }
}

impl Semaphore {
    /// One with so many permits.
    pub const fn new(permits: usize) -> Semaphore {
        Semaphore { state: Brief::new(State { permits, queue: VecDeque::new() }) }
    }

    /// Takes `count` permits; blocks until there are so many.
    pub fn acquire(&self, count: usize) {
        self.acquire_until(count, None);
    }

    /// Takes `count` permits if there are so many and nobody waits.
    pub fn try_acquire(&self, count: usize) -> bool {
        self.state.lock().enter(count)
    }

    /// Takes `count` permits, and waits for them so long at most. Whether it has them.
    pub fn acquire_timeout(&self, count: usize, timeout: Duration) -> bool {
        self.acquire_until(count, deadline_after(timeout))
    }

    fn acquire_until(&self, count: usize, deadline: Option<quell_model::Nanos>) -> bool {
        local::checkpoint();
        if self.try_acquire(count) {
            return true;
        }
        let has = block_until(deadline, |waiter| {
            let mut state = self.state.lock();
            if state.enter(count) {
                // Under the lock: once it wakes, who waits may free this.
                if !waiter.wake() {
                    state.permits += count;
                }
            } else {
                state.queue.push_back((count, waiter));
            }
        });
        if !has {
            self.state.lock().queue.retain(|(_, waiter)| !waiter.is_over());
            // It may have stood in the way of others.
            self.release(0);
        }
        has
    }

    /// Takes one permit; it is given back when the guard is dropped.
    pub fn access(&self) -> SemaphoreGuard<'_> {
        self.acquire(1);
        SemaphoreGuard(self)
    }

    /// Gives permits back, or adds some.
    pub fn release(&self, count: usize) {
        let mut state = self.state.lock();
        state.permits += count;
        while let Some(&(wanted, _)) = state.queue.front()
            && state.permits >= wanted
            && let Some((_, waiter)) = state.queue.pop_front()
        {
            // Under the lock: one whose time is over leaves its permits to the next. To wake takes no lock of this.
            if waiter.wake() {
                state.permits -= wanted;
            }
        }
    }

    /// How many wait for permits.
    pub fn waiting(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Permits that are free.
    pub fn permits(&self) -> usize {
        self.state.lock().permits
    }
}
