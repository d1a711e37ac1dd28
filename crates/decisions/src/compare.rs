//! What another policy would have decided from the same Snapshots.
//!
//! It is asked at the same instants about what was seen then, which is what the recorded policy's Plans led
//! to: this shows where two policies disagree, not what would have come of it.

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use quell_model::{CoreId, Nanos, Plan, Reason, TaskReason};
use quell_policy::by_name;
use serde::Serialize;

use super::read::{Event, Reader};
use super::replay::{Difference, Options, ReplayError, Span};
use super::words::{Names, differences};

/// How long a core had another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CoreShare {
    /// The core.
    pub core: CoreId,
    /// Time in which the two policies gave it to different tasks.
    pub other_owner: Nanos,
}

/// The core time that a task owned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskShare {
    /// Its name.
    pub task: String,
    /// Cores × time under the recorded policy.
    pub recorded: Nanos,
    /// Cores × time under the other.
    pub other: Nanos,
}

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// The recorded policy.
    pub recorded: String,
    /// The other.
    pub other: String,
    /// Decisions compared.
    pub decisions: u64,
    /// Those in which an owner, a class, a cap, a rung or a right differs. Reasons do not count.
    pub differing: u64,
    /// Time between compared decisions; that across a break does not count.
    pub compared: Nanos,
    /// Of that, the time in which the Plans differed.
    pub differed: Nanos,
    /// Managed cores.
    pub cores: Vec<CoreShare>,
    /// Every task that owned a core under either.
    pub tasks: Vec<TaskShare>,
    /// The first decisions in which the difference itself changed.
    pub differences: Vec<Difference>,
    /// From the first recorded decision to the last.
    pub covers: Nanos,
}

/// Asks the policy `other` about every recorded Snapshot. It starts without memory at the recording's beginning.
///
/// # Errors
/// When no policy has this name.
pub fn compare<R: Read + Seek>(
    reader: &mut Reader<R>,
    other: &str,
    options: Options,
) -> Result<Comparison, ReplayError> {
    let meta = reader.meta().clone();
    let mut policy = by_name(other, meta.host(), meta.config)?;
    let mut tally = Tally::new(meta.managed.iter());
    let (mut plan, mut clock) = (Plan::default(), Span::default());
    let (mut told, mut kept) = (Vec::new(), Vec::new());
    while let Some(event) = reader.next() {
        if let Event::Keyframe { lost, cut, .. } = event {
            if lost > 0 || cut {
                tally.pause();
            }
            continue;
        }
        let (recorded, names) = (reader.decision(), reader.names());
        clock.note(recorded.now);
        policy.decide(recorded.now, &recorded.seen, &mut plan);
        if !options.window.contains(clock.covers()) {
            tally.pause();
            continue;
        }
        let differs = !same_effect(&recorded.plan, &plan);
        tally.note(recorded.now, [&recorded.plan, &plan], names, differs);
        if kept.len() < options.kept {
            let who = [meta.policy.as_str(), other];
            let what = match differs {
                true => {
                    differences(names, who, [&recorded.plan, &plan].map(without_times).each_ref())
                }
                false => Vec::new(),
            };
            if what != told && differs {
                let unix_ns = meta.unix_ns(recorded.now);
                kept.push(Difference { after: clock.covers(), unix_ns, what: what.clone() });
            }
            told = what;
        }
    }
    Ok(Comparison {
        recorded: meta.policy,
        other: other.to_owned(),
        decisions: tally.decisions,
        differing: tally.differing,
        compared: tally.compared,
        differed: tally.differed,
        cores: tally.cores,
        tasks: tally
            .tasks
            .into_iter()
            .map(|(task, [recorded, other])| TaskShare { task, recorded, other })
            .collect(),
        differences: kept,
        covers: clock.covers(),
    })
}

/// Whether two Plans ask for the same, whatever the reasons.
fn same_effect(a: &Plan, b: &Plan) -> bool {
    let core = |core: &quell_model::CorePlan| (core.id, core.owner, core.mode);
    let task = |task: &quell_model::TaskPlan| {
        (task.id, task.class, task.cap, task.rung, task.shared_cores)
    };
    a.cores.iter().map(core).eq(b.cores.iter().map(core))
        && a.tasks.iter().map(task).eq(b.tasks.iter().map(task))
}

/// The Plan without what changes from tick to tick while its effect stays.
fn without_times(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for core in &mut plan.cores {
        if let Reason::Congested(delay) = &mut core.reason {
            *delay = Nanos::ZERO;
        }
    }
    for task in &mut plan.tasks {
        if let TaskReason::RanAway(time) | TaskReason::DelaysLc(time) = &mut task.reason {
            *time = Nanos::ZERO;
        }
    }
    plan
}

/// Sums over time: a decision counts until the next.
struct Tally {
    decisions: u64,
    differing: u64,
    compared: Nanos,
    differed: Nanos,
    cores: Vec<CoreShare>,
    /// By name: recorded and other.
    tasks: BTreeMap<String, [Nanos; 2]>,
    /// The decision before: its time, owners under both, and whether it differed.
    last: Option<Nanos>,
    owners: Vec<[Option<String>; 2]>,
    differs: bool,
}

impl Tally {
    fn new(managed: impl Iterator<Item = CoreId>) -> Tally {
        let cores = managed.map(|core| CoreShare { core, other_owner: Nanos::ZERO }).collect();
        Tally {
            decisions: 0,
            differing: 0,
            compared: Nanos::ZERO,
            differed: Nanos::ZERO,
            cores,
            tasks: BTreeMap::new(),
            last: None,
            owners: Vec::new(),
            differs: false,
        }
    }

    /// The time up to the next decision is unknown.
    fn pause(&mut self) {
        self.last = None;
    }

    fn note(&mut self, now: Nanos, plans: [&Plan; 2], names: &Names, differs: bool) {
        self.settle(now);
        self.decisions += 1;
        self.differing += u64::from(differs);
        self.differs = differs;
        self.last = Some(now);
        self.owners.clear();
        for share in &self.cores {
            let owner = |plan: &Plan| {
                let core = plan.cores.iter().find(|core| core.id == share.core);
                core.and_then(|core| core.owner).map(|owner| names.of(owner))
            };
            self.owners.push(plans.map(owner));
        }
    }

    /// Counts the time since the decision before.
    fn settle(&mut self, now: Nanos) {
        let Some(last) = self.last else { return };
        let time = now.since(last);
        self.compared += time;
        if self.differs {
            self.differed += time;
        }
        for (share, owners) in self.cores.iter_mut().zip(&self.owners) {
            if owners[0] != owners[1] {
                share.other_owner += time;
            }
            for (at, owner) in owners.iter().enumerate() {
                if let Some(owner) = owner {
                    self.tasks.entry(owner.clone()).or_default()[at] += time;
                }
            }
        }
    }
}
