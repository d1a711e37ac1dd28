//! `WaitGroup`.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Brief;
use crate::park::{Waiter, block};

/// Waits until all that was begun is done (Go's `sync.WaitGroup`, Caladan's `waitgroup_t`).
///
/// ```
/// # let runtime = quell_runtime::Runtime::builder().daemon(quell_runtime::Daemon::Never).build()?;
/// # runtime.run(|| {
/// use quell_runtime::sync::{Arc, WaitGroup};
/// let group = Arc::new(WaitGroup::new());
/// group.add(3);
/// for _ in 0..3 {
///     let group = Arc::clone(&group);
///     quell_runtime::spawn(move || group.done());
/// }
/// group.wait();
/// # });
/// # Ok::<(), quell_runtime::BuildError>(())
/// ```
#[derive(Debug, Default)]
pub struct WaitGroup {
    count: AtomicUsize,
    waiting: Brief<Vec<Waiter>>,
}

impl WaitGroup {
    /// Nothing was begun.
    pub const fn new() -> WaitGroup {
        WaitGroup { count: AtomicUsize::new(0), waiting: Brief::new(Vec::new()) }
    }

    /// So many are begun.
    pub fn add(&self, count: usize) {
        // Relaxed: who begins something hands it on in an ordered way.
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    /// One is done.
    ///
    /// # Panics
    /// When none was begun.
    pub fn done(&self) {
        // Release: who waits sees what was done. Acquire: the last one passes on what the others released.
        match self.count.fetch_sub(1, Ordering::AcqRel) {
            0 => {
                self.count.fetch_add(1, Ordering::Relaxed);
                panic!("a wait group has nothing that could be done");
            }
            1 => {
                let waiting = std::mem::take(&mut *self.waiting.lock());
                for waiter in waiting {
                    waiter.wake();
                }
            }
            _ => {}
        }
    }

    /// Waits until all is done.
    pub fn wait(&self) {
        // Acquire: pairs with `done`.
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        block(|waiter| {
            let mut waiting = self.waiting.lock();
            // The last `done` takes the lock after its count: it finds this one, or this one finds zero.
            if self.count.load(Ordering::Acquire) == 0 {
                drop(waiting);
                waiter.wake();
            } else {
                waiting.push(waiter);
            }
        });
    }
}
