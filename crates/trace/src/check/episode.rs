//! The waste of one queue, from its first moment until it is repaired.

use std::collections::BTreeMap;

use quell_model::{CoreSet, Nanos};

use super::cause::{Cause, Charges};
use super::evidence::{Evidence, Totals};
use super::waiters::{Waited, WaiterTotals};
use super::window::Window;
use super::{Grade, Label, Options, label};
use crate::host::PolicyReason;
use crate::import::NOBODY_KNOWN;

/// Waiters that an episode remembers by name.
pub(super) const WAITERS_MAX: usize = 64;

/// What kind of verdicts an episode is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Wasted,
    AllowedByPolicy,
    Unknown,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Wasted, Kind::AllowedByPolicy, Kind::Unknown];
}

/// Time that somebody waited in one queue beside an idle core.
#[derive(Clone, Debug)]
pub(super) struct Episode {
    window: Window,
    /// Its first moment; `None` before there was any.
    pub(super) from: Option<Nanos>,
    /// Its last one so far.
    pub(super) until: Nanos,
    pub(super) wasted: Nanos,
    /// Of that, by grade A and B.
    by_grade: [Nanos; 2],
    /// Of that, with a managed thread waiting.
    quell: Nanos,
    /// By policy, where one explains it.
    policies: BTreeMap<PolicyReason, Nanos>,
    /// Threads that waited and do no more: how long, by how they came to wait.
    waiters: BTreeMap<i32, Charges>,
    /// The time of all waiters, by why they waited.
    pub(super) charges: Charges,
    /// Whose own account says more.
    included: BTreeMap<i32, Nanos>,
    /// The cores that they could have used.
    pub(super) idle: CoreSet,
    /// What had happened before it.
    pub(super) before: Totals,
    /// How the host looked when it became a finding; `None` before.
    pub(super) found: Option<Box<Evidence>>,
}

impl Episode {
    pub(super) fn new(options: &Options) -> Episode {
        Episode {
            window: Window::new(options.window),
            from: None,
            until: Nanos::ZERO,
            wasted: Nanos::ZERO,
            by_grade: [Nanos::ZERO; 2],
            quell: Nanos::ZERO,
            policies: BTreeMap::new(),
            waiters: BTreeMap::new(),
            charges: Charges::default(),
            included: BTreeMap::new(),
            idle: CoreSet::EMPTY,
            before: Totals::default(),
            found: None,
        }
    }

    /// Begins, unless it has.
    pub(super) fn begin(&mut self, at: Nanos, before: Totals) {
        if self.from.is_none() {
            (self.from, self.before) = (Some(at), before);
        }
    }

    /// The verdicts on the queue's waiters were these from `from` to `to`.
    pub(super) fn add(&mut self, from: Nanos, to: Nanos, totals: &WaiterTotals) {
        let time = to.since(from);
        debug_assert!(self.from.is_some(), "time is added to an episode that has not begun");
        debug_assert!(self.until <= to, "an episode's time runs backwards");
        self.window.add(from, to);
        self.wasted += time;
        self.until = to;
        if let Some(best) = totals.grade {
            self.by_grade[usize::from(best != Grade::A)] += time;
        }
        if totals.quell {
            self.quell += time;
        }
        for (policy, waiters) in &totals.policies {
            let waited = Nanos(time.0.saturating_mul(*waiters));
            *self.policies.entry(*policy).or_default() += waited;
        }
        self.idle = self.idle.union(&totals.cores);
    }

    /// A waiter waited in the queue for so long.
    pub(super) fn credit(&mut self, waited: &Waited) {
        credit(&mut self.waiters, waited);
    }

    /// A waiter's own account says more than the queue's, which another thread's move has cut short.
    pub(super) fn include(&mut self, waiter: i32, wait: Wait) {
        self.from = Some(self.from.map_or(wait.from, |from| from.min(wait.from)));
        self.wasted = self.wasted.max(wait.wasted);
        self.included.insert(waiter, wait.wasted);
    }

    /// The threads that waited, with those that do so still: how long, and how they came to wait for most of it.
    pub(super) fn all_waiters(&self, present: &[Waited]) -> BTreeMap<i32, (Nanos, Cause)> {
        let mut all = self.waiters.clone();
        present.iter().for_each(|waited| credit(&mut all, waited));
        let summed = |(tid, charges): (i32, Charges)| {
            (tid, (charges.total(), charges.most().unwrap_or(Cause::Seen)))
        };
        let mut all: BTreeMap<i32, (Nanos, Cause)> = all.into_iter().map(summed).collect();
        for (waiter, time) in &self.included {
            let known = all.entry(*waiter).or_insert((Nanos::ZERO, Cause::Seen));
            known.0 = known.0.max(*time);
        }
        all
    }

    /// Whether it has lasted for the window, and filled enough of it.
    pub(super) fn is_over(&mut self, options: &Options) -> bool {
        self.from.is_some_and(|from| self.until.since(from) >= options.window)
            && self.window.share(self.until) >= options.share_of_window()
    }

    /// Whether nothing was wasted for a whole window.
    pub(super) fn is_past(&self, now: Nanos, options: &Options) -> bool {
        self.from.is_some_and(|from| now.since(from.max(self.until)) >= options.window)
    }

    /// Forgets everything, for the next one.
    pub(super) fn clear(&mut self) {
        self.window.clear();
        self.from = None;
        self.wasted = Nanos::ZERO;
        self.by_grade = [Nanos::ZERO; 2];
        self.quell = Nanos::ZERO;
        self.policies.clear();
        self.waiters.clear();
        self.charges.clear();
        self.included.clear();
        self.idle = CoreSet::EMPTY;
        self.found = None;
    }

    /// Its grade and label, given what happened meanwhile, and whether the kernel compares means of groups.
    pub(super) fn verdict(
        &self,
        kind: Kind,
        evidence: (&Evidence, bool),
        waiters: &BTreeMap<i32, (Nanos, Cause)>,
    ) -> (Option<Grade>, Label) {
        match kind {
            Kind::Wasted => {
                let grade = if self.by_grade[0] >= self.by_grade[1] { Grade::A } else { Grade::B };
                let quell = self.quell.0 > self.wasted.0 / 2;
                (Some(grade), label::of_waste(quell, evidence, self.wasted, &self.charges))
            }
            Kind::AllowedByPolicy => {
                let longest = self.policies.iter().max_by_key(|(_, time)| **time);
                let policy = longest.map_or(PolicyReason::SchedIdle, |(policy, _)| *policy);
                (Some(Grade::C), Label::Policy(policy))
            }
            Kind::Unknown if waiters.contains_key(&NOBODY_KNOWN) => (None, Label::ThreadsUnknown),
            Kind::Unknown => (None, Label::AffinityUnknown),
        }
    }
}

fn credit(waiters: &mut BTreeMap<i32, Charges>, waited: &Waited) {
    let Waited { tid, time, came } = *waited;
    let is_known = waiters.contains_key(&tid);
    if time > Nanos::ZERO && (is_known || waiters.len() < WAITERS_MAX) {
        waiters.entry(tid).or_default().add(came, time, 1);
    }
}

/// One thread's wait beside idle cores, since it last ran or was moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) from: Nanos,
    pub(super) wasted: Nanos,
}
