//! Finds threads that were born with a value of Quell's and that no slot names: children of managed threads,
//! created after the daemon died or just before.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use super::{Restorable, RestoreReport};
use crate::act::host::Host;
use crate::act::journal::slot::SlotView;
use crate::act::journal::value::Cores;
use crate::act::{Change, JournalFile, SchedAttr, Subject, monotonic_now};
use crate::thread::ThreadStat;
use crate::{ThreadRef, Tid, sys};

/// Passes over /proc. One is enough unless threads that were not restored yet fork meanwhile.
const PASSES: usize = 8;
/// Longest line of descent that is followed.
const DEPTH: usize = 64;

/// What the journal knows of the threads of one process.
#[derive(Default)]
struct Family<'j> {
    sched: Vec<Bequest<'j, SchedAttr>>,
    cores: Vec<Bequest<'j, Cores>>,
    /// A thread of it is gone: its values may live on in the thread that called exec, which took
    /// number and start time of the first thread.
    lost_a_thread: bool,
}

/// What a thread hands down.
struct Bequest<'j, A> {
    view: &'j SlotView,
    original: A,
    wrote: Vec<A>,
}

impl<'j, A: Restorable> Bequest<'j, A> {
    fn of(view: &'j SlotView) -> Option<Bequest<'j, A>> {
        let wrote = view.wrote.iter().flatten().filter_map(A::of).collect();
        Some(Bequest { view, original: A::of(&view.original)?, wrote })
    }
}

/// An attribute whose bequests are kept per family.
trait Heritable: Restorable {
    fn bequests<'f, 'j>(family: &'f Family<'j>) -> &'f [Bequest<'j, Self>];
    fn subject(thread: ThreadRef) -> Subject;
}

impl Heritable for SchedAttr {
    fn bequests<'f, 'j>(family: &'f Family<'j>) -> &'f [Bequest<'j, Self>] {
        &family.sched
    }

    fn subject(thread: ThreadRef) -> Subject {
        Subject::Sched(thread)
    }
}

impl Heritable for Cores {
    fn bequests<'f, 'j>(family: &'f Family<'j>) -> &'f [Bequest<'j, Self>] {
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
    let (families, named) = families(slots);
    if families.is_empty() {
        return;
    }
    let extra: HashMap<Tid, Tid> = extra.iter().copied().collect();
    let process_of: HashMap<Tid, Tid> =
        named.iter().map(|thread| (thread.tid, thread.tgid)).collect();
    for _ in 0..PASSES {
        journal.beat(monotonic_now());
        let parents = parents();
        let parent = |process: Tid| {
            let parent = extra.get(&process).or_else(|| parents.get(&process)).copied()?;
            Some(process_of.get(&parent).copied().unwrap_or(parent))
        };
        let mut found = 0;
        for &process in parents.keys() {
            let line: Vec<&Family> = std::iter::successors(Some(process), |&child| parent(child))
                .take(DEPTH)
                .take_while(|process| process.0 > 1)
                .filter_map(|process| families.get(&process))
                .collect();
            if line.is_empty() {
                continue;
            }
            for thread in ThreadRef::all_of(process).unwrap_or_default() {
                let is_named = named.contains(&thread);
                let took_over = thread.tid == thread.tgid && line[0].lost_a_thread;
                if !is_named || took_over {
                    found += give_back::<SchedAttr>(&thread, &line, took_over, host, report);
                    found += give_back::<Cores>(&thread, &line, took_over, host, report);
                }
            }
        }
        if found == 0 {
            break;
        }
    }
}

fn families(slots: &[(u32, SlotView)]) -> (HashMap<Tid, Family<'_>>, HashSet<ThreadRef>) {
    let mut families: HashMap<Tid, Family<'_>> = HashMap::new();
    let mut named = HashSet::new();
    for (_, view) in slots {
        let (Subject::Sched(thread) | Subject::Affinity(thread)) = &view.identity.subject else {
            continue;
        };
        named.insert(*thread);
        let family = families.entry(thread.tgid).or_default();
        family.sched.extend(Bequest::of(view));
        family.cores.extend(Bequest::of(view));
        family.lost_a_thread |= !is_there(thread);
    }
    (families, named)
}

fn is_there(thread: &ThreadRef) -> bool {
    ThreadStat::of(thread.tgid, thread.tid).is_ok_and(|stat| stat.start_ticks == thread.start_ticks)
}

/// The parent of each process that there is.
fn parents() -> HashMap<Tid, Tid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| Some(Tid(entry.file_name().to_str()?.parse().ok()?)))
        .filter_map(|process| Some((process, ThreadStat::of(process, process).ok()?.parent)))
        .collect()
}

/// Gives a thread its forebear's original, if it shows what Quell gave that forebear. Returns how many
/// values changed.
fn give_back<A: Heritable>(
    thread: &ThreadRef,
    line: &[&Family<'_>],
    took_over: bool,
    host: &mut Host,
    report: &mut RestoreReport,
) -> usize {
    let Ok(seen) = A::seen(thread, host, true) else { return 0 };
    let bequest = line.iter().flat_map(|family| A::bequests(family)).find(|bequest| {
        let younger = thread.start_ticks + 1 >= bequest.view.created;
        (younger || took_over) && bequest.wrote.iter().any(|wrote| wrote.same(&seen))
    });
    let Some(bequest) = bequest.filter(|bequest| !bequest.original.same(&seen)) else { return 0 };
    // The handle makes sure that the number means the same thread before and after.
    let handle = sys::pidfd::open_thread(thread.tid).ok();
    if !is_there(thread) {
        return 0;
    }
    match bequest.original.give_back(thread.tid, host) {
        Ok(()) => {
            let what = A::subject(*thread);
            let new = bequest.original.to_string();
            report.restored.push(Change { what, old: seen.to_string(), new });
            1
        }
        Err(error) => {
            let alive =
                handle.is_none_or(|handle| sys::pidfd::is_alive(handle.as_fd()).unwrap_or(false));
            if alive {
                report.failed.push((A::subject(*thread), error.to_string()));
            }
            0
        }
    }
}
