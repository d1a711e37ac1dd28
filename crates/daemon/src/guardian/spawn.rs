//! The daemon's side: starts guardians, feeds them heartbeats, replaces those that die.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_act::{Gate, Journal, JournalFile, Ladder};
use quell_model::{CoreSet, Nanos, Rung};
use quell_os::clock;
use quell_os::sched::SchedAttr;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::link::{FDS_MAX, Link, Message};

/// The shortest bound for a heartbeat's age: hypervisor stalls of 10 ms and load raise false alarms below.
const STALE_MIN: Nanos = Nanos::from_millis(250);
/// How often [`Guardians::tick`] looks after them: two system calls each.
const LOOK_EVERY: Nanos = Nanos::from_millis(5);
/// Between two attempts to replace a guardian.
const RETRY_AFTER: Nanos = Nanos::from_millis(200);
/// A guardian that is not ready by then is replaced.
const READY_WITHIN: Nanos = Nanos::from_secs(10);

/// How guardians are started.
#[derive(Clone, Debug)]
pub struct Config {
    /// The program; by default this one.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// A heartbeat older than this counts as a hung daemon; at least 250 ms.
    pub stale_after: Nanos,
    /// Policy and priority of a guardian.
    pub rung: SchedAttr,
    /// Where they run; nowhere: on all cores. Cores without elevated threads: opening the /proc entry of a thread that
    /// ended waits, in a loop in the kernel (`d_invalidate`), for whoever is about to remove it. A guardian that comes
    /// before that one on its only core would wait for ever.
    pub cores: CoreSet,
}

impl Default for Config {
    fn default() -> Self {
        let ladder = Ladder::for_this_host().unwrap_or_default();
        Config {
            program: "/proc/self/exe".into(),
            args: vec!["guardian".into()],
            stale_after: Nanos::from_secs(1),
            rung: ladder.attr(Rung::Guardian).unwrap_or(SchedAttr::fifo(96)),
            cores: CoreSet::EMPTY,
        }
    }
}

/// Why there are no guardians.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The bound is too short.
    #[error(
        "a heartbeat may be {0} old before the daemon counts as hung; at least {STALE_MIN} is needed"
    )]
    StaleTooShort(Nanos),
    /// A guardian cannot be started.
    #[error("the guardian {program} cannot be started: {source}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// They were started and are not ready.
    #[error(
        "the guardians are not ready after {READY_WITHIN}: the host is overloaded, or they ended at once"
    )]
    NotReady,
}

/// Until when [`Guardians::dismiss`] waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Both left.
    Left,
    /// One did not leave in time; it will once it sees the journal closed or this process gone.
    GivenUp,
}

struct Guardian {
    child: Child,
    link: Link,
    ready: bool,
    since: Nanos,
}

/// Both guardians, as the daemon sees them.
pub struct Guardians {
    config: Config,
    journal: Arc<JournalFile>,
    gate: Gate,
    guardians: [Option<Guardian>; 2],
    held: Vec<(String, Vec<OwnedFd>)>,
    next_look: Nanos,
    retry_at: Nanos,
}

impl Guardians {
    /// Starts both with the defaults and waits until they are ready; then opens the gate. To be called before this
    /// process has a second thread.
    ///
    /// # Errors
    /// [`SpawnError`]; those that were started leave by themselves.
    pub fn spawn(journal: &Journal, gate: Gate) -> Result<Guardians, SpawnError> {
        Guardians::spawn_with(journal, gate, Config::default())
    }

    /// As [`Guardians::spawn`], started in another way.
    ///
    /// # Errors
    /// [`SpawnError`].
    pub fn spawn_with(
        journal: &Journal,
        gate: Gate,
        config: Config,
    ) -> Result<Guardians, SpawnError> {
        if config.stale_after < STALE_MIN {
            return Err(SpawnError::StaleTooShort(config.stale_after));
        }
        let start = |source| SpawnError::Start { program: config.program.clone(), source };
        let journal = Arc::clone(journal.shared());
        let now = clock::now();
        let guardians = [
            Some(start_one(&config, &journal, &[], now).map_err(start)?),
            Some(start_one(&config, &journal, &[], now).map_err(start)?),
        ];
        let (next_look, retry_at) = (Nanos::ZERO, Nanos::ZERO);
        let held = Vec::new();
        let mut both = Guardians { config, journal, gate, guardians, held, next_look, retry_at };
        let until = Instant::now() + Duration::from_nanos(READY_WITHIN.0);
        while !both.gate.is_open() {
            if Instant::now() > until {
                return Err(SpawnError::NotReady);
            }
            std::thread::sleep(Duration::from_millis(1));
            both.next_look = Nanos::ZERO;
            both.tick(clock::now());
        }
        Ok(both)
    }

    /// The heartbeat. Now and then looks after the guardians: shuts the gate when one died, starts another, and
    /// opens the gate when that is ready. To be called at least four times per `stale_after`.
    pub fn tick(&mut self, now: Nanos) {
        self.journal.beat(now);
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_EVERY;
        for place in 0..self.guardians.len() {
            if self.is_lost(place, now) {
                // Shut first: whatever follows may take milliseconds.
                self.gate.set(false);
                self.guardians[place] = None;
                tracing::warn!("a guardian is gone; nothing is changed until it is replaced");
            }
            if self.guardians[place].is_none() && now >= self.retry_at {
                self.retry_at = now + RETRY_AFTER;
                match start_one(&self.config, &self.journal, &self.held, now) {
                    Ok(guardian) => self.guardians[place] = Some(guardian),
                    Err(error) => tracing::warn!(%error, "a guardian cannot be started"),
                }
            }
        }
        let ready = self.alive() == self.guardians.len();
        if ready != self.gate.is_open() {
            self.gate.set(ready);
        }
    }

    fn is_lost(&mut self, place: usize, now: Nanos) -> bool {
        let Some(guardian) = &mut self.guardians[place] else { return false };
        if !guardian.ready
            && let Ok(Some((Message::Ready { degraded }, _))) = guardian.link.receive()
        {
            guardian.ready = true;
            if !degraded.is_empty() {
                tracing::warn!(refused = %degraded, "a guardian runs with less than it should have");
            }
        }
        // An error here means that somebody else reaped it.
        let ended = !matches!(guardian.child.try_wait(), Ok(None));
        let late = !guardian.ready && now.since(guardian.since) > READY_WITHIN;
        if late && !ended {
            let _ = guardian.child.kill();
            let _ = guardian.child.wait();
        }
        ended || late
    }

    /// How many are ready.
    pub fn alive(&self) -> usize {
        self.guardians.iter().flatten().filter(|guardian| guardian.ready).count()
    }

    /// Whether the host may be changed: both are ready.
    pub fn healthy(&self) -> bool {
        self.gate.is_open()
    }

    /// Their process numbers.
    pub fn pids(&self) -> Vec<u32> {
        self.guardians.iter().flatten().map(|guardian| guardian.child.id()).collect()
    }

    /// Hands the guardians descriptors to hold under a name, instead of any before; those that come later
    /// get them too.
    ///
    /// # Errors
    /// More than 16 descriptors, or a guardian that cannot be reached.
    pub fn hold(&mut self, name: &str, fds: Vec<OwnedFd>) -> io::Result<()> {
        if fds.len() > FDS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
        }
        self.held.retain(|(known, _)| known != name);
        self.held.push((name.to_owned(), fds));
        let (name, fds) = &self.held[self.held.len() - 1];
        for guardian in self.guardians.iter().flatten() {
            send_held(&guardian.link, name, fds)?;
        }
        Ok(())
    }

    /// Lets the guardians go. With everything given back the journal is closed and removed; otherwise they stay
    /// and restore when this process ends.
    pub fn dismiss(self) -> Until {
        self.gate.set(false);
        if let Err(error) = self.journal.close_if_empty() {
            tracing::warn!(%error, "the journal cannot be closed; the guardians restore");
        }
        let until = Instant::now() + Duration::from_secs(2);
        let mut left = Until::Left;
        for guardian in self.guardians.into_iter().flatten() {
            // The closed link makes it look at the journal at once.
            let Guardian { mut child, link, .. } = guardian;
            drop(link);
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > until {
                    left = Until::GivenUp;
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        left
    }
}

fn start_one(
    config: &Config,
    journal: &JournalFile,
    held: &[(String, Vec<OwnedFd>)],
    now: Nanos,
) -> io::Result<Guardian> {
    let (link, far) = Link::pair()?;
    let child = Command::new(&config.program)
        .args(&config.args)
        .stdin(Stdio::from(far))
        .stdout(Stdio::null())
        .current_dir("/")
        .spawn()?;
    let daemon = pidfd_open(getpid(), PidfdFlags::empty())?;
    let file: &File = journal.file();
    let watch = Message::Watch {
        stale_after: config.stale_after,
        rung: config.rung,
        cores: config.cores,
        journal: journal.path().to_string_lossy().into_owned(),
    };
    link.send(&watch, &[file.as_fd(), daemon.as_fd()])?;
    for (name, fds) in held {
        send_held(&link, name, fds)?;
    }
    Ok(Guardian { child, link, ready: false, since: now })
}

fn send_held(link: &Link, name: &str, fds: &[OwnedFd]) -> io::Result<()> {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    link.send(&Message::Hold { name: name.to_owned() }, &fds)
}
