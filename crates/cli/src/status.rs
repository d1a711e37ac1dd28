//! `quell status`: what runs where, and why.

use std::process::ExitCode;

use anyhow::{Result, bail};
use quell_control::protocol::{
    CongestionReport, HintsStatus, MemoryStatus, Method, Reply, RuntimeStatus, SloState, SloStatus,
    Status, TaskStatus, ThreadRoleStatus,
};

use crate::client::Daemon;
use quell_terminal::table;

/// Show what runs where, and why
///
/// With --follow, prints the current state and then a line for each change, as it is decided: tasks, the owner of each
/// core with the reason, and the cores that each task may use. Ctrl-C, or the end of the daemon, ends it.
#[derive(clap::Args)]
pub struct Args {
    /// Print the whole status as JSON; with --follow, one JSON object a line (docs/reference/protocol.md, Subscriptions)
    #[arg(long, conflicts_with = "explain")]
    json: bool,
    /// Only congestion of LC tasks that the plan cannot relieve: since when, why, and what would help
    #[arg(long, conflicts_with = "explain")]
    congestion: bool,
    /// Print each decision as it is made, until Ctrl-C; times are seconds since the start, or at_ns with --json
    #[arg(long, conflicts_with_all = ["explain", "congestion"])]
    follow: bool,
    /// Explain the last decision about a core number or a task name
    #[arg(long, value_name = "CORE|TASK")]
    explain: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(subject) = args.explain {
        args.daemon.tell(Method::Explain { subject })?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.follow {
        return crate::status_follow::run(&args.daemon, args.json);
    }
    if args.congestion {
        return congestion(&args);
    }
    let Reply::Status(status) = args.daemon.call(Method::Status)? else {
        bail!("the daemon answered out of turn");
    };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&status)?),
        false => print!("{}", in_words(&status)),
    }
    Ok(ExitCode::SUCCESS)
}

fn congestion(args: &Args) -> Result<ExitCode> {
    let Reply::Congestion(report) = args.daemon.call(Method::Congestion)? else {
        bail!("the daemon answered out of turn");
    };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", congestion_in_words(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

fn congestion_in_words(report: &CongestionReport) -> String {
    if report.tasks.is_empty() {
        return format!("no LC task is congested for {} ms or longer\n", report.threshold_ms);
    }
    let header = ["TASK", "DURATION_S", "DELAY_US", "RUNNABLE", "OWNED", "CAUSE"];
    let rows: Vec<Vec<String>> = report
        .tasks
        .iter()
        .map(|task| {
            vec![
                task.task.clone(),
                format!("{:.1}", task.duration_s),
                task.queueing_delay_us.map_or("-".to_owned(), |us| format!("{us:.1}")),
                task.runnable.to_string(),
                or_dash(&task.owned),
                task.cause.label().to_owned(),
            ]
        })
        .collect();
    let mut out = table::render(&header, &rows);
    for task in &report.tasks {
        out.push_str(&format!("{}: {}; remedy: {}\n", task.task, task.explanation, task.remedy));
    }
    out
}

fn in_words(status: &Status) -> String {
    let Status { version, pid, uptime_s, policy, back_end, pattern, observer, .. } = status;
    let mut out = format!(
        "quell {version}, pid {pid}, up {uptime_s} s: policy {policy}, back end {back_end}, {pattern} scheduler, observer {observer}\n\
         managed cores {}, unmanaged {}; guardians {} of 2\n",
        status.managed, status.unmanaged, status.guardians
    );
    for line in &status.degraded {
        out.push_str(&format!("degraded: {line}\n"));
    }
    if let Some(memory) = &status.memory {
        out.push_str(&memory_in_words(memory));
    }
    out.push('\n');
    out.push_str(&tasks(status));
    out.push_str(&latencies(status));
    out.push_str(&runtimes(status));
    out.push_str(&roles(status));
    out.push('\n');
    out.push_str(&cores(status));
    let counters = &status.counters;
    let idle = counters
        .idle_while_lc_waits_us
        .map_or("not measured (no BPF)".to_owned(), |us| format!("{us:.0} us"));
    let violations = counters.violations_guarantee
        + counters.violations_lc_first
        + counters.violations_work_conservation
        + counters.violations_advice
        + counters.violations_malformed;
    out.push_str(&format!(
        "\nticks {} ({} by event), mean {:.1} us, longest {:.1} us; plans {}, host writes {}, refused {}, stale decisions {}\n\
         idle while LC waits {idle}; invariant violations {violations}; events lost {}\n",
        counters.ticks,
        counters.ticks_by_event,
        counters.tick_mean_us,
        counters.tick_max_us,
        counters.plans,
        counters.host_writes,
        counters.host_writes_refused,
        counters.stale_decisions,
        counters.events_lost,
    ));
    for task in &status.tasks {
        if let Some(cause) = task.unresolved_congestion {
            let (name, cause) = (&task.name, cause.label());
            out.push_str(&format!(
                "task {name}: congested, and the plan cannot help ({cause}): quell status --congestion\n"
            ));
        }
        if let Some(hints) = &task.hints {
            out.push_str(&hints_in_words(&task.name, hints));
        }
        for problem in &task.problems {
            out.push_str(&format!("task {}: {problem}\n", task.name));
        }
        if let Some(problem) = task.latency.as_ref().and_then(|latency| latency.problem.as_ref()) {
            out.push_str(&format!("task {}: latency: {problem}\n", task.name));
        }
    }
    out
}

fn memory_in_words(memory: &MemoryStatus) -> String {
    let rate = memory.total_mb_s.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
    let problem = memory.problem.as_ref().map_or(String::new(), |what| format!("; {what}"));
    format!(
        "memory traffic {rate} MB/s ({}), of {} cores each; read: {}{problem}\n",
        memory.provenance, memory.cores, memory.source
    )
}

fn hints_in_words(task: &str, hints: &HintsStatus) -> String {
    let HintsStatus { page, threads, serving, ignored, problem } = hints;
    let problem = problem.as_ref().map_or(String::new(), |what| format!("; {what}"));
    format!(
        "task {task}: hints in {page}: {threads} threads, {serving} requests in service, {ignored} left out{problem}\n"
    )
}

/// A table of the LC tasks whose latency is known or wanted; nothing where there is none.
fn latencies(status: &Status) -> String {
    let header =
        ["TASK", "PERCENTILE", "LATENCY_US", "LOAD/S", "AGE", "KNOWN", "FROM", "SLO_US", "SLO"];
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
    let row = |task: &TaskStatus| {
        let latency = task.latency.as_ref()?;
        if latency.age_ms.is_none() && latency.slo.is_none() && latency.problem.is_none() {
            return None;
        }
        Some(vec![
            task.name.clone(),
            format!("p{}", latency.percentile),
            latency.latency_us.map_or("-".to_owned(), |us| format!("{us:.1}")),
            number(latency.load_rps),
            latency.age_ms.map_or("-".to_owned(), |ms| format!("{:.1} s", ms / 1e3)),
            latency.provenance.clone(),
            latency.source.clone(),
            number(latency.slo.as_ref().map(|slo| slo.latency_us)),
            latency.slo.as_ref().map_or("-".to_owned(), slo_in_words),
        ])
    };
    let rows: Vec<Vec<String>> = status.tasks.iter().filter_map(row).collect();
    if rows.is_empty() { String::new() } else { format!("\n{}", table::render(&header, &rows)) }
}

/// A table of the runtimes; nothing where there is none.
fn runtimes(status: &Status) -> String {
    let header = [
        "RUNTIME",
        "KTHREADS",
        "RUN",
        "REQUESTING",
        "GRANTED",
        "QUEUED",
        "DELAY_US",
        "STEALS",
        "PARKS",
        "PREEMPTIONS",
        "GRANTS",
        "REVOKES",
        "OVERDUE",
    ];
    let row = |task: &TaskStatus| {
        let runtime: &RuntimeStatus = task.runtime.as_ref()?;
        Some(vec![
            task.name.clone(),
            runtime.kthreads.to_string(),
            runtime.running.to_string(),
            runtime.requesting_core.to_string(),
            or_dash(&runtime.granted),
            runtime.ready_uthreads.to_string(),
            format!("{:.1}", runtime.queueing_delay_us),
            runtime.steals.to_string(),
            runtime.parks.to_string(),
            runtime.preemptions.to_string(),
            runtime.grants.to_string(),
            runtime.revokes.to_string(),
            runtime.forced_revokes.to_string(),
        ])
    };
    let rows: Vec<Vec<String>> = status.tasks.iter().filter_map(row).collect();
    if rows.is_empty() { String::new() } else { format!("\n{}", table::render(&header, &rows)) }
}

/// A table of the threads below the rung of their task; nothing where there is none.
fn roles(status: &Status) -> String {
    let header = ["TASK", "THREAD", "NAME", "ROLE", "SINCE", "BURST_US", "NEEDS"];
    let row = |task: &TaskStatus, thread: &ThreadRoleStatus| {
        vec![
            task.name.clone(),
            thread.tid.to_string(),
            or_dash(&thread.name.escape_debug().to_string()),
            thread.role.clone(),
            format!("{:.1} s", thread.since_s),
            format!("{:.0}", thread.burst_us),
            if thread.configured { "configured".to_owned() } else { thread.needs.to_string() },
        ]
    };
    let of_task = |task: &TaskStatus| {
        task.roles.iter().map(|thread| row(task, thread)).collect::<Vec<Vec<String>>>()
    };
    let rows: Vec<Vec<String>> = status.tasks.iter().flat_map(of_task).collect();
    if rows.is_empty() { String::new() } else { format!("\n{}", table::render(&header, &rows)) }
}

fn slo_in_words(slo: &SloStatus) -> String {
    let state = match slo.state {
        SloState::Unknown => "unknown",
        SloState::Met => "met",
        SloState::Missed => "missed",
    };
    let share = slo
        .missed_percent
        .map_or(String::new(), |share| format!(", missed {share:.1} % of the time"));
    format!("{state} for {:.0} s{share}", slo.since_s)
}

fn tasks(status: &Status) -> String {
    let header = [
        "TASK", "CLASS", "STATE", "THREADS", "RUN", "WAIT", "DELAY_US", "OWNED", "SHARED", "RUNG",
        "REASON",
    ];
    let rows: Vec<Vec<String>> = status
        .tasks
        .iter()
        .map(|task| {
            let state = if task.frozen { "frozen".to_owned() } else { task.state.clone() };
            vec![
                task.name.clone(),
                task.class.clone(),
                state,
                task.threads.to_string(),
                task.running.to_string(),
                task.waiting.to_string(),
                task.queueing_delay_us.map_or("-".to_owned(), |us| format!("{us:.1}")),
                or_dash(&task.owned),
                or_dash(&task.shared_cores),
                task.rung.clone(),
                task.reason.clone(),
            ]
        })
        .collect();
    table::render(&header, &rows)
}

fn cores(status: &Status) -> String {
    let header = ["CORE", "MODE", "OWNER", "RUNNING", "LC_BUSY", "OUTCOME", "REASON"];
    let rows: Vec<Vec<String>> = status
        .cores
        .iter()
        .map(|core| {
            vec![
                core.core.to_string(),
                core.mode.clone(),
                or_dash(core.owner.as_deref().unwrap_or("")),
                or_dash(core.running.as_deref().unwrap_or("")),
                core.lc_busy_percent.map_or("-".to_owned(), |busy| format!("{busy:.0} %")),
                core.outcome.clone(),
                core.reason.clone(),
            ]
        })
        .collect();
    table::render(&header, &rows)
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}
