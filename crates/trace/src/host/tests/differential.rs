//! The host state beside each machine that it replaces, over recordings and random streams.
//!
//! Each adapter says what its machine knows at the end of an instant. A difference has to be one of the kinds of
//! [`KINDS`], whose reasons are in `docs/host-state-differences.md`, when it begins; it may last until both agree
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::kinds::KINDS;
use super::toy::{self, Damage, Truth};
use super::*;
use crate::check::host as checks;

/// Streams of random runs, of each kind of damage.
const STREAMS: u64 = 2_500;

/// What a machine says at the end of an instant.
#[derive(Default)]
pub(super) struct Said {
    /// By core: the tid, 0 for the idle thread; `None` where it is not known.
    pub running: Vec<Option<i32>>,
    /// Waiting threads and their core.
    pub waiting: BTreeMap<i32, usize>,
    /// Idle cores, where the machine has such a notion.
    pub idle: Option<CoreSet>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Running(usize),
    Waiting(i32),
    Idle(usize),
}

/// A difference that begins, with all that a kind may ask for.
pub(super) struct Case<'c> {
    pub subject: Subject,
    /// The tid of a core, the core of a thread, 0 or 1 for idle.
    pub old: Option<i64>,
    pub host: &'c HostState,
    pub old_said: &'c Said,
    /// The events of this instant.
    pub step: &'c [Event],
    pub history: &'c History,
}

/// What the stream had so far.
#[derive(Default)]
pub(super) struct History {
    pub switched: BTreeSet<usize>,
    pub has_wakeups: bool,
    /// A loss since the last keyframe.
    pub is_lost: bool,
    /// Threads whose `sched_waking` came before the stream had any `sched_wakeup`.
    pub woken_early: BTreeSet<i32>,
    /// Threads that had a damaged order: one event contradicts another.
    pub contradicted: BTreeSet<i32>,
    pub contradicted_cores: BTreeSet<usize>,
}

impl History {
    /// Notes what the next event says, before the host takes it.
    fn note(&mut self, host: &HostState, event: &Event) {
        let here = host.topology().position(event.core);
        match &event.what {
            What::Online { of, .. } => {
                self.switched.remove(&of.index());
            }
            What::Switch { next, left, .. } => {
                let Some(here) = here else { return };
                self.switched.insert(here);
                self.woken_early.remove(&next.thread);
                let seen = match host.occupant(here) {
                    Occupant::Unknown => None,
                    Occupant::Idle => Some(0),
                    Occupant::Thread(thread) => Some(thread.tid()),
                };
                if seen.is_some_and(|seen| seen != *left) || self.contradicted_cores.remove(&here) {
                    self.contradicted.extend([*left, seen.unwrap_or(0)]);
                }
                self.place(host, next.thread, here);
                if let Some(at) = place_of(host, *left)
                    && at != here
                {
                    self.contradicted.insert(*left);
                }
            }
            What::Migrate { thread, .. } => {
                if let Some(thread) = host.thread_by_tid(*thread)
                    && thread.state == ThreadState::Running
                {
                    self.contradicted.insert(thread.tid());
                    self.contradicted_cores.insert(thread.core);
                }
            }
            What::Waking { thread, .. } if !self.has_wakeups => {
                self.woken_early.insert(thread.thread);
            }
            What::Woken { thread, is_new, .. } => {
                self.has_wakeups |= !is_new;
                self.woken_early.remove(&thread.thread);
                let known = host.thread_by_tid(thread.thread);
                if known.is_some_and(|known| known.state == ThreadState::Unknown) {
                    self.contradicted.insert(thread.thread);
                }
            }
            What::Fork { child, .. } => self.place(host, child.thread, usize::MAX),
            What::Exit { thread } => self.place(host, *thread, usize::MAX),
            What::Lost { .. } => self.is_lost = true,
            What::Keyframe(_) => {
                self.contradicted.clear();
                self.contradicted_cores.clear();
                self.woken_early.clear();
                self.is_lost = false;
            }
            _ => {}
        }
        self.is_lost |= host.last_incomplete_interval() == Some(host.interval());
    }

    /// A thread runs there now; another core may still name it.
    fn place(&mut self, host: &HostState, tid: i32, here: usize) {
        if let Some(thread) = host.thread_by_tid(tid)
            && thread.state == ThreadState::Running
            && thread.core != here
        {
            self.contradicted.insert(tid);
            self.contradicted_cores.insert(thread.core);
        }
    }
}

fn place_of(host: &HostState, tid: i32) -> Option<usize> {
    let thread = host.thread_by_tid(tid)?;
    thread.state.is_placed().then_some(thread.core)
}

pub(super) fn said_by(host: &HostState) -> Said {
    let running = |core| match host.occupant(core) {
        Occupant::Unknown => None,
        Occupant::Idle => Some(0),
        Occupant::Thread(thread) => Some(thread.tid()),
    };
    let waiting = host.threads().filter(|thread| thread.state == ThreadState::Waiting);
    Said {
        running: (0..host.cores().len()).map(running).collect(),
        waiting: waiting.map(|thread| (thread.tid(), thread.core)).collect(),
        idle: Some(*host.idle()),
    }
}

/// The state of check.
struct CheckHost(checks::Host, Topology);

impl CheckHost {
    fn take(&mut self, event: &Event) {
        self.0.apply(event);
        self.0.dirty = CoreSet::EMPTY;
        self.0.touched.clear();
    }
    fn said(&self) -> Said {
        let core = |core: &quell_model::Core| self.0.core(core.id).and_then(|core| core.running);
        let waits = |thread: &i32| {
            let thread = self.0.thread(*thread)?;
            (thread.state == checks::State::Waiting).then_some(thread.core)
        };
        let tids = self.0.numbers();
        let place = |tid| Some((tid, self.1.position(waits(&tid)?)?));
        Said {
            running: self.1.cores().iter().map(core).collect(),
            waiting: tids.into_iter().filter_map(place).collect(),
            idle: Some(self.0.idle),
        }
    }
}

/// The subjects of which both say something else, with what the old machine says.
fn differences(old: &Said, new: &Said) -> Vec<(Subject, Option<i64>)> {
    let mut found = Vec::new();
    for (core, (before, now)) in old.running.iter().zip(&new.running).enumerate() {
        if before != now {
            found.push((Subject::Running(core), before.map(i64::from)));
        }
    }
    let tids: BTreeSet<i32> = old.waiting.keys().chain(new.waiting.keys()).copied().collect();
    for tid in tids {
        let (before, now) = (old.waiting.get(&tid), new.waiting.get(&tid));
        if before != now {
            found.push((Subject::Waiting(tid), before.map(|core| *core as i64)));
        }
    }
    if let (Some(before), Some(now)) = (old.idle, new.idle) {
        let differing = before.difference(&now).union(&now.difference(&before));
        let was = |core: CoreId| i64::from(before.contains(core));
        let index = |core: CoreId| usize::from(core.0);
        found.extend(differing.iter().map(|id| (Subject::Idle(index(id)), Some(was(id)))));
    }
    found
}

/// Feeds both, and explains each difference. Returns how often each kind did.
fn explain(
    name: &str,
    meta: &Meta,
    events: &[Event],
    old: &mut CheckHost,
    kinds: &mut BTreeMap<&'static str, u64>,
    unexplained: &mut Vec<String>,
) {
    let (mut host, mut history) = (HostState::new(meta), History::default());
    let mut carried: BTreeSet<Subject> = BTreeSet::new();
    let mut from = 0;
    while from < events.len() {
        let now = host.now().max(events[from].at);
        let later = events[from..].iter().position(|event| event.at > now);
        let to = later.map_or(events.len(), |later| from + later);
        let step = &events[from..to];
        for event in step {
            history.note(&host, event);
            host.push(event, &mut ());
            history.is_lost |= host.last_incomplete_interval() == Some(host.interval());
            old.take(event);
        }
        from = to;
        let (before, after) = (old.said(), said_by(&host));
        let mut open = BTreeSet::new();
        for (subject, value) in differences(&before, &after) {
            open.insert(subject);
            if carried.contains(&subject) {
                continue;
            }
            let case = Case {
                subject,
                old: value,
                host: &host,
                old_said: &before,
                step,
                history: &history,
            };
            let kind = KINDS.iter().find(|kind| (kind.is)(&case));
            let Some(kind) = kind else {
                let thread = match subject {
                    Subject::Waiting(tid) => host.thread_by_tid(tid),
                    _ => None,
                };
                unexplained.push(format!(
                    "{name}: check differs at {now:?}: {subject:?} is {value:?} there (runs \
                     {:?}), here {:?} (runs {:?}); events {:?}",
                    case.old_said.running,
                    thread.map(|thread| (thread.state, thread.core)),
                    after.running,
                    events[to.saturating_sub(8)..to]
                        .iter()
                        .map(|event| (event.at.0, event.core.0, &event.what))
                        .collect::<Vec<_>>(),
                ));
                return;
            };
            *kinds.entry(kind.name).or_default() += 1;
        }
        carried = open;
    }
}

fn explain_all(
    name: &str,
    meta: &Meta,
    events: &[Event],
    kinds: &mut BTreeMap<&'static str, u64>,
    unexplained: &mut Vec<String>,
) {
    let cores = meta.topology.cores().last().map_or(0, |core| core.id.index() + 1);
    let queues = checks::Queues::of(meta.source);
    let host = checks::Host::new(cores, BTreeSet::new(), queues);
    explain(name, meta, events, &mut CheckHost(host, meta.topology.clone()), kinds, unexplained);
}

/// The first differences, one a line.
fn first(unexplained: &[String]) -> String {
    unexplained.iter().step_by(unexplained.len() / 12 + 1).cloned().collect::<Vec<_>>().join("\n")
}

#[test]
fn differences_over_random_streams_are_explained() {
    let (mut kinds, mut unexplained) = (BTreeMap::new(), Vec::new());
    for damage in [Damage::None, Damage::Losses, Damage::Order, Damage::Missing] {
        for seed in 0..STREAMS {
            let source = [Source::Recorder, Source::Ftrace][seed as usize % 2];
            let recorded = toy::record(seed, source, damage);
            let name = format!("{damage:?} {seed}");
            explain_all(&name, &recorded.meta, &recorded.events, &mut kinds, &mut unexplained);
        }
    }
    assert!(unexplained.is_empty(), "{} differ: {}", unexplained.len(), first(&unexplained));
    assert!(kinds.len() >= 6, "the streams are too tame: {kinds:?}");
}

#[test]
fn differences_over_recordings_are_explained() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let (mut kinds, mut unexplained) = (BTreeMap::new(), Vec::new());
    let mut recordings = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "gz") {
            continue;
        }
        let file = flate2::read::GzDecoder::new(std::fs::File::open(&path).unwrap());
        let input = std::io::BufReader::new(file);
        let source = crate::open(input, crate::import::Options::default()).unwrap();
        let meta = source.meta().clone();
        let events: Vec<Event> = source.map(Result::unwrap).collect();
        explain_all(&path.display().to_string(), &meta, &events, &mut kinds, &mut unexplained);
        recordings += 1;
    }
    assert!(unexplained.is_empty(), "{} differ: {}", unexplained.len(), first(&unexplained));
    assert!(recordings >= 5, "{recordings}");
}

#[test]
fn undamaged_record_gives_the_true_state() {
    for seed in 0..STREAMS {
        let recorded = toy::record(seed, Source::Recorder, Damage::None);
        let mut host = HostState::new(&recorded.meta);
        for (at, (event, truth)) in recorded.events.iter().zip(&recorded.truths).enumerate() {
            host.push(event, &mut ());
            host.validate().unwrap();
            // Within an instant the kernel's steps are recorded one after the other.
            if recorded.events.get(at + 1).is_some_and(|next| next.at == event.at) {
                continue;
            }
            for (tid, truth) in truth {
                let thread = host.thread_by_tid(*tid).unwrap();
                let state = (thread.state, thread.core);
                let is_true = match truth {
                    Truth::Running(core) => state == (ThreadState::Running, *core),
                    Truth::Waiting(core) => state == (ThreadState::Waiting, *core),
                    Truth::Waking(core) => {
                        // A keyframe lists it as waiting.
                        thread.state.is_listed() && thread.core == *core
                    }
                    Truth::Sleeping(_) => !thread.state.is_placed(),
                };
                assert!(is_true, "seed {seed}: {thread:?} is {truth:?} after {event:?}");
            }
            assert_eq!(host.threads().count(), truth.len(), "seed {seed}");
        }
    }
}
