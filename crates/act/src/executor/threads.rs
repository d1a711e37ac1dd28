//! The threads that the executor knows.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use quell_model::CoreSet;

use super::attribute::Attribute;
use crate::journal::Journal;
use crate::journal::value::Value;
use crate::switch::Lent;
use crate::{ActError, SchedAttr};
use quell_os::ThreadStat;
use quell_os::{ThreadRef, Tid};

/// Ghosts beyond which those of dead processes are let go.
const GHOSTS: usize = 256;

/// What is known of one attribute of one thread.
#[derive(Debug)]
pub(super) struct Tracked<A> {
    /// Its place in the journal; `None` while nothing was changed.
    pub(super) slot: Option<u32>,
    /// When the slot was made, in clock ticks since boot: threads that are older inherited nothing.
    pub(super) created: u64,
    /// What is given back.
    pub(super) original: Value,
    /// The last two values written, as the journal has them.
    pub(super) wrote: [Option<A>; 2],
    /// Which of them the host shows.
    pub(super) shown: Option<usize>,
    /// What the host shows, as far as Quell knows.
    pub(super) believed: A,
}

impl<A> Tracked<A> {
    /// Whether Quell had changed it when this thread was born, to a clock tick.
    fn was_there(&self, thread: &ThreadRef) -> bool {
        self.slot.is_some() && thread.start_ticks + 1 >= self.created
    }
}

/// How a thread is told from another one with the same number.
#[derive(Debug)]
enum Handle {
    /// `PIDFD_THREAD`: two system calls of 0.2 us.
    Pidfd(OwnedFd),
    /// Start time in /proc, some 15 us: kernels before 6.9, or no descriptor left.
    StartTime,
}

/// A thread that the executor changed or looked at.
#[derive(Debug)]
pub(super) struct Managed {
    pub(super) thread: ThreadRef,
    handle: Handle,
    pub(super) pidfd_inode: u64,
    pub(super) sched: Option<Box<Tracked<SchedAttr>>>,
    pub(super) cores: Option<Box<Tracked<CoreSet>>>,
    /// The scheduler of a lane switches it between two values.
    pub(super) lent: Option<Arc<Lent>>,
}

impl Managed {
    /// Begins to know a thread, which has to be the one that is meant.
    ///
    /// # Errors
    /// [`ActError::Gone`] where it is not.
    fn open(thread: ThreadRef) -> Result<Managed, ActError> {
        let opened = match quell_os::pidfd::open_thread(thread.tid) {
            // Before kernel 6.9 there are handles on processes alone, which serve for first threads.
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL) && thread.tid == thread.tgid =>
            {
                quell_os::pidfd::open_process(thread.tgid)
            }
            opened => opened,
        };
        let (handle, pidfd_inode) = match opened {
            Ok(fd) => {
                let inode = quell_os::pidfd::inode(fd.as_fd()).unwrap_or(0);
                (Handle::Pidfd(fd), inode)
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                return Err(ActError::Gone(thread));
            }
            Err(_) => (Handle::StartTime, 0),
        };
        // After the handle is open: whatever it means stays what it means.
        if !is_thread(&thread) {
            return Err(ActError::Gone(thread));
        }
        Ok(Managed { thread, handle, pidfd_inode, sched: None, cores: None, lent: None })
    }

    /// Whether the number still means this thread.
    pub(super) fn is_alive(&self) -> bool {
        match &self.handle {
            Handle::Pidfd(fd) => quell_os::pidfd::is_alive(fd.as_fd()).unwrap_or(false),
            Handle::StartTime => is_thread(&self.thread),
        }
    }

    /// The handle once more, for another user; `None` where there is none, or no descriptor left.
    pub(super) fn duplicate_handle(&self) -> Option<OwnedFd> {
        match &self.handle {
            Handle::Pidfd(fd) => fd.try_clone().ok(),
            Handle::StartTime => None,
        }
    }

    /// The places in the journal that it has.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        let sched = self.sched.as_ref().and_then(|tracked| tracked.slot);
        sched.into_iter().chain(self.cores.as_ref().and_then(|tracked| tracked.slot))
    }
}

fn is_thread(thread: &ThreadRef) -> bool {
    ThreadStat::of(thread.tgid, thread.tid).is_ok_and(|stat| stat.start_ticks == thread.start_ticks)
}

/// What is left of a process whose last known thread was given back: children that it had before and that
/// nobody saw yet have its originals.
#[derive(Default)]
pub(super) struct Ghost {
    /// Start time of the process's first thread.
    process_start: u64,
    pub(super) sched: Option<Box<Tracked<SchedAttr>>>,
    pub(super) cores: Option<Box<Tracked<CoreSet>>>,
}

/// All known threads, by number, and the numbers by process.
#[derive(Default)]
pub(super) struct Threads {
    by_tid: HashMap<Tid, Managed>,
    by_process: HashMap<Tid, Vec<Tid>>,
    ghosts: HashMap<Tid, Ghost>,
}

impl Threads {
    /// Whether this very thread is known.
    pub(super) fn knows(&self, thread: &ThreadRef) -> bool {
        self.by_tid.get(&thread.tid).is_some_and(|known| known.thread == *thread)
    }

    /// The thread, if it is known.
    pub(super) fn get_mut(&mut self, thread: &ThreadRef) -> Option<&mut Managed> {
        self.by_tid.get_mut(&thread.tid).filter(|known| known.thread == *thread)
    }

    /// As [`Threads::get_mut`], to read.
    pub(super) fn get(&self, thread: &ThreadRef) -> Option<&Managed> {
        self.by_tid.get(&thread.tid).filter(|known| known.thread == *thread)
    }

    /// Takes all switch handles back.
    pub(super) fn revoke_all(&mut self) {
        self.by_tid.values_mut().for_each(Managed::revoke);
    }

    /// Begins to know a thread.
    ///
    /// # Errors
    /// [`ActError::Gone`].
    pub(super) fn open(&mut self, thread: &ThreadRef) -> Result<(), ActError> {
        let managed = Managed::open(*thread)?;
        self.by_process.entry(thread.tgid).or_default().push(thread.tid);
        self.by_tid.insert(thread.tid, managed);
        Ok(())
    }

    /// Forgets whoever has the number. The last known thread of a process that lives leaves a ghost.
    pub(super) fn forget(&mut self, tid: Tid, journal: &mut Journal) {
        let Some(mut managed) = self.by_tid.remove(&tid) else { return };
        managed.revoke();
        debug_assert_eq!(managed.thread.tid, tid, "a thread is known by another tid");
        let tgid = managed.thread.tgid;
        if let Some(tids) = self.by_process.get_mut(&tgid) {
            tids.retain(|known| *known != tid);
            if tids.is_empty() {
                self.by_process.remove(&tgid);
            }
        }
        let changed = managed.slots().next().is_some();
        if changed && !self.by_process.contains_key(&tgid) {
            self.haunt(managed, journal);
        } else {
            managed.slots().for_each(|slot| journal.release(slot));
        }
    }

    fn haunt(&mut self, managed: Managed, journal: &mut Journal) {
        let tgid = managed.thread.tgid;
        let start = ThreadStat::of(tgid, tgid).ok().map(|stat| stat.start_ticks);
        self.exorcise(tgid, start, journal);
        let Some(process_start) = start else {
            managed.slots().for_each(|slot| journal.release(slot));
            return;
        };
        let ghost = self.ghosts.entry(tgid).or_default();
        ghost.process_start = process_start;
        bequeath(&mut ghost.sched, managed.sched, journal);
        bequeath(&mut ghost.cores, managed.cores, journal);
        if self.ghosts.len() > GHOSTS {
            let all: Vec<Tid> = self.ghosts.keys().copied().collect();
            for tgid in all {
                let start = ThreadStat::of(tgid, tgid).ok().map(|stat| stat.start_ticks);
                self.exorcise(tgid, start, journal);
            }
        }
    }

    /// Lets a ghost go unless its process lives.
    fn exorcise(&mut self, tgid: Tid, start: Option<u64>, journal: &mut Journal) {
        let dead = |ghost: &Ghost| Some(ghost.process_start) != start;
        if self.ghosts.get(&tgid).is_some_and(dead)
            && let Some(ghost) = self.ghosts.remove(&tgid)
        {
            let sched = ghost.sched.and_then(|tracked| tracked.slot);
            let cores = ghost.cores.and_then(|tracked| tracked.slot);
            sched.into_iter().chain(cores).for_each(|slot| journal.release(slot));
        }
    }

    /// All known threads.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Managed> {
        self.by_tid.values()
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.revoke_all();
        self.by_tid.clear();
        self.by_process.clear();
        self.ghosts.clear();
    }

    /// The original of the value that a new thread shows, if it has that value from a thread that Quell changed: from
    /// its creator, from the first thread of its process, from another one, or from an ancestor. `journal` knows which
    /// values Quell ever wrote.
    pub(super) fn inherited<A: Attribute>(
        &self,
        thread: &ThreadRef,
        seen: &A,
        creator: Option<&ThreadRef>,
        journal: &Journal,
    ) -> Option<Value> {
        let creator = creator.and_then(|creator| self.get(creator));
        let first = self.by_tid.get(&thread.tgid).filter(|first| first.thread.tid != thread.tid);
        let passed_on = creator.into_iter().chain(first).filter_map(A::tracked).find(|tracked| {
            let mut wrote = tracked.wrote.iter().flatten();
            tracked.was_there(thread) && wrote.any(|wrote| wrote.may_pass_on(seen))
        });
        match passed_on {
            Some(tracked) => Some(tracked.original.clone()),
            None => self.inherited_unannounced(thread, seen, journal),
        }
    }

    fn inherited_unannounced<A: Attribute>(
        &self,
        thread: &ThreadRef,
        seen: &A,
        journal: &Journal,
    ) -> Option<Value> {
        if !journal.ever_wrote(|value| A::from_value(value).is_some_and(|wrote| wrote.same(seen))) {
            return None;
        }
        let mut process = thread.tgid;
        // A chain of parents ends at pid 1 or at a loop that a race made; neither is this long.
        for _ in 0..64 {
            let stat = ThreadStat::of(process, process).ok()?;
            let known = self.by_process.get(&process).into_iter().flatten();
            let known = known.filter(|tid| **tid != thread.tid);
            let known = known.filter_map(|tid| A::tracked(self.by_tid.get(tid)?));
            let ghost = self.ghosts.get(&process).filter(|g| g.process_start == stat.start_ticks);
            let mut found = None;
            let all = known.chain(ghost.and_then(A::of_ghost));
            for tracked in all.filter(|tracked| tracked.was_there(thread)) {
                if tracked.wrote.iter().flatten().any(|wrote| wrote.same(seen)) {
                    return Some(tracked.original.clone());
                }
                found = found.or(Some(tracked));
            }
            if let Some(tracked) = found {
                return Some(tracked.original.clone());
            }
            process = stat.parent;
            if process.0 <= 1 {
                return None;
            }
        }
        None
    }
}

/// Keeps the slot of an attribute that was given back. One is enough for all times that the process was
/// managed, unless somebody else changed the process in between.
fn bequeath<A>(
    kept: &mut Option<Box<Tracked<A>>>,
    newer: Option<Box<Tracked<A>>>,
    journal: &mut Journal,
) {
    let Some(newer) = newer else { return };
    let Some(slot) = newer.slot else { return };
    let held = kept.as_ref().and_then(|kept| Some((kept.slot?, kept.original == newer.original)));
    match held {
        Some((held, true)) => {
            journal.release(slot);
            // From now on it is there for those born meanwhile, too.
            journal.keep_as_bequest(held);
        }
        held => {
            if let Some((held, _)) = held {
                journal.release(held);
            }
            journal.keep_as_bequest(slot);
            *kept = Some(newer);
        }
    }
}

/// Whether an error says that there is no such thread.
pub(super) fn says_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}
