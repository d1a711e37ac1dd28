//! How a thread waits for channels and for other threads at once.

use std::cell::RefCell;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::green::{self, Green};
use crate::meet::WakeState;
use crate::threads::{self, Threads};

/// What a thread sleeps on. Others wake it through its [`std::task::Waker`], as they wake tasks.
pub(crate) struct Waiter {
    event: OwnedFd,
    /// Of a green thread: it sleeps until an epoll instance has something, which knows the event and what it waited for.
    green: Option<Green>,
    state: WakeState,
}

/// A descriptor and what is waited for.
pub(crate) type Wanted<'a> = (BorrowedFd<'a>, PollFlags);

thread_local! {
    static CURRENT: RefCell<Option<Arc<Waiter>>> = const { RefCell::new(None) };
}

/// A waiter in use by the calling thread.
pub(crate) struct Current {
    waiter: Arc<Waiter>,
}

impl Deref for Current {
    type Target = Arc<Waiter>;

    fn deref(&self) -> &Arc<Waiter> {
        &self.waiter
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.waiter.green.is_some() {
            green::keep(&self.waiter);
        }
    }
}

impl Waiter {
    pub fn new() -> io::Result<Waiter> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waiter { event, green: None, state: WakeState::new() })
    }

    /// One of green threads, which sleeps with what `make` makes for its event.
    pub fn green_of(make: impl FnOnce(&OwnedFd) -> io::Result<Green>) -> io::Result<Waiter> {
        let waiter = Waiter::new()?;
        let green = make(&waiter.event)?;
        Ok(Waiter { green: Some(green), ..waiter })
    }

    /// What it sleeps with if it is one of green threads.
    pub fn green(&self) -> Option<&Green> {
        self.green.as_ref()
    }

    /// That of this thread. A wake-up that was meant for the last green thread that used it may come yet.
    pub fn current() -> io::Result<Current> {
        if let Some(threads) = threads::own() {
            return Ok(Current { waiter: green::waiter(threads)? });
        }
        CURRENT.with_borrow_mut(|current| {
            if let Some(waiter) = current {
                return Ok(Current { waiter: Arc::clone(waiter) });
            }
            let waiter = Arc::new(Waiter::new()?);
            *current = Some(Arc::clone(&waiter));
            Ok(Current { waiter })
        })
    }

    /// Whether others could use the kernel thread on which this one would wait awake.
    pub fn is_in_the_way(&self) -> bool {
        self.green.is_some() && threads::own().is_some_and(Threads::is_wanted)
    }

    /// Wakes from before count no more. What they were for is looked at after this.
    pub fn reset(&self) {
        self.state.reset();
    }

    /// Whether it was woken since the last [`Waiter::reset`].
    pub fn is_woken(&self) -> bool {
        self.state.is_woken()
    }

    /// Sleeps until something of `wanted` is ready, the thread is woken, or the deadline has passed. Says what is ready.
    pub fn sleep(&self, wanted: &[Wanted<'_>], until: Option<Instant>) -> io::Result<Woken> {
        let is_woken = !self.begin_sleep();
        let result = match &self.green {
            _ if is_woken => Ok(Woken { is_early: true, ready: vec![false; wanted.len()] }),
            Some(green) => green.sleep(self, wanted, until),
            None => self.poll(wanted, until),
        };
        self.state.end_sleep();
        result
    }

    fn poll(&self, wanted: &[Wanted<'_>], until: Option<Instant>) -> io::Result<Woken> {
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let mut descriptors: Vec<PollFd<'_>> =
            wanted.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        descriptors.push(PollFd::new(&self.event, PollFlags::IN));
        let ready = match poll(&mut descriptors, timeout.as_ref()) {
            Err(Errno::INTR) => Ok(1),
            other => other,
        };
        let own = descriptors.pop();
        if own.is_some_and(|own| own.revents().contains(PollFlags::IN)) {
            self.drain();
        }
        let is_early = ready? > 0;
        let ready = descriptors.iter().map(|it| !it.revents().is_empty()).collect();
        Ok(Woken { is_early, ready })
    }

    /// The event is no longer signalled.
    pub fn drain(&self) {
        let mut count = [0; 8];
        // It was readable, and no other thread reads it: this cannot fail in a way that matters.
        let _ = rustix::io::read(&self.event, &mut count);
    }

    /// For an epoll instance.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// It is about to sleep in an epoll instance of its own; false if it was woken already.
    pub fn begin_sleep(&self) -> bool {
        self.state.begin_sleep()
    }

    pub fn end_sleep(&self, is_signalled: bool) {
        self.state.end_sleep();
        if is_signalled {
            self.drain();
        }
    }
}

/// How a sleep ended.
pub(crate) struct Woken {
    /// Before its deadline.
    pub is_early: bool,
    /// What was wanted and is ready, in its order.
    pub ready: Vec<bool>,
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.wake() {
            // It fails only when the counter is full: then the thread wakes anyway.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

/// A time for `poll` and `epoll_pwait2`.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// How long it takes here to wake a thread that sleeps, measured once: waiting awake for longer costs more than it saves.
pub(crate) fn wake_time() -> Duration {
    static MEASURED: OnceLock<Duration> = OnceLock::new();
    *MEASURED.get_or_init(|| measure_wake_time().unwrap_or(WAKE_TIME_MIN))
}

const WAKE_TIME_MIN: Duration = Duration::from_micros(5);
const WAKE_TIME_MAX: Duration = Duration::from_micros(50);
const WAKES_MEASURED: usize = 15;

/// Half of the time of a round trip between two threads that sleep: the median of some.
fn measure_wake_time() -> io::Result<Duration> {
    let own = Arc::new(Waiter::new()?);
    let other = Arc::new(Waiter::new()?);
    let (own_waker, other_waker) = (Waker::from(Arc::clone(&own)), Waker::from(Arc::clone(&other)));
    let thread = std::thread::Builder::new().spawn(move || -> io::Result<()> {
        for _ in 0..WAKES_MEASURED {
            while !other.is_woken() {
                other.sleep(&[], None)?;
            }
            other.reset();
            own_waker.wake_by_ref();
        }
        Ok(())
    })?;
    let mut times = Vec::with_capacity(WAKES_MEASURED);
    for _ in 0..WAKES_MEASURED {
        own.reset();
        let start = Instant::now();
        other_waker.wake_by_ref();
        while !own.is_woken() {
            own.sleep(&[], None)?;
        }
        times.push(start.elapsed() / 2);
    }
    // Its errors are those of this thread's own waiter, and were returned above.
    let _ = thread.join();
    times.sort_unstable();
    Ok(times[WAKES_MEASURED / 2].clamp(WAKE_TIME_MIN, WAKE_TIME_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_before_the_sleep_is_not_lost() {
        let waiter = Waiter::current().expect("an eventfd");
        waiter.reset();
        Waker::from(Arc::clone(&waiter)).wake();
        assert!(waiter.sleep(&[], None).expect("poll").is_early);
        waiter.reset();
        let soon = Instant::now() + Duration::from_millis(1);
        assert!(!waiter.sleep(&[], Some(soon)).expect("poll").is_early);
    }

    #[test]
    fn wakes_of_another_thread_arrive_each_time() {
        let waiter = Waiter::current().expect("an eventfd");
        let (sender, receiver) = std::sync::mpsc::channel::<Waker>();
        let other = std::thread::spawn(move || receiver.iter().for_each(Waker::wake));
        for _ in 0..2_000 {
            waiter.reset();
            sender.send(Waker::from(Arc::clone(&waiter))).expect("it lives");
            assert!(waiter.sleep(&[], None).expect("poll").is_early);
        }
        drop(sender);
        other.join().expect("it ends");
    }
}
