//! `Condvar`.

use std::collections::VecDeque;
use std::sync::LockResult;
use std::time::Duration;

use quell_model::Nanos;

use super::{Brief, MutexGuard};
use crate::kthread::local;
use crate::park::{Waiter, block_until, deadline_after};

/// As `std::sync::Condvar`: waits until somebody says that a condition may hold. It may be used with several mutexes.
///
/// ```
/// # let runtime = quell_runtime::Runtime::builder().daemon(quell_runtime::Daemon::Never).build()?;
/// # runtime.run(|| {
/// use quell_runtime::sync::{Arc, Condvar, Mutex};
/// let pair = Arc::new((Mutex::new(false), Condvar::new()));
/// let theirs = Arc::clone(&pair);
/// quell_runtime::spawn(move || {
///     *theirs.0.lock().unwrap() = true;
///     theirs.1.notify_one();
/// });
/// let ready = pair.1.wait_while(pair.0.lock().unwrap(), |ready| !*ready).unwrap();
/// assert!(*ready);
/// # });
/// # Ok::<(), quell_runtime::BuildError>(())
/// ```
#[derive(Debug, Default)]
pub struct Condvar {
    queue: Brief<VecDeque<Waiter>>,
}

/// Whether a wait ended because its time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether it did.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Condvar {
        Condvar { queue: Brief::new(VecDeque::new()) }
    }

    /// Unlocks the mutex, waits, and locks it again. It never wakes without cause, but another may have come first.
    ///
    /// # Errors
    /// When the mutex is poisoned.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_until(guard, None).0
    }

    /// Waits while the condition holds.
    ///
    /// # Errors
    /// When the mutex is poisoned.
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut *guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// As [`Condvar::wait`], so long at most.
    ///
    /// # Errors
    /// When the mutex is poisoned.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        with_timeout(self.wait_until(guard, deadline_after(timeout)))
    }

    /// As [`Condvar::wait_while`], so long at most.
    ///
    /// # Errors
    /// When the mutex is poisoned.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let deadline = deadline_after(timeout);
        loop {
            if !condition(&mut *guard) {
                return Ok((guard, WaitTimeoutResult(false)));
            }
            let (locked, result) = with_timeout(self.wait_until(guard, deadline))?;
            guard = locked;
            if result.timed_out() {
                let over = condition(&mut *guard);
                return Ok((guard, WaitTimeoutResult(over)));
            }
        }
    }

    fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        deadline: Option<Nanos>,
    ) -> (LockResult<MutexGuard<'a, T>>, bool) {
        // Before the guard is forgotten: a panic after that would leave the mutex locked.
        local::check_may_leave();
        let mutex = guard.mutex();
        let raw = mutex.raw();
        guard.forget();
        let woken = block_until(deadline, |waiter| {
            let mut queue = self.queue.lock();
            queue.push_back(waiter);
            // Under the lock of the queue: until it is released nobody can wake the waiter, which may then free the mutex.
            raw.unlock();
        });
        if !woken {
            self.queue.lock().retain(|waiter| !waiter.is_over());
        }
        (mutex.lock(), !woken)
    }

    /// Wakes the one that waits longest.
    pub fn notify_one(&self) {
        loop {
            let waiter = self.queue.lock().pop_front();
            // One whose time is over takes no notification.
            if waiter.is_none_or(Waiter::wake) {
                return;
            }
        }
    }

    /// Wakes all.
    pub fn notify_all(&self) {
        let waiters = std::mem::take(&mut *self.queue.lock());
        for waiter in waiters {
            waiter.wake();
        }
    }
}

fn with_timeout<'a, T>(
    (locked, over): (LockResult<MutexGuard<'a, T>>, bool),
) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
    let result = WaitTimeoutResult(over);
    match locked {
        Ok(guard) => Ok((guard, result)),
        Err(error) => Err(super::PoisonError::new((error.into_inner(), result))),
    }
}
