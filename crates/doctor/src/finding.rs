//! What one check found.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How well the host serves Quell in one respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As Quell wants it.
    Pass,
    /// Quell works, but less well: the consequence says how.
    Degraded,
    /// What depends on it is not available.
    Absent,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Pass => "pass",
            Status::Degraded => "degraded",
            Status::Absent => "absent",
        })
    }
}

/// What a finding is about; findings are shown in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// Real-time scheduling and what limits it.
    Scheduling,
    /// Cores: which are managed, what they share.
    Cores,
    /// What Quell sees of threads and hardware.
    Signals,
    /// Softirq and interrupt threads.
    Interrupts,
    /// Control groups.
    Cgroups,
    /// What this process may do.
    Rights,
    /// Clocks, timers, the hypervisor.
    Timing,
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Topic::Scheduling => "Scheduling",
            Topic::Cores => "Cores",
            Topic::Signals => "Signals and back ends",
            Topic::Interrupts => "Interrupts",
            Topic::Cgroups => "Control groups",
            Topic::Rights => "Rights",
            Topic::Timing => "Clocks and timing",
        })
    }
}

/// Where a fact comes from: a file or a system call, and what it said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The file or the call.
    pub source: String,
    /// What it said, in one line.
    pub value: String,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// A stable name for scripts, e.g. `rt_throttling`.
    pub id: String,
    /// What it is about.
    pub topic: Topic,
    /// A name for people.
    pub title: String,
    /// How well the host serves.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What that means for Quell.
    pub consequence: String,
    /// What to do about it; `none needed` only where the status is [`Status::Pass`].
    pub remedy: String,
    /// Where it was read.
    pub evidence: Vec<Evidence>,
}

impl Finding {
    /// Adds where a fact was read. Keeps the first line, bounded: files of the kernel can be long.
    #[must_use]
    pub(super) fn seen(mut self, source: impl Into<String>, value: impl fmt::Display) -> Finding {
        let value = value.to_string();
        let value = value.lines().next().unwrap_or_default().trim().chars().take(160).collect();
        self.evidence.push(Evidence { source: source.into(), value });
        self
    }
}

/// The fixed part of a finding; makes findings of each status.
pub(super) struct Check {
    pub id: &'static str,
    pub topic: Topic,
    pub title: &'static str,
}

impl Check {
    pub fn pass(&self, found: impl Into<String>, consequence: impl Into<String>) -> Finding {
        self.finding(Status::Pass, found.into(), consequence.into(), "none needed".into())
    }

    pub fn degraded(
        &self,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        self.finding(Status::Degraded, found.into(), consequence.into(), remedy.into())
    }

    pub fn absent(
        &self,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        self.finding(Status::Absent, found.into(), consequence.into(), remedy.into())
    }

    fn finding(
        &self,
        status: Status,
        found: String,
        consequence: String,
        remedy: String,
    ) -> Finding {
        Finding {
            id: self.id.to_owned(),
            topic: self.topic,
            title: self.title.to_owned(),
            status,
            found,
            consequence,
            remedy,
            evidence: Vec::new(),
        }
    }
}
