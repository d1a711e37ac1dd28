//! Sessions with daemons, and how a kthread waits under one.

use std::fmt;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_control::client::ClientError;
use quell_control::register::{self, KTHREADS_MAX, Registration, Session, default_socket};
use quell_model::{Nanos, TimeLimits};
use quell_shm::runtime::{Kthread as Lines, Memory, NO_DAEMON, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::CongestionInfo;
use super::epoch::Epoch;
use crate::io::Bell;
use crate::kthread::{Kthread, Shared, lock, now};
use crate::runtime::Config;

/// How long a kthread waits for the core that it asked for before it looks whether it still needs one.
const ASK_FOR: Nanos = Nanos::from_millis(10);

/// What kthreads and keeper share.
pub(super) struct Link {
    wanted: Registration,
    socket: PathBuf,
    /// The session in force; `None`: alone.
    session: Mutex<Option<Arc<Joined>>>,
    /// Counts the changes of `session`.
    epoch: Epoch,
    /// The memory of every session that there was: a thief may still look at lines of an old one. A few KiB for each
    /// daemon that this runtime outlives.
    memories: Mutex<Vec<Arc<Memory>>>,
    seats: Box<[Seat]>,
}

/// A session in force.
pub(super) struct Joined {
    pub(super) session: Session,
    memory: Arc<Memory>,
}

/// One kthread, as the link knows it.
struct Seat {
    bell: Bell,
    /// The epoch that it has seen; its own.
    epoch: AtomicU64,
    /// The lines that it publishes in; null before it began.
    lines: AtomicPtr<Lines>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// What the daemon is asked for.
fn wanted(config: &Config, kthreads: usize) -> Registration {
    let max_cores = u32::try_from(kthreads).unwrap_or(u32::MAX).min(KTHREADS_MAX);
    Registration {
        layout: VERSION,
        name: config.name.clone(),
        class: config.class,
        guaranteed: u32::try_from(config.guaranteed).unwrap_or(u32::MAX),
        max_cores,
        // Without it a kthread finds a revoke at its next scheduling point.
        signal: config.preempt_every.map(|_| crate::preempt::tick::signal()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Registration::default()
    }
    .with_times(TimeLimits {
        delay_target: config.delay_target,
        quantum: config.quantum.unwrap_or(Nanos::ZERO),
        sibling_idle_after: config.sibling_idle_after,
        ..TimeLimits::default()
    })
}

impl Link {
    pub(super) fn new(shared: &Shared) -> Link {
        let seat = |kthread: &Kthread| Seat {
            bell: kthread.bell.clone(),
            epoch: AtomicU64::new(0),
            lines: AtomicPtr::new(ptr::null_mut()),
        };
        let config = &shared.config;
        Link {
            wanted: wanted(config, shared.kthreads.len()),
            socket: config.socket.clone().unwrap_or_else(default_socket),
            session: Mutex::new(None),
            epoch: Epoch::new(),
            memories: Mutex::new(Vec::new()),
            seats: shared.kthreads.iter().map(seat).collect(),
        }
    }

    /// Registers, and has every kthread change over to the new session.
    ///
    /// # Errors
    /// When there is no daemon, or it does not want this runtime.
    pub(super) fn register(&self) -> Result<(), ClientError> {
        let session = register::register(&self.socket, &self.wanted)?;
        let memory = session.memory.try_clone()?;
        let memory = Memory::open(memory, session.registered.kthreads)
            .map_err(|err| ClientError::Io(std::io::Error::other(err)))?;
        let memory = Arc::new(memory);
        lock(&self.memories).push(Arc::clone(&memory));
        self.change(Some(Arc::new(Joined { session, memory })));
        Ok(())
    }

    /// The session ended: every kthread goes on alone.
    pub(super) fn lose(&self) {
        self.change(None);
    }

    /// The session in force.
    pub(super) fn session(&self) -> Option<Arc<Joined>> {
        lock(&self.session).clone()
    }

    /// Wakes a kthread that sleeps in its reactor; one that waits for a core hears its bell itself.
    pub(super) fn wake(&self, at: usize) {
        if let Some(seat) = self.seats.get(at) {
            seat.bell.ring();
        }
    }

    fn change(&self, session: Option<Arc<Joined>>) {
        *lock(&self.session) = session;
        self.epoch.changed(|| self.seats.iter().for_each(Seat::alert));
    }

    /// Has a kthread, on its own thread, publish where the present session wants it. The session.
    fn follow(&self, kthread: &Kthread) -> Option<Arc<Joined>> {
        self.epoch.follow(|epoch| self.settle(kthread, epoch))
    }

    fn settle(&self, kthread: &Kthread, epoch: u64) -> Option<Arc<Joined>> {
        let seat = &self.seats[kthread.at];
        let session = self.session();
        if seat.epoch.swap(epoch, Ordering::Relaxed) == epoch {
            return session;
        }
        let new = session.as_ref().and_then(|it| it.memory.kthread(kthread.at as u32));
        match new {
            Some(new) => {
                kthread.lines().work.copy_to(&new.work);
                new.work.begin(rustix::thread::gettid().as_raw_nonzero().get());
                // SAFETY: `memories` keeps it mapped for as long as the link lives, which is as long as the kthreads.
                unsafe { kthread.use_lines(Some(NonNull::from(new))) };
            }
            // Alone it goes on with the lines that it has, as its own.
            None => kthread.lines().grant.revoke(0),
        }
        seat.lines.store(ptr::from_ref(kthread.lines()).cast_mut(), Ordering::Release);
        session
    }

    /// What the daemon tells of this runtime: its queueing delay, cores in use (smoothed), cores granted. `None` while
    /// alone.
    pub(super) fn told(&self) -> Option<CongestionInfo> {
        let joined = self.session()?;
        let told = &joined.memory.header().told;
        Some(CongestionInfo {
            queueing_delay: told.queueing_delay(),
            load: told.load_millicores() as f64 / 1e3,
            cores: usize::try_from(told.cores()).unwrap_or(usize::MAX),
        })
    }

    /// See [`super::Cores::take`].
    pub(super) fn take(&self, kthread: &Kthread) -> bool {
        let granted = match self.follow(kthread) {
            None => Some(NO_DAEMON),
            // More kthreads than can be registered: the others run only alone.
            Some(joined) if kthread.at >= joined.session.bells.len() => None,
            Some(_) => kthread.lines().grant.valid().map(|(generation, _)| generation),
        };
        // Grants count from one: the grant of number zero is one that was revoked.
        let generation = granted.unwrap_or(0);
        kthread.generation.store(generation, Ordering::Relaxed);
        kthread.lines().work.set_generation(generation);
        granted.is_some()
    }

    /// See [`super::Cores::ask`].
    pub(super) fn ask(&self, kthread: &Kthread) -> bool {
        match self.follow(kthread) {
            Some(joined) if kthread.at < joined.session.bells.len() => joined.ask(kthread),
            Some(_) => std::thread::sleep(Duration::from_nanos(ASK_FOR.0)),
            None => {}
        }
        self.take(kthread)
    }
}

impl Seat {
    /// Has its kthread find that the session changed.
    fn alert(&self) {
        let lines = self.lines.load(Ordering::Acquire);
        // SAFETY: null, or lines of a kthread: its own, or of a memory that `memories` keeps mapped. `Shared` drops the
        // link before them.
        if let Some(lines) = unsafe { lines.as_ref() } {
            // Their daemon is gone, or never was: what it wrote there is ours to write. The kthread leaves what it does
            // at its next scheduling point.
            lines.grant.revoke(NO_DAEMON);
        }
        self.bell.ring();
    }
}

impl Joined {
    /// Asks for a core and waits for it, for a while.
    fn ask(&self, kthread: &Kthread) {
        let lines = kthread.lines();
        lines.counters.asks.fetch_add(1, Ordering::Relaxed);
        let give_up = now() + ASK_FOR;
        while lines.work.ask(&lines.grant).is_none() {
            // A full counter is a bell that rings.
            let _ = rustix::io::write(&self.session.daemon, &1u64.to_ne_bytes());
            let left = give_up.since(now());
            if left == Nanos::ZERO || !self.hear(kthread.at, left) {
                return;
            }
        }
    }

    /// Waits for a kthread's bell; false if it did not ring in time, or nobody is left to ring it.
    fn hear(&self, at: usize, left: Nanos) -> bool {
        let bell = &self.session.bells[at];
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.0.min(999_999_999) as i64 };
        let mut fds = [PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
            return false;
        }
        // All rings at once: each only says to look.
        matches!(rustix::io::read(bell, &mut [0u8; 64]), Ok(1..))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Builder, Nanos, Runtime};

    fn asked_for(builder: Builder) -> Option<u64> {
        super::wanted(&builder.config, 1).sibling_idle_after_us
    }

    #[test]
    fn a_registration_says_after_how_long_siblings_are_idled() {
        assert_eq!(asked_for(Runtime::builder()), Some(0));
        for (time, us) in [(Nanos::from_micros(25), 25), (Nanos(1), 1), (Nanos(25_001), 26)] {
            assert_eq!(asked_for(Runtime::builder().sibling_idle_after(time)), Some(us));
        }
    }
}
