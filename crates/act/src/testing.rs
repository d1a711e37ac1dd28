//! The executor that tests use.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Executor, Journal, Mode};

/// An executor that gives everything back when the test ends, however it ends. Its journal is in
/// memory: nothing else on the host reads it.
pub struct Undone {
    executor: Executor,
    /// One executor at a time, as on a real host: the threads and programs of all tests are one
    /// family, and what one executor gives back, another one takes for an inheritance of its own.
    _alone: MutexGuard<'static, ()>,
}

pub fn executor() -> Undone {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let executor = Executor::open(Journal::scratch().unwrap(), Mode::Live).unwrap();
    executor.gate().set(true);
    Undone { executor, _alone: alone }
}

impl Deref for Undone {
    type Target = Executor;
    fn deref(&self) -> &Executor {
        &self.executor
    }
}

impl DerefMut for Undone {
    fn deref_mut(&mut self) -> &mut Executor {
        &mut self.executor
    }
}

impl Drop for Undone {
    fn drop(&mut self) {
        self.executor.undo_all();
    }
}
