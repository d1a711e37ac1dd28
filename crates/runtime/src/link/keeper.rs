//! The thread that keeps the daemon: hears when it goes away, registers with the next, and wakes sleeping kthreads that
//! were granted a core.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use quell_model::Nanos;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::session::{Joined, Link};

/// Between two attempts to register, at first and at last.
const PAUSE: (Nanos, Nanos) = (Nanos::from_millis(50), Nanos::from_secs(2));
/// What an event is about, besides kthreads by their number.
const STOP: u64 = u64::MAX;
const SESSION: u64 = u64::MAX - 1;

/// The running thread; ends when dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(super) fn start(link: Arc<Link>) -> io::Result<Keeper> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("quell-link".into())
            .spawn(move || keep(&link, &stopped))?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // A full counter stops it as well.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Until it is stopped: a session after the other, and none between them.
fn keep(link: &Link, stop: &OwnedFd) {
    let mut pause = PAUSE.0;
    loop {
        let stopped = match link.session() {
            Some(joined) => {
                pause = PAUSE.0;
                let stopped = attend(link, &joined, stop);
                link.lose();
                stopped
            }
            None => {
                let stopped = rest(stop, pause);
                // Whatever it says, the next attempt may find another daemon.
                if !stopped && link.register().is_err() {
                    pause = Nanos(pause.0 * 2).min(PAUSE.1);
                }
                stopped
            }
        };
        if stopped {
            return;
        }
    }
}

/// Sleeps; true if it is to stop.
fn rest(stop: &OwnedFd, pause: Nanos) -> bool {
    let timeout = timespec(pause);
    let mut fds = [rustix::event::PollFd::new(stop, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap_or(0) > 0
}

fn timespec(time: Nanos) -> Timespec {
    Timespec { tv_sec: (time.0 / 1_000_000_000) as i64, tv_nsec: (time.0 % 1_000_000_000) as i64 }
}

/// Serves one session until its end; true if it is to stop.
fn attend(link: &Link, joined: &Joined, stop: &OwnedFd) -> bool {
    let Ok(events) = watch(joined, stop) else {
        // Without descriptors to spare: the session's end is still noticed, grants to sleeping kthreads later.
        return rest(stop, PAUSE.1);
    };
    let none =
        epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let mut ready = [none; 32];
    loop {
        let count = match epoll::wait(&events, &mut ready[..], None) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return false,
        };
        for event in &ready[..count] {
            match event.data.u64() {
                STOP => return true,
                // Nothing is ever said after the answer: the daemon closed it, or ended.
                SESSION => return false,
                kthread => link.wake(kthread as usize),
            }
        }
    }
}

/// All that a session can say. Bells are edge-triggered: kthreads that wait for a core read them.
fn watch(joined: &Joined, stop: &OwnedFd) -> io::Result<OwnedFd> {
    use epoll::{EventData, EventFlags};
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&events, stop, EventData::new_u64(STOP), EventFlags::IN)?;
    epoll::add(&events, joined.session.as_fd(), EventData::new_u64(SESSION), EventFlags::IN)?;
    for (at, bell) in joined.session.bells.iter().enumerate() {
        let data = EventData::new_u64(at as u64);
        epoll::add(&events, bell, data, EventFlags::IN | EventFlags::ET)?;
    }
    Ok(events)
}
