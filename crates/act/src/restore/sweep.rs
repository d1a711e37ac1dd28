//! Finds threads that were born with a value of Quell's and that no slot names: children of managed threads,
//! created after the daemon died or just before.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::time::Duration;

use super::{Restorable, RestoreReport};
use crate::host::Host;
use crate::journal::slot::SlotView;
use crate::journal::value::{Cores, Value};
use crate::{Change, JournalFile, SchedAttr, Subject};
use quell_os::ThreadStat;
use quell_os::{ThreadRef, Tid};

/// Passes over /proc. One or two are enough unless threads that were not restored yet fork meanwhile.
const PASSES: usize = 8;
/// A thread that was in the midst of a fork when it was given back hands down what it had before, to a child that
/// /proc shows only when the fork is done: on a busy host tens of milliseconds later. So after a pass that found
/// nothing comes another after each of these times.
const LATER: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(40)];
/// Longest line of descent that is followed.
const DEPTH: usize = 64;

/// What a thread hands down.
#[derive(Clone)]
struct Bequest<A> {
    original: A,
    /// Its last two values; older ones are in the palette.
    wrote: Vec<A>,
    /// Those born before it was changed inherited nothing, nor did those born after it was given back.
    born: RangeInclusive<u64>,
}

impl<A: Restorable> Bequest<A> {
    fn of(view: &SlotView) -> Option<Bequest<A>> {
        // A tick more on either side: times of birth are rounded.
        let last = view.returned.map_or(u64::MAX, |ticks| ticks.saturating_add(1));
        Some(Bequest {
            original: A::of(&view.original)?,
            wrote: view.wrote.iter().flatten().filter_map(A::of).collect(),
            born: view.created.saturating_sub(1)..=last,
        })
    }
}

/// What the threads of one process hand down.
#[derive(Clone, Default)]
struct Family {
    sched: Vec<Bequest<SchedAttr>>,
    cores: Vec<Bequest<Cores>>,
    /// When the first of them was changed: a process that is younger only has the number.
    since: u64,
    /// A thread of it is gone: its values may live on in the thread that called exec, which took
    /// number and start time of the first thread.
    lost_a_thread: bool,
}

/// An attribute whose bequests are kept per family.
trait Heritable: Restorable {
    fn bequests(family: &Family) -> &[Bequest<Self>];
    fn subject(thread: ThreadRef) -> Subject;
}

impl Heritable for SchedAttr {
    fn bequests(family: &Family) -> &[Bequest<Self>] {
        &family.sched
    }

    fn subject(thread: ThreadRef) -> Subject {
        Subject::Sched(thread)
    }
}

impl Heritable for Cores {
    fn bequests(family: &Family) -> &[Bequest<Self>] {
        &family.cores
    }

    fn subject(thread: ThreadRef) -> Subject {
        Subject::Affinity(thread)
    }
}

/// Gives heirs of managed threads their forebears' originals.
pub(super) fn sweep(
    journal: &JournalFile,
    slots: &[(u32, SlotView)],
    extra: &[(Tid, Tid)],
    host: &mut Host,
    report: &mut RestoreReport,
) {
    let mut sweep = Sweep::new(journal.palette(), slots, extra);
    if sweep.families.is_empty() {
        return;
    }
    let mut later = LATER.into_iter();
    for _ in 0..PASSES {
        journal.beat(quell_os::clock::now());
        if sweep.pass(host, report) > 0 {
            continue;
        }
        match later.next() {
            Some(wait) => std::thread::sleep(wait),
            None => return,
        }
    }
}

struct Sweep<'j> {
    palette: Vec<Value>,
    families: HashMap<Tid, Family>,
    named: HashSet<&'j Subject>,
    extra: HashMap<Tid, Tid>,
    process_of: HashMap<Tid, Tid>,
}

impl<'j> Sweep<'j> {
    fn new(palette: Vec<Value>, slots: &'j [(u32, SlotView)], extra: &[(Tid, Tid)]) -> Sweep<'j> {
        let mut sweep = Sweep {
            palette,
            families: HashMap::new(),
            named: HashSet::new(),
            extra: extra.iter().copied().collect(),
            process_of: HashMap::new(),
        };
        for (_, view) in slots {
            let subject = &view.identity.subject;
            let (Subject::Sched(thread) | Subject::Affinity(thread)) = subject else { continue };
            sweep.named.insert(subject);
            sweep.process_of.insert(thread.tid, thread.tgid);
            let new = || Family { since: view.created, ..Family::default() };
            let family = sweep.families.entry(thread.tgid).or_insert_with(new);
            family.sched.extend(Bequest::of(view));
            family.cores.extend(Bequest::of(view));
            family.since = family.since.min(view.created);
            family.lost_a_thread |= !is_there(thread);
        }
        sweep
    }

    /// Looks at every process once. Returns how many values changed.
    fn pass(&mut self, host: &mut Host, report: &mut RestoreReport) -> usize {
        let processes = processes();
        let (mut changed, mut heirs) = (0, Vec::new());
        for (&process, stat) in &processes {
            let line = self.line(process, &processes);
            let Some(nearest) = line.first() else { continue };
            for thread in ThreadRef::all_of(process).unwrap_or_default() {
                let took_over = thread.tid == thread.tgid && nearest.lost_a_thread;
                let found = self.give_back::<SchedAttr>(&thread, &line, took_over, host, report)
                    + self.give_back::<Cores>(&thread, &line, took_over, host, report);
                changed += found;
                if found > 0 && !self.families.contains_key(&process) {
                    heirs.push((process, (*nearest).clone(), stat.start_ticks));
                }
            }
        }
        // What an heir had, its own children may have.
        for (process, mut family, born) in heirs {
            family.since = born;
            family.sched.iter_mut().for_each(|bequest| bequest.born = born..=u64::MAX);
            family.cores.iter_mut().for_each(|bequest| bequest.born = born..=u64::MAX);
            self.families.insert(process, family);
        }
        changed
    }

    /// The families that a process descends from, nearest first, its own included.
    fn line(&self, process: Tid, processes: &HashMap<Tid, ThreadStat>) -> Vec<&Family> {
        let parent = |child: &Tid| {
            let known = processes.get(child).map(|stat| stat.parent);
            let parent = self.extra.get(child).copied().or(known)?;
            Some(self.process_of.get(&parent).copied().unwrap_or(parent))
        };
        std::iter::successors(Some(process), parent)
            .take(DEPTH)
            .take_while(|process| process.0 > 1)
            .filter_map(|process| {
                let family = self.families.get(&process)?;
                let same = |stat: &ThreadStat| stat.start_ticks <= family.since;
                processes.get(&process).is_none_or(same).then_some(family)
            })
            .collect()
    }

    /// Gives a thread its forebear's original, if it shows a value of Quell's that it can only have from there.
    /// Returns how many values changed.
    fn give_back<A: Heritable>(
        &self,
        thread: &ThreadRef,
        line: &[&Family],
        took_over: bool,
        host: &mut Host,
        report: &mut RestoreReport,
    ) -> usize {
        let what = A::subject(*thread);
        if self.named.contains(&what) && !took_over {
            return 0;
        }
        let Ok(seen) = A::seen(thread, host, true) else { return 0 };
        let quells = self.palette.iter().filter_map(A::of).any(|wrote| wrote.same(&seen));
        let Some(original) = inheritance(thread, line, took_over, &seen).filter(|_| quells) else {
            return 0;
        };
        // The handle makes sure that the number means the same thread before and after.
        let handle = quell_os::pidfd::open_thread(thread.tid).ok();
        if original.same(&seen) || !is_there(thread) {
            return 0;
        }
        match original.give_back(thread.tid, host) {
            Ok(()) => {
                let (old, new) = (seen.to_string(), original.to_string());
                report.restored.push(Change { what, old, new });
                1
            }
            Err(error) => {
                let alive = |handle: rustix::fd::OwnedFd| quell_os::pidfd::is_alive(handle.as_fd());
                if handle.is_none_or(|handle| alive(handle).unwrap_or(false)) {
                    report.failed.push((what, error.to_string()));
                }
                0
            }
        }
    }
}

/// The original that a thread is heir to: of a forebear that had the value it shows among its last, else of
/// the nearest one.
fn inheritance<A: Heritable>(
    thread: &ThreadRef,
    line: &[&Family],
    took_over: bool,
    seen: &A,
) -> Option<A> {
    let bequests = line.iter().flat_map(|family| A::bequests(family));
    let mut heir_to =
        bequests.filter(|bequest| took_over || bequest.born.contains(&thread.start_ticks));
    let nearest = heir_to.next()?;
    let had = |bequest: &&Bequest<A>| bequest.wrote.iter().any(|wrote| wrote.same(seen));
    let exact = std::iter::once(nearest).chain(heir_to).find(had);
    Some(exact.unwrap_or(nearest).original)
}

fn is_there(thread: &ThreadRef) -> bool {
    ThreadStat::of(thread.tgid, thread.tid).is_ok_and(|stat| stat.start_ticks == thread.start_ticks)
}

/// Every process that there is.
fn processes() -> HashMap<Tid, ThreadStat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| Some(Tid(entry.file_name().to_str()?.parse().ok()?)))
        .filter_map(|process| Some((process, ThreadStat::of(process, process).ok()?)))
        .collect()
}
