//! Values of which each uthread has its own.

use std::any::Any;
use std::cell::RefCell;

use crate::kthread::local;

/// How often the values of a uthread that ends are dropped: dropping one may make others.
const ROUNDS: usize = 5;

/// A value of which each uthread has its own; made by [`crate::uthread_local`]. An ordinary thread has its own, too.
#[derive(Debug)]
pub struct LocalKey<T: 'static> {
    #[doc(hidden)]
    pub init: fn() -> T,
}

/// The values of one uthread, by the address of the key. Few: a list is faster than a map.
#[derive(Debug, Default)]
pub(crate) struct Locals(RefCell<Vec<(usize, Box<dyn Any>)>>);

thread_local! {
    static OF_THREAD: Locals = const { Locals(RefCell::new(Vec::new())) };
}

impl Locals {
    /// Drops all values, by their uthread as it ends.
    pub(crate) fn clear(&self) {
        for _ in 0..ROUNDS {
            // Taken out first: what drops may use the others.
            let values = std::mem::take(&mut *self.0.borrow_mut());
            if values.is_empty() {
                return;
            }
            drop(values);
        }
    }

    /// The address of the value of this key; it stays there until `clear`.
    fn find<T: 'static>(&self, key: &'static LocalKey<T>) -> *const T {
        let address = std::ptr::from_ref(key).addr();
        let found = |values: &[(usize, Box<dyn Any>)]| {
            let value = values.iter().find(|(key, _)| *key == address)?;
            value.1.downcast_ref::<T>().map(std::ptr::from_ref)
        };
        if let Some(value) = found(&self.0.borrow()) {
            return value;
        }
        // Not under the borrow: it may use other keys. If it uses this one, the first to be made is kept.
        let value = Box::new((key.init)());
        let mut values = self.0.borrow_mut();
        if found(&values).is_none() {
            values.push((address, value));
        }
        // Of the box where it lies from now on: a pointer into one must not be used after it was moved.
        match found(&values) {
            Some(value) => value,
            None => unreachable!("it was just put there"),
        }
    }
}

impl<T: 'static> LocalKey<T> {
    /// Calls `f` with the value of the running uthread, which is made first if need be.
    ///
    /// ```
    /// use std::cell::Cell;
    /// quell_runtime::uthread_local! { static CALLS: Cell<u32> = Cell::new(0); }
    /// CALLS.with(|calls| calls.set(calls.get() + 1));
    /// assert_eq!(CALLS.with(Cell::get), 1);
    /// ```
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        let value = match local::current_task() {
            // SAFETY: the uthread runs this, so it has not ended.
            Some(task) => unsafe { task.as_ref() }.locals.find(self),
            None => OF_THREAD.with(|locals| locals.find(self)),
        };
        // SAFETY: a box of its own that is dropped when the uthread or thread ends, which does so after this; and only this uthread
        // or thread gets references to it.
        f(unsafe { &*value })
    }
}

/// Declares values of which each uthread has its own, as `std::thread_local` does for threads.
#[macro_export]
macro_rules! uthread_local {
    ($($(#[$attr:meta])* $vis:vis static $name:ident: $t:ty = $init:expr);+ $(;)?) => {
        $($(#[$attr])* $vis static $name: $crate::LocalKey<$t> = $crate::LocalKey { init: || $init };)+
    };
}
