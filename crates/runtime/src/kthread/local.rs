//! What a kthread keeps for itself, and how a uthread finds the kthread it runs on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_model::Nanos;
use quell_shm::runtime::Kthread as Lines;

use super::current::get;
pub(super) use super::current::set;
use super::hold::guarded;
pub(crate) use super::hold::{Hold, check_may_leave, end, hold};
use super::queue::Ready;
use super::run::LOOK_AFTER;
use super::{Kthread, Shared, TimerTask, count};
use crate::clock::Steps;
use crate::preempt::tick::{self, FloatControl, Ticker};
use crate::stack::Stack;
use crate::task::{Leave, Task, UthreadRef};

/// Stacks that a kthread keeps at hand, and how many it takes and gives at once.
const STACKS_KEPT: usize = 64;
const STACKS_MOVED: usize = 32;
/// Numbers of uthreads that a kthread takes at once.
const IDS: u64 = 1_024;
/// Calls of this library between two readings of the clock for the quantum: so many at first and where they are far
/// apart, up to so many where they follow each other this closely.
pub(super) const CALLS_PER_CHECK: u32 = 8;
const CALLS_PER_CHECK_MOST: u32 = 64;
const CLOSE: Nanos = Nanos(100);
/// A uthread that has run for less does not yield at the daemon's word.
const SHORTEST_QUANTUM: Nanos = Nanos::from_micros(10);

/// What a kthread keeps for itself.
#[derive(Debug)]
pub(crate) struct Local {
    pub(super) shared: Arc<Shared>,
    pub(super) at: usize,
    /// This kthread as the others see it. `shared` keeps it.
    kthread: NonNull<Kthread>,
    /// Its lines and the number of its grant, as they were when it last got a core.
    lines: Cell<NonNull<Lines>>,
    generation: Cell<u64>,
    /// The uthread that runs, or null: the scheduler.
    pub(super) current: Cell<*const Task>,
    /// How many reasons there are not to preempt; the scheduler is one.
    pub(crate) preempt: Cell<u32>,
    /// Where the application turned preemption off.
    pub(crate) guarded: Cell<Option<&'static Location<'static>>>,
    pub(crate) time: Steps,
    /// When the running uthread began to.
    pub(crate) started: Cell<Nanos>,
    /// When timers, I/O and what others left were looked at.
    pub(super) looked: Cell<Nanos>,
    /// When another kthread was looked after, and how many were.
    pub(super) tended: Cell<(Nanos, usize)>,
    pub(super) tick: Cell<u32>,
    /// Calls that the running uthread has until the clock is read for its quantum, now and when it was last read.
    pub(super) calls: Cell<u32>,
    calls_given: Cell<u32>,
    stacks: RefCell<Vec<Stack>>,
    /// Uthreads that are bound to this kthread and ready.
    pub(super) bound: RefCell<VecDeque<Ready>>,
    /// How many: read where the queue may be in use.
    pub(super) bound_ready: Cell<usize>,
    /// How many uthreads of this kthread are off their stacks as they unwind.
    pub(super) unwinding: Cell<usize>,
    /// The control words of floating point, and the blocked signals, of this thread.
    pub(crate) float: FloatControl,
    pub(crate) signals: u64,
    pub(super) ticker: Option<Ticker>,
    pub(super) random: Cell<u64>,
    ids: Cell<(u64, u64)>,
    pub(super) request: Cell<Option<Nanos>>,
    // Kept to save allocations.
    pub(super) due: RefCell<Vec<TimerTask>>,
    pub(super) completed: RefCell<Vec<UthreadRef>>,
    pub(super) taken: RefCell<Vec<Ready>>,
}

impl Local {
    pub(super) fn new(shared: Arc<Shared>, at: usize) -> Local {
        let time = Steps::new();
        let now = time.last();
        Local {
            kthread: NonNull::from(&shared.kthreads[at]),
            lines: Cell::new(NonNull::from(shared.kthreads[at].lines())),
            generation: Cell::new(0),
            shared,
            at,
            current: Cell::new(ptr::null()),
            preempt: Cell::new(1),
            guarded: Cell::new(None),
            started: Cell::new(now),
            looked: Cell::new(now),
            tended: Cell::new((now, at)),
            time,
            tick: Cell::new(0),
            calls: Cell::new(CALLS_PER_CHECK),
            calls_given: Cell::new(CALLS_PER_CHECK),
            stacks: RefCell::default(),
            bound: RefCell::default(),
            bound_ready: Cell::new(0),
            unwinding: Cell::new(0),
            float: FloatControl::current(),
            signals: tick::blocked_signals(),
            ticker: None,
            random: Cell::new(now.0 ^ (at as u64) << 32 | 1),
            ids: Cell::new((0, 0)),
            request: Cell::new(None),
            due: RefCell::default(),
            completed: RefCell::default(),
            taken: RefCell::default(),
        }
    }

    /// Calls `f` with the kthread that runs this, `None` on an ordinary thread. `f` must not leave the uthread's stack.
    #[inline]
    pub(crate) fn with<R>(f: impl FnOnce(Option<&Local>) -> R) -> R {
        // SAFETY: it lies on the stack of the kthread's scheduler while that runs.
        f(unsafe { get().as_ref() })
    }

    #[inline]
    pub(crate) fn runs_uthread(&self) -> bool {
        !self.current.get().is_null()
    }

    /// This kthread as the others see it.
    #[inline]
    pub(crate) fn kthread(&self) -> &Kthread {
        // SAFETY: `shared` keeps it, in a box that is never replaced.
        unsafe { self.kthread.as_ref() }
    }

    /// Its lines. They change where it waits for a core alone.
    #[inline]
    pub(super) fn lines(&self) -> &Lines {
        // SAFETY: lines outlive the kthreads, even when others are used (`Kthread::use_lines`).
        unsafe { self.lines.get().as_ref() }
    }

    /// It has got a core, by `Cores::take` or `ask`: under which grant, and where that is.
    pub(super) fn note_grant(&self) {
        let kthread = self.kthread();
        self.lines.set(NonNull::from(kthread.lines()));
        // Relaxed: this thread has stored it.
        self.generation.set(kthread.generation.load(Ordering::Relaxed));
    }

    /// Whether its core was taken back: it is to park at its next safe point.
    #[inline]
    pub(super) fn is_revoked(&self) -> bool {
        self.lines().grant.is_revoked(self.generation.get())
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The running uthread.
    #[inline]
    pub(crate) fn task(&self) -> Option<&Task> {
        // SAFETY: a uthread that runs has not ended.
        unsafe { self.current.get().as_ref() }
    }

    /// The time for a uthread that becomes ready: anew where a uthread may have run for long.
    #[inline]
    fn stamp(&self) -> Nanos {
        if self.runs_uthread() { self.time.step() } else { self.time.last() }
    }

    /// Makes a uthread of this runtime ready, since `now`. Not published yet.
    #[inline]
    pub(super) fn enqueue(&self, uthread: UthreadRef, now: Nanos) {
        let bound = uthread.task().bound.get();
        let ready = (uthread.into_item(), now);
        if bound != 0 {
            return self.enqueue_bound(bound - 1, ready);
        }
        if let Err(ready) = self.kthread().queue.push(ready) {
            self.overflow(ready);
        }
    }

    #[cold]
    fn enqueue_bound(&self, at: usize, ready: Ready) {
        if at == self.at {
            self.bound.borrow_mut().push_back(ready);
            self.bound_ready.set(self.bound_ready.get() + 1);
        } else {
            self.shared.give_bound(at, ready);
        }
    }

    /// The run queue is full: half of it goes where all kthreads find it.
    #[cold]
    fn overflow(&self, ready: Ready) {
        let mut taken = Vec::with_capacity(super::queue::CAPACITY / 2 + 1);
        self.kthread().queue.steal(super::queue::CAPACITY / 2, &mut taken);
        taken.push(ready);
        self.shared.inject.push(taken);
    }

    /// Tells what waits since when.
    #[inline]
    pub(super) fn publish(&self) {
        let (oldest, queued) = self.kthread().queue.oldest();
        self.lines().work.set_ready(oldest, queued as u64);
    }

    /// A stack; `None`: of the runtime's usual size.
    pub(crate) fn take_stack(&self, bytes: usize) -> io::Result<Stack> {
        let mut stacks = self.stacks.borrow_mut();
        if bytes != self.shared.config.stack_bytes {
            let mut one = Vec::with_capacity(1);
            self.shared.stacks.take(bytes, 1, &mut one)?;
            return one.pop().ok_or_else(|| io::ErrorKind::OutOfMemory.into());
        }
        if stacks.is_empty() {
            self.shared.stacks.take(bytes, STACKS_MOVED, &mut stacks)?;
        }
        stacks.pop().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn give_stack(&self, stack: Stack) {
        if stack.bytes() != self.shared.config.stack_bytes {
            return self.shared.stacks.give(std::iter::once(stack));
        }
        let mut stacks = self.stacks.borrow_mut();
        if stacks.len() >= STACKS_KEPT {
            // The oldest: the others are in the cache.
            self.shared.stacks.give(stacks.drain(..STACKS_MOVED));
        }
        stacks.push(stack);
    }

    /// A number for a uthread that this kthread starts.
    pub(crate) fn next_id(&self) -> u64 {
        let (next, end) = self.ids.get();
        let (next, end) = if next == end { take_ids(IDS) } else { (next, end) };
        self.ids.set((next + 1, end));
        next
    }

    /// This kthread starts a uthread.
    #[inline]
    pub(crate) fn start(&self, uthread: UthreadRef) {
        count(&self.kthread().spawned, 1);
        self.make_ready(uthread);
    }

    /// Makes a uthread of this runtime ready, and tells the others.
    #[inline]
    fn make_ready(&self, uthread: UthreadRef) {
        self.enqueue(uthread, self.stamp());
        self.publish();
        self.notify();
    }

    /// As [`Shared::notify`]; for nothing where there is no other kthread.
    #[inline]
    pub(super) fn notify(&self) {
        if self.shared.kthreads.len() > 1 {
            self.shared.notify();
        }
    }

    /// Whether the running uthread has to yield at this call of this library.
    #[inline]
    fn must_yield(&self) -> bool {
        let left = self.calls.get() - 1;
        self.calls.set(left);
        let told = self.is_revoked() | self.lines().grant.is_quantum_over(self.started.get());
        (told | (left == 0)) && self.must_yield_now()
    }

    /// The same, by the clock.
    #[cold]
    fn must_yield_now(&self) -> bool {
        // The clock is in use.
        let _still = hold();
        let (read, now) = (self.time.last_read(), self.time.now());
        let close = now - read <= Nanos(CLOSE.0 * u64::from(self.calls_given.get()));
        let calls = if close { self.calls_given.get() * 2 } else { CALLS_PER_CHECK };
        self.give_calls(calls.min(CALLS_PER_CHECK_MOST));
        if self.is_revoked() {
            return true;
        }
        // The daemon's word stands until its next grant, and so for uthreads that have just begun.
        let told = self.lines().grant.is_quantum_over(self.started.get());
        let quantum = if told { Some(SHORTEST_QUANTUM) } else { self.shared.config.quantum };
        quantum.is_some_and(|quantum| now - self.started.get() > quantum) && self.others_wait(now)
    }

    /// The running uthread may make so many calls before the clock is read.
    #[inline]
    pub(super) fn give_calls(&self, calls: u32) {
        self.calls.set(calls);
        self.calls_given.set(calls);
    }

    /// The request in service began then.
    #[inline]
    pub(crate) fn tell_request(&self, start: Option<Nanos>) {
        if start != self.request.get() {
            self.request.set(start);
            self.lines().work.set_request(start);
        }
    }

    /// Whether others could run here.
    fn others_wait(&self, now: Nanos) -> bool {
        let kthread = self.kthread();
        kthread.queue.len() > 0
            || self.bound_ready.get() > 0
            || !self.shared.inject.is_empty()
            || kthread.bound_len.load(Ordering::Relaxed) > 0
            || kthread.next_timer().is_some_and(|next| next <= now)
            // What is complete by now is known once it is looked at.
            || (!kthread.reactor.is_idle() && now - self.looked.get() > LOOK_AFTER)
    }
}

impl Local {
    /// Whether others could run here; by the handler of a signal.
    pub(crate) fn others_wait_now(&self) -> bool {
        self.kthread().is_revoked() || self.others_wait(crate::clock::now())
    }

    /// This thread begins to run uthreads, after a sleep or at first.
    pub(super) fn start_ticks(&self) {
        if let Some(ticker) = &self.ticker {
            ticker.start();
        }
    }

    /// This thread is about to sleep.
    pub(super) fn stop_ticks(&self) {
        if let Some(ticker) = &self.ticker {
            ticker.stop();
        }
    }
}

impl Local {
    /// A uthread leaves its stack, and it or another one of this kthread unwinds. std counts panics by thread: until this
    /// one has unwound, it stays on this one.
    #[cold]
    fn leave_unwinding(&self, task: &Task) {
        task.unwinds.set(self.unwinds(task));
        self.unwinding.set(self.unwinding.get() + usize::from(task.unwinds.get()));
        task.bound.set(self.at + 1);
    }

    /// Whether the running uthread unwinds, where it or another one of this kthread does. Certain if no other one is off
    /// its stack as it unwinds; else what was true when this one last left its own.
    fn unwinds(&self, task: &Task) -> bool {
        self.unwinding.get() == 0 || task.unwinds.get()
    }
}

/// Whether the running uthread, or this ordinary thread, unwinds: as `std::thread::panicking`, which also tells so of all
/// uthreads of a kthread of which one is parked in a destructor.
#[inline]
pub(crate) fn unwinds() -> bool {
    std::thread::panicking() && unwinds_itself()
}

#[cold]
fn unwinds_itself() -> bool {
    Local::with(|local| {
        local.is_none_or(|local| local.task().is_none_or(|task| local.unwinds(task)))
    })
}

/// Numbers that no other uthread of this process has: from, to.
pub(crate) fn take_ids(count: u64) -> (u64, u64) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: a count and nothing else.
    let from = NEXT.fetch_add(count, Ordering::Relaxed);
    (from, from + count)
}

impl UthreadRef {
    /// Makes it ready: on the running kthread, or from outside on any.
    #[inline]
    pub(crate) fn ready(self) {
        let runtime = self.task().shared;
        Local::with(|local| match local {
            Some(local) if ptr::eq(Arc::as_ptr(&local.shared), runtime.as_ptr()) => {
                let _still = Hold::of(local);
                local.make_ready(self);
            }
            // SAFETY: its task says so.
            _ => unsafe { Shared::wake_outside(runtime, self) },
        });
    }
}

/// The running uthread leaves its stack. Returns when it runs again, perhaps on another thread.
#[inline]
pub(crate) fn leave(how: Leave) {
    let leaver = Local::with(|local| {
        let task = local.and_then(Local::task);
        let (Some(local), Some(task)) = (local, task) else { outside() };
        if local.preempt.get() != 0 {
            guarded(local);
        }
        local.preempt.set(1);
        if std::thread::panicking() {
            local.leave_unwinding(task);
        } else {
            task.bound.set(0);
            task.unwinds.set(false);
        }
        task.leaver.get()
    });
    // SAFETY: it is the running uthread's own, and lies on its stack.
    unsafe { (*leaver).suspend(how) };
    resumed();
}

/// The running uthread was interrupted, and leaves its stack; it goes on on this kthread alone. By the handler, which has looked
/// whether it may. `ready` is called once no other tick can do the same.
pub(crate) fn leave_preempted(ready: fn()) {
    let leaver = Local::with(|local| {
        let (local, task) = (local?, local?.task()?);
        local.preempt.set(1);
        task.bound.set(local.at + 1);
        task.unwinds.set(false);
        Some(task.leaver.get())
    });
    if let Some(leaver) = leaver {
        ready();
        // SAFETY: it is the running uthread's own, and lies on its stack.
        unsafe { (*leaver).suspend(Leave::Preempted) };
        resumed();
    }
}

/// The uthread runs (again).
#[inline]
pub(crate) fn resumed() {
    Local::with(|local| {
        if let Some(local) = local {
            local.preempt.set(0);
        }
    });
}

#[cold]
fn outside() -> ! {
    panic!(
        "this blocks a uthread, but no uthread runs here: call it within `Runtime::run` or `spawn`"
    )
}

/// Lets the others run first.
pub(crate) fn yield_now() {
    let alone = Local::with(|local| {
        let Some(local) = local.filter(|local| local.runs_uthread()) else {
            std::thread::yield_now();
            return true;
        };
        // Now and then by the scheduler, which looks at timers and I/O.
        let tick = local.tick.get().wrapping_add(1);
        let late = local.time.step() - local.looked.get() > super::run::LOOK_AFTER;
        if late || tick.is_multiple_of(super::run::LOOK_TICKS) || local.is_revoked() {
            return false;
        }
        let alone = local.kthread().queue.len() == 0 && local.bound_ready.get() == 0;
        if alone {
            local.tick.set(tick);
        }
        alone
    });
    if !alone {
        leave(Leave::Yield);
    }
}

/// A safe point: the uthread yields if its quantum is over, or its kthread's core was revoked.
#[inline]
pub(crate) fn checkpoint() {
    // The scheduler, too, is a reason not to preempt.
    let must = Local::with(|local| {
        local.is_some_and(|local| local.preempt.get() == 0 && local.must_yield())
    });
    if must {
        yield_at_checkpoint();
    }
}

#[cold]
fn yield_at_checkpoint() {
    leave(Leave::Preempted);
}

/// The running uthread.
#[inline]
pub(crate) fn current_task() -> Option<NonNull<Task>> {
    Local::with(|local| NonNull::new(local?.current.get().cast_mut()))
}

/// Calls `f` with the running kthread. Panics on an ordinary thread.
pub(crate) fn with_kthread<R>(f: impl FnOnce(&Kthread) -> R) -> R {
    Local::with(|local| match local {
        Some(local) => f(local.kthread()),
        None => outside(),
    })
}

/// Calls `f` with the running runtime. Panics on an ordinary thread.
pub(crate) fn with_shared<R>(f: impl FnOnce(&Arc<Shared>) -> R) -> R {
    Local::with(|local| match local {
        Some(local) => f(&local.shared),
        None => outside(),
    })
}

/// Makes the running uthread ready at `deadline`.
pub(crate) fn sleep_until(deadline: Nanos) {
    crate::park::park_current(move |uthread| {
        with_kthread(|kthread| kthread.set_sleeper(deadline, uthread));
    });
}
