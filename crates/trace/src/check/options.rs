//! What the checker is asked to find.

use std::collections::BTreeSet;

use quell_model::{Nanos, Permille};

/// What counts as a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// M: what is repaired within it is no violation.
    pub window: Nanos,
    /// How much of the window must be wasted.
    pub share: Permille,
    /// The paper's form: waste begins anew at each interruption, however short.
    pub strict: bool,
    /// The checker's own threads: discounted.
    pub own: BTreeSet<i32>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            window: Nanos::from_millis(100),
            share: Permille(800),
            strict: false,
            own: BTreeSet::new(),
        }
    }
}

impl Options {
    /// The share of the window that must be wasted. The strict form starts again at each interruption, so it asks
    /// for all of it, but for the part that a sliding window may lack.
    pub(super) fn share_of_window(&self) -> Permille {
        const FULL: Permille = Permille(950);
        if self.strict { FULL } else { self.share.min(FULL) }
    }
}
