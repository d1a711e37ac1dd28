//! How a green thread waits for channels and for other threads at once: by an epoll instance, for which its runtime waits.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{PollFlags, Timespec, epoll};
use rustix::io::Errno;

use crate::threads::{self, Sleeper, Threads};
use crate::waiter::{Waiter, Wanted, Woken};

/// Waiters of green threads that wait for nothing: there may be many such threads, and few that wait at once.
static SPARE: Mutex<Vec<Arc<Waiter>>> = Mutex::new(Vec::new());

/// More than so many are not kept.
const SPARE_MAX: usize = 256;

/// The epoll token of a waiter's own event: no descriptor has that number.
const OWN: u64 = u64::MAX;

/// Events that are taken from an epoll instance at once.
const EVENTS_MAX: usize = 16;

/// What a waiter of green threads sleeps with. The epoll instance knows the waiter's event and what it has waited for.
pub(crate) struct Green {
    sleeper: Box<dyn Sleeper>,
}

/// A waiter for a green thread of this runtime.
pub(crate) fn waiter(threads: &dyn Threads) -> io::Result<Arc<Waiter>> {
    let next = || threads::hold(|| SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop());
    let usable = |waiter: &Arc<Waiter>| waiter.green().is_some_and(|it| it.sleeper.is_usable());
    match std::iter::from_fn(next).find(usable) {
        Some(waiter) => Ok(waiter),
        None => Waiter::green_of(|event| Green::new(threads, event)).map(Arc::new),
    }
}

/// A green thread waits no more.
pub(crate) fn keep(waiter: &Arc<Waiter>) {
    threads::hold(|| {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX {
            spare.push(Arc::clone(waiter));
        }
    });
}

impl Green {
    fn new(threads: &dyn Threads, event: &OwnedFd) -> io::Result<Green> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, event, epoll::EventData::new_u64(OWN), epoll::EventFlags::IN)?;
        Ok(Green { sleeper: threads.sleeper(epoll) })
    }

    /// As [`Waiter::sleep`]. What it waits for stays with the epoll instance, to be reported once for each sleep.
    pub fn sleep(
        &self,
        waiter: &Waiter,
        wanted: &[Wanted<'_>],
        until: Option<Instant>,
    ) -> io::Result<Woken> {
        self.arm(wanted)?;
        let mut ready = vec![false; wanted.len()];
        let mut look = || {
            let mut has_some = self.take_events(waiter, wanted, &mut ready)?;
            // After the event was drained: a waking thread sets this before it writes.
            has_some |= waiter.is_woken();
            if has_some { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        };
        let is_early = match self.sleeper.wait(until, &mut look) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => return Err(error),
        };
        Ok(Woken { is_early, ready })
    }

    fn arm(&self, wanted: &[Wanted<'_>]) -> io::Result<()> {
        let epoll = self.sleeper.descriptor();
        for (fd, _) in wanted {
            // A channel may be wanted twice: for what arrives, and for room.
            let of_fd = wanted.iter().filter(|(other, _)| token_of(*other) == token_of(*fd));
            let events =
                of_fd.fold(epoll::EventFlags::ONESHOT, |all, (_, it)| all | events_of(*it));
            let data = epoll::EventData::new_u64(token_of(*fd));
            match epoll::modify(epoll, fd, data, events) {
                Err(Errno::NOENT) => epoll::add(epoll, fd, data, events)?,
                other => other?,
            }
        }
        Ok(())
    }

    /// Takes what the epoll instance has to report. Whether some of it is wanted: what an earlier sleep waited for is reported
    /// late, and is not.
    fn take_events(
        &self,
        waiter: &Waiter,
        wanted: &[Wanted<'_>],
        ready: &mut [bool],
    ) -> io::Result<bool> {
        let ended = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let mut has_some = false;
        loop {
            let mut events = Vec::with_capacity(EVENTS_MAX);
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let buffer = rustix::buffer::spare_capacity(&mut events);
            let count = match epoll::wait(self.sleeper.descriptor(), buffer, Some(&now)) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            for event in &events {
                let (token, flags) = (event.data.u64(), event.flags);
                if token == OWN {
                    waiter.drain();
                    continue;
                }
                for ((fd, wanted), is_ready) in wanted.iter().zip(&mut *ready) {
                    let is_wanted = flags.intersects(events_of(*wanted) | ended);
                    if token_of(*fd) == token && is_wanted {
                        *is_ready = true;
                        has_some = true;
                    }
                }
            }
            if count < EVENTS_MAX {
                return Ok(has_some);
            }
        }
    }
}

fn token_of(fd: BorrowedFd<'_>) -> u64 {
    // A descriptor is not negative.
    u64::from(fd.as_raw_fd().unsigned_abs())
}

fn events_of(flags: PollFlags) -> epoll::EventFlags {
    if flags.contains(PollFlags::OUT) { epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}
