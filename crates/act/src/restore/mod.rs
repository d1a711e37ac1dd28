//! Gives back what a journal records.
//!
//! Newest first, and only where the host still shows what Quell wrote: what the task or an administrator
//! changed meanwhile stays, and is reported. Then the sweep: threads that were born with a value of Quell's
//! and that nobody recorded, because the daemon died first, get their forebear's original.
//!
//! The daemon's clean end, the guardians and [`recover_stale`] all run the same code. It may be cut off
//! anywhere and run again: what is restored shows its original, and is then left as found.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::groups::{self, CREATED, NONE};
use super::host::{self, Host};
use super::journal::layout::VALUE_BYTES;
use super::journal::slot::SlotView;
use super::journal::value::{Cores, Value};
use super::protocol::{Restore, restore_decision};
use super::{Change, Drift, JournalFile, SchedAttr, Subject, kill_point, setting};
use quell_os::ThreadStat;
use quell_os::{ThreadRef, Tid};

mod sweep;
mod takeover;

pub use takeover::{Patience, recover_stale, release_by_force, take_over};

/// What restoring did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Given back: what, Quell's value, the original.
    pub restored: Vec<Change>,
    /// Left, because somebody else changed it: what Quell had written, and what is there.
    pub left: Vec<Drift>,
    /// Refused by the kernel, twice.
    pub failed: Vec<(Subject, String)>,
    /// Threads that exited before.
    pub gone: usize,
    /// Showed its original already.
    pub as_found: usize,
    /// Slots that are not whole; nothing can be told of them.
    pub damaged: usize,
}

impl RestoreReport {
    /// Whether nothing of Quell's is left on the host, as far as the journal tells.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.damaged == 0
    }
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values given back", self.restored.len())?;
        if !self.left.is_empty() {
            write!(f, ", {} left as somebody else set them", self.left.len())?;
        }
        if self.gone > 0 {
            write!(f, ", {} of threads that are gone", self.gone)?;
        }
        for (what, why) in &self.failed {
            write!(f, "; {what} could not be given back: {why}")?;
        }
        if self.damaged > 0 {
            write!(f, "; {} records are damaged", self.damaged)?;
        }
        Ok(())
    }
}

/// Gives back all that a journal records. `extra` names threads whose creator has died since: (thread, thread
/// that it descends from), as the observer knows them.
pub(crate) fn restore_journal(
    journal: &JournalFile,
    host: &mut Host,
    extra: &[(Tid, Tid)],
) -> RestoreReport {
    let (slots, damaged) = journal.slots();
    let mut report = RestoreReport { damaged, ..RestoreReport::default() };
    let mut refused = Vec::new();
    for (_, view) in slots.iter().rev().filter(|(_, view)| view.returned.is_none()) {
        kill_point("mid-restore");
        journal.beat(quell_os::clock::now());
        let before = report.failed.len();
        restore_slot(view, host, &mut report);
        if report.failed.len() > before {
            refused.push(view);
        }
    }
    sweep::sweep(journal, &slots, extra, host, &mut report);
    // What was refused may have depended on something that was newer than it or is restored by now.
    report.failed.clear();
    for view in refused {
        restore_slot(view, host, &mut report);
    }
    for (at, _) in &slots {
        journal.slot(*at).release();
    }
    report
}

/// Gives back one value.
pub(crate) fn restore_slot(view: &SlotView, host: &mut Host, report: &mut RestoreReport) {
    let done = match (&view.identity.subject, &view.original) {
        (Subject::Sched(thread), Value::Sched(original)) => {
            restore_thread(view, thread, *original, host, report)
        }
        (Subject::Affinity(thread), Value::Cores(original)) => {
            restore_thread(view, thread, *original, host, report)
        }
        (Subject::Setting(path), Value::Text(original)) => {
            let text = TextValue {
                seen: &|| setting::read(path, VALUE_BYTES),
                same: &|written, seen| setting::same_value(path, written, seen),
                give_back: &|| setting::write(path, original),
            };
            restore_text(view, original, &text, report)
        }
        (Subject::Group(dir), Value::Text(original)) => {
            let text = TextValue {
                seen: &|| Ok(if dir.is_dir() { CREATED } else { NONE }.to_owned()),
                same: &|written, seen| written == seen,
                give_back: &|| groups::remove(dir),
            };
            restore_text(view, original, &text, report)
        }
        (Subject::Member { process, hierarchy }, Value::Text(original)) => {
            restore_member(view, process, hierarchy, original, report)
        }
        _ => {
            report.damaged += 1;
            Ok(())
        }
    };
    if let Err(error) = done {
        match error.kind() {
            io::ErrorKind::NotFound => report.gone += 1,
            _ if error.raw_os_error() == Some(libc::ESRCH) => report.gone += 1,
            _ => report.failed.push((view.identity.subject.clone(), error.to_string())),
        }
    }
}

/// An attribute of a thread as restore handles it.
trait Restorable: Copy + fmt::Display {
    fn seen(thread: &ThreadRef, host: &Host, quick: bool) -> io::Result<Self>;
    fn of(value: &Value) -> Option<Self>;
    fn same(&self, seen: &Self) -> bool;
    fn shows(&self, seen: &Self, thread: &ThreadRef, host: &mut Host) -> bool;
    fn give_back(&self, tid: Tid, host: &Host) -> io::Result<()>;
}

impl Restorable for SchedAttr {
    fn seen(thread: &ThreadRef, _: &Host, _: bool) -> io::Result<Self> {
        quell_os::sched::attr(thread.tid)
    }

    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Sched(attr) => Some(*attr),
            _ => None,
        }
    }

    fn same(&self, seen: &Self) -> bool {
        self.same_effect(seen)
    }

    fn shows(&self, seen: &Self, _: &ThreadRef, _: &mut Host) -> bool {
        self.same_effect(seen)
    }

    fn give_back(&self, tid: Tid, _: &Host) -> io::Result<()> {
        crate::sched::set_attr(tid, self)?;
        if self.policy.is_fair() {
            return Ok(());
        }
        // The other policies leave the nice value as Quell may have set it.
        crate::sched::set_nice(tid, self.nice)
    }
}

impl Restorable for Cores {
    fn seen(thread: &ThreadRef, _: &Host, quick: bool) -> io::Result<Self> {
        let set =
            if quick { quell_os::sched::affinity(thread.tid)? } else { host::allowed(thread)? };
        Ok(Cores::exactly(set))
    }

    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Cores(cores) => Some(*cores),
            _ => None,
        }
    }

    fn same(&self, seen: &Self) -> bool {
        self.set == seen.set
    }

    fn shows(&self, seen: &Self, thread: &ThreadRef, host: &mut Host) -> bool {
        host.shows(thread, &self.set, &seen.set)
    }

    fn give_back(&self, tid: Tid, host: &Host) -> io::Result<()> {
        let set = if self.whole_cpuset { host.possible() } else { self.set };
        match crate::sched::set_affinity(tid, &set) {
            // Its cores went offline meanwhile: then the kernel itself lets a thread run anywhere.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                crate::sched::set_affinity(tid, &host.possible())
            }
            set => set,
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.set.fmt(f)
    }
}

fn restore_thread<A: Restorable>(
    view: &SlotView,
    thread: &ThreadRef,
    original: A,
    host: &mut Host,
    report: &mut RestoreReport,
) -> io::Result<()> {
    if !is_same_thread(thread, view.identity.pidfd_inode) {
        report.gone += 1;
        return Ok(());
    }
    let wrote: Vec<A> = view.wrote.iter().flatten().filter_map(A::of).collect();
    let mut seen = A::seen(thread, host, true)?;
    let mut decision = Restore::Write;
    if !wrote.iter().any(|wrote| wrote.same(&seen)) {
        // The quick read leaves out cores that are offline.
        seen = A::seen(thread, host, false)?;
        decision = restore_decision(&original, &wrote, &seen, |written, seen| {
            written.shows(seen, thread, host)
        });
    }
    match decision {
        Restore::AsFound => report.as_found += 1,
        Restore::Leave => report.left.push(Drift {
            what: view.identity.subject.clone(),
            expected: wrote.last().map(ToString::to_string).unwrap_or_default(),
            seen: seen.to_string(),
        }),
        Restore::Write => {
            original.give_back(thread.tid, host)?;
            report.restored.push(Change {
                what: view.identity.subject.clone(),
                old: seen.to_string(),
                new: original.to_string(),
            });
        }
    }
    Ok(())
}

fn restore_member(
    view: &SlotView,
    process: &ThreadRef,
    hierarchy: &Path,
    original: &String,
    report: &mut RestoreReport,
) -> io::Result<()> {
    let dir = Path::new(original);
    if !dir.starts_with(hierarchy) || !setting::is_kernel_path(dir) {
        report.damaged += 1;
        return Ok(());
    }
    if !is_same_thread(process, view.identity.pidfd_inode) {
        report.gone += 1;
        return Ok(());
    }
    let text = TextValue {
        seen: &|| {
            let group = groups::group_of(process.tgid, hierarchy)?;
            Ok(group.to_string_lossy().into_owned())
        },
        same: &|written, seen| written == seen,
        give_back: &|| groups::join(dir, process.tgid),
    };
    restore_text(view, original, &text, report)
}

/// How to read, compare and give back something whose value is text.
struct TextValue<'a> {
    seen: &'a dyn Fn() -> io::Result<String>,
    same: &'a dyn Fn(&str, &str) -> bool,
    give_back: &'a dyn Fn() -> io::Result<()>,
}

fn restore_text(
    view: &SlotView,
    original: &String,
    text: &TextValue<'_>,
    report: &mut RestoreReport,
) -> io::Result<()> {
    let wrote: Vec<String> = view
        .wrote
        .iter()
        .flatten()
        .filter_map(|value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
        .collect();
    let seen = (text.seen)()?;
    match restore_decision(original, &wrote, &seen, |a, b| (text.same)(a, b)) {
        Restore::AsFound => report.as_found += 1,
        Restore::Leave => report.left.push(Drift {
            what: view.identity.subject.clone(),
            expected: wrote.last().cloned().unwrap_or_default(),
            seen,
        }),
        Restore::Write => {
            (text.give_back)()?;
            report.restored.push(Change {
                what: view.identity.subject.clone(),
                old: seen,
                new: original.clone(),
            });
        }
    }
    Ok(())
}

/// Whether a number still means the journalled thread: by the inode of its handle where the journal has one,
/// which costs a fifth of reading its start time.
fn is_same_thread(thread: &ThreadRef, pidfd_inode: u64) -> bool {
    if pidfd_inode != 0
        && let Ok(handle) = quell_os::pidfd::open_thread(thread.tid)
    {
        return quell_os::pidfd::inode(handle.as_fd()) == Some(pidfd_inode);
    }
    ThreadStat::of(thread.tgid, thread.tid).is_ok_and(|stat| stat.start_ticks == thread.start_ticks)
}
