//! The waste of one queue, from its first moment until it is repaired.

use std::collections::BTreeMap;

use quell_model::{CoreId, CoreSet, Nanos, Permille};

use super::evidence::{Evidence, Totals};
use super::standing::Standing;
use super::window::Window;
use super::{Grade, Label, Options, Policy, label};
use crate::import::NOBODY_KNOWN;

/// Waiters that an episode remembers by name.
const WAITERS_MAX: usize = 64;

/// What kind of standing an episode is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Wasted,
    Explained,
    Unknown,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Wasted, Kind::Explained, Kind::Unknown];

    pub(super) fn of(standing: &Standing) -> Kind {
        match standing {
            Standing::Wasted { .. } => Kind::Wasted,
            Standing::Explained { .. } => Kind::Explained,
            Standing::Unknown { .. } => Kind::Unknown,
        }
    }
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
    policies: BTreeMap<Policy, Nanos>,
    /// Who waited, and how long.
    pub(super) waiters: BTreeMap<i32, Nanos>,
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

    /// The queue's waiters stood like this from `from` to `to`.
    pub(super) fn add(&mut self, from: Nanos, to: Nanos, beside: &[(i32, Standing)]) {
        let time = to.since(from);
        self.window.add(from, to);
        self.wasted += time;
        self.until = to;
        let grades = beside.iter().filter_map(|(_, standing)| match standing {
            Standing::Wasted { grade, .. } => Some(*grade),
            _ => None,
        });
        if let Some(best) = grades.min() {
            self.by_grade[usize::from(best != Grade::A)] += time;
        }
        if beside
            .iter()
            .any(|(_, standing)| matches!(standing, Standing::Wasted { quell: true, .. }))
        {
            self.quell += time;
        }
        for (waiter, standing) in beside {
            if self.waiters.len() < WAITERS_MAX || self.waiters.contains_key(waiter) {
                *self.waiters.entry(*waiter).or_default() += time;
            }
            if let Standing::Explained { policy, .. } = standing {
                *self.policies.entry(*policy).or_default() += time;
            }
            self.idle = self.idle.union(&standing.cores());
        }
    }

    /// A waiter's own account says more than the queue's, which another thread's move has cut short.
    pub(super) fn include(&mut self, waiter: i32, wait: &Wait) {
        self.from = Some(self.from.map_or(wait.from, |from| from.min(wait.from)));
        self.wasted = self.wasted.max(wait.wasted);
        let known = self.waiters.entry(waiter).or_default();
        *known = wait.wasted.max(*known);
    }

    /// Whether it has lasted for the window, and filled enough of it.
    pub(super) fn is_over(&mut self, options: &Options) -> bool {
        self.from.is_some_and(|from| self.until.since(from) >= options.window)
            && self.window.share(self.until) >= share(options)
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
        self.idle = CoreSet::EMPTY;
        self.found = None;
    }

    /// Its grade and label, given what happened meanwhile.
    pub(super) fn verdict(&self, kind: Kind, evidence: &Evidence) -> (Option<Grade>, Label) {
        match kind {
            Kind::Wasted => {
                let grade = if self.by_grade[0] >= self.by_grade[1] { Grade::A } else { Grade::B };
                let quell = self.quell.0 * 2 > self.wasted.0;
                (Some(grade), label::of_waste(grade, quell, evidence, self.wasted))
            }
            Kind::Explained => {
                let longest = self.policies.iter().max_by_key(|(_, time)| **time);
                let policy = longest.map_or(Policy::SchedIdle, |(policy, _)| *policy);
                (Some(Grade::C), Label::Policy(policy))
            }
            Kind::Unknown if self.waiters.contains_key(&NOBODY_KNOWN) => {
                (None, Label::ThreadsUnknown)
            }
            Kind::Unknown => (None, Label::AffinityUnknown),
        }
    }
}

/// One thread's wait beside idle cores, since it last ran or was moved.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    window: Window,
    /// In whose queue.
    pub(super) on: CoreId,
    from: Nanos,
    until: Nanos,
    wasted: Nanos,
}

impl Wait {
    pub(super) fn new(on: CoreId, from: Nanos, options: &Options) -> Wait {
        Wait { on, window: Window::new(options.window), from, until: from, wasted: Nanos::ZERO }
    }

    pub(super) fn add(&mut self, from: Nanos, to: Nanos) {
        self.window.add(from, to);
        self.until = to;
        self.wasted += to.since(from);
    }

    pub(super) fn is_over(&mut self, options: &Options) -> bool {
        self.until.since(self.from) >= options.window
            && self.window.share(self.until) >= share(options)
    }
}

/// The share of the window that must be wasted. The strict form starts again at each interruption, so it asks
/// for all of it, but for the part that a [`Window`] may lack.
fn share(options: &Options) -> Permille {
    const FULL: Permille = Permille(950);
    if options.strict { FULL } else { options.share.min(FULL) }
}
