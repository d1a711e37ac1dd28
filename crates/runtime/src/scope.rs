//! Uthreads that may borrow, with the interface of `std::thread::scope`.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::WaitGroup;
use crate::task::{Birth, Outcome};
use crate::thread::{JoinHandle, Uthread, spawn_unchecked};

/// What the uthreads of a scope share.
#[derive(Debug, Default)]
pub(crate) struct ScopeData {
    running: WaitGroup,
    panicked: AtomicBool,
}

impl ScopeData {
    /// A uthread panicked, and nobody took that.
    pub(crate) fn note_panic(&self) {
        // Relaxed: read after `running` was waited for.
        self.panicked.store(true, Ordering::Relaxed);
    }

    /// A uthread has ended, and its result is where it belongs.
    pub(crate) fn ended(&self) {
        self.running.done();
    }
}

/// Starts uthreads that may borrow; see [`scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    data: Arc<ScopeData>,
    // Invariant, as std's: the lifetimes must not shrink.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a uthread that ends before the scope does.
    ///
    /// # Panics
    /// When there is no memory for its stack, or outside a uthread.
    pub fn spawn<T: Send + 'scope>(
        &'scope self,
        f: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let begun = Begun::new(&self.data.running);
        let birth = Birth { name: None, scope: Some(Arc::clone(&self.data)) };
        // SAFETY: `scope` waits for its end before 'scope ends.
        match unsafe { spawn_unchecked(f, birth, None) } {
            Ok(handle) => {
                // Its end counts it out.
                std::mem::forget(begun);
                ScopedJoinHandle { handle, scope: PhantomData }
            }
            Err(error) => panic!("failed to spawn a uthread: {error}"),
        }
    }
}

/// A uthread that was counted, and is counted out again where it does not begin: else the scope would wait for it.
struct Begun<'a>(&'a WaitGroup);

impl<'a> Begun<'a> {
    fn new(running: &'a WaitGroup) -> Begun<'a> {
        running.add(1);
        Begun(running)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.done();
    }
}

/// A uthread of a scope.
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    handle: JoinHandle<T>,
    scope: PhantomData<&'scope ()>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits until it ends; returns what it returned.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn join(self) -> Outcome<T> {
        self.handle.join()
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// The uthread.
    pub fn thread(&self) -> &Uthread {
        self.handle.thread()
    }
}

/// Calls `f`; returns once all uthreads that it started have ended, so that they may borrow what outlives the call.
///
/// ```
/// # let runtime = quell_runtime::Runtime::builder().daemon(quell_runtime::Daemon::Never).build()?;
/// # runtime.run(|| {
/// let words = vec!["a", "few", "words"];
/// let letters: usize = quell_runtime::scope(|scope| {
///     let lengths: Vec<_> = words.iter().map(|word| scope.spawn(|| word.len())).collect();
///     lengths.into_iter().map(|length| length.join().unwrap()).sum()
/// });
/// assert_eq!(letters, 9);
/// # });
/// # Ok::<(), quell_runtime::BuildError>(())
/// ```
///
/// # Panics
/// When `f` panics, or a uthread did that was not joined.
pub fn scope<'env, T>(f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    let scope =
        Scope { data: Arc::new(ScopeData::default()), scope: PhantomData, env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    scope.data.running.wait();
    match result {
        Err(panic) => resume_unwind(panic),
        Ok(_) if scope.data.panicked.load(Ordering::Relaxed) => {
            panic!("a scoped uthread panicked")
        }
        Ok(result) => result,
    }
}
