//! `Mutex`.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{LockResult, TryLockError, TryLockResult};

use super::poison::{Flag, Locked};
use super::raw::RawMutex;

/// As `std::sync::Mutex`: one at a time, poisoned by a panic.
///
/// ```
/// use quell_runtime::sync::Mutex;
/// static TOTAL: Mutex<u64> = Mutex::new(0);
/// *TOTAL.lock().unwrap() += 1;
/// assert_eq!(*TOTAL.lock().unwrap(), 1);
/// ```
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    poison: Flag,
    value: UnsafeCell<T>,
}

// SAFETY: as with std: who locks it has the value.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T: ?Sized> UnwindSafe for Mutex<T> {}
impl<T: ?Sized> RefUnwindSafe for Mutex<T> {}

/// The value is its holder's until this is dropped.
#[must_use = "the mutex is unlocked when it is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    locked: Locked,
    // As with std: it is unlocked by who locked it.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives a shared value.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<T> Mutex<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { raw: RawMutex::new(), poison: Flag::new(), value: UnsafeCell::new(value) }
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

impl<T: ?Sized> Mutex<T> {
    /// Locks it; blocks until that is possible.
    ///
    /// # Errors
    /// When who held it panicked; the error has the guard.
    #[inline]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        self.raw.lock();
        self.guard()
    }

    fn guard(&self) -> LockResult<MutexGuard<'_, T>> {
        let locked = self.poison.locked();
        self.poison.result(MutexGuard { mutex: self, locked, not_send: PhantomData })
    }

    /// Locks it if that is possible at once.
    ///
    /// # Errors
    /// When somebody has it, or it is poisoned.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        if self.raw.try_lock() { Ok(self.guard()?) } else { Err(TryLockError::WouldBlock) }
    }

    /// Whether somebody panicked who held it.
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

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    pub(super) fn mutex(&self) -> &'a Mutex<T> {
        self.mutex
    }

    /// Its mutex stays locked.
    pub(super) fn forget(self) {
        std::mem::forget(self);
    }
}

impl<T: ?Sized> Mutex<T> {
    pub(super) fn raw(&self) -> &RawMutex {
        &self.raw
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: its holder has the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and this is the only guard.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.poison.unlocking(&self.locked);
        self.mutex.raw.unlock();
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Mutex");
        match self.try_lock() {
            Ok(guard) => shown.field("value", &&*guard),
            Err(TryLockError::Poisoned(error)) => shown.field("value", &&**error.get_ref()),
            Err(TryLockError::WouldBlock) => shown.field("value", &format_args!("<locked>")),
        };
        shown.field("poisoned", &self.is_poisoned()).finish()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
