//! `quell sim`: a scenario as rows, table and JSON; sweeps over parameters and seeds.
//!
//! What a simulation prints depends on the scenario and the seed alone, so its JSON has the rows of a benchmark
//! but neither machine nor commit: the same seed gives the same bytes everywhere.

pub mod hunt;
mod lines;
pub mod oracle;
pub mod overlay;
pub mod parallel;
mod recorded;
pub mod source;
pub mod sweep;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context as _, Result};
use quell_model::{Class, Event, MoveCause, Nanos};
use quell_policy::Policy;
use quell_sim::file::Simulation;
use quell_sim::{Kernel, Report, Scenario};
use quell_trace::check::{self, Checker, Options, Verdict};
use quell_trace::perfetto::Writer;
use quell_trace::stream::Sink as _;
use serde::Serialize;

use quell_report::Row;
use quell_report::table::{Table, number};

/// The case of rows that are about the whole host.
const HOST: &str = "host";

/// What one simulation came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimResult {
    /// `sim`.
    pub bench: &'static str,
    /// The scenario's name.
    pub scenario: String,
    /// The policy's name.
    pub policy: String,
    /// The seed of all chance.
    pub seed: u64,
    /// A fingerprint of every Plan and of all results, in hexadecimal.
    pub digest: String,
    /// One case a task, and one for the host.
    pub rows: Vec<Row>,
    /// Breaches of the invariants and faults of the simulator, the first ones. Rivals break invariants by design.
    pub findings: Vec<String>,
    /// What the policy runs without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What the checker of `quell check` says, where it was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<Checked>,
}

/// The answer of the checker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The answer.
    pub verdict: Verdict,
    /// Why it is not another.
    pub verdict_reason: String,
    /// How often threads waited beside idle cores because the plan wants it so, by why.
    pub allowed_by_policy: BTreeMap<String, u64>,
}

impl From<&check::Report> for Checked {
    fn from(report: &check::Report) -> Checked {
        let mut allowed_by_policy = BTreeMap::new();
        for found in &report.allowed_by_policy {
            let plan = found.waiters.first().and_then(|waiter| waiter.plan.clone());
            let why = plan.unwrap_or_else(|| found.label.to_string());
            *allowed_by_policy.entry(why).or_default() += 1;
        }
        Checked {
            verdict: report.verdict,
            verdict_reason: report.verdict_reason.clone(),
            allowed_by_policy,
        }
    }
}

/// What a fault of the simulator begins with.
const FAULT: &str = "fault of the simulator";
/// Findings that are kept.
const FINDINGS: usize = 5;

/// Runs a simulation, and writes what the scheduler did to `trace` as a Perfetto file if one is named.
///
/// # Errors
/// When the trace cannot be written.
pub fn run(scenario: &Scenario, policy: &mut dyn Policy, trace: Option<&Path>) -> Result<Report> {
    match trace {
        Some(path) => written(scenario, policy, path, &mut |_| {}),
        None => Ok(quell_sim::run(scenario, policy)),
    }
}

/// As [`run`], with the checker of `quell check` on everything that the scheduler does.
///
/// # Errors
/// As [`run`].
pub fn run_checked(
    scenario: &Scenario,
    policy: &mut dyn Policy,
    trace: Option<&Path>,
) -> Result<(Report, check::Report)> {
    let mut checker = Checker::new(&scenario.meta(policy.name()), Options::default());
    let report = match trace {
        Some(path) => written(scenario, policy, path, &mut |event| checker.event(event))?,
        None => {
            let mut sink = |event: Event| checker.event(&event);
            quell_sim::run_traced(scenario, policy, &mut sink)
        }
    };
    Ok((report, checker.finish(scenario.length)))
}

/// Writes the trace, and lets somebody else hear its events.
fn written(
    scenario: &Scenario,
    policy: &mut dyn Policy,
    path: &Path,
    hears: &mut dyn FnMut(&Event),
) -> Result<Report> {
    let file = File::create(path).with_context(|| format!("write {}", path.display()))?;
    let mut writer = Writer::new(BufWriter::new(file));
    let mut written = writer.meta(&scenario.meta(policy.name()));
    let mut sink = |event: Event| {
        hears(&event);
        if written.is_ok() {
            written = writer.event(&event);
        }
    };
    let report = quell_sim::run_traced(scenario, policy, &mut sink);
    let done = written.and_then(|()| writer.finish());
    done.with_context(|| format!("write {}", path.display()))?;
    Ok(report)
}

/// The policy that a scenario file asks for.
///
/// # Errors
/// When there is none of this name, or its host lacks what it needs.
pub fn policy(simulation: &Simulation) -> Result<Box<dyn Policy>> {
    Ok(simulation.driver()?)
}

/// What a policy runs without in a scenario: what the host lacks, and latencies that it reads and nobody reports.
pub fn notes(scenario: &Scenario, policy: &dyn Policy) -> Vec<String> {
    let name = policy.name();
    let mut notes: Vec<String> =
        policy.missing().iter().map(|part| format!("{name} {part}")).collect();
    if !policy.reads().latency {
        return notes;
    }
    if scenario.feed == Nanos::ZERO {
        notes.push(format!(
            "{name} runs blind: no service reports its latency; set `report_interval_ms`"
        ));
    }
    let services = scenario.tasks.iter().filter(|task| task.limits.class == Class::LatencyCritical);
    let aimless = services.filter(|task| task.limits.latency_target == Nanos::ZERO);
    notes.extend(aimless.map(|task| {
        format!("{name} leaves `{}` what it has at first: set its `latency_target_us`", task.name)
    }));
    notes
}

impl SimResult {
    /// Puts a report into rows.
    pub fn new(scenario: &Scenario, policy: &str, report: &Report) -> SimResult {
        let mut rows = Vec::new();
        let mut push = |case: &str, metric: &str, value: f64| {
            rows.push(row(case, policy, metric, value));
        };
        let seconds = seconds(scenario.length);
        for (task, result) in scenario.tasks.iter().zip(&report.tasks) {
            let mut push = |metric, value| push(&task.name, metric, value);
            push("cores", result.ran.0 as f64 / 1e9 / seconds);
            if task.limits.class == Class::LatencyCritical || result.arrived > 0 {
                push("offered_rps", result.arrived as f64 / seconds);
                push("served_rps", result.answered as f64 / seconds);
                for (metric, share) in LATENCIES {
                    push(metric, us(result.latency.quantile(share)));
                }
                push("max_us", us(result.latency.max()));
            } else {
                let counted = scenario.length - scenario.warm_up;
                push("work_cores", result.work.0 as f64 / counted.0.max(1) as f64);
            }
            if let Some(completed) = result.completed {
                push("completed_s", completed.0 as f64 / 1e9);
            }
        }
        push(HOST, "memory_mb_s", report.memory_bytes.0 as f64 / 1e6 / seconds);
        push(HOST, "decisions", report.ticks as f64);
        push(HOST, "core_moves", report.owner_changes as f64);
        push(HOST, "longest_inversion_us", us(report.longest_inversion));
        push(HOST, "violations", report.violated as f64);
        if let Kernel::Linux(_) = scenario.kernel {
            push(HOST, "wasted_core_s", report.waste.cores.0 as f64 / 1e9);
            for (cause, metric) in MIGRATIONS {
                push(HOST, metric, report.migrations.get(&cause).copied().unwrap_or(0) as f64);
            }
        }
        rows.extend(recorded::rows(scenario));
        let violations = report.violations.iter().map(|(at, what)| format!("at {at}: {what}"));
        let broken = report.broken.iter().map(|what| format!("{FAULT}: {what}"));
        SimResult {
            bench: "sim",
            scenario: scenario.name.clone(),
            policy: policy.to_owned(),
            seed: scenario.seed,
            digest: format!("{:016x}", report.digest),
            rows,
            findings: broken.chain(violations).take(FINDINGS).collect(),
            notes: report.deadlocks.iter().map(ToString::to_string).collect(),
            check: None,
        }
    }

    /// Whether something came out that must not: a broken promise of the policy, or a fault of the simulator.
    pub fn is_sound(&self) -> bool {
        let promises = quell_sim::fuzz::PROMISE.contains(&self.policy.as_str());
        let wastes = self.check.as_ref().is_some_and(|it| it.verdict == Verdict::Violated);
        let broke = self.findings.iter().any(|finding| promises || finding.starts_with(FAULT));
        !(broke || promises && wastes)
    }

    /// The value of a metric of a task or of the host.
    pub fn value(&self, case: &str, metric: &str) -> Option<f64> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.case == case && row.metric == metric).map(|row| row.median)
    }

    /// The tables for a terminal.
    pub fn text(&self, scenario: &Scenario) -> String {
        let mut lc = Table::new([
            "LC task",
            "offered/s",
            "served/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us",
            "cores",
        ]);
        let mut be = Table::new(["BE task", "cores", "work, cores", "ended, s"]);
        for task in &scenario.tasks {
            let cell = |metric: &str| self.value(&task.name, metric).map_or("-".to_owned(), number);
            let name = task.name.clone();
            match self.value(&task.name, "work_cores") {
                None => lc.row(
                    [name].into_iter().chain(
                        [
                            "offered_rps",
                            "served_rps",
                            "p50_us",
                            "p99_us",
                            "p999_us",
                            "max_us",
                            "cores",
                        ]
                        .map(cell),
                    ),
                ),
                Some(_) => be.row([name, cell("cores"), cell("work_cores"), cell("completed_s")]),
            }
        }
        let cell = |metric: &str| self.value(HOST, metric).map_or("-".to_owned(), number);
        let mut text = format!(
            "{}, policy {}, seed {}: {} of {} cores, {} s\n\n",
            self.scenario,
            self.policy,
            self.seed,
            scenario.host.managed.len(),
            scenario.host.topology.len(),
            seconds(scenario.length),
        );
        for table in [lc, be].iter().filter(|table| !table.is_empty()) {
            text += &format!("{}\n", table.text());
        }
        text += &format!(
            "{} decisions moved {} cores; memory {} MB/s; an LC thread waited at most {} us beside a core that it could have had\n",
            cell("decisions"),
            cell("core_moves"),
            cell("memory_mb_s"),
            cell("longest_inversion_us"),
        );
        if let Some(wasted) = self.value(HOST, "wasted_core_s") {
            let moved = MIGRATIONS.iter().filter_map(|(_, metric)| {
                let count = self.value(HOST, metric).filter(|count| *count > 0.0)?;
                Some(format!("{} {}", number(count), metric.trim_start_matches("migrations_")))
            });
            let moved: Vec<String> = moved.collect();
            let moved = if moved.is_empty() { "none".to_owned() } else { moved.join(", ") };
            text += &format!(
                "{} core seconds idled beside threads that waited; migrations: {moved}\n",
                number(wasted)
            );
        }
        text += &recorded::text(scenario);
        if let Some(count) = self.value(HOST, "violations").filter(|count| *count > 0.0) {
            text += &format!("{} times an invariant was broken, first:\n", number(count));
        }
        for finding in &self.findings {
            text += &format!("  {finding}\n");
        }
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        if let Some(Checked { verdict, verdict_reason, allowed_by_policy }) = &self.check {
            text += &format!("check: {verdict}: {verdict_reason}\n");
            for (why, count) in allowed_by_policy {
                text += &format!("  waited beside idle cores, {count} times, as planned: {why}\n");
            }
        }
        text + &format!("digest {}\n", self.digest)
    }

    /// As JSON with one row a line.
    ///
    /// # Errors
    /// When a value cannot be shown as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        quell_report::lines(&serde_json::to_value(self)?)
    }
}

/// A row of one value.
fn row(case: &str, system: &str, metric: &str, value: f64) -> Row {
    let value = quell_report::stats::rounded(value);
    Row {
        case: case.to_owned(),
        system: system.to_owned(),
        metric: metric.to_owned(),
        median: value,
        low: value,
        high: value,
        raw: vec![value],
    }
}

/// Migrations of the kernel by cause, and the metrics that count them.
const MIGRATIONS: [(MoveCause, &str); 11] = [
    (MoveCause::Wakeup, "migrations_wakeup"),
    (MoveCause::Fork, "migrations_fork"),
    (MoveCause::Exec, "migrations_exec"),
    (MoveCause::NewIdle, "migrations_new_idle"),
    (MoveCause::Periodic, "migrations_periodic"),
    (MoveCause::Active, "migrations_active"),
    (MoveCause::Affinity, "migrations_affinity"),
    (MoveCause::Realtime, "migrations_realtime"),
    (MoveCause::Hotplug, "migrations_hotplug"),
    (MoveCause::Numa, "migrations_numa"),
    (MoveCause::Unknown, "migrations_unknown"),
];

const LATENCIES: [(&str, f64); 3] = [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)];

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

fn us(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}
