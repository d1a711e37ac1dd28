//! The explanation of the selected row: the daemon's words, then what its row has no room for.

use quell_control::protocol::{CoreStatus, TaskStatus};

use crate::state::State;
use crate::table::Subject;
use crate::text;

/// The lines, unwrapped, each fit for a terminal.
pub fn lines(state: &State) -> Vec<String> {
    let Some(subject) = state.subject() else {
        return vec!["Select a task, a core, a decision or advice to see why.".to_owned()];
    };
    let mut lines = match &state.why {
        Some(why) if why.subject == subject => match &why.said {
            Ok(said) => said.clone(),
            Err(refused) => vec![format!("no explanation: {refused}")],
        },
        _ => vec!["asking the daemon ...".to_owned()],
    };
    let status = state.sample.iter().map(|sample| &sample.status);
    match subject {
        Subject::Task(name) => {
            let mut tasks = status.flat_map(|status| &status.tasks);
            let task = tasks.find(|task| task.name == name);
            lines.extend(task.into_iter().flat_map(of_task));
        }
        Subject::Core(number) => {
            let mut cores = status.flat_map(|status| &status.cores);
            let core = cores.find(|core| core.core == number);
            lines.extend(core.into_iter().flat_map(of_core));
        }
    }
    lines.iter().map(|line| text::clean(line)).collect()
}

fn of_task(task: &TaskStatus) -> Vec<String> {
    let processes: Vec<String> = task.processes.iter().take(8).map(ToString::to_string).collect();
    let more = if task.processes.len() > 8 { " and more" } else { "" };
    let mut lines = vec![format!(
        "{}; {}; processes {}{more}; ran {} and waited {} since it is watched",
        task.source,
        task.state,
        processes.join(" "),
        text::time(task.cpu_ms * 1e3),
        text::time(task.run_delay_ms * 1e3),
    )];
    lines.extend(task.wakeup_latency.as_ref().map(|wakes| {
        format!(
            "wakeup latency in the last second: {} wake-ups, p50 {}, p99 {}, p99.9 {}",
            wakes.count,
            text::time(wakes.p50_us),
            text::time(wakes.p99_us),
            text::time(wakes.p999_us),
        )
    }));
    lines.extend(task.lc_delay_caused_us.map(|delay| {
        format!("LC threads whose core it had were late by up to {} (p99.9)", text::time(delay))
    }));
    lines.extend(task.problems.iter().map(|problem| format!("problem: {problem}")));
    lines
}

fn of_core(core: &CoreStatus) -> Vec<String> {
    let ran =
        core.task_cpu.iter().map(|ran| format!("{} {}", ran.task, text::time(ran.cpu_ms * 1e3)));
    let ran: Vec<String> = ran.collect();
    let mut lines = vec![format!("last plan: {}", core.outcome)];
    if !ran.is_empty() {
        lines.push(format!("ran here since each task is watched: {}", ran.join(", ")));
    }
    lines
}
