//! What the engine tells: the status table, explanations, the end.

use quell_control::protocol::{CoreStatus, LatencyStatus, Status, TaskStatus};
use std::collections::BTreeSet;
use std::path::Path;

use quell_linux::act::backend::TaskGroups;
use quell_linux::{Tid, clock};
use quell_model::{Class, CoreId, Nanos, Signal, TaskId, TaskView};

use super::{Engine, Pace};
use crate::command::GroupCall;

impl Engine {
    /// What runs where. Name, source and processes of a task are the manager's to add.
    pub fn status(&mut self) -> Status {
        let mut counters = self.ticks.counters();
        counters.scheduler_cpu_ms = quell_linux::clock::thread_cpu().0 as f64 / 1e6;
        counters.idle_while_lc_waits_us =
            self.parts.sight.idle_while_lc_waits().map(|idle| idle.0 as f64 / 1e3);
        let host = &self.parts.host;
        Status {
            policy: self.parts.policy.name().to_owned(),
            pattern: match self.settings.pace {
                Pace::Shared => "shared",
                Pace::Dedicated => "dedicated",
            }
            .to_owned(),
            managed: host.managed.to_string(),
            unmanaged: host.topology.all().difference(&host.managed).to_string(),
            guardians: self
                .parts
                .guardians
                .as_ref()
                .map_or(0, |guardians| guardians.alive() as u32),
            degraded: self.parts.degraded.clone(),
            cores: self.core_status(),
            tasks: self.members.iter().map(|(id, _)| self.task_status(id)).collect(),
            counters,
            events: self.events.list(),
            ..Status::default()
        }
    }

    fn core_status(&self) -> Vec<CoreStatus> {
        let row = |(plan, seen): (&quell_model::CorePlan, &quell_model::CoreView)| CoreStatus {
            core: u32::from(plan.id.0),
            mode: plan.mode.to_string(),
            owner: plan.owner.map(|id| self.members.name(id)),
            running: seen.running.map(|id| self.members.name(id)),
            reason: plan.reason.to_string(),
            lc_busy_percent: seen.lc_busy.value().map(|busy| f64::from(busy.0) / 10.0),
            outcome: seen.outcome.to_string(),
        };
        self.plan.cores.iter().zip(&self.seen.cores).map(row).collect()
    }

    fn task_status(&self, id: TaskId) -> TaskStatus {
        let seen = &self.seen.tasks[id.at()];
        let member = self.members.get(id);
        let plan = self.plan.tasks.get(id.at()).filter(|plan| plan.id == id);
        let fares = self.parts.back_end.status(id);
        let (mut threads, mut ran, mut waited) = (0, Nanos::ZERO, Nanos::ZERO);
        let mut processes = BTreeSet::new();
        for view in self.parts.sight.seen().threads().iter().filter(|view| view.task == id) {
            threads += 1;
            processes.insert(view.thread.tgid.0);
            ran += view.ran;
            waited += view.waited;
        }
        TaskStatus {
            name: self.members.name(id),
            class: seen.limits.class.to_string(),
            processes: processes.into_iter().collect(),
            threads,
            running: seen.running,
            waiting: seen.waiting,
            queueing_delay_us: seen.queueing_delay.value().map(|delay| delay.0 as f64 / 1e3),
            owned: self.plan.owned(id).to_string(),
            beneath: plan.map_or(String::new(), |plan| plan.beneath.to_string()),
            rung: plan.map_or(String::new(), |plan| plan.rung.to_string()),
            reason: plan.map_or("not planned yet".to_owned(), |plan| plan.reason.to_string()),
            frozen: fares.is_some_and(|fares| fares.frozen),
            ran_ms: ran.0 as f64 / 1e6,
            waited_ms: waited.0 as f64 / 1e6,
            problems: member.map_or(Vec::new(), |member| member.problems.iter().cloned().collect()),
            latency: (seen.limits.class == Class::LatencyCritical).then(|| latency_status(seen)),
            ..TaskStatus::default()
        }
    }

    /// Explains the last decision about a core number or a task's name.
    pub fn why(&self, subject: &str) -> Result<Vec<String>, String> {
        let subject = subject.trim();
        if let Some((id, _)) = self.members.iter().find(|(_, member)| member.name == subject) {
            return Ok(self.why_task(id));
        }
        match subject.parse().map(CoreId) {
            Ok(core) if self.parts.host.topology.position(core).is_some() => {
                Ok(self.why_core(core))
            }
            _ => Err(format!("`{subject}` is neither a task's name nor a core of this host")),
        }
    }

    fn why_task(&self, id: TaskId) -> Vec<String> {
        let explanation = self.parts.policy.explain();
        let name = self.members.name(id);
        let Some(why) = explanation.tasks.iter().find(|why| why.id == id) else {
            return vec![format!("{name} has not been decided on yet")];
        };
        let class = match why.class {
            Class::LatencyCritical => "LC",
            Class::BestEffort => "BE",
        };
        let delay = match why.queueing_delay {
            Signal::Measured(delay) => format!(", the oldest wait {delay} (measured)"),
            Signal::Estimated { value, .. } => format!(", the oldest wait {value} (estimated)"),
            Signal::Absent(_) => String::new(),
        };
        let congested = if why.congested { "; that is congestion" } else { "" };
        let mut lines = vec![
            format!("{name} is treated as {class} on rung {}: {}", why.rung, why.reason),
            format!(
                "seen: {} threads runnable, {} of them waiting{delay}{congested}",
                why.runnable, why.waiting
            ),
            format!(
                "got: owns {}, of at most {}; {} reserved for its guarantee",
                or_none(&why.owned),
                why.cap,
                or_none(&why.reserved)
            ),
        ];
        if !why.banned.is_empty() {
            lines.push(format!("advice kept it off {}", why.banned));
        }
        for veto in explanation.vetoes.iter().filter(|veto| veto.task == id) {
            let by = veto.by.map_or("this host cannot carry it out".to_owned(), |by| {
                format!("it would break the invariant {by:?}")
            });
            lines.push(format!("declined advice {:?}: {by}", veto.offer));
        }
        lines
    }

    fn why_core(&self, core: CoreId) -> Vec<String> {
        let explanation = self.parts.policy.explain();
        let Some(why) = explanation.cores.iter().find(|why| why.id == core) else {
            return vec![format!("core {core} is not managed or offline")];
        };
        let name = |id: TaskId| self.members.name(id);
        let owner = why.owner.map_or("nobody".to_owned(), name);
        let mut lines = vec![format!(
            "core {core} is {owner}'s since {} ago: {}",
            explanation.at.since(why.since),
            why.reason
        )];
        if let Some(reserved) = why.reserved {
            lines.push(format!("it is reserved for the guarantee of {}", name(reserved)));
        }
        let beneath = |plan: &&quell_model::TaskPlan| plan.beneath.contains(core);
        let sharers: Vec<String> =
            self.plan.tasks.iter().filter(beneath).map(|plan| name(plan.id)).collect();
        if !sharers.is_empty() {
            lines.push(format!("beneath the owner may run: {}", sharers.join(", ")));
        }
        for change in explanation.changes.iter().filter(|change| change.core == core) {
            lines.push(format!(
                "{} ago: from {} to {}: {}",
                explanation.at.since(change.at),
                change.from.map_or("nobody".to_owned(), name),
                change.to.map_or("nobody".to_owned(), name),
                change.reason
            ));
        }
        lines
    }

    /// Makes the groups of a launched task, or finds those of an adopted one.
    pub fn groups(&mut self, call: GroupCall) -> Result<TaskGroups, String> {
        let (groups, exec) = (&self.parts.groups, &mut self.parts.executor);
        match call {
            GroupCall::Make { name, pid } => {
                let made = groups
                    .make(&name, self.parts.group_use, exec)
                    .map_err(|err| err.to_string())?;
                groups.admit(&made, Tid(pid), exec).map_err(|err| err.to_string())?;
                Ok(made)
            }
            GroupCall::Find { pid } => {
                let freezer =
                    groups.freezer_of(Path::new("/"), Tid(pid)).map_err(|err| err.to_string())?;
                Ok(TaskGroups { freezer, ..TaskGroups::default() })
            }
        }
    }

    /// Removes the groups of a launched task.
    pub fn ungroup(&mut self, groups: &TaskGroups) {
        let report = self.parts.groups.remove(groups, &mut self.parts.executor);
        if !report.is_complete() {
            self.events.tell(format!("a group stays: {report}"));
        }
    }

    /// Gives everything back.
    pub fn shut_down(&mut self) -> Vec<String> {
        let ids: Vec<TaskId> = self.members.iter().map(|(id, _)| id).collect();
        let mut lines: Vec<String> = ids.into_iter().flat_map(|id| self.leave(id)).collect();
        let report = self.parts.executor.undo_all();
        lines.push(format!("host given back: {report}"));
        if let Some(guardians) = self.parts.guardians.take() {
            let _ = guardians.dismiss();
        }
        lines
    }
}

/// Percentile, source and bound are the manager's to add.
fn latency_status(seen: &TaskView) -> LatencyStatus {
    LatencyStatus {
        latency_us: seen.latency.value().map(|latency| latency.0 as f64 / 1e3),
        load_rps: seen.load.value().map(|load| load.0 as f64),
        provenance: match seen.latency {
            Signal::Measured(_) => "measured".to_owned(),
            Signal::Estimated { how, .. } => format!("estimated: {how}"),
            Signal::Absent(why) => format!("absent: {why}"),
        },
        age_ms: seen.reported.map(|reported| clock::now().since(reported.at).0 as f64 / 1e6),
        ..LatencyStatus::default()
    }
}

fn or_none(cores: &quell_model::CoreSet) -> String {
    if cores.is_empty() { "no core".to_owned() } else { format!("core {cores}") }
}
