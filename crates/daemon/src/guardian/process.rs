//! What a guardian does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use quell_act::protocol::StaleWatch;
use quell_act::restore::{Patience, take_over};
use quell_act::{JournalFile, RestoreReport, Stage, kill_point};
use quell_model::{CoreSet, Nanos};
use quell_os::Tid;
use quell_os::clock;
use quell_os::own::{keep_to, rise_to};
use quell_os::sched::SchedAttr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::MlockAllFlags;

use super::link::{Link, Message};

/// Descriptors that the daemon gave a guardian to hold, by name.
pub type Held = BTreeMap<String, Vec<OwnedFd>>;

/// Reads from what is held which threads descend from which, where their creators may be dead by now:
/// (thread, its creator).
pub type Descent = dyn Fn(&Held) -> Vec<(Tid, Tid)>;

/// A guardian's whole life. Its standard input is the link to the daemon.
pub fn main(args: &[OsString]) -> ExitCode {
    main_with(args, &|_| Vec::new())
}

/// As [`main`], with a reader of what is held.
pub fn main_with(args: &[OsString], descent: &Descent) -> ExitCode {
    if let Some(argument) = args.first() {
        eprintln!("quell guardian: unexpected argument {argument:?}; the daemon starts guardians");
        return ExitCode::from(2);
    }
    match guard(descent) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(report)) => {
            eprintln!("quell: the daemon ended without restoring; its guardian did: {report}");
            if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("quell guardian: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Guardian {
    link: Link,
    journal: JournalFile,
    daemon: OwnedFd,
    stale_after: Nanos,
    held: Held,
}

fn guard(descent: &Descent) -> io::Result<Option<RestoreReport>> {
    // A terminal's Ctrl-C and hang-up are for the daemon, which then restores itself.
    rustix::process::setsid()?;
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    let _ = rustix::thread::set_name(c"quell-guardian");
    let mut guardian = Guardian::hired(Link::from_stdin()?)?;
    guardian.watch()?;
    let extra = descent(&guardian.held);
    let patience = Patience(guardian.stale_after);
    take_over(&guardian.journal, Some(guardian.daemon.as_fd()), patience, &extra)
}

impl Guardian {
    /// Waits for what to watch, and gets ready.
    fn hired(link: Link) -> io::Result<Guardian> {
        let until = Instant::now() + Duration::from_secs(10);
        let (message, fds) = loop {
            if let Some(received) = link.receive()? {
                break received;
            }
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the daemon says nothing"));
            }
            wait(&[&link.as_fd()], Nanos::from_millis(100))?;
        };
        let Message::Watch { stale_after, rung, cores, journal } = message else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let [journal_fd, daemon]: [OwnedFd; 2] =
            fds.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let journal =
            JournalFile::map(journal_fd.into(), Path::new(&journal)).map_err(io::Error::other)?;
        let degraded = prepare(rung, &cores);
        kill_point("guardian-start");
        // A daemon that died meanwhile hears nothing; what it changed is to be given back all the same.
        let _ = link.send(&Message::Ready { degraded }, &[]);
        Ok(Guardian { link, journal, daemon, stale_after, held: Held::new() })
    }

    /// Returns when the daemon is dead or hangs, or the journal is closed.
    fn watch(&mut self) -> io::Result<()> {
        let mut stale = StaleWatch::new(self.stale_after, clock::now());
        let mut linked = true;
        loop {
            let daemon = self.daemon.as_fd();
            let link = self.link.as_fd();
            let fds: &[&dyn AsFd] = if linked { &[&daemon, &link] } else { &[&daemon] };
            let ready = wait(fds, stale.interval())?;
            if ready[0] || self.journal.stage() == Stage::Closed {
                return Ok(());
            }
            if linked && ready[1] {
                linked = self.listen();
            }
            if stale.is_stale(self.journal.last_beat(), clock::now()) {
                return Ok(());
            }
        }
    }

    /// Takes what the daemon sent. `false` once it will send no more.
    fn listen(&mut self) -> bool {
        loop {
            match self.link.receive() {
                Ok(Some((Message::Hold { name }, fds))) => {
                    self.held.insert(name, fds);
                }
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

/// Takes the rung and what else helps to run when nothing else does. Returns what the host refused.
fn prepare(rung: SchedAttr, cores: &CoreSet) -> String {
    let mut refused = Vec::new();
    if let Err(error) = rise_to(rung) {
        refused.push(format!("{rung}: {error}"));
        let _ = rustix::process::setpriority_process(None, -20);
    }
    if !cores.is_empty()
        && let Err(error) = keep_to(cores)
    {
        refused.push(format!("keeping to the cores {cores}: {error}"));
    }
    // Only what is touched is locked: the journal is sparse.
    let lock = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = rustix::mm::mlockall(lock) {
        refused.push(format!("locking its memory: {error}"));
    }
    // Best effort: a container may forbid it, and then the daemon's next start restores.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    refused.join("; ")
}

/// Sleeps until one of the descriptors is ready or the time is over; says which are ready.
fn wait(fds: &[&dyn AsFd], at_most: Nanos) -> io::Result<Vec<bool>> {
    let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut polled: Vec<PollFd<'_>> =
        borrowed.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = Timespec {
        tv_sec: (at_most.0 / 1_000_000_000) as i64,
        tv_nsec: (at_most.0 % 1_000_000_000) as i64,
    };
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(rustix::io::Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(error) => Err(error.into()),
    }
}
