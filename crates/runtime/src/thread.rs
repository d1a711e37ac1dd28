//! Uthreads, with the interface of `std::thread`.

use std::cell::UnsafeCell;
use std::io;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corosensei::Coroutine;
use quell_model::Nanos;

use crate::kthread::local::{self, Local};
use crate::kthread::{Shared, lock};
use crate::park::{Waiter, block, block_until, deadline_after, in_uthread, park_current};
use crate::scope::ScopeData;
pub use crate::scope::{Scope, ScopedJoinHandle, scope};
use crate::stack::{Stack, whole_pages};
use crate::task::{Birth, Cell, Ended, Leaver, Outcome, Task, UthreadRef, tell_end};
use crate::token::{Parked, Token};

/// Starts a uthread.
///
/// It may go on on another kernel thread after any call of this library. So what must stay on one thread must not be on its stack
/// during such a call: an `Rc` that a `std::thread_local!` has a share of, a guard of `std::sync::Mutex`, a handle of a C library that
/// belongs to a thread. The compiler checks what goes into a uthread and what comes out, not what is on a stack: to hold such a value
/// is undefined behaviour, though no `unsafe` says so ([more](crate#what-must-stay-on-one-thread)).
///
/// # Panics
/// When there is no memory for its stack, or no uthread runs here.
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // SAFETY: it borrows nothing.
    match unsafe { spawn_unchecked(f, Birth::default(), None) } {
        Ok(handle) => handle,
        Err(error) => panic!("failed to spawn a uthread: {error}"),
    }
}

/// Starts a uthread on the running runtime, with a stack of so many bytes if not the usual.
///
/// # Safety
/// What `f` borrows outlives the uthread.
pub(crate) unsafe fn spawn_unchecked<T: Send, F: FnOnce() -> T + Send>(
    f: F,
    birth: Birth,
    stack_bytes: Option<usize>,
) -> io::Result<JoinHandle<T>> {
    local::checkpoint();
    let _still = local::hold();
    Local::with(|local| {
        let Some(local) = local else {
            panic!("no runtime here: use `Runtime::run` or `Handle::spawn`")
        };
        let bytes = stack_bytes.map_or(local.shared().config.stack_bytes, whole_pages);
        let stack = local.take_stack(bytes)?;
        // SAFETY: as the caller says.
        let (cell, uthread) = unsafe { make(f, local.shared(), local.next_id(), birth, stack) };
        local.start(uthread);
        Ok(JoinHandle(cell))
    })
}

/// As [`spawn_unchecked`], from an ordinary thread.
///
/// # Safety
/// What `f` borrows outlives the uthread.
pub(crate) unsafe fn spawn_outside<T: Send, F: FnOnce() -> T + Send>(
    shared: &Arc<Shared>,
    f: F,
) -> io::Result<JoinHandle<T>> {
    let mut stack = Vec::with_capacity(1);
    shared.stacks.take(shared.config.stack_bytes, 1, &mut stack)?;
    let stack = stack.pop().ok_or(io::ErrorKind::OutOfMemory)?;
    let (id, _) = local::take_ids(1);
    // SAFETY: as the caller says.
    let (cell, uthread) = unsafe { make(f, shared, id, Birth::default(), stack) };
    shared.note_spawned_outside();
    shared.inject(uthread);
    Ok(JoinHandle(cell))
}

/// Makes a uthread that is not ready yet.
///
/// # Safety
/// What `f` borrows outlives the uthread.
unsafe fn make<T: Send, F: FnOnce() -> T + Send>(
    f: F,
    shared: &Arc<Shared>,
    id: u64,
    birth: Birth,
    stack: Stack,
) -> (NonNull<Cell<T>>, UthreadRef) {
    let cell = Cell::<T>::alloc(NonNull::from(&**shared), id, birth);
    let at = Cell::task(cell);
    let body = move |leaver: &Leaver, ()| {
        // SAFETY: the uthread's own cell: it lives until the uthread has ended.
        let task = unsafe { at.as_ref() };
        task.leaver.set(leaver);
        local::resumed();
        let result = catch_unwind(AssertUnwindSafe(f));
        if catch_unwind(AssertUnwindSafe(|| task.locals.clear())).is_err() {
            eprintln!(
                "fatal runtime error: a uthread-local value panicked as it was dropped, aborting"
            );
            std::process::abort();
        }
        // SAFETY: it has not ended yet.
        unsafe { Cell::set_result(cell, result) };
        local::end();
    };
    let (bottom, bytes) = (stack.bottom().get(), stack.bytes());
    // SAFETY: what it captures outlives it, as the caller says; it may move between threads as `f` and `T` may.
    let routine = unsafe { Coroutine::with_stack_unchecked(stack, body) };
    // SAFETY: nobody else has it yet.
    unsafe {
        at.as_ref().bottom.set(bottom);
        at.as_ref().stack_bytes.set(bytes);
        *at.as_ref().routine.get() = Some(routine);
    }
    (cell, UthreadRef(at))
}

/// Frees what a uthread left, in a uthread of its own: what drops may be code of the application, and may block.
#[cold]
pub(crate) fn free_in_uthread(
    shared: &Arc<Shared>,
    at: NonNull<Task>,
    scope: Option<Arc<ScopeData>>,
) {
    /// Sent to where it is freed.
    struct Left(NonNull<Task>);
    // SAFETY: its result may be sent, and nobody else has it.
    unsafe impl Send for Left {}
    let left = Left(at);
    let free = move || {
        let left = left;
        // SAFETY: the caller was the last of the two who shared it.
        unsafe { Task::free(left.0) };
        if let Some(scope) = scope {
            scope.ended();
        }
    };
    // SAFETY: a scope waits for `ended`; without one there is nothing that is borrowed.
    if unsafe { spawn_outside(shared, free) }.is_err() {
        eprintln!("fatal runtime error: no memory to drop what a uthread returned, aborting");
        std::process::abort();
    }
}

/// Lets the other ready uthreads run first. An ordinary thread yields as one.
pub fn yield_now() {
    local::yield_now();
}

/// A uthread that can be waited for. Dropping it lets the uthread go on by itself.
#[derive(Debug)]
pub struct JoinHandle<T>(NonNull<Cell<T>>);

// SAFETY: all that can be done through it is to take the result, once, and to look at atomics.
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: as above; a shared handle gives no access to the result.
unsafe impl<T: Send> Sync for JoinHandle<T> {}
// What it gives is whole, or the panic itself.
impl<T> UnwindSafe for JoinHandle<T> {}
impl<T> RefUnwindSafe for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    fn task(&self) -> &Task {
        // SAFETY: the handle shares the cell.
        unsafe { Cell::task(self.0).as_ref() }
    }

    /// Waits until it ends; returns what it returned. A uthread waits as a uthread, an ordinary thread as a thread.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn join(self) -> Outcome<T> {
        local::checkpoint();
        let task = self.task();
        if task.join.ended() == Ended::No {
            // Who ends takes it from here; nobody else looks at it meanwhile.
            let waiter = UnsafeCell::new(None);
            let at = waiter.get();
            block(|waiting| {
                // SAFETY: it lies on the stack of who waits, who goes on only once it is woken.
                unsafe { *at = Some(waiting) };
                if task.join.wait(at.expose_provenance() as u64) == Ended::Yes {
                    // SAFETY: nobody was given the address.
                    unsafe { tell_end(at.expose_provenance() as u64) };
                }
            });
        }
        let cell = self.0;
        std::mem::forget(self);
        // SAFETY: it has ended, and this was its handle.
        match unsafe { Cell::take(cell) } {
            Some(result) => result,
            // It stores one before it ends, and only `join` takes it.
            None => unreachable!("a uthread ended without a result"),
        }
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.task().join.ended() == Ended::Yes
    }

    /// The uthread.
    pub fn thread(&self) -> &Uthread {
        self.task().uthread()
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let at = Cell::task(self.0);
        if self.task().join.detach() == Ended::Yes {
            // SAFETY: the uthread has ended and left the cell to this.
            unsafe { Task::free(at) };
        }
    }
}

/// Starts a uthread with a name or a stack of its own size.
///
/// ```
/// # let runtime = quell_runtime::Runtime::builder().daemon(quell_runtime::Daemon::Never).build()?;
/// # runtime.run(|| -> std::io::Result<()> {
/// let deep = quell_runtime::thread::Builder::new().name("deep".into()).stack_bytes(1 << 20);
/// let name = deep.spawn(|| quell_runtime::current().name().map(str::to_owned))?;
/// assert_eq!(name.join().unwrap().as_deref(), Some("deep"));
/// # Ok(())
/// # }).unwrap();
/// # Ok::<(), quell_runtime::BuildError>(())
/// ```
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
    stack_bytes: Option<usize>,
}

impl Builder {
    /// Nothing set.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Its name: panics and stack overflows report it.
    pub fn name(mut self, name: String) -> Builder {
        self.name = Some(name);
        self
    }

    /// Bytes of its stack, 16 KiB at least.
    pub fn stack_bytes(mut self, bytes: usize) -> Builder {
        self.stack_bytes = Some(bytes);
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// When there is no memory for its stack.
    ///
    /// # Panics
    /// When no uthread runs here.
    pub fn spawn<T: Send + 'static>(
        self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let birth = Birth { name: self.name.map(Arc::from), scope: None };
        // SAFETY: it borrows nothing.
        unsafe { spawn_unchecked(f, birth, self.stack_bytes) }
    }
}

/// A uthread, as `std::thread::Thread`.
#[derive(Clone, Debug)]
pub struct Uthread(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: Option<Arc<str>>,
    id: u64,
    token: Token,
    /// Who is parked until a deadline: stored before the token says so. A wait that is over leaves it behind, so a lock and not a cell.
    waiter: std::sync::Mutex<Option<Waiter>>,
}

impl Uthread {
    pub(crate) fn new(name: Option<Arc<str>>, id: u64) -> Uthread {
        Uthread(Arc::new(Inner {
            name,
            id,
            token: Token::new(),
            waiter: std::sync::Mutex::default(),
        }))
    }

    /// Its name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Its number: no other uthread of this process has it.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Ends its [`park`], or makes its next one return at once.
    pub fn unpark(&self) {
        let _still = local::hold();
        match self.0.token.unpark() {
            Parked::Nobody => {}
            // SAFETY: the token gave it, so nobody else has it.
            Parked::Uthread(item) => unsafe { UthreadRef::from_item(item) }.ready(),
            Parked::Timed => {
                let waiter = lock(&self.0.waiter).take();
                if let Some(waiter) = waiter {
                    waiter.wake();
                }
            }
        }
    }

    /// The running uthread's own.
    fn park(&self) {
        let token = &self.0.token;
        if token.take() {
            return;
        }
        // The uthread's own handle keeps the token until it goes on.
        park_current(|uthread| {
            let item = uthread.into_item();
            if !token.park(item) {
                // SAFETY: nobody was given it.
                unsafe { UthreadRef::from_item(item) }.ready();
            }
        });
    }

    /// The same, until `deadline` at the latest.
    fn park_until(&self, deadline: Option<Nanos>) {
        if self.0.token.take() {
            return;
        }
        // Kept by the commit, which may still run as the uthread goes on and ends.
        let inner = Arc::clone(&self.0);
        block_until(deadline, move |waiter| {
            *lock(&inner.waiter) = Some(waiter);
            if !inner.token.park_timed()
                && let Some(waiter) = lock(&inner.waiter).take()
            {
                waiter.wake();
            }
        });
        // Woken by a token or by time: either way nobody is parked, and a token is used up.
        self.0.token.end_timed();
    }
}

/// The running uthread.
///
/// # Panics
/// When no uthread runs here.
pub fn current() -> Uthread {
    with_current(Uthread::clone)
}

#[inline]
fn with_current<R>(f: impl FnOnce(&Uthread) -> R) -> R {
    match local::current_task() {
        // SAFETY: it runs this, so it does not end before `f` does.
        Some(task) => f(unsafe { task.as_ref() }.uthread()),
        None => panic!("no uthread runs here"),
    }
}

/// Parks the running uthread until [`Uthread::unpark`].
///
/// # Panics
/// When no uthread runs here.
pub fn park() {
    with_current(Uthread::park);
}

/// Parks the running uthread until [`Uthread::unpark`], or so long.
///
/// # Panics
/// When no uthread runs here.
pub fn park_timeout(timeout: Duration) {
    with_current(|uthread| uthread.park_until(deadline_after(timeout)));
}

/// Sleeps so long. An ordinary thread sleeps as one.
pub fn sleep(duration: Duration) {
    if !in_uthread() {
        return std::thread::sleep(duration);
    }
    match deadline_after(duration) {
        Some(deadline) => local::sleep_until(deadline),
        // Centuries.
        None => block(std::mem::forget),
    }
}

/// Sleeps until then.
pub fn sleep_until(deadline: Instant) {
    sleep(deadline.saturating_duration_since(Instant::now()));
}
