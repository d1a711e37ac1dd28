//! Congestion that the plan cannot relieve: noticed, timed by cause, reported.
//!
//! A congested LC task normally has a core within a tick or two. One that stays congested has all that the
//! plan can give it; whoever places tasks on hosts should know, and know why.
//!
//! Congestion is sampled once a tick, and a loaded task's queue empties for moments. So each task has a level
//! that rises with the time that it is congested and falls with the time that it is not: congestion counts
//! from the level's bound on, and until the level is back at zero. Looking allocates nothing.

mod cause;
mod report;

use quell_control::protocol::CongestionCause;
use quell_model::{Class, Nanos, Plan, Snapshot, TaskId};

pub use cause::CongestionDetail;

/// One look counts for this part of the bound at most, however long ago the last was: a task has to be seen
/// congested more than twice.
const LOOKS_MIN: u64 = 2;

/// The watch over all tasks.
pub struct Congestion {
    bound: Nanos,
    last: Nanos,
    /// By task place.
    records: Vec<Record>,
}

/// One task's congestion.
#[derive(Clone, Copy)]
struct Record {
    id: TaskId,
    /// Congested at the last look.
    was: bool,
    level: Nanos,
    /// When the level left zero.
    since: Nanos,
    /// The level reached the bound, and was not at zero since.
    lasting: bool,
    finding: Option<CongestionDetail>,
    /// How long each cause was seen since `since`.
    seen: [Nanos; CongestionCause::ALL.len()],
    /// Congestion that counts, since the task joined.
    totals: [Nanos; CongestionCause::ALL.len()],
}

/// What changed in a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The task's congestion counts from now on.
    Began(TaskId, CongestionDetail),
    /// It is over, after this long.
    Ended(TaskId, Nanos),
}

/// Congestion that counts.
#[derive(Clone, Copy, Debug)]
pub struct Lasting {
    /// The task.
    pub id: TaskId,
    /// Since when it is congested.
    pub since: Nanos,
    /// The cause that was seen longest.
    pub finding: CongestionDetail,
}

impl Congestion {
    /// A watch that counts congestion of at least `bound`.
    pub fn new(bound: Nanos) -> Congestion {
        Congestion { bound, last: Nanos::ZERO, records: Vec::new() }
    }

    /// How long congestion lasts before it counts.
    pub fn bound(&self) -> Nanos {
        self.bound
    }

    /// Looks at all tasks once.
    pub fn look(&mut self, seen: &Snapshot, plan: &Plan, tell: &mut dyn FnMut(Turn)) {
        let passed = match self.last {
            Nanos::ZERO => Nanos::ZERO,
            last => seen.now.since(last),
        };
        self.last = seen.now;
        for (place, view) in seen.tasks.iter().enumerate() {
            if place == self.records.len() {
                self.records.push(Record::new(view.id));
            }
            debug_assert_eq!(view.id.at(), place, "the Snapshot has a task in another's place");
            let record = &mut self.records[place];
            if !view.alive || record.id != view.id {
                *record = Record::new(view.id);
                continue;
            }
            if view.limits.class != Class::LatencyCritical {
                continue;
            }
            let congested = view.is_congested();
            if congested {
                record.note(cause::find(view, seen, plan), seen.now, passed);
            }
            if let Some(turn) = record.turn(congested, seen.now, passed, self.bound) {
                tell(turn);
            }
        }
    }

    /// The congestion that counts now.
    pub fn lasting(&self) -> impl Iterator<Item = Lasting> + '_ {
        self.records.iter().filter_map(Record::lasting)
    }

    /// The congestion of a task that counts now.
    pub fn of(&self, id: TaskId) -> Option<Lasting> {
        self.records.get(id.at()).filter(|record| record.id == id).and_then(Record::lasting)
    }

    /// How long a task's congestion counted since it joined, by cause; causes that never were are left out.
    pub fn totals(&self, id: TaskId) -> impl Iterator<Item = (CongestionCause, Nanos)> + '_ {
        let record = self.records.get(id.at()).filter(|record| record.id == id);
        let totals = record.into_iter().flat_map(|record| record.totals);
        CongestionCause::ALL.into_iter().zip(totals).filter(|(_, total)| *total > Nanos::ZERO)
    }
}

impl Record {
    fn new(id: TaskId) -> Record {
        Record {
            id,
            was: false,
            level: Nanos::ZERO,
            since: Nanos::ZERO,
            lasting: false,
            finding: None,
            seen: [Nanos::ZERO; CongestionCause::ALL.len()],
            totals: [Nanos::ZERO; CongestionCause::ALL.len()],
        }
    }

    fn lasting(&self) -> Option<Lasting> {
        let finding = self.finding.filter(|_| self.lasting)?;
        Some(Lasting { id: self.id, since: self.since, finding })
    }

    /// Keeps the finding whose cause was seen longest: a single look may catch a moment between two switches.
    fn note(&mut self, finding: CongestionDetail, now: Nanos, passed: Nanos) {
        if self.level == Nanos::ZERO && !self.was {
            self.since = now;
            self.finding = None;
            self.seen.fill(Nanos::ZERO);
        }
        let time = |cause: CongestionCause| self.seen[cause as usize];
        let leads = |kept: CongestionDetail| time(finding.cause) + passed >= time(kept.cause);
        if self.finding.is_none_or(|kept| kept.cause == finding.cause || leads(kept)) {
            self.finding = Some(finding);
        }
        self.seen[finding.cause as usize] += passed;
    }

    fn turn(&mut self, congested: bool, now: Nanos, passed: Nanos, bound: Nanos) -> Option<Turn> {
        let was = std::mem::replace(&mut self.was, congested);
        let step = passed.min(Nanos(bound.0 / LOOKS_MIN));
        match (was, congested) {
            (true, true) => {
                self.level = bound.min(self.level + step);
                if let Some(finding) = self.finding.filter(|_| self.lasting) {
                    self.totals[finding.cause as usize] += passed;
                }
            }
            (false, false) => self.level = self.level.since(step),
            // It changed in between, nobody knows when.
            (true, false) | (false, true) => {}
        }
        debug_assert!(self.level <= bound, "level {} above {bound}", self.level);
        debug_assert!(
            !self.lasting || self.finding.is_some(),
            "congestion that counts has a cause"
        );
        debug_assert!(self.since <= now, "congested since {}, and it is {now}", self.since);
        match self.lasting {
            false if self.level == bound => {
                self.lasting = true;
                self.finding.map(|finding| Turn::Began(self.id, finding))
            }
            true if self.level == Nanos::ZERO => {
                self.lasting = false;
                Some(Turn::Ended(self.id, now.since(self.since)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_model::{CoreSet, Limits, Signal, TaskView};

    use super::cause::tests::{LC, limits, plan_of, seen_of};
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    /// A watch with a bound of 100 ms over one task, looked at every `step` ms.
    struct Bench {
        watch: Congestion,
        now: u64,
        turns: Vec<Turn>,
    }

    impl Bench {
        fn new() -> Bench {
            Bench { watch: Congestion::new(Nanos::from_millis(100)), now: 1_000, turns: Vec::new() }
        }

        fn look(&mut self, step: u64, limits: Limits, congested: bool) {
            self.now += step;
            let mut view = TaskView::new(LC, limits);
            view.running = 1;
            if congested {
                (view.waiting, view.queueing_delay) = (1, Signal::Measured(MS));
            }
            let mut seen = seen_of(1, &[view]);
            seen.now = Nanos::from_millis(self.now);
            let plan = plan_of(&seen, &[(0, LC)]);
            let turns = &mut self.turns;
            self.watch.look(&seen, &plan, &mut |turn| turns.push(turn));
        }
    }

    fn one_core() -> Limits {
        limits(CoreSet::of(quell_model::CoreId(0)))
    }

    #[test]
    fn congestion_counts_from_the_bound_on_and_until_it_is_gone() {
        let mut bench = Bench::new();
        (0..10).for_each(|_| bench.look(10, one_core(), true));
        assert_eq!(bench.turns, [], "90 ms are below the bound");
        (0..11).for_each(|_| bench.look(10, one_core(), true));
        let [Turn::Began(LC, finding)] = bench.turns[..] else { panic!("{:?}", bench.turns) };
        assert_eq!(finding.cause, CongestionCause::AtMaximum);
        assert_eq!(bench.watch.of(LC).unwrap().since, Nanos::from_millis(1_010));
        let totals: Vec<_> = bench.watch.totals(LC).collect();
        assert_eq!(totals, [(CongestionCause::AtMaximum, Nanos::from_millis(100))]);
        (0..11).for_each(|_| bench.look(10, one_core(), false));
        assert_eq!(bench.turns[1..], [Turn::Ended(LC, Nanos::from_millis(310))]);
        assert!(bench.watch.of(LC).is_none());
        assert_eq!(bench.watch.totals(LC).count(), 1, "what counted stays counted");
    }

    #[test]
    fn short_waits_among_longer_rests_never_count() {
        let mut bench = Bench::new();
        for _ in 0..1_000 {
            (0..3).for_each(|_| bench.look(10, one_core(), true));
            (0..5).for_each(|_| bench.look(10, one_core(), false));
        }
        assert_eq!(bench.turns, []);
    }

    #[test]
    fn moments_of_an_empty_queue_do_not_end_it() {
        let mut bench = Bench::new();
        for _ in 0..100 {
            (0..5).for_each(|_| bench.look(10, one_core(), true));
            bench.look(10, one_core(), false);
        }
        assert_eq!(bench.turns.len(), 1, "{:?}", bench.turns);
    }

    #[test]
    fn one_look_after_a_long_sleep_is_not_enough() {
        let mut bench = Bench::new();
        bench.look(10, one_core(), false);
        bench.look(10_000, one_core(), true);
        bench.look(10_000, one_core(), true);
        assert_eq!(bench.turns, []);
        bench.look(10_000, one_core(), true);
        assert_eq!(bench.turns.len(), 1);
    }

    #[test]
    fn a_place_that_is_taken_again_starts_anew() {
        let mut bench = Bench::new();
        (0..30).for_each(|_| bench.look(10, one_core(), true));
        assert!(bench.watch.of(LC).is_some());
        let next = TaskId { generation: 1, ..LC };
        let seen = seen_of(1, &[TaskView::new(next, one_core())]);
        bench.watch.look(&seen, &plan_of(&seen, &[]), &mut |_| {});
        assert!(bench.watch.of(LC).is_none());
        assert_eq!(bench.watch.totals(LC).count(), 0);
    }
}
