//! A lane, and the threads in it.

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use crate::seat::MemberRef;
use crate::sys::{self, Attr, Cores};
use crate::turn::Turn;
use crate::{LaneError, Level, Priorities, permissions};

/// Between two looks whether somebody is about to change the level of a thread that leaves.
const LEAVE_AGAIN: Duration = Duration::from_micros(20);
/// Doublings at most of a turn that expired early: a million times.
const EARLY_MAX: u32 = 20;

/// A lane of this process: a core, four levels and a timer.
#[derive(Debug)]
pub struct Lane {
    core: u32,
    priorities: Priorities,
    allowed: Allowed,
    timer: OwnedFd,
    turn: Turn,
    stopping: AtomicBool,
    /// Expiries in a row before the worker was raised.
    early: AtomicU32,
}

/// The cores that this process may use.
struct Allowed(Box<Cores>);

impl std::fmt::Debug for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Allowed(..)")
    }
}

/// A thread of a lane, by which others raise and lower it.
#[derive(Clone, Debug)]
pub struct Member {
    member_ref: Arc<MemberRef>,
}

impl Member {
    fn with<T>(&self, does: impl FnOnce(i32) -> Result<T, LaneError>) -> Result<T, LaneError> {
        self.member_ref.with(does).unwrap_or(Err(LaneError::Gone))
    }
}

/// The calling thread's stay in a lane. Dropped, the thread has again what it had before; [`LaneGuard::leave`] says
/// whether that succeeded.
pub struct LaneGuard<'a> {
    lane: &'a Lane,
    member: Member,
    orig_attr: Attr,
    orig_cores: Box<Cores>,
    /// It belongs to the thread that entered.
    _of_thread: PhantomData<*const ()>,
}

/// How a sleep of the switcher ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The armed turn is over, and ends by this: its number, from 1.
    Slice(u64),
    /// [`Lane::stop`] was called.
    Stopped,
}

/// What [`Lane::preempt`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preempted {
    /// The worker is parked.
    Parked,
    /// Its turn had expired before it was raised, and begins anew.
    NotYetRaised,
}

impl Lane {
    /// A lane on a core, if this process may have one. Nobody is in it yet.
    ///
    /// # Errors
    /// [`LaneError`] says what is missing: the core, or the right to SCHED_FIFO.
    pub fn open(core: u32, priorities: Priorities) -> Result<Lane, LaneError> {
        let allowed = permissions::allowed_cores()
            .map_err(LaneError::io("cores of this process cannot be set"))?;
        permissions::check_core(core, &allowed)?;
        permissions::check_priorities(priorities)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)
            .map_err(|err| LaneError::Io { what: "no timer", source: err.into() })?;
        let allowed = Allowed(Box::new(allowed));
        let (stopping, early) = (AtomicBool::new(false), AtomicU32::new(0));
        Ok(Lane { core, priorities, allowed, timer, turn: Turn::new(), stopping, early })
    }

    /// Its core.
    pub fn core(&self) -> u32 {
        self.core
    }

    /// Its priorities.
    pub fn priorities(&self) -> Priorities {
        self.priorities
    }

    /// The calling thread gets the lane's core and a level, whatever policy it inherited; programs and threads that
    /// it starts do not get the level.
    ///
    /// # Errors
    /// [`LaneError`]; the thread is as it was then.
    pub fn enter(&self, level: Level) -> Result<LaneGuard<'_>, LaneError> {
        let orig_attr = permissions::attr()?;
        let orig_cores =
            sys::cores().map_err(LaneError::io("the thread's cores cannot be read"))?;
        // The level first: an ordinary thread might never get to run on a core on which another one polls.
        self.put(sys::SELF, level)?;
        if let Err(source) = sys::set_cores(&Cores::one(self.core)) {
            // What was in force a moment ago is not refused.
            let _ = restore_attr(&orig_attr);
            return Err(LaneError::Io { what: "the thread cannot have the core", source });
        }
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let member = Member { member_ref: Arc::new(MemberRef::of(tid.cast_unsigned())) };
        let orig_cores = Box::new(orig_cores);
        Ok(LaneGuard { lane: self, member, orig_attr, orig_cores, _of_thread: PhantomData })
    }

    /// Puts a thread of the lane on a level.
    ///
    /// # Errors
    /// [`LaneError::Gone`] once it has left; what the kernel refuses.
    pub fn set(&self, member: &Member, level: Level) -> Result<(), LaneError> {
        member.with(|tid| self.put(tid, level))
    }

    fn put(&self, tid: i32, level: Level) -> Result<(), LaneError> {
        sys::set_fifo(tid, self.priorities.of(level), true)
            .map_err(|err| permissions::refusal(self.priorities, err))
    }

    /// The turn goes from one worker to another: the next is raised, then the last is lowered, so that no third thread
    /// slips in between. For the switcher, or a thread on another core: whoever is below would not get to the second
    /// half.
    ///
    /// # Errors
    /// When the next cannot be raised, or the last not be lowered though it is there: both are as before.
    pub fn switch_to(&self, last: &Member, next: &Member) -> Result<(), LaneError> {
        self.set(next, Level::Running)?;
        match self.set(last, Level::Parked) {
            Ok(()) | Err(LaneError::Gone) => Ok(()),
            Err(err) => {
                let _ = self.set(next, Level::Parked);
                Err(err)
            }
        }
    }

    /// A turn begins, and expires after this time. By the dispatcher or by the worker itself, one thread at a time. No
    /// system call where the timer will go off in time as it is set already.
    ///
    /// # Errors
    /// When the timer cannot be set.
    pub fn arm(&self, time: Duration) -> Result<(), LaneError> {
        let deadline = now().saturating_add(nanos(time)).min(i64::MAX as u64);
        self.turn.arm(deadline, |at| self.set_timer(at))
    }

    fn set_timer(&self, at: u64) -> Result<(), LaneError> {
        const SECOND: u64 = 1_000_000_000;
        let it_value = Timespec { tv_sec: (at / SECOND) as i64, tv_nsec: (at % SECOND) as _ };
        let at = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &at)
            .map(drop)
            .map_err(|err| LaneError::Io { what: "the timer cannot be set", source: err.into() })
    }

    /// The turn has ended in time: `false` where its expiry came first, or none was armed. No system call: the timer
    /// runs on, and wakes the switcher once: for the turn that is armed then, or in vain.
    pub fn disarm(&self) -> bool {
        self.turn.disarm()
    }

    /// The switcher sleeps until an armed turn is over. A turn ends once, by [`Lane::disarm`] or by this: an expiry that
    /// was under way when its turn ended is none.
    ///
    /// # Errors
    /// When the timer cannot be read.
    pub fn wait(&self) -> Result<Expiry, LaneError> {
        let mut times = [0; 8];
        // The expiry of a stop is read once, and may have been read. Acquire: pairs with the Release in `stop`, which
        // comes before the timer is set there: who reads that expiry sees it.
        while !self.stopping.load(Ordering::Acquire) {
            match rustix::io::read(&self.timer, &mut times) {
                Ok(_) if self.stopping.load(Ordering::Acquire) => break,
                Ok(_) => {
                    if let Some(generation) = self.turn.expired(now(), |at| self.set_timer(at))? {
                        return Ok(Expiry::Slice(generation));
                    }
                }
                Err(Errno::INTR) => {}
                Err(err) => return Err(LaneError::io("the timer cannot be read")(err.into())),
            }
        }
        Ok(Expiry::Stopped)
    }

    /// Ends [`Lane::wait`], now and from now on.
    ///
    /// # Errors
    /// When the timer cannot be set.
    pub fn stop(&self) -> Result<(), LaneError> {
        // Release: pairs with the Acquires in `wait`.
        self.stopping.store(true, Ordering::Release);
        // Long past: it expires at once.
        self.set_timer(1)
    }

    /// A parked worker gets a turn of this length; `None`: until it sleeps. On the dispatcher, whom the worker thereby
    /// preempts: this returns when the worker sleeps or is preempted itself. The turn counts from here: what it takes to
    /// set the timer and to switch threads, some microseconds on a virtual machine, is the worker's loss.
    ///
    /// # Errors
    /// When the timer cannot be set or the worker not be raised.
    pub fn run(&self, worker: &Member, time: Option<Duration>) -> Result<(), LaneError> {
        if let Some(time) = time {
            self.arm(time)?;
        }
        self.set(worker, Level::Running)
    }

    /// On the switcher, after an expiry: parks the worker whose turn it was. Where the turn expired before the
    /// dispatcher came to raise the worker, it is armed again with twice `time`, and twice that the next time in a row: a
    /// worker raised after its expiry would run for ever, and a dispatcher that is stopped again and again would never
    /// come to raise it.
    ///
    /// # Errors
    /// [`LaneError::Gone`] once it has left; what the kernel refuses.
    pub fn preempt(&self, worker: &Member, time: Duration) -> Result<Preempted, LaneError> {
        let is_parked = worker.with(|tid| {
            let priority =
                sys::priority(tid).map_err(|err| permissions::refusal(self.priorities, err))?;
            let runs = priority >= self.priorities.of(Level::Running);
            if runs {
                self.put(tid, Level::Parked)?;
            }
            Ok(runs)
        })?;
        // Relaxed, here and below: the switcher alone counts, and nothing is published by it.
        if !is_parked {
            let early = self.early.load(Ordering::Relaxed).saturating_add(1).min(EARLY_MAX);
            self.early.store(early, Ordering::Relaxed);
            self.arm(time.max(Duration::from_nanos(1)).saturating_mul(1 << early))?;
            return Ok(Preempted::NotYetRaised);
        }
        self.early.store(0, Ordering::Relaxed);
        Ok(Preempted::Parked)
    }
}

impl LaneGuard<'_> {
    /// How others raise and lower this thread, while it is in the lane.
    pub fn member(&self) -> Member {
        self.member.clone()
    }

    /// The calling thread has again what it had before it entered.
    ///
    /// # Errors
    /// What the kernel refuses; the rest is given back all the same.
    pub fn leave(mut self) -> Result<(), LaneError> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), LaneError> {
        // Asleep: who is about to change its level may be below this thread on the same core.
        if !self.member.member_ref.leave(|| std::thread::sleep(LEAVE_AGAIN)) {
            return Ok(());
        }
        // The core first, for the same reason as in `enter`. Who could use all cores follows its cpuset again.
        let all = *self.orig_cores == *self.lane.allowed.0;
        let cores = sys::set_cores(if all { &Cores::ALL } else { &self.orig_cores });
        let attr = restore_attr(&self.orig_attr);
        cores.and(attr).map_err(LaneError::io("the thread cannot have back what it had"))
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        // `leave` is for those who want to know.
        let _ = self.give_back();
    }
}

/// Gives the calling thread a policy back.
fn restore_attr(orig: &Attr) -> io::Result<()> {
    match sys::set_attr(orig) {
        // Without CAP_SYS_NICE nobody may clear reset-on-fork again (sched(7)). It does nothing to an ordinary thread.
        Err(err) if err.raw_os_error() == Some(libc::EPERM) && !orig.resets_on_fork() => {
            sys::set_attr(&orig.with_reset_on_fork())
        }
        other => other,
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
