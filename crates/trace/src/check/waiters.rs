//! What was wasted beside each waiting thread: threads of one class in one queue share a clock, so that an event
//! costs the same however many wait.

use std::collections::{BTreeSet, VecDeque};

use quell_model::{CoreId, CoreSet, Nanos};

use super::Options;
use super::cause::{Cause, Charges};
use super::episode::{Kind, Wait};
use super::phases::{Phase, Phases};
use super::verdict::{Grade, WaiterVerdict};
use super::window::Window;
use crate::host::{ClassIndex, HostThread, PolicyReason};
use crate::import::NOBODY_KNOWN;

/// A waiting thread, by its slot in the host state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaiterId {
    pub(super) slot: usize,
    /// Tells it from others that have the slot; never 0.
    pub(super) serial: u32,
    pub(super) tid: i32,
}

impl WaiterId {
    pub(super) fn of(thread: &HostThread) -> WaiterId {
        WaiterId { slot: thread.index.index(), serial: thread.serial, tid: thread.tid() }
    }

    /// Stands for all that wait on a core of which only the number is reported.
    pub(super) fn unnamed(on: CoreId) -> WaiterId {
        WaiterId { slot: on.index(), serial: 1, tid: NOBODY_KNOWN }
    }
}

/// The waiters of a class in one queue.
#[derive(Clone, Debug)]
struct Group {
    class: ClassIndex,
    members: usize,
    verdict: Option<WaiterVerdict>,
    /// Slots of members beside whom nothing was wasted yet. Some may have left: their places tell.
    fresh: Vec<usize>,
    /// The others, by the time from which on, the first first. Some may have left.
    wasted: VecDeque<(Nanos, usize)>,
    /// When something was wasted beside them, of late.
    window: Window,
    until: Nanos,
    /// How long each verdict has lasted, in the order of [`Kind::ALL`].
    clocks: [Nanos; 3],
    /// The clocks when the queue's episodes began.
    episodes: [Nanos; 3],
    /// From where on waste counts, and the clock of waste then: what was before is forgotten.
    anew: (Nanos, Nanos),
    /// It is forgotten from the next waste on.
    begins_anew: bool,
    /// Why its members wait.
    phases: Phases,
}

/// Where a waiter waits.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// 0 where none waits.
    serial: u32,
    tid: i32,
    on: CoreId,
    group: usize,
    /// Since when something is wasted beside it, be it with interruptions.
    from: Option<Nanos>,
    /// The group's clocks when it came.
    clocks: [Nanos; 3],
    /// Why it waits.
    phase: Phase,
}

/// A waiter and the time that it waited with a verdict of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Waited {
    pub(super) tid: i32,
    pub(super) time: Nanos,
    /// How it came to wait.
    pub(super) came: Cause,
}

impl Place {
    const NONE: Place = Place {
        serial: 0,
        tid: 0,
        on: CoreId(0),
        group: 0,
        from: None,
        clocks: [Nanos::ZERO; 3],
        phase: Phase::NONE,
    };

    fn is_in(&self, place: (CoreId, usize)) -> bool {
        self.serial != 0 && (self.on, self.group) == place
    }
}

/// The waiters of a queue with a verdict of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WaiterTotals {
    waiters: usize,
    /// The best grade of them.
    pub(super) grade: Option<Grade>,
    /// Quell manages one of them.
    pub(super) quell: bool,
    /// The cores that they could use.
    pub(super) cores: CoreSet,
    /// How many each policy keeps waiting.
    pub(super) policies: Vec<(PolicyReason, u64)>,
}

/// All waiters.
#[derive(Clone, Debug)]
pub(super) struct Waiters {
    /// By the core's number.
    queues: Vec<Vec<Group>>,
    /// By slot.
    places: Vec<Place>,
    window: Nanos,
}

/// Entries of members that left which a group keeps at least.
const STALE_KEPT: usize = 16;

impl Waiters {
    pub(super) fn new(cores: usize, options: &Options) -> Waiters {
        Waiters { queues: vec![Vec::new(); cores], places: Vec::new(), window: options.window }
    }

    /// The waiter that has a slot, and its core.
    pub(super) fn at(&self, slot: usize) -> Option<(WaiterId, CoreId)> {
        let place = self.places.get(slot).filter(|place| place.serial != 0)?;
        Some((WaiterId { slot, serial: place.serial, tid: place.tid }, place.on))
    }

    /// Whether a waiter waits there, as one of this class.
    pub(super) fn is(&self, waiter: WaiterId, on: CoreId, class: ClassIndex) -> bool {
        self.places.get(waiter.slot).is_some_and(|place| {
            (place.serial, place.on) == (waiter.serial, on)
                && self.queues[on.index()][place.group].class == class
        })
    }

    /// A thread in whose slot no thread waits begins to, because of `cause`, `now`; it came to this core at `since`. The
    /// queue's accounts are settled.
    pub(super) fn put(
        &mut self,
        waiter: WaiterId,
        (on, class): (CoreId, ClassIndex),
        (cause, since): (Cause, Nanos),
        now: Nanos,
    ) {
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        let same = queue.iter().position(|group| group.class == class);
        let free = || queue.iter().position(|group| group.members == 0);
        let at = same.or_else(free).unwrap_or(queue.len());
        if at == queue.len() {
            queue.push(Group::new(class, self.window));
        }
        let group = &mut queue[at];
        if group.class != class {
            group.class = class;
            group.phases = Phases::default();
        }
        group.members += 1;
        group.fresh.push(waiter.slot);
        if self.places.len() <= waiter.slot {
            self.places.resize(waiter.slot + 1, Place::NONE);
        }
        let place = &mut self.places[waiter.slot];
        debug_assert_eq!(place.serial, 0, "two threads wait in one slot");
        let (WaiterId { serial, tid, .. }, clocks) = (waiter, group.clocks);
        let phase = group.phases.join(waiter.slot, cause, since, now + self.window);
        *place = Place { serial, tid, on, group: at, from: None, clocks, phase };
    }

    /// A waiter waits no more; the queue's accounts are settled. Returns how long each verdict on it lasted since
    /// the queue's episodes began.
    pub(super) fn take(&mut self, slot: usize) -> Option<[Waited; 3]> {
        let place = self.places.get_mut(slot).filter(|place| place.serial != 0)?;
        let place = std::mem::replace(place, Place::NONE);
        let group = self.queues.get_mut(place.on.index())?.get_mut(place.group)?;
        debug_assert!(group.members > 0, "a waiter is in an empty group");
        group.members -= 1;
        group.phases.leave(&place.phase);
        if group.members == 0 {
            group.verdict = None;
            group.fresh.clear();
            group.wasted.clear();
        } else {
            group.tidy(place.from.is_none(), slot, &self.places, (place.on, place.group));
        }
        let (tid, came) = (place.tid, place.phase.cause);
        Some(group.lasted(&place).map(|time| Waited { tid, time, came }))
    }

    /// Judges each group of a queue: its verdict from `at` on.
    pub(super) fn judge(
        &mut self,
        on: CoreId,
        at: Nanos,
        judge: impl Fn(ClassIndex) -> Option<WaiterVerdict>,
    ) {
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        for (index, group) in queue.iter_mut().enumerate().filter(|(_, group)| group.members > 0) {
            group.verdict = judge(group.class);
            if group.is_wasted() {
                group.begin(at, (on, index), &mut self.places);
            }
        }
    }

    /// Takes back the verdicts of this kind, or, of `None`, all.
    pub(super) fn clear(&mut self, on: CoreId, kind: Option<Kind>) {
        for group in self.queues.get_mut(on.index()).into_iter().flatten() {
            let is_meant = |verdict: &WaiterVerdict| kind.is_none_or(|kind| kind == verdict.kind());
            group.verdict = group.verdict.take().filter(|verdict| !is_meant(verdict));
        }
    }

    /// The verdicts held from `from` to `to`. Time of waste is charged to its causes.
    pub(super) fn add(&mut self, on: CoreId, from: Nanos, to: Nanos, charges: &mut Charges) {
        for group in self.queues.get_mut(on.index()).into_iter().flatten() {
            let Some(verdict) = &group.verdict else { continue };
            let kind = verdict.kind();
            group.clocks[kind as usize] += to.since(from);
            if let WaiterVerdict::Wasted { barred, .. } = verdict {
                group.window.add(from, to);
                group.until = to;
                match barred {
                    Some(barred) => charges.add(*barred, to.since(from), group.members as u64),
                    None => group.phases.charge(to.since(from), charges),
                }
            }
        }
    }

    /// Those that wait in a queue for a window are not there because of how they came any more.
    pub(super) fn expire(&mut self, on: CoreId, now: Nanos) {
        for (at, group) in self.queues.get_mut(on.index()).into_iter().flatten().enumerate() {
            while let Some((until, slot)) = group.phases.next_expired(now) {
                let place = self.places.get_mut(slot).filter(|place| place.is_in((on, at)));
                if let Some(place) = place {
                    group.phases.expire(&mut place.phase, until);
                }
            }
            group.phases.tidy(group.members, |until, slot| {
                let place = self.places.get(slot);
                place.is_some_and(|it| it.is_in((on, at)) && it.phase.is_arrival_until(until))
            });
        }
    }

    /// A pass of the balancer left the waiters of those classes that it might have taken; the queue's accounts are
    /// settled.
    pub(super) fn pass_left(
        &mut self,
        on: CoreId,
        at: Nanos,
        cause: Cause,
        might_take: impl Fn(ClassIndex) -> bool,
    ) {
        for group in self.queues.get_mut(on.index()).into_iter().flatten() {
            if might_take(group.class) {
                group.phases.pass_left(at, cause);
            }
        }
    }

    /// What the verdicts of each kind say together, in the order of [`Kind::ALL`].
    pub(super) fn add_up(&self, on: CoreId, totals: [&mut WaiterTotals; 3]) {
        let totals = totals.map(|one| {
            one.clear();
            one
        });
        for group in self.queues.get(on.index()).into_iter().flatten() {
            if let Some(verdict) = &group.verdict {
                totals[verdict.kind() as usize].add(verdict, group.members);
            }
        }
    }

    /// The tids of the waiters beside whom enough was wasted in the last window, each with its account.
    pub(super) fn overdue(&mut self, on: CoreId, options: &Options) -> Vec<(i32, Wait)> {
        let mut found = Vec::new();
        let queue = self.queues.get_mut(on.index()).into_iter().flatten();
        for (index, group) in queue.enumerate() {
            group.overdue((on, index), &self.places, options, &mut found);
        }
        found
    }

    /// A queue's episode begins anew.
    pub(super) fn begin_episode(&mut self, on: CoreId, kind: Kind) {
        for group in self.queues.get_mut(on.index()).into_iter().flatten() {
            group.episodes[kind as usize] = group.clocks[kind as usize];
        }
    }

    /// Those with a verdict of a kind now, and how long it lasted within the queue's episode: the longest first, so
    /// many at most.
    pub(super) fn names(&self, on: CoreId, kind: Kind, most: usize) -> Vec<Waited> {
        let mut names = Vec::new();
        for (index, group) in self.queues.get(on.index()).into_iter().flatten().enumerate() {
            if group.verdict.as_ref().is_none_or(|verdict| verdict.kind() != kind) {
                continue;
            }
            let old = group.wasted.iter().map(|(_, slot)| *slot);
            // Those that left may be among them, and those that came back, twice.
            let members: BTreeSet<usize> = old.chain(group.fresh.iter().copied()).collect();
            names.extend(members.into_iter().filter_map(|slot| {
                let place = self.places.get(slot).filter(|place| place.is_in((on, index)))?;
                let time = group.lasted(place)[kind as usize];
                let waited = Waited { tid: place.tid, time, came: place.phase.cause };
                (time > Nanos::ZERO).then_some(waited)
            }));
        }
        names.sort_by_key(|waited| (std::cmp::Reverse(waited.time), waited.tid));
        names.truncate(most);
        names
    }

    /// The accounts of waiters that nothing is wasted beside now begin anew; of all waiters if so asked.
    pub(super) fn forget(&mut self, on: CoreId, all: bool) {
        for group in self.queues.get_mut(on.index()).into_iter().flatten() {
            group.begins_anew |= all || !group.is_wasted();
        }
    }
}

impl Group {
    fn new(class: ClassIndex, window: Nanos) -> Group {
        Group {
            class,
            members: 0,
            verdict: None,
            fresh: Vec::new(),
            wasted: VecDeque::new(),
            window: Window::new(window),
            until: Nanos::ZERO,
            clocks: [Nanos::ZERO; 3],
            episodes: [Nanos::ZERO; 3],
            anew: (Nanos::ZERO, Nanos::ZERO),
            begins_anew: false,
            phases: Phases::default(),
        }
    }

    fn is_wasted(&self) -> bool {
        matches!(self.verdict, Some(WaiterVerdict::Wasted { .. }))
    }

    /// Something is wasted beside its members from `at` on, be it again.
    fn begin(&mut self, at: Nanos, here: (CoreId, usize), places: &mut [Place]) {
        if std::mem::take(&mut self.begins_anew) {
            self.anew = (at, self.clocks[Kind::Wasted as usize]);
        }
        for slot in self.fresh.drain(..) {
            let place = &mut places[slot];
            if place.is_in(here) && place.from.is_none() {
                place.from = Some(at);
                self.wasted.push_back((at, slot));
            }
        }
    }

    /// A member has left, mostly the last that came or the first. Now and then those that left are swept out.
    fn tidy(&mut self, was_fresh: bool, slot: usize, places: &[Place], here: (CoreId, usize)) {
        let most = 2 * self.members + STALE_KEPT;
        if was_fresh && self.fresh.last() == Some(&slot) {
            self.fresh.pop();
        } else if self.fresh.len() > most {
            let mut seen = BTreeSet::new();
            self.fresh.retain(|slot| {
                let place = &places[*slot];
                place.is_in(here) && place.from.is_none() && seen.insert(*slot)
            });
        }
        if self.wasted.len() > most {
            self.wasted.retain(|(from, slot)| {
                let place = &places[*slot];
                place.is_in(here) && place.from == Some(*from)
            });
        }
    }

    /// How long each verdict on a member lasted since it came and the queue's episodes began.
    fn lasted(&self, place: &Place) -> [Nanos; 3] {
        std::array::from_fn(|kind| {
            self.clocks[kind].since(place.clocks[kind].max(self.episodes[kind]))
        })
    }

    fn overdue(
        &mut self,
        here: (CoreId, usize),
        places: &[Place],
        options: &Options,
        found: &mut Vec<(i32, Wait)>,
    ) {
        if !self.is_wasted() || self.begins_anew {
            return;
        }
        let has_left = |(from, slot): &(Nanos, usize)| {
            !places[*slot].is_in(here) || places[*slot].from != Some(*from)
        };
        while self.wasted.front().is_some_and(has_left) {
            self.wasted.pop_front();
        }
        let (until, anew) = (self.until, self.anew);
        let is_long = |from: Nanos| until.since(from.max(anew.0)) >= options.window;
        let oldest = self.wasted.front().map(|(from, _)| *from);
        if !oldest.is_some_and(is_long) || self.window.share(until) < options.share_of_window() {
            return;
        }
        let clock = self.clocks[Kind::Wasted as usize];
        let wait = |(from, slot): &(Nanos, usize)| {
            let place = &places[*slot];
            let wasted = clock.since(place.clocks[Kind::Wasted as usize].max(anew.1));
            (place.tid, Wait { from: (*from).max(anew.0), wasted })
        };
        let old = self.wasted.iter().take_while(|(from, _)| is_long(*from));
        found.extend(old.filter(|entry| !has_left(entry)).map(wait));
    }
}

impl WaiterTotals {
    /// Whether there is any verdict.
    pub(super) fn is_any(&self) -> bool {
        self.waiters > 0
    }

    /// Keeps its memory.
    pub(super) fn clear(&mut self) {
        if self.is_any() {
            (self.waiters, self.grade, self.quell) = (0, None, false);
            self.cores = CoreSet::EMPTY;
            self.policies.clear();
        }
    }

    fn add(&mut self, verdict: &WaiterVerdict, members: usize) {
        self.waiters += members;
        self.cores = self.cores.union(verdict.cores());
        match verdict {
            WaiterVerdict::Wasted { grade, quell, .. } => {
                self.grade = Some(self.grade.map_or(*grade, |best| best.min(*grade)));
                self.quell |= quell;
            }
            WaiterVerdict::Allowed { reason, .. } => self.policies.push((*reason, members as u64)),
            WaiterVerdict::Unknown { .. } => {}
        }
    }
}
