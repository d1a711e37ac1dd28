//! What the engine tells: the status table, explanations, the end.

use quell_control::protocol::{
    CoreStatus, LatencyStatus, ReliefCounts, Status, TaskCpuTime, TaskStatus, ThreadRoleStatus,
    WakeupLatency,
};

use quell_decisions::Recorder;
use quell_model::{Class, CoreId, Nanos, Role, Signal, TaskId, TaskView, ThreadPlan};
use quell_observe::ThreadView;
use quell_observe::bpf::{Histogram, TaskTimes};
use quell_os::clock;

use super::lanes::Link;
use super::members::Member;
use super::tally::Tally;
use super::{Engine, Pace};

impl Engine {
    /// What runs where. Name, source and processes of a task are the manager's to add.
    pub fn status(&mut self) -> Status {
        let mut counters = self.ticks.counters();
        counters.scheduler_cpu_ms = clock::thread_cpu().0 as f64 / 1e6;
        counters.idle_while_lc_waits_us =
            self.parts.sight.idle_while_lc_waits().map(|idle| idle.0 as f64 / 1e3);
        let times = self.times();
        let tallies = self.tallies();
        let task = |(id, times): &(TaskId, Option<TaskTimes>)| {
            self.task_status(*id, times.as_ref(), &tallies[id.at()])
        };
        let tasks = times.iter().map(task).collect();
        let explanation = self.parts.policy.explain();
        let host = &self.parts.host;
        Status {
            at_us: self.seen.now.as_micros(),
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
            memory: self.traffic.as_ref().map(|meter| meter.status(&self.seen)),
            cores: self.core_status(&times),
            tasks,
            counters,
            events: self.events.list(),
            decisions: self.decisions(&explanation),
            advice: self.advised(&explanation),
            ..Status::default()
        }
    }

    /// What each task's threads did since it joined.
    fn times(&self) -> Vec<(TaskId, Option<TaskTimes>)> {
        let sight = &self.parts.sight;
        let of = |(id, member): (TaskId, &Member)| (id, member.part_of(sight.task_times(id)));
        self.members.iter().map(of).collect()
    }

    fn core_status(&self, times: &[(TaskId, Option<TaskTimes>)]) -> Vec<CoreStatus> {
        let ran = |core: CoreId| {
            let of = |(id, times): &(TaskId, Option<TaskTimes>)| {
                let ran = *times.as_ref()?.ran_on.get(core.index())?;
                (ran > Nanos::ZERO)
                    .then(|| TaskCpuTime { task: self.members.name(*id), cpu_ms: ms(ran) })
            };
            times.iter().filter_map(of).collect()
        };
        let row = |(plan, seen): (&quell_model::CorePlan, &quell_model::CoreView)| CoreStatus {
            core: u32::from(plan.id.0),
            mode: plan.mode.to_string(),
            owner: plan.owner.map(|id| self.members.name(id)),
            running: seen.running.map(|id| self.members.name(id)),
            reason: plan.reason.to_string(),
            request_age_us: seen.request_start.value().map(|start| us(self.seen.now.since(start))),
            lc_busy_percent: seen.lc_busy.value().map(|busy| f64::from(busy.0) / 10.0),
            outcome: seen.outcome.to_string(),
            task_cpu: ran(plan.id),
            idle_ms: self.parts.sight.idle_time(plan.id).filter(|_| seen.managed).map(ms),
        };
        self.plan.cores.iter().zip(&self.seen.cores).map(row).collect()
    }

    fn task_status(&mut self, id: TaskId, times: Option<&TaskTimes>, tally: &Tally) -> TaskStatus {
        let wakeup_latency =
            self.parts.sight.recent_wake_to_run(id).and_then(|times| wakes(&times));
        let times = times.map_or(tally.times, |times| tally.with(times));
        let told = self.members.get_mut(id).map(|member| member.tell(times));
        let (ran, waited) = told.unwrap_or(times);
        let seen = &self.seen.tasks[id.at()];
        let member = self.members.get(id);
        let plan = self.plan.tasks.get(id.at()).filter(|plan| plan.id == id);
        let fares = self.parts.back_end.status(id);
        let seconds = |(cause, total): (_, Nanos)| (cause, total.0 as f64 / 1e9);
        TaskStatus {
            name: self.members.name(id),
            class: seen.limits.class.to_string(),
            processes: tally.processes.iter().copied().collect(),
            threads: tally.threads,
            running: seen.running,
            waiting: seen.waiting,
            queueing_delay_us: seen.queueing_delay.value().map(us),
            owned: self.plan.owned(id).to_string(),
            shared_cores: plan.map_or(String::new(), |plan| plan.shared_cores.to_string()),
            rung: plan.map_or(String::new(), |plan| plan.rung.to_string()),
            reason: plan.map_or("not planned yet".to_owned(), |plan| plan.reason.to_string()),
            frozen: fares.is_some_and(|fares| fares.frozen),
            cpu_ms: ms(ran),
            run_delay_ms: ms(waited),
            wakeup_latency,
            lc_delay_caused_us: seen.delay_caused.value().map(us),
            problems: member.map_or(Vec::new(), |member| member.problems.iter().cloned().collect()),
            unresolved_congestion: self.congestion.of(id).map(|lasting| lasting.finding.cause),
            unresolved_congestion_s: self.congestion.totals(id).map(seconds).collect(),
            hints: self.hints.status(id),
            runtime: self.runtimes.status(id),
            lane: self.lanes.of(id).map(Link::status),
            roles: self.roles_of(id),
            reliefs: member.map_or(ReliefCounts::default(), |member| member.reliefs),
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
        lines.extend(self.roles_of(id).iter().map(role_in_words));
        lines.extend(self.members.get(id).and_then(|member| reliefs_in_words(member.reliefs)));
        lines.extend(self.runtimes.why(id));
        lines.extend(self.lanes.of(id).map(Link::why));
        for veto in explanation.vetoes.iter().filter(|veto| veto.task == id) {
            lines.push(format!("declined advice to {}: {veto}", veto.offer));
        }
        lines
    }

    /// The threads of a task that are below its rung.
    fn roles_of(&self, id: TaskId) -> Vec<ThreadRoleStatus> {
        let roles = &self.plan.roles;
        if !roles.iter().any(|planned| planned.task == id) {
            return Vec::new();
        }
        let row = |view: &ThreadView| {
            let index = roles.binary_search_by_key(&view.id, |planned| planned.thread).ok()?;
            let planned = &roles[index];
            Some(ThreadRoleStatus {
                tid: view.thread.tid.0,
                name: String::new(),
                role: planned.role.to_string(),
                since_s: self.seen.now.since(planned.since).0 as f64 / 1e9,
                burst_us: us(planned.burst),
                needs: if planned.needs == ThreadPlan::ASSIGNED { 0 } else { planned.needs },
                // For a while another one, whatever is configured.
                configured: planned.needs == ThreadPlan::ASSIGNED
                    && !matches!(planned.role, Role::Boosted | Role::Fair),
            })
        };
        let threads = self.parts.sight.seen().threads().iter();
        threads.filter(|view| view.task == id).filter_map(row).collect()
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
        let shared_cores = |plan: &&quell_model::TaskPlan| plan.shared_cores.contains(core);
        let sharers: Vec<String> =
            self.plan.tasks.iter().filter(shared_cores).map(|plan| name(plan.id)).collect();
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

    /// Gives everything back.
    pub fn shut_down(&mut self) -> Vec<String> {
        let ids: Vec<TaskId> = self.members.iter().map(|(id, _)| id).collect();
        let mut lines: Vec<String> = ids.into_iter().flat_map(|id| self.leave(id)).collect();
        let report = self.parts.executor.undo_all();
        lines.push(format!("host given back: {report}"));
        if let Some(counts) = self.parts.recorder.as_ref().map(Recorder::counts) {
            lines.push(format!("recorded {} decisions, {} left out", counts.recorded, counts.lost));
        }
        if let Some(guardians) = self.parts.guardians.take() {
            let _ = guardians.dismiss();
        }
        lines
    }
}

fn role_in_words(thread: &ThreadRoleStatus) -> String {
    let ThreadRoleStatus { tid, role, since_s, burst_us, needs, .. } = thread;
    if thread.configured {
        return format!("thread {tid} is {role} since {since_s:.1} s: configured");
    }
    let until = match needs {
        0 => "until this burst ends".to_owned(),
        1 => "until one short burst".to_owned(),
        needs => format!("until {needs} short bursts in a row"),
    };
    format!(
        "thread {tid} is {role} since {since_s:.1} s: its burst had come to {burst_us:.0} us while an LC thread waited; {until}"
    )
}

fn reliefs_in_words(ReliefCounts { lock, starved }: ReliefCounts) -> Option<String> {
    (lock + starved > 0).then(|| {
        format!(
            "its threads went first for a moment {} times: {lock} times with a lock of the kernel that an LC thread \
             waited for, {starved} times starved inside the kernel while an LC thread slept there",
            lock + starved
        )
    })
}

fn ms(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

fn us(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}

fn wakes(times: &Histogram) -> Option<WakeupLatency> {
    Some(WakeupLatency {
        count: times.count(),
        p50_us: us(times.quantile(500)?),
        p99_us: us(times.quantile(990)?),
        p999_us: us(times.quantile(999)?),
    })
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
