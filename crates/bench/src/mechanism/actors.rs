//! The threads that a mechanism acts on.
//!
//! A *target* sleeps until it is called and stamps the clock with its first instruction after that,
//! or spins and stamps as it goes. An *occupant* spins to keep a core busy. Both are called by a
//! sequence number that only grows, through a futex word or an eventfd, and answer by storing it.
//! Every spin has a deadline, so that an elevated thread never holds a core for longer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, bail};
use quell_load::now;
use quell_model::{CoreId, CoreSet, Nanos};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::futex;

use crate::host::{Policy, pin, set_policy, this_thread};

/// Longest spin of any thread here.
pub const SPIN_MAX: Nanos = Nanos::from_millis(10);

/// How an actor is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A futex word.
    Futex,
    /// An eventfd.
    Eventfd,
}

/// What an actor does when called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Stamps once and sleeps again.
    Stamp,
    /// Stamps over and over until released.
    Spin,
    /// Spins until released, and stamps only the moment in which it finds itself on another core.
    StampOnArrival,
}

/// State shared by an actor and its driver.
///
/// The driver's call is a `Release` store of `called` (or a write to the eventfd) that the actor
/// reads with `Acquire`; the actor's answers are `Release` stores that the driver reads with
/// `Acquire`. So each side sees all that the other wrote before.
#[derive(Default)]
struct Shared {
    called: AtomicU32,
    released: AtomicU32,
    entered: AtomicU32,
    done: AtomicU32,
    stamp: AtomicU64,
    quit: AtomicBool,
}

/// A thread that is called.
pub struct Actor {
    shared: Arc<Shared>,
    event: Option<Arc<OwnedFd>>,
    thread: Option<JoinHandle<()>>,
    tid: i32,
    seq: u32,
}

impl Actor {
    /// Starts an actor with this policy on this core.
    ///
    /// # Errors
    /// When it cannot be started or placed.
    pub fn start(core: CoreId, policy: Policy, call: Call, act: Act) -> Result<Actor> {
        let shared = Arc::new(Shared::default());
        let event = match call {
            Call::Futex => None,
            Call::Eventfd => Some(Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")?)),
        };
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let (own, own_event) = (shared.clone(), event.clone());
        let thread = std::thread::Builder::new()
            .name("actor".into())
            .spawn(move || {
                let placed = pin(0, &CoreSet::of(core)).and_then(|()| set_policy(0, policy));
                let failed = placed.is_err();
                let _ = ready.send(placed.map(|()| this_thread()));
                if !failed {
                    perform(&own, own_event.as_deref(), act);
                }
            })
            .context("start a thread")?;
        let mut actor = Actor { shared, event, thread: Some(thread), tid: 0, seq: 0 };
        actor.tid = is_ready.recv().context("the thread ended")?.context("place a thread")?;
        Ok(actor)
    }

    /// Its thread number.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Prepares the next call, for [`Actor::ring`].
    pub fn arm(&mut self) {
        self.seq += 1;
        self.shared.stamp.store(0, Relaxed);
    }

    /// Calls it.
    pub fn ring(&self) {
        self.shared.called.store(self.seq, Release);
        match &self.event {
            None => {
                let _ = futex::wake(&self.shared.called, futex::Flags::PRIVATE, 1);
            }
            Some(event) => {
                let _ = rustix::io::write(event.as_ref(), &1u64.to_ne_bytes());
            }
        }
    }

    /// Whether it has begun to answer the last call.
    pub fn has_entered(&self) -> bool {
        self.shared.entered.load(Acquire) == self.seq
    }

    /// Whether it has done what the last call asked for.
    pub fn is_done(&self) -> bool {
        self.shared.done.load(Acquire) == self.seq
    }

    /// Lets it stop spinning.
    pub fn release(&self) {
        self.shared.released.store(self.seq, Release);
    }

    /// Its last stamp since [`Actor::arm`].
    pub fn stamp(&self) -> Option<Nanos> {
        match self.shared.stamp.load(Acquire) {
            0 => None,
            at => Some(Nanos(at)),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.shared.quit.store(true, Release);
        self.seq += 1;
        self.release();
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn perform(shared: &Shared, event: Option<&OwnedFd>, act: Act) {
    let mut seen = 0;
    loop {
        let seq = wait_for_call(shared, event, seen);
        let at = now();
        if shared.quit.load(Acquire) {
            return;
        }
        seen = seq;
        if act == Act::Stamp {
            shared.stamp.store(at.0, Release);
        }
        shared.entered.store(seq, Release);
        if act != Act::Stamp {
            spin(shared, seq, at, act);
        }
        shared.done.store(seq, Release);
    }
}

fn wait_for_call(shared: &Shared, event: Option<&OwnedFd>, seen: u32) -> u32 {
    loop {
        let called = shared.called.load(Acquire);
        if called != seen {
            return called;
        }
        match event {
            None => {
                let _ = futex::wait(&shared.called, futex::Flags::PRIVATE, seen, None);
            }
            Some(event) => {
                let _ = rustix::io::read(event, &mut [0u8; 8]);
            }
        }
    }
}

fn spin(shared: &Shared, seq: u32, since: Nanos, act: Act) {
    let start_core = rustix::thread::sched_getcpu();
    loop {
        let at = now();
        let moved = act == Act::StampOnArrival && rustix::thread::sched_getcpu() != start_core;
        if act == Act::Spin || moved {
            shared.stamp.store(at.0, Release);
        }
        if moved || shared.released.load(Acquire) == seq || at - since > SPIN_MAX {
            return;
        }
    }
}

/// Spins until `done`, for [`SPIN_MAX`] at most.
///
/// # Errors
/// When it does not happen in time.
pub fn await_spinning(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let since = now();
    while !done() {
        if now() - since > SPIN_MAX {
            bail!("{what} did not happen within {SPIN_MAX}");
        }
        std::hint::spin_loop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn eventually(mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_call_is_answered_with_a_stamp() {
        for call in [Call::Futex, Call::Eventfd] {
            let mut actor = Actor::start(CoreId(0), Policy::Other, call, Act::Stamp).unwrap();
            for _ in 0..3 {
                let before = now();
                actor.arm();
                assert_eq!(actor.stamp(), None);
                actor.ring();
                eventually(|| actor.is_done());
                assert!(actor.stamp().is_some_and(|at| at >= before), "{call:?}");
            }
        }
    }

    #[test]
    fn a_spin_ends_by_itself() {
        let mut actor = Actor::start(CoreId(0), Policy::Other, Call::Futex, Act::Spin).unwrap();
        actor.arm();
        actor.ring();
        eventually(|| actor.is_done());
    }
}
