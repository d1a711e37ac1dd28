//! Kernel threads of the runtime, as they see each other. What only its own thread touches is in [`local`].

mod current;
mod hold;
pub(crate) mod idle;
pub(crate) mod inject;
pub(crate) mod local;
pub(crate) mod queue;
mod run;
mod search;
mod tend;
#[cfg(test)]
mod tests;
pub(crate) mod timers;
pub(crate) mod wakers;

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use quell_model::Nanos;
use quell_shm::runtime::{Counters, Kthread as Lines, KthreadState, WorkCopy};

pub(crate) use crate::clock::now;
use crate::io::{Bell, Reactor};
use crate::link::{self, Cores};
use crate::park::Timed;
use crate::runtime::{BuildError, Config};
use crate::stack::Pool;
use crate::task::UthreadRef;
use idle::Idle;
use inject::Inject;
use queue::{Ready, Ring};
use timers::{TimerKey, Timers};
use wakers::Wakers;

/// The grant of a runtime that runs alone: it is never revoked.
const NEVER_REVOKED: u64 = u64::MAX;
/// No timer is set.
const NO_TIMER: u64 = u64::MAX;

/// Locks what no holder leaves broken by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whom a timer wakes.
#[derive(Debug)]
pub(crate) enum TimerTask {
    Sleeper(UthreadRef),
    Timed(Arc<Timed>),
}

impl TimerTask {
    fn fire(self) {
        match self {
            TimerTask::Sleeper(uthread) => uthread.ready(),
            TimerTask::Timed(timed) => timed.time_over(),
        }
    }
}

/// What the kthreads of a runtime share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Dropped first: the thread that keeps the daemon looks at lines of kthreads.
    cores: OnceLock<Box<dyn Cores>>,
    pub(crate) config: Config,
    pub(crate) kthreads: Box<[Kthread]>,
    pub(crate) stacks: Pool,
    pub(crate) inject: Inject,
    pub(crate) idle: Idle,
    /// Who wakes a uthread and has no reference to this.
    wakers: Wakers,
    stopping: AtomicBool,
    /// Uthreads started by ordinary threads.
    spawned_outside: AtomicU64,
    pub(crate) load: Mutex<crate::load::Smoothed>,
}

/// A kernel thread of the runtime, as the others see it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Kthread {
    pub(crate) at: usize,
    pub(crate) queue: Ring,
    /// Its lines: its own alone, in the daemon's memory under the daemon.
    lines: AtomicPtr<Lines>,
    /// From a box, which `drop` makes of it again.
    own_lines: NonNull<Lines>,
    /// The grant under which it runs. Written by who gives it its core, on its own thread.
    pub(crate) generation: AtomicU64,
    timers: Mutex<Timers<TimerTask>>,
    /// When the next timer is due. Stored under the lock of the timers.
    next_timer: AtomicU64,
    /// Shared as it is: a thief may poll it while its kthread waits in it.
    pub(crate) reactor: Reactor,
    pub(crate) bell: Bell,
    /// Uthreads that are bound to this kthread and were made ready elsewhere.
    bound: Mutex<VecDeque<Ready>>,
    bound_len: AtomicU64,
    /// The core that it was last seen on, or -1.
    pub(crate) core: AtomicI32,
    /// Uthreads that it started, and that ended here. Written by itself alone.
    spawned: AtomicU64,
    ended: AtomicU64,
}

/// Adds to a counter that this thread alone writes.
#[inline]
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Kthread {
    fn new(at: usize, config: &Config) -> Result<Kthread, BuildError> {
        let reactor = Reactor::new(config.io)
            .map_err(|source| BuildError::System { what: "set up I/O", source })?;
        let own_lines = NonNull::from(Box::leak(Box::<Lines>::default()));
        Ok(Kthread {
            at,
            queue: Ring::new(),
            lines: AtomicPtr::new(own_lines.as_ptr()),
            own_lines,
            generation: AtomicU64::new(NEVER_REVOKED),
            timers: Mutex::new(Timers::new()),
            next_timer: AtomicU64::new(NO_TIMER),
            bell: reactor.bell(),
            reactor,
            bound: Mutex::new(VecDeque::new()),
            bound_len: AtomicU64::new(0),
            core: AtomicI32::new(-1),
            spawned: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        })
    }

    /// Its lines.
    #[inline]
    pub(crate) fn lines(&self) -> &Lines {
        // SAFETY: it points to its own lines, or to memory that `use_lines` was promised to stay.
        // Acquire: pairs with `use_lines`.
        unsafe { &*self.lines.load(Ordering::Acquire) }
    }

    /// From now on its lines are these, or its own again; what the old ones say is copied.
    ///
    /// # Safety
    /// The memory must stay mapped for as long as the runtime lives, even after other lines are used.
    pub(crate) unsafe fn use_lines(&self, lines: Option<NonNull<Lines>>) {
        let lines = lines.unwrap_or(self.own_lines).as_ptr();
        let old = self.lines();
        // SAFETY: as the caller says.
        copy_counters(&old.counters, unsafe { &(*lines).counters });
        // Release: who sees the new lines sees the counters in them.
        self.lines.store(lines, Ordering::Release);
    }

    /// Whether its core was taken back: it is to park at its next safe point.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        self.lines().grant.is_revoked(self.generation.load(Ordering::Relaxed))
    }

    /// Whether it runs uthreads, or looks for some, on a core of its own; by any thread.
    pub(crate) fn has_core(&self, work: &WorkCopy) -> bool {
        work.state == KthreadState::Running && !self.is_revoked()
    }

    /// When the next timer is due.
    #[inline]
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        Some(self.next_timer.load(Ordering::Relaxed)).filter(|&at| at != NO_TIMER).map(Nanos)
    }

    fn tell_timer(&self, timers: &Timers<TimerTask>) {
        let next = timers.next();
        // Relaxed: who finds it late or early looks again under the lock.
        self.next_timer.store(next.map_or(NO_TIMER, |at| at.0), Ordering::Relaxed);
        self.lines().work.set_timer(next);
    }

    /// Wakes a timed wait at its deadline. `before` is called with the timer's key before it can go off.
    pub(crate) fn set_timer(&self, at: Nanos, timed: Arc<Timed>, before: impl FnOnce(TimerKey)) {
        let mut timers = lock(&self.timers);
        before(timers.insert(at, TimerTask::Timed(timed)));
        self.tell_timer(&timers);
    }

    /// Makes a uthread ready at a deadline.
    pub(crate) fn set_sleeper(&self, at: Nanos, uthread: UthreadRef) {
        let mut timers = lock(&self.timers);
        timers.insert(at, TimerTask::Sleeper(uthread));
        self.tell_timer(&timers);
    }

    /// Removes a timer that may have gone off.
    pub(crate) fn cancel_timer(&self, key: TimerKey) {
        let _still = local::hold();
        let mut timers = lock(&self.timers);
        let timer = timers.remove(key);
        self.tell_timer(&timers);
        drop(timers);
        drop(timer);
    }

    /// Takes timers that are due to `due`; by a thief only if nobody holds them.
    fn take_due(&self, now: Nanos, thief: bool, due: &mut Vec<TimerTask>) {
        if self.next_timer().is_none_or(|next| next > now) {
            return;
        }
        // `now` may be a little ahead, and no one wakes before its time.
        let now = now.min(crate::clock::now());
        let timers = if thief { self.timers.try_lock().ok() } else { Some(lock(&self.timers)) };
        let Some(mut timers) = timers else { return };
        while let Some((_, task)) = timers.pop_due(now) {
            due.push(task);
        }
        self.tell_timer(&timers);
    }

    /// Makes a uthread ready that may run here alone.
    fn push_bound(&self, ready: Ready) {
        let mut bound = lock(&self.bound);
        bound.push_back(ready);
        // Relaxed: the bell, or a fence of `idle`, follows.
        self.bound_len.store(bound.len() as u64, Ordering::Relaxed);
    }
}

// SAFETY: all of it is made to be shared; the lines of its own are atomics.
unsafe impl Send for Kthread {}
// SAFETY: as above.
unsafe impl Sync for Kthread {}

impl Drop for Kthread {
    fn drop(&mut self) {
        // SAFETY: from a box; its thread has ended, and nobody else has its kthread.
        drop(unsafe { Box::from_raw(self.own_lines.as_ptr()) });
    }
}

fn copy_counters(from: &Counters, to: &Counters) {
    let pairs = [
        (&from.switches, &to.switches),
        (&from.steals, &to.steals),
        (&from.parks, &to.parks),
        (&from.revokes, &to.revokes),
        (&from.preemptions, &to.preemptions),
        (&from.busy_ns, &to.busy_ns),
        (&from.asks, &to.asks),
    ];
    for (from, to) in pairs {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Shared {
    /// What `kthreads` kthreads share; they do not run yet.
    pub(crate) fn new(config: Config, kthreads: usize) -> Result<Arc<Shared>, BuildError> {
        let kthreads =
            (0..kthreads).map(|at| Kthread::new(at, &config)).collect::<Result<_, _>>()?;
        Ok(Arc::new(Shared {
            config,
            kthreads,
            stacks: Pool::default(),
            inject: Inject::default(),
            idle: Idle::new(),
            wakers: Wakers::new(),
            cores: OnceLock::new(),
            stopping: AtomicBool::new(false),
            spawned_outside: AtomicU64::new(0),
            load: Mutex::default(),
        }))
    }

    /// Starts the kthreads.
    pub(crate) fn start(self: &Arc<Shared>) -> Result<Vec<JoinHandle<()>>, BuildError> {
        self.start_with(link::connect(self)?)
    }

    /// Starts the kthreads, which get their cores here.
    fn start_with(
        self: &Arc<Shared>,
        cores: Box<dyn Cores>,
    ) -> Result<Vec<JoinHandle<()>>, BuildError> {
        // Nobody else starts them.
        let _ = self.cores.set(cores);
        let mut threads = Vec::new();
        for at in 0..self.kthreads.len() {
            let shared = Arc::clone(self);
            // The kernel keeps 15 bytes of it.
            let name = format!("{}/{at}", self.config.name.chars().take(11).collect::<String>());
            let thread =
                std::thread::Builder::new().name(name).spawn(move || run::kthread(shared, at));
            match thread {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    self.stop();
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                    return Err(BuildError::System { what: "start a kernel thread", source });
                }
            }
        }
        Ok(threads)
    }

    pub(crate) fn cores(&self) -> &dyn Cores {
        // `start` sets it before any kthread runs.
        self.cores.get().map_or(&link::Alone, |cores| &**cores)
    }

    /// Ends the kthreads at their next switch.
    pub(crate) fn stop(&self) {
        // Release: pairs with the acquire of `stopping`; the bells follow.
        self.stopping.store(true, Ordering::Release);
        for kthread in &self.kthreads {
            self.idle.wake_this(kthread.at);
            self.cores().wake(kthread);
        }
    }

    /// Whether the kthreads are to end.
    #[inline]
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Uthreads that have not ended. Exact once the kthreads have.
    pub(crate) fn live_uthreads(&self) -> u64 {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ended: u64 = self.kthreads.iter().map(|kthread| read(&kthread.ended)).sum();
        let spawned: u64 = self.kthreads.iter().map(|kthread| read(&kthread.spawned)).sum();
        (spawned + read(&self.spawned_outside)).saturating_sub(ended)
    }

    /// An ordinary thread starts a uthread.
    pub(crate) fn note_spawned_outside(&self) {
        self.spawned_outside.fetch_add(1, Ordering::Relaxed);
    }

    /// A uthread is ready: wakes a kthread for it if one sleeps and none looks for work.
    #[inline]
    pub(crate) fn notify(&self) {
        if let Some(at) = self.idle.to_wake() {
            self.cores().wake(&self.kthreads[at]);
        }
    }

    /// Makes a uthread ready from outside, by who has no reference to its runtime: that may be gone once the uthread runs.
    ///
    /// # Safety
    /// `shared` is the runtime of the uthread.
    pub(crate) unsafe fn wake_outside(shared: NonNull<Shared>, uthread: UthreadRef) {
        // Who frees the runtime waits for this, perhaps in another uthread of the same kthread.
        let _still = local::hold();
        // SAFETY: while a uthread lives, its runtime does.
        let wakers = unsafe { &raw const (*shared.as_ptr()).wakers };
        // SAFETY: as above, and then the count keeps it: `let_go` waits.
        unsafe { Wakers::count(wakers, || shared.as_ref().inject(uthread)) };
    }

    /// The kthreads have ended: who has a reference may drop it. Uthreads that have not ended keep what they share, for
    /// ever: whoever would wake one of them looks at it.
    pub(crate) fn let_go(self: &Arc<Shared>) {
        if self.live_uthreads() > 0 {
            std::mem::forget(Arc::clone(self));
        } else {
            self.wakers.wait();
        }
    }

    /// Makes a uthread ready from outside.
    pub(crate) fn inject(&self, uthread: UthreadRef) {
        let bound = uthread.task().bound.get();
        let ready = (uthread.into_item(), now());
        match bound.checked_sub(1) {
            None => {
                self.inject.push([ready]);
                self.notify();
            }
            Some(at) => self.give_bound(at, ready),
        }
    }

    /// Makes a uthread ready that is bound to another kthread.
    fn give_bound(&self, at: usize, ready: Ready) {
        let kthread = &self.kthreads[at];
        kthread.push_bound(ready);
        self.idle.wake_this(at);
        self.cores().wake(kthread);
    }

    /// What each kthread has to do, bounded by now.
    pub(crate) fn work(&self, now: Nanos) -> impl Iterator<Item = WorkCopy> {
        self.kthreads.iter().map(move |kthread| kthread.lines().work.read(now))
    }
}

/// Whether it is one of the running uthread's runtime. False on an ordinary thread.
pub(crate) fn is_of_runtime(reactor: &Reactor) -> bool {
    let is_own =
        |local: &local::Local| local.shared().kthreads.iter().any(|it| it.reactor.is(reactor));
    local::Local::with(|local| local.is_some_and(is_own))
}

/// Calls `f` with the reactor of the running kthread. `f` must not block or park.
///
/// Panics outside a uthread.
pub(crate) fn with_reactor<R>(f: impl FnOnce(&Reactor) -> R) -> R {
    let _still = local::hold();
    local::with_kthread(|kthread| f(&kthread.reactor))
}
