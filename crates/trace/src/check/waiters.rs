//! Who waits in which queue, and how they stand: those that stand alike are judged as one, so that an event costs
//! the same however many wait.

use std::collections::{BTreeSet, HashMap};

use quell_model::{CoreId, CoreSet, Nanos, Rank};

use super::episode::{Kind, Wait};
use super::standing::Standing;
use super::window::Window;
use super::{Grade, Options, Policy};

/// What a waiter's standing depends on, but for the cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Likeness {
    /// The cores it may use; `None` while nobody said so.
    pub(super) allowed: Option<CoreSet>,
    /// Whom it preempts.
    pub(super) rank: Option<Rank>,
    /// It may not leave its core now, or is the checker's own.
    pub(super) stays: bool,
    /// Where a plan of Quell lets it run, and where it might run without.
    pub(super) plan: Option<(CoreSet, CoreSet)>,
}

/// The waiters of one queue that are alike.
#[derive(Clone, Debug)]
struct Group {
    likeness: Likeness,
    members: usize,
    standing: Option<Standing>,
    /// Members that came and beside whom nothing was wasted yet. Some may have left: their seats tell.
    fresh: Vec<i32>,
    /// The others, by the moment from which on.
    wasted: BTreeSet<(Nanos, i32)>,
    /// When something was wasted beside them, of late.
    window: Window,
    until: Nanos,
    /// How long they have stood in each way, in the order of [`Kind::ALL`].
    clocks: [Nanos; 3],
    /// The clocks when the queue's episodes began.
    episodes: [Nanos; 3],
    /// From where on waste counts, and the clock of waste then: what was before is forgotten.
    anew: (Nanos, Nanos),
    /// It is forgotten from the next waste on.
    begins_anew: bool,
}

/// Where a waiter is.
#[derive(Clone, Copy, Debug)]
struct Seat {
    on: CoreId,
    group: usize,
    /// Since when something is wasted beside it, be it with interruptions.
    from: Option<Nanos>,
    /// The group's clocks when it came.
    clocks: [Nanos; 3],
}

/// How the waiters of a queue stand that stand in one way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Beside {
    pub(super) waiters: u64,
    /// The best of them.
    pub(super) grade: Option<Grade>,
    /// Quell manages one of them.
    pub(super) quell: bool,
    /// The cores that they could use.
    pub(super) cores: CoreSet,
    /// How many a policy explains.
    pub(super) policies: Vec<(Policy, u64)>,
}

/// All waiters.
#[derive(Clone, Debug)]
pub(super) struct Waiters {
    queues: Vec<Vec<Group>>,
    seats: HashMap<i32, Seat>,
    window: Nanos,
    /// Cores in whose queues somebody waits.
    pub(super) occupied: CoreSet,
}

/// Groups without members that a queue keeps, so that threads which come and go need none made.
const EMPTY_KEPT: usize = 16;

impl Waiters {
    pub(super) fn new(cores: usize, options: &Options) -> Waiters {
        Waiters {
            queues: vec![Vec::new(); cores],
            seats: HashMap::new(),
            window: options.window,
            occupied: CoreSet::EMPTY,
        }
    }

    /// In whose queue a thread waits.
    pub(super) fn core_of(&self, thread: i32) -> Option<CoreId> {
        self.seats.get(&thread).map(|seat| seat.on)
    }

    /// Whether it waits there, like this.
    pub(super) fn is(&self, thread: i32, on: CoreId, likeness: &Likeness) -> bool {
        self.seats.get(&thread).is_some_and(|seat| {
            seat.on == on && self.queues[on.index()][seat.group].likeness == *likeness
        })
    }

    /// Every waiter, in no order.
    pub(super) fn threads(&self) -> impl Iterator<Item = i32> {
        self.seats.keys().copied()
    }

    /// A thread that is nowhere begins to wait; the queue's accounts are settled.
    pub(super) fn put(&mut self, thread: i32, on: CoreId, likeness: Likeness) {
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        let alike = queue.iter().position(|group| group.likeness == likeness);
        let at = alike.unwrap_or_else(|| {
            let made = Group::new(likeness, self.window);
            let free = queue.iter().position(|group| group.members == 0);
            match free.filter(|_| queue.len() >= EMPTY_KEPT) {
                Some(free) => {
                    queue[free] = made;
                    free
                }
                None => {
                    queue.push(made);
                    queue.len() - 1
                }
            }
        });
        let group = &mut queue[at];
        group.members += 1;
        group.fresh.push(thread);
        let seat = Seat { on, group: at, from: None, clocks: group.clocks };
        self.seats.insert(thread, seat);
        self.occupied.insert(on);
    }

    /// A thread waits no more; the queue's accounts are settled. Returns where it did, and how long it stood in each
    /// way since the queue's episodes began.
    pub(super) fn take(&mut self, thread: i32) -> Option<(CoreId, [Nanos; 3])> {
        let seat = self.seats.remove(&thread)?;
        let queue = self.queues.get_mut(seat.on.index())?;
        let group = queue.get_mut(seat.group)?;
        group.members -= 1;
        match seat.from {
            Some(from) => {
                group.wasted.remove(&(from, thread));
            }
            None => group.tidy(thread, &self.seats, (seat.on, seat.group)),
        }
        let stood = group.stood(&seat);
        if group.members == 0 {
            group.standing = None;
            if queue.iter().all(|group| group.members == 0) {
                self.occupied.remove(seat.on);
            }
        }
        Some((seat.on, stood))
    }

    /// Judges each group of a queue: how it stands from `at` on.
    pub(super) fn stand(
        &mut self,
        on: CoreId,
        at: Nanos,
        judge: impl Fn(&Likeness) -> Option<Standing>,
    ) {
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        for (place, group) in queue.iter_mut().enumerate().filter(|(_, group)| group.members > 0) {
            group.standing = judge(&group.likeness);
            if group.is_wasted() {
                group.begin(at, (on, place), &mut self.seats);
            }
        }
    }

    /// Nobody stands in this way any more, or, of `None`, in any.
    pub(super) fn clear(&mut self, on: CoreId, kind: Option<Kind>) {
        for group in self.queues.get_mut(on.index()).into_iter().flatten() {
            let is_meant = |standing: &Standing| kind.is_none_or(|kind| kind == Kind::of(standing));
            group.standing = group.standing.take().filter(|standing| !is_meant(standing));
        }
    }

    /// They stood as they stand from `from` to `to`.
    pub(super) fn add(&mut self, on: CoreId, from: Nanos, to: Nanos) {
        for group in self.queues.get_mut(on.index()).into_iter().flatten() {
            let Some(standing) = &group.standing else { continue };
            let kind = Kind::of(standing);
            group.clocks[kind as usize] += to.since(from);
            if kind == Kind::Wasted {
                group.window.add(from, to);
                group.until = to;
            }
        }
    }

    /// How those stand that stand in each way, in the order of [`Kind::ALL`].
    pub(super) fn beside(&self, on: CoreId) -> [Option<Beside>; 3] {
        let mut beside: [Option<Beside>; 3] = Default::default();
        for group in self.queues.get(on.index()).into_iter().flatten() {
            if let Some(standing) = &group.standing {
                let entry = beside[Kind::of(standing) as usize].get_or_insert_default();
                entry.add(standing, group.members as u64);
            }
        }
        beside
    }

    /// The waiters beside whom enough was wasted in the last window, each with its account.
    pub(super) fn overdue(&mut self, on: CoreId, options: &Options) -> Vec<(i32, Wait)> {
        let (seats, mut found) = (&self.seats, Vec::new());
        for group in self.queues.get_mut(on.index()).into_iter().flatten() {
            found.extend(group.overdue(seats, options));
        }
        found
    }

    /// A queue's episode begins anew.
    pub(super) fn begin_episode(&mut self, on: CoreId, kind: Kind) {
        for group in self.queues.get_mut(on.index()).into_iter().flatten() {
            group.episodes[kind as usize] = group.clocks[kind as usize];
        }
    }

    /// Who stands in some way now, and for how long within the queue's episode: the longest first, so many at most.
    pub(super) fn names(&self, on: CoreId, kind: Kind, most: usize) -> Vec<(i32, Nanos)> {
        let mut names = Vec::new();
        for (place, group) in self.queues.get(on.index()).into_iter().flatten().enumerate() {
            if group.standing.as_ref().is_none_or(|standing| Kind::of(standing) != kind) {
                continue;
            }
            let old = group.wasted.iter().map(|(_, thread)| *thread);
            // Those that left may stand among the fresh, and those that came back, twice.
            let members: BTreeSet<i32> = old.chain(group.fresh.iter().copied()).collect();
            names.extend(members.into_iter().filter_map(|thread| {
                let seat = self.seats.get(&thread)?;
                let time = group.stood(seat)[kind as usize];
                let sits = (seat.on, seat.group) == (on, place);
                (sits && time > Nanos::ZERO).then_some((thread, time))
            }));
        }
        names.sort_by_key(|(thread, time)| (std::cmp::Reverse(*time), *thread));
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
    fn new(likeness: Likeness, window: Nanos) -> Group {
        Group {
            likeness,
            members: 0,
            standing: None,
            fresh: Vec::new(),
            wasted: BTreeSet::new(),
            window: Window::new(window),
            until: Nanos::ZERO,
            clocks: [Nanos::ZERO; 3],
            episodes: [Nanos::ZERO; 3],
            anew: (Nanos::ZERO, Nanos::ZERO),
            begins_anew: false,
        }
    }

    fn is_wasted(&self) -> bool {
        matches!(self.standing, Some(Standing::Wasted { .. }))
    }

    /// Something is wasted beside its members from `at` on, be it again.
    fn begin(&mut self, at: Nanos, place: (CoreId, usize), seats: &mut HashMap<i32, Seat>) {
        if std::mem::take(&mut self.begins_anew) {
            self.anew = (at, self.clocks[Kind::Wasted as usize]);
        }
        for thread in self.fresh.drain(..) {
            if let Some(seat) = seats.get_mut(&thread)
                && (seat.on, seat.group) == place
                && seat.from.is_none()
            {
                seat.from = Some(at);
                self.wasted.insert((at, thread));
            }
        }
    }

    /// A fresh member has left: mostly the last that came. Now and then those that left are swept out.
    fn tidy(&mut self, thread: i32, seats: &HashMap<i32, Seat>, place: (CoreId, usize)) {
        if self.fresh.last() == Some(&thread) {
            self.fresh.pop();
        } else if self.fresh.len() > 2 * self.members + EMPTY_KEPT {
            let mut seen = BTreeSet::new();
            self.fresh.retain(|fresh| {
                let seat = seats.get(fresh).filter(|seat| (seat.on, seat.group) == place);
                seat.is_some_and(|seat| seat.from.is_none()) && seen.insert(*fresh)
            });
        }
    }

    /// How long a member stood in each way since it came and the queue's episodes began.
    fn stood(&self, seat: &Seat) -> [Nanos; 3] {
        std::array::from_fn(|kind| {
            self.clocks[kind].since(seat.clocks[kind].max(self.episodes[kind]))
        })
    }

    fn overdue(&mut self, seats: &HashMap<i32, Seat>, options: &Options) -> Vec<(i32, Wait)> {
        let is_long = |from: Nanos| self.until.since(from.max(self.anew.0)) >= options.window;
        let oldest = self.wasted.first().map(|(from, _)| *from);
        if !self.is_wasted() || self.begins_anew || !oldest.is_some_and(is_long) {
            return Vec::new();
        }
        if self.window.share(self.until) < options.share_of_window() {
            return Vec::new();
        }
        let clock = self.clocks[Kind::Wasted as usize];
        let wait = |(from, thread): &(Nanos, i32)| {
            let came = seats.get(thread).map_or(clock, |seat| seat.clocks[Kind::Wasted as usize]);
            let wasted = clock.since(came.max(self.anew.1));
            (*thread, Wait { from: (*from).max(self.anew.0), wasted })
        };
        let is_long = |from: Nanos| self.until.since(from.max(self.anew.0)) >= options.window;
        self.wasted.iter().take_while(|(from, _)| is_long(*from)).map(wait).collect()
    }
}

impl Beside {
    fn add(&mut self, standing: &Standing, members: u64) {
        self.waiters += members;
        self.cores = self.cores.union(&standing.cores());
        match standing {
            Standing::Wasted { grade, quell, .. } => {
                self.grade = Some(self.grade.map_or(*grade, |best| best.min(*grade)));
                self.quell |= quell;
            }
            Standing::Explained { policy, .. } => self.policies.push((*policy, members)),
            Standing::Unknown { .. } => {}
        }
    }
}
