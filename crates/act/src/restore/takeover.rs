//! Restores for a daemon that cannot any more. Guardians and commands run the same protocol:
//! [`crate::protocol::takeover_step`].

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use quell_model::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{RestoreReport, restore_journal};
use crate::host::Host;
use crate::protocol::{TakeoverStep, TakeoverView, takeover_step};
use crate::{JournalError, JournalFile, SchedAttr, Stage};
use quell_os::ThreadStat;
use quell_os::{ThreadRef, Tid};

/// How long somebody who restores may go without a sign of life before the next one ends it and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Nanos);

impl Default for Patience {
    fn default() -> Self {
        Patience(Nanos::from_secs(1))
    }
}

/// Ends a daemon that is dead or counts as hung, and restores. `None` if somebody else did meanwhile.
/// `extra` is as in the sweep: (thread, thread that it descends from) of descendants whose creators died.
///
/// # Errors
/// When the journal cannot be locked or /proc is not mounted.
pub fn take_over(
    journal: &JournalFile,
    daemon: Option<BorrowedFd<'_>>,
    patience: Patience,
    extra: &[(Tid, Tid)],
) -> io::Result<Option<RestoreReport>> {
    let lock = journal.reopen()?;
    let mut locked = false;
    loop {
        let view = TakeoverView {
            closed: journal.stage() == Stage::Closed,
            daemon_gone: daemon.is_none_or(has_ended),
            daemon_stale: true,
            locked,
        };
        match takeover_step(&view) {
            TakeoverStep::Watch | TakeoverStep::Leave => return Ok(None),
            TakeoverStep::Kill => end(&journal.daemon(), daemon),
            TakeoverStep::Lock => locked = try_lock(&lock, journal, patience)?,
            TakeoverStep::Restore => {
                // The beat comes first: who waits for the lock must not see a restorer with an old beat.
                journal.beat(quell_os::clock::now());
                let me = ThreadRef::current()?;
                journal.set_restorer(ThreadRef::of(me.tgid, me.tgid)?);
                journal.set_stage(Stage::Restoring);
                let report = restore_journal(journal, &mut Host::read()?, extra);
                journal.set_stage(Stage::Closed);
                let note = journal.path().with_file_name("last-restore");
                let _ = std::fs::write(note, format!("{report}\n"));
                journal.remove()?;
                return Ok(Some(report));
            }
        }
    }
}

/// Restores what a daemon left that ended together with its guardians. `None` where nothing is left: no
/// journal, a daemon that lives, or guardians that were quicker.
///
/// # Errors
/// [`JournalError`].
pub fn recover_stale(run_dir: &Path) -> Result<Option<RestoreReport>, JournalError> {
    recover(run_dir, false)
}

/// As [`recover_stale`], but kills a daemon that lives: for when it does not answer.
///
/// # Errors
/// [`JournalError`].
pub fn release_by_force(run_dir: &Path) -> Result<Option<RestoreReport>, JournalError> {
    recover(run_dir, true)
}

fn recover(run_dir: &Path, by_force: bool) -> Result<Option<RestoreReport>, JournalError> {
    let Some(journal) = JournalFile::open(run_dir)? else { return Ok(None) };
    let failed = |source| JournalError::Io { path: journal.path().to_owned(), source };
    // What it names did not survive the boot; or whoever restored was killed before the last step.
    if !journal.is_of_this_boot() || journal.stage() == Stage::Closed {
        journal.remove().map_err(failed)?;
        return Ok(None);
    }
    let daemon = open_process(&journal.daemon());
    if daemon.is_some() && !by_force {
        return Ok(None);
    }
    let daemon = daemon.as_ref().map(AsFd::as_fd);
    take_over(&journal, daemon, Patience::default(), &[]).map_err(failed)
}

/// A handle on a process, unless it ended or its number means another one.
fn open_process(process: &ThreadRef) -> Option<rustix::fd::OwnedFd> {
    let handle = pidfd_open(Pid::from_raw(process.tgid.0)?, PidfdFlags::empty()).ok()?;
    let stat = ThreadStat::of(process.tgid, process.tgid).ok()?;
    (stat.start_ticks == process.start_ticks && !has_ended(handle.as_fd())).then_some(handle)
}

/// Whether the process of a handle ended: its last thread too.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    wait_end(process, Duration::ZERO)
}

fn wait_end(process: BorrowedFd<'_>, at_most: Duration) -> bool {
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    let timeout =
        Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
    poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Kills a process and waits for its end: until then it may still write. One that does not end loses its priority: a
/// thread that hangs in the kernel hears no signal, and may hang because whoever it waits for cannot run beneath it. Not
/// before, for it needs a core to end, and among raised threads only its priority gives it one.
fn end(process: &ThreadRef, handle: Option<BorrowedFd<'_>>) {
    const EACH: Duration = Duration::from_millis(500);
    let Some(handle) = handle else { return };
    // Best effort, as what follows is.
    let _ = pidfd_send_signal(handle, Signal::KILL);
    if wait_end(handle, EACH) {
        return;
    }
    for thread in ThreadRef::all_of(process.tgid).unwrap_or_default() {
        let _ = crate::sched::set_attr(thread.tid, &SchedAttr::OTHER);
    }
    wait_end(handle, EACH);
}

/// One attempt at the lock. A holder that gives no sign of life is ended: it may be stopped, and would else
/// keep the host changed for as long.
fn try_lock(lock: &File, journal: &JournalFile, patience: Patience) -> io::Result<bool> {
    match lock.try_lock() {
        Ok(()) => return Ok(true),
        Err(TryLockError::Error(error)) => return Err(error),
        Err(TryLockError::WouldBlock) => {}
    }
    let quiet = quell_os::clock::now().since(journal.last_beat()) > patience.0;
    if let Some(who) = journal.restorer().filter(|_| quiet)
        && let Some(holder) = open_process(&who)
    {
        tracing::warn!("a restore hangs; ending it and going on");
        end(&who, Some(holder.as_fd()));
    }
    std::thread::sleep(Duration::from_millis(2));
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Journal;

    #[test]
    fn a_journal_that_was_closed_and_not_removed_is_removed() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let journal = Journal::create(dir.path()).unwrap();
        assert_eq!(recover_stale(dir.path()).unwrap(), None);
        assert!(journal.shared().path().exists(), "its daemon lives");
        journal.shared().set_stage(Stage::Closed);
        assert_eq!(recover_stale(dir.path()).unwrap(), None);
        assert!(!journal.shared().path().exists());
    }
}
