//! The primitives that everything that blocks is built of: park the running uthread, make one ready; and the same for
//! ordinary threads, so that locks and channels work between the two.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quell_model::Nanos;
use rustix::thread::futex;

use crate::clock;
use crate::kthread::local::{self, Local};
use crate::kthread::timers::TimerKey;
use crate::race::Race;
pub(crate) use crate::task::UthreadRef;
use crate::task::{Commit, Leave};

/// A commit and what it has captured.
#[repr(C)]
struct Parking<F> {
    commit: Commit,
    f: ManuallyDrop<F>,
}

/// Parks the running uthread. `commit` is called with it once it is off its stack, on the stack of the scheduler: it
/// must not block, park or panic, and must not touch what it borrows once it has handed the uthread on. Returns when
/// somebody made it ready.
///
/// Panics outside a uthread, and where preemption is off.
#[inline]
pub(crate) fn park_current<F: FnOnce(UthreadRef)>(commit: F) {
    /// # Safety
    /// `parking` is the head of a `Parking<F>`, and this is its one call.
    unsafe fn call<F: FnOnce(UthreadRef)>(parking: *mut Commit, uthread: UthreadRef) {
        // SAFETY: as the caller says. It is moved off the uthread's stack first: the uthread may go on before `f` returns.
        let f = unsafe { ManuallyDrop::take(&mut (*parking.cast::<Parking<F>>()).f) };
        f(uthread);
    }
    let mut parking = Parking { commit: Commit { call: call::<F> }, f: ManuallyDrop::new(commit) };
    local::leave(Leave::Park((&raw mut parking).cast()));
}

/// Whether a uthread runs here.
#[inline]
pub(crate) fn in_uthread() -> bool {
    Local::with(|local| local.is_some_and(Local::runs_uthread))
}

/// Where an ordinary thread waits. It lies on that thread's stack; who wakes it does not touch it after the store.
#[derive(Debug, Default)]
struct ThreadParker(AtomicU32);

impl ThreadParker {
    /// Waits until it is woken, or so long. Whether it was woken.
    fn wait(&self, until: Option<Nanos>) -> bool {
        // Acquire: sees what who wakes did before. Pairs with the release of `wake`.
        while self.0.load(Ordering::Acquire) == 0 {
            let left = until.map(|until| until - clock::now());
            if left == Some(Nanos::ZERO) {
                return false;
            }
            let left = left.map(|left| rustix::fs::Timespec {
                tv_sec: (left.0 / 1_000_000_000) as i64,
                tv_nsec: (left.0 % 1_000_000_000) as i64,
            });
            // Whatever it returns for, the loop looks again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, 0, left.as_ref());
        }
        true
    }

    /// # Safety
    /// Who waits has not been woken yet.
    unsafe fn wake(this: *const ThreadParker) {
        // SAFETY: who waits keeps it until the store.
        unsafe { (*this).0.store(1, Ordering::Release) };
        // SAFETY: the thread may be gone: then the address is nobody's, or somebody's who looks again after a wake-up.
        // The system call alone uses it.
        let _ = unsafe {
            libc::syscall(libc::SYS_futex, this, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1)
        };
    }
}

/// Somebody who waits: wake it once.
#[derive(Debug)]
#[must_use = "who waits is lost if nobody wakes it"]
pub(crate) enum Waiter {
    /// A uthread.
    Uthread(UthreadRef),
    /// An ordinary thread.
    Thread(ThreadRef),
    /// Either, until a deadline.
    Timed(Arc<Timed>),
}

/// An ordinary thread that waits.
#[derive(Debug)]
pub(crate) struct ThreadRef(*const ThreadParker);

// SAFETY: made to be used from another thread.
unsafe impl Send for ThreadRef {}

impl Waiter {
    /// Wakes it. Whether it was still waiting: if not, its deadline came first.
    #[inline]
    pub(crate) fn wake(self) -> bool {
        match self {
            Waiter::Uthread(uthread) => uthread.ready(),
            // SAFETY: it waits until this, its one call.
            Waiter::Thread(thread) => unsafe { ThreadParker::wake(thread.0) },
            Waiter::Timed(timed) => return timed.wake(),
        }
        true
    }

    /// Whether its deadline has passed, so that it need not be woken.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Waiter::Timed(timed) if timed.race.is_over())
    }
}

/// Blocks the calling uthread or thread until the waiter that `commit` is called with is woken.
/// `commit` obeys the rules of [`park_current`].
#[inline]
pub(crate) fn block(commit: impl FnOnce(Waiter)) {
    if in_uthread() {
        return park_current(|uthread| commit(Waiter::Uthread(uthread)));
    }
    let parker = ThreadParker::default();
    commit(Waiter::Thread(ThreadRef(&raw const parker)));
    parker.wait(None);
}

/// Somebody who waits until a deadline: it is woken or its time is over, whichever is first.
#[derive(Debug)]
pub(crate) struct Timed {
    race: Race,
    /// Taken by who ends the wait.
    waiter: UnsafeCell<Option<Waiter>>,
    /// The timer and its kthread; written before anyone else has this, read by who waited.
    timer: UnsafeCell<Option<(usize, TimerKey)>>,
}

// SAFETY: `waiter` is written before it is shared and taken by whoever wins the race; `timer` see there.
unsafe impl Send for Timed {}
// SAFETY: as above.
unsafe impl Sync for Timed {}

impl Timed {
    /// # Safety
    /// By whom the race told so.
    unsafe fn end(&self) {
        // SAFETY: the race tells one, so this is the only one who takes it.
        if let Some(waiter) = unsafe { (*self.waiter.get()).take() } {
            waiter.wake();
        }
    }

    fn wake(&self) -> bool {
        let wakes = self.race.wake();
        if wakes {
            // SAFETY: just told.
            unsafe { self.end() };
        }
        wakes
    }

    /// The deadline has come.
    pub(crate) fn time_over(&self) {
        if self.race.time_over() {
            // SAFETY: just told.
            unsafe { self.end() };
        }
    }

    /// The commit has returned.
    fn armed(&self) {
        if self.race.armed() {
            // SAFETY: just told.
            unsafe { self.end() };
        }
    }
}

/// As [`block`], but until `deadline` at the latest. Whether it was woken before that.
pub(crate) fn block_until(deadline: Option<Nanos>, commit: impl FnOnce(Waiter)) -> bool {
    let Some(deadline) = deadline else {
        block(commit);
        return true;
    };
    let timed = Arc::new(Timed {
        race: Race::new(),
        waiter: UnsafeCell::new(None),
        timer: UnsafeCell::new(None),
    });
    if in_uthread() {
        block_uthread_until(&timed, deadline, commit);
    } else {
        let parker = ThreadParker::default();
        // SAFETY: it is not shared yet.
        unsafe { *timed.waiter.get() = Some(Waiter::Thread(ThreadRef(&raw const parker))) };
        commit(Waiter::Timed(Arc::clone(&timed)));
        if !parker.wait(Some(deadline)) && !timed.race.give_up() {
            // Somebody is about to wake this thread, and has its address.
            parker.wait(None);
        }
    }
    timed.race.is_woken()
}

fn block_uthread_until(timed: &Arc<Timed>, deadline: Nanos, commit: impl FnOnce(Waiter)) {
    let (for_timer, for_waker) = (Arc::clone(timed), Arc::clone(timed));
    park_current(move |uthread| {
        // SAFETY: neither the timer nor the waker has it yet.
        unsafe { *for_waker.waiter.get() = Some(Waiter::Uthread(uthread)) };
        local::with_kthread(|kthread| {
            // The key is stored under the lock of the timers, so before the timer can go off.
            kthread.set_timer(deadline, for_timer, |key| {
                // SAFETY: as above; who waits reads it after it was woken, which follows from this lock or from `commit`.
                unsafe { *for_waker.timer.get() = Some((kthread.at, key)) };
            });
        });
        let for_end = Arc::clone(&for_waker);
        commit(Waiter::Timed(for_waker));
        for_end.armed();
    });
    // SAFETY: the wait is over, and the timer's key was written before it began.
    let timer = unsafe { (*timed.timer.get()).take() };
    if let Some((at, key)) = timer
        && timed.race.is_woken()
    {
        local::with_shared(|shared| shared.kthreads[at].cancel_timer(key));
    }
}

/// The deadline of what begins now; `None` where it lies beyond the clock.
pub(crate) fn deadline_after(timeout: Duration) -> Option<Nanos> {
    let timeout = u64::try_from(timeout.as_nanos()).ok()?;
    clock::now().0.checked_add(timeout).map(Nanos)
}
