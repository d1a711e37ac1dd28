//! A uthread inside: its stack, its result, and who waits for it.
//!
//! One allocation, a [`Cell`], holds the [`Task`] that the scheduler sees and the result. It is shared by two: the uthread while it
//! lives, and its handle. The word [`Join`] says which of them is last, so there is no count of references.
//! Whoever holds a [`UthreadRef`] alone touches what is not atomic; it is handed on through queues, whose release and acquire order it.

use std::any::Any;
use std::cell::{Cell as Plain, UnsafeCell};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use corosensei::{Coroutine, Yielder};
use quell_model::Nanos;

use crate::kthread::Shared;
use crate::local::Locals;
use crate::park::Waiter;
use crate::scope::ScopeData;
use crate::stack::Stack;
use crate::thread::Uthread;
use crate::word::Word;

/// What a uthread wants when it leaves its stack.
#[derive(Clone, Copy)]
pub(crate) enum Leave {
    /// To go on after the others.
    Yield,
    /// To be parked; then this is called.
    Park(*mut Commit),
    /// Its time is over, to go on after the others: at a call of this library, or anywhere; then it is bound to this kthread.
    Preempted,
}

/// What to do with a uthread once it is off its stack.
pub(crate) struct Commit {
    pub(crate) call: unsafe fn(*mut Commit, UthreadRef),
}

pub(crate) type Routine = Coroutine<(), Leave, (), Stack>;
pub(crate) type Leaver = Yielder<(), Leave>;
pub(crate) type Outcome<T> = Result<T, Box<dyn Any + Send + 'static>>;

/// What the scheduler knows of a uthread.
pub(crate) struct Task {
    pub(crate) routine: UnsafeCell<Option<Routine>>,
    /// By which the uthread leaves its stack; set when it first runs.
    pub(crate) leaver: Plain<*const Leaver>,
    /// The kthread on which alone it may run, plus one: it was preempted, or unwinds. Zero: any.
    pub(crate) bound: Plain<usize>,
    /// Whether it unwound when it last left its stack.
    pub(crate) unwinds: Plain<bool>,
    /// The lowest address of its stack.
    pub(crate) bottom: Plain<usize>,
    /// Bytes of its stack.
    pub(crate) stack_bytes: Plain<usize>,
    /// When the request in service began.
    pub(crate) request: Plain<Option<Nanos>>,
    /// Its runtime. While a uthread lives it is not dropped.
    pub(crate) shared: NonNull<Shared>,
    pub(crate) locals: Locals,
    pub(crate) join: Join,
    name: Option<Arc<str>>,
    pub(crate) id: u64,
    handle: OnceLock<Uthread>,
    pub(crate) scope: Option<Arc<ScopeData>>,
    /// Whether the uthread dropped its result itself, as its handle was gone: what drops may run code of the application.
    pub(crate) emptied: Plain<bool>,
    /// Frees the cell that this is the head of.
    free: unsafe fn(NonNull<Task>),
}

/// A task and room for what its uthread returns.
#[repr(C)]
pub(crate) struct Cell<T> {
    task: Task,
    result: UnsafeCell<Option<Outcome<T>>>,
}

impl<T> Drop for Cell<T> {
    fn drop(&mut self) {
        // As with std: a scope panics if a uthread did whose panic nobody took.
        if let (Some(scope), Some(Err(_))) = (&self.task.scope, self.result.get_mut()) {
            scope.note_panic();
        }
        if let Some(result) = self.result.get_mut().take() {
            drop_result(result);
        }
    }
}

/// Drops what a uthread left.
fn drop_result<T>(result: Outcome<T>) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(result))).is_err() {
        // As with std: it would be nobody's panic.
        eprintln!(
            "fatal runtime error: what a uthread returned panicked as it was dropped, aborting"
        );
        std::process::abort();
    }
}

/// What a uthread is started with.
#[derive(Debug, Default)]
pub(crate) struct Birth {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) scope: Option<Arc<ScopeData>>,
}

impl<T> Cell<T> {
    /// A uthread without a stack yet, shared by itself and its handle.
    pub(crate) fn alloc(shared: NonNull<Shared>, id: u64, birth: Birth) -> NonNull<Cell<T>> {
        /// # Safety
        /// The task is the head of a `Cell<T>` from `alloc`, which nobody else has.
        unsafe fn free<T>(task: NonNull<Task>) {
            // SAFETY: as the caller says.
            drop(unsafe { Box::from_raw(task.cast::<Cell<T>>().as_ptr()) });
        }
        let task = Task {
            routine: UnsafeCell::new(None),
            leaver: Plain::new(std::ptr::null()),
            bound: Plain::new(0),
            unwinds: Plain::new(false),
            bottom: Plain::new(0),
            stack_bytes: Plain::new(0),
            request: Plain::new(None),
            shared,
            locals: Locals::default(),
            join: Join::new(),
            name: birth.name,
            id,
            handle: OnceLock::new(),
            scope: birth.scope,
            emptied: Plain::new(false),
            free: free::<T>,
        };
        NonNull::from(Box::leak(Box::new(Cell { task, result: UnsafeCell::new(None) })))
    }

    /// The uthread's own: stores what it returned, or drops it if nobody can ask for it any more.
    ///
    /// # Safety
    /// By the uthread, before it ends.
    pub(crate) unsafe fn set_result(cell: NonNull<Cell<T>>, result: Outcome<T>) {
        // SAFETY: a uthread that has not ended keeps its cell.
        let cell = unsafe { cell.as_ref() };
        if cell.task.scope.is_none() && cell.task.join.is_detached() {
            drop_result(result);
            cell.task.emptied.set(true);
        } else {
            // SAFETY: the handle reads it only after the end, which `Join` orders.
            unsafe { *cell.result.get() = Some(result) };
        }
    }

    /// Takes the result and frees the cell.
    ///
    /// # Safety
    /// By the handle, once, after `Join` said that the uthread has ended.
    pub(crate) unsafe fn take(cell: NonNull<Cell<T>>) -> Option<Outcome<T>> {
        // SAFETY: the uthread has ended; nobody else has the cell.
        let mut cell = unsafe { Box::from_raw(cell.as_ptr()) };
        cell.result.get_mut().take()
    }

    /// Its head.
    pub(crate) fn task(cell: NonNull<Cell<T>>) -> NonNull<Task> {
        cell.cast()
    }
}

impl Task {
    /// Frees the cell.
    ///
    /// # Safety
    /// By the last of the two who share it.
    pub(crate) unsafe fn free(task: NonNull<Task>) {
        // SAFETY: the function is that of this cell's type.
        unsafe { (task.as_ref().free)(task) };
    }

    /// The handle to it that anyone may keep.
    pub(crate) fn uthread(&self) -> &Uthread {
        self.handle.get_or_init(|| Uthread::new(self.name.clone(), self.id))
    }

    /// Its name, if it has one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// A uthread that runs nowhere and is in no queue. There is one of each such uthread; who has it decides when it runs.
/// Dropping it loses the uthread: it never runs again.
#[derive(Debug)]
#[must_use = "the uthread is lost if nobody makes it ready"]
pub(crate) struct UthreadRef(pub(crate) NonNull<Task>);

// SAFETY: a parked uthread may be resumed by any kthread; what it has on its stack moves with it. The task's fields that are not
// atomic are touched by whoever has the one `UthreadRef`, or runs it.
unsafe impl Send for UthreadRef {}
// SAFETY: nothing can be done through a shared one.
unsafe impl Sync for UthreadRef {}

impl UthreadRef {
    pub(crate) fn task(&self) -> &Task {
        // SAFETY: a uthread that has not ended keeps its cell.
        unsafe { self.0.as_ref() }
    }

    /// As an item of a queue.
    pub(crate) fn into_item(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// What `into_item` made.
    ///
    /// # Safety
    /// Once for each `into_item`.
    pub(crate) unsafe fn from_item(item: u64) -> UthreadRef {
        let task = std::ptr::with_exposed_provenance_mut(item as usize);
        // SAFETY: it was the address of a task.
        UthreadRef(unsafe { NonNull::new_unchecked(task) })
    }
}

const RUNNING: u64 = 0;
const ENDED: u64 = 1;
const DETACHED: u64 = 2;
// Every other value is the address of who waits.

/// Which of a uthread and its handle is the last one, and who waits for the end.
#[derive(Debug)]
pub(crate) struct Join<W = AtomicU64>(W);

/// What the handle finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It has ended: the cell is the handle's.
    Yes,
    /// Not yet.
    No,
}

/// What the end of a uthread finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The handle has the cell now.
    ToHandle,
    /// This one waits for it, and has the cell now.
    ToWaiter(u64),
    /// Nobody is left: who ended frees the cell.
    Alone,
}

impl<W: Word> Join<W> {
    pub(crate) fn new() -> Join<W> {
        Join(W::new(RUNNING))
    }

    /// The uthread has ended. The cell must not be touched after this but where it says so.
    #[inline]
    pub(crate) fn end(&self) -> Left {
        // AcqRel: who sees the end sees the result; who is found here has its waiter complete. Pairs with the three below.
        match self.0.swap(ENDED, Ordering::AcqRel) {
            RUNNING => Left::ToHandle,
            DETACHED => Left::Alone,
            waiter => Left::ToWaiter(waiter),
        }
    }

    /// The handle wants to wait: `No`: whoever has this address is told the end.
    #[inline]
    pub(crate) fn wait(&self, waiter: u64) -> Ended {
        // AcqRel on success publishes the waiter; the acquire after a failure sees the result.
        match self.0.exchange(RUNNING, waiter, Ordering::AcqRel) {
            Ok(_) => Ended::No,
            Err(_) => self.ended(),
        }
    }

    /// Whether it has ended.
    #[inline]
    pub(crate) fn ended(&self) -> Ended {
        // Acquire: sees the result. Pairs with `end`.
        if self.0.get(Ordering::Acquire) == ENDED { Ended::Yes } else { Ended::No }
    }

    /// Whether the handle is gone: then it stays so.
    pub(crate) fn is_detached(&self) -> bool {
        // Relaxed: the handle leaves nothing behind.
        self.0.get(Ordering::Relaxed) == DETACHED
    }

    /// The handle goes: `Yes`: the uthread went before it, and the cell is the handle's to free.
    #[inline]
    pub(crate) fn detach(&self) -> Ended {
        match self.0.swap(DETACHED, Ordering::AcqRel) {
            ENDED => Ended::Yes,
            _ => Ended::No,
        }
    }
}

/// Tells who waits for a uthread that it has ended.
///
/// # Safety
/// `waiter` came out of [`Join::end`], once.
pub(crate) unsafe fn tell_end(waiter: u64) {
    let waiter: *mut Option<Waiter> = std::ptr::with_exposed_provenance_mut(waiter as usize);
    // SAFETY: it is on the stack of who waits, who goes on only once it is woken.
    let waiter = unsafe { (*waiter).take() };
    if let Some(waiter) = waiter {
        waiter.wake();
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::atomic as model;
    use loom::sync::{Arc, Notify};

    use super::*;

    struct Scene {
        join: Join<model::AtomicU64>,
        result: loom::cell::UnsafeCell<u32>,
        bell: Notify,
        freed: model::AtomicU64,
    }

    const WAITER: u64 = 64;

    fn scene() -> Arc<Scene> {
        Arc::new(Scene {
            join: Join::new(),
            result: loom::cell::UnsafeCell::new(0),
            bell: Notify::new(),
            freed: model::AtomicU64::new(0),
        })
    }

    fn uthread(scene: &Arc<Scene>) -> loom::thread::JoinHandle<()> {
        let scene = Arc::clone(scene);
        loom::thread::spawn(move || {
            // SAFETY: what the model checks: loom fails it if the handle reads at the same time.
            scene.result.with_mut(|result| unsafe { *result = 7 });
            match scene.join.end() {
                Left::ToWaiter(waiter) => {
                    assert_eq!(waiter, WAITER);
                    scene.bell.notify();
                }
                Left::ToHandle => {}
                Left::Alone => drop(scene.freed.add(1, Ordering::SeqCst)),
            }
        })
    }

    #[test]
    fn who_joins_sees_the_result_and_waits_only_if_it_is_told() {
        loom::model(|| {
            let scene = scene();
            let uthread = uthread(&scene);
            if scene.join.wait(WAITER) == Ended::No {
                // loom's bells ring without cause; no waiter of the library is woken so.
                while scene.join.ended() == Ended::No {
                    scene.bell.wait();
                }
            }
            // SAFETY: as above.
            scene.result.with(|result| assert_eq!(unsafe { *result }, 7));
            uthread.join().unwrap();
            assert_eq!(scene.freed.get(Ordering::SeqCst), 0, "the handle frees it");
        });
    }

    #[test]
    fn a_uthread_that_nobody_joins_is_freed_once() {
        loom::model(|| {
            let scene = scene();
            let uthread = uthread(&scene);
            if scene.join.detach() == Ended::Yes {
                // SAFETY: as above.
                scene.result.with(|result| assert_eq!(unsafe { *result }, 7));
                scene.freed.add(1, Ordering::SeqCst);
            }
            uthread.join().unwrap();
            assert_eq!(scene.freed.get(Ordering::SeqCst), 1);
        });
    }
}
