//! Several dumps of one host, in the order in which they were made.

use std::collections::HashMap;
use std::fmt;

use quell_model::DomainTrees;
use serde::Serialize;

use super::{Report, Verdict, compare, lint};

/// The domains of a host at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Dump {
    /// The file, of a trace with the time.
    pub name: String,
    /// What it holds.
    pub trees: DomainTrees,
    /// It is of a trace, which has one after each rebuild: cores that it lacks are offline.
    pub is_traced: bool,
}

/// Each dump judged alone, and against an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// The answer.
    pub verdict: Verdict,
    /// Rules L1 to L4 on each dump.
    pub dumps: Vec<Inspected>,
    /// Rule L5 on each dump but the first. In a trace the domains while cores were offline are not compared, and those after that
    /// with the last ones of the same cores.
    pub changes: Vec<Inspected>,
}

/// One report, and of what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inspected {
    /// The name of the dump.
    pub name: String,
    /// The name of the dump with which it was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// What was found.
    #[serde(flatten)]
    pub report: Report,
}

impl Inspection {
    /// Judges the dumps.
    pub fn new(dumps: &[Dump]) -> Inspection {
        let alone = dumps.iter().map(|dump| Inspected {
            name: dump.name.clone(),
            against: None,
            report: lint(&dump.trees),
        });
        let alone: Vec<_> = alone.collect();
        // By their cores: the last dump of these.
        let mut last = HashMap::new();
        let changes = dumps.iter().enumerate().filter_map(|(at, dump)| {
            let alike = last.insert(dump.trees.all(), dump);
            changed(dump, alike, dumps[..at].last())
        });
        let changes: Vec<_> = changes.collect();
        let verdicts = alone.iter().chain(&changes).map(|one| one.report.verdict());
        let verdict = verdicts.max().unwrap_or(Verdict::CouldNotTell);
        Inspection { verdict, dumps: alone, changes }
    }
}

/// A dump against the last one of the same cores; against the one before where there is none, unless a trace says that the others
/// are offline.
fn changed(dump: &Dump, alike: Option<&Dump>, before: Option<&Dump>) -> Option<Inspected> {
    let before = alike.or_else(|| before.filter(|_| !dump.is_traced))?;
    Some(Inspected {
        name: dump.name.clone(),
        against: Some(before.name.clone()),
        report: compare(&before.trees, &dump.trees),
    })
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for one in &self.dumps {
            write!(f, "{separator}{}: {}", one.name, one.report)?;
            separator = "\n";
        }
        self.changes.iter().try_for_each(|one| {
            let against = one.against.as_deref().unwrap_or("the dump before");
            write!(f, "\n{}, against {against}: {}", one.name, one.report)
        })
    }
}
