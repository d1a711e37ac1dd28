//! What the lint found, in words.

use std::fmt;

use quell_model::CoreSet;
use serde::Serialize;

/// A rule about the scheduling domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Rule {
    /// L1: the highest domain of a core spans its root domain.
    #[serde(rename = "L1")]
    Reach,
    /// L2: the groups of a domain cover its span.
    #[serde(rename = "L2")]
    Cover,
    /// L3: the first group of a domain is the core's own: its own next lower domain.
    #[serde(rename = "L3")]
    OwnGroup,
    /// L4: for each other core in reach there is a level at which it is in another group.
    #[serde(rename = "L4")]
    Separable,
    /// L5: after a core went off line and came back, everything is as before.
    #[serde(rename = "L5")]
    Unchanged,
}

impl Rule {
    /// The rule in one sentence.
    pub fn statement(self) -> &'static str {
        match self {
            Rule::Reach => "a core's highest domain spans all cores of its root domain",
            Rule::Cover => "the groups of a domain cover its span",
            Rule::OwnGroup => "the first group of a domain is the core's own next lower domain",
            Rule::Separable => "each core in reach is in another group than this one at some level",
            Rule::Unchanged => "domains are the same after a core went off line and came back",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", *self as u8 + 1)
    }
}

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LintFinding {
    /// Which.
    pub rule: Rule,
    /// On which cores.
    pub cores: CoreSet,
    /// What is there.
    pub seen: String,
    /// What should be there.
    pub expected: String,
    /// What comes of it.
    pub consequence: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// A rule that could not be judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Undecided {
    /// Which.
    pub rule: Rule,
    /// On which cores.
    pub cores: CoreSet,
    /// Why not.
    pub why: String,
}

/// The answer; of several the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All rules hold.
    Clean,
    /// None was seen not to hold, but not all could be judged.
    CouldNotTell,
    /// A rule does not hold.
    Violated,
}

/// What the lint found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The cores that were looked at.
    pub cores: CoreSet,
    /// Their levels from the lowest to the highest, as most cores have them.
    pub levels: Vec<String>,
    /// Rules that do not hold.
    pub findings: Vec<LintFinding>,
    /// Rules that do not hold because somebody wants it so.
    pub intended: Vec<LintFinding>,
    /// Rules that could not be judged.
    pub undecided: Vec<Undecided>,
}

impl Report {
    /// The answer.
    pub fn verdict(&self) -> Verdict {
        match () {
            () if !self.findings.is_empty() => Verdict::Violated,
            () if !self.undecided.is_empty() => Verdict::CouldNotTell,
            () => Verdict::Clean,
        }
    }

    /// Adds a finding; cores of which the same is to be said share one.
    pub(super) fn add(&mut self, finding: LintFinding) {
        merge(&mut self.findings, finding);
    }

    pub(super) fn add_intended(&mut self, finding: LintFinding) {
        merge(&mut self.intended, finding);
    }

    pub(super) fn add_undecided(&mut self, rule: Rule, cores: CoreSet, why: String) {
        let same = self.undecided.iter_mut().find(|one| one.rule == rule && one.why == why);
        match same {
            Some(same) => same.cores = same.cores.union(&cores),
            None => self.undecided.push(Undecided { rule, cores, why }),
        }
    }
}

fn merge(findings: &mut Vec<LintFinding>, finding: LintFinding) {
    let same = |one: &&mut LintFinding| {
        (one.rule, &one.seen, &one.expected) == (finding.rule, &finding.seen, &finding.expected)
    };
    match findings.iter_mut().find(same) {
        Some(same) => same.cores = same.cores.union(&finding.cores),
        None => findings.push(finding),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict() {
            Verdict::Clean => "clean",
            Verdict::Violated => "violated",
            Verdict::CouldNotTell => "could not tell",
        };
        let levels = match self.levels.is_empty() {
            true => "no level".to_owned(),
            false => format!("levels {}", self.levels.join(" < ")),
        };
        writeln!(f, "{verdict}: {} cores ({}), {levels}", self.cores.len(), self.cores)?;
        self.findings.iter().try_for_each(|finding| finding.write(f, ""))?;
        self.intended.iter().try_for_each(|finding| finding.write(f, ", on purpose"))?;
        self.undecided.iter().try_for_each(|one| {
            writeln!(f, "\n{} on cores {}: could not tell: {}", one.rule, one.cores, one.why)
        })
    }
}

impl LintFinding {
    fn write(&self, f: &mut fmt::Formatter<'_>, remark: &str) -> fmt::Result {
        writeln!(f, "\n{} on cores {}{remark}: {}", self.rule, self.cores, self.rule.statement())?;
        writeln!(f, "  seen         {}", self.seen)?;
        writeln!(f, "  expected     {}", self.expected)?;
        writeln!(f, "  consequence  {}", self.consequence)?;
        writeln!(f, "  remedy       {}", self.remedy)
    }
}
