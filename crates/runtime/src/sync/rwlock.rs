//! `RwLock`.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{LockResult, TryLockError, TryLockResult};

use super::Brief;
use super::poison::{Flag, Locked};
use crate::kthread::local;
use crate::park::{Waiter, block};

/// As `std::sync::RwLock`: many readers or one writer, in the order in which they came, so that neither starves.
pub struct RwLock<T: ?Sized> {
    state: Brief<State>,
    poison: Flag,
    value: UnsafeCell<T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Read,
    Write,
}

#[derive(Debug)]
struct State {
    readers: usize,
    writing: bool,
    queue: VecDeque<(Wants, Waiter)>,
}

impl State {
    /// Lets one in who did not wait.
    fn enter(&mut self, wants: Wants) -> bool {
        self.queue.is_empty() && self.admit(wants)
    }

    fn admit(&mut self, wants: Wants) -> bool {
        if self.writing || wants == Wants::Write && self.readers > 0 {
            return false;
        }
        match wants {
            Wants::Read => self.readers += 1,
            Wants::Write => self.writing = true,
        }
        true
    }

    /// Lets those in who are first and now may: they have the lock as they wake.
    fn admit_waiting(&mut self) -> Vec<Waiter> {
        let mut admitted = Vec::new();
        while let Some(&(wants, _)) = self.queue.front()
            && self.admit(wants)
        {
            admitted.extend(self.queue.pop_front().map(|(_, waiter)| waiter));
        }
        admitted
    }
}

// SAFETY: as with std.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: as with std.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

impl<T: ?Sized> UnwindSafe for RwLock<T> {}
impl<T: ?Sized> RefUnwindSafe for RwLock<T> {}

/// The value can be read until this is dropped.
#[must_use = "the lock is released when it is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    not_send: PhantomData<*const ()>,
}

/// The value is its holder's until this is dropped.
#[must_use = "the lock is released when it is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    locked: Locked,
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives a shared value.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<T> RwLock<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> RwLock<T> {
        let state = State { readers: 0, writing: false, queue: VecDeque::new() };
        RwLock { state: Brief::new(state), poison: Flag::new(), value: UnsafeCell::new(value) }
    }

    /// The value.
    ///
    /// # Errors
    /// When it is poisoned; the error has the value.
    pub fn into_inner(self) -> LockResult<T> {
        let poisoned = self.poison;
        poisoned.result(self.value.into_inner())
    }
}

impl<T: ?Sized> RwLock<T> {
    fn lock(&self, wants: Wants) {
        local::checkpoint();
        if self.state.lock().enter(wants) {
            return;
        }
        block(|waiter| {
            let mut state = self.state.lock();
            if state.enter(wants) {
                drop(state);
                waiter.wake();
            } else {
                state.queue.push_back((wants, waiter));
            }
        });
    }

    fn unlock(&self, had: Wants) {
        let mut state = self.state.lock();
        match had {
            Wants::Read => state.readers -= 1,
            Wants::Write => state.writing = false,
        }
        let admitted = state.admit_waiting();
        drop(state);
        for waiter in admitted {
            waiter.wake();
        }
    }

    /// Waits until it can be read.
    ///
    /// # Errors
    /// When a writer panicked; the error has the guard.
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        self.lock(Wants::Read);
        self.poison.result(RwLockReadGuard { lock: self, not_send: PhantomData })
    }

    /// Waits until it can be written.
    ///
    /// # Errors
    /// When a writer panicked; the error has the guard.
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.lock(Wants::Write);
        self.write_guard()
    }

    fn write_guard(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        let locked = self.poison.locked();
        self.poison.result(RwLockWriteGuard { lock: self, locked, not_send: PhantomData })
    }

    /// Reads if that is possible at once.
    ///
    /// # Errors
    /// When it is not, or a writer panicked.
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        if !self.state.lock().enter(Wants::Read) {
            return Err(TryLockError::WouldBlock);
        }
        Ok(self.poison.result(RwLockReadGuard { lock: self, not_send: PhantomData })?)
    }

    /// Writes if that is possible at once.
    ///
    /// # Errors
    /// When it is not, or a writer panicked.
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        if !self.state.lock().enter(Wants::Write) {
            return Err(TryLockError::WouldBlock);
        }
        Ok(self.write_guard()?)
    }

    /// Whether a writer panicked.
    pub fn is_poisoned(&self) -> bool {
        self.poison.get()
    }

    /// Takes the poison away.
    pub fn clear_poison(&self) {
        self.poison.clear();
    }

    /// The value, which nobody else can have.
    ///
    /// # Errors
    /// When it is poisoned; the error has the value.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        let poisoned = &self.poison;
        poisoned.result(self.value.get_mut())
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: there is no writer while there is a reader.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: there is nobody else while there is a writer.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.unlock(Wants::Read);
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.poison.unlocking(&self.locked);
        self.lock.unlock(Wants::Write);
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> RwLock<T> {
        RwLock::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RwLock");
        match self.try_read() {
            Ok(guard) => shown.field("value", &&*guard),
            Err(TryLockError::Poisoned(error)) => shown.field("value", &&**error.get_ref()),
            Err(TryLockError::WouldBlock) => shown.field("value", &format_args!("<locked>")),
        };
        shown.field("poisoned", &self.is_poisoned()).finish()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
