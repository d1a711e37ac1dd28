//! Several dumps of one host, in the order in which they were made.

use std::fmt;

use quell_model::DomainTrees;
use serde::Serialize;

use super::{Report, Verdict, compare, lint};

/// Each dump judged alone, and each against the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// The answer.
    pub verdict: Verdict,
    /// Rules L1 to L4 on each dump.
    pub dumps: Vec<Inspected>,
    /// Rule L5 on each dump but the first.
    pub changes: Vec<Inspected>,
}

/// One report, and of what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inspected {
    /// The name of the dump.
    pub name: String,
    /// What was found.
    #[serde(flatten)]
    pub report: Report,
}

impl Inspection {
    /// Judges the dumps, each with its name.
    pub fn new(dumps: &[(String, DomainTrees)]) -> Inspection {
        let named = |name: &String, report| Inspected { name: name.clone(), report };
        let alone: Vec<_> = dumps.iter().map(|(name, trees)| named(name, lint(trees))).collect();
        let pairs = dumps.windows(2);
        let changes: Vec<_> =
            pairs.map(|pair| named(&pair[1].0, compare(&pair[0].1, &pair[1].1))).collect();
        let verdicts = alone.iter().chain(&changes).map(|one| one.report.verdict());
        let verdict = verdicts.max().unwrap_or(Verdict::CouldNotTell);
        Inspection { verdict, dumps: alone, changes }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for one in &self.dumps {
            write!(f, "{separator}{}: {}", one.name, one.report)?;
            separator = "\n";
        }
        self.changes.iter().try_for_each(|one| {
            write!(f, "\n{}, against the dump before: {}", one.name, one.report)
        })
    }
}
