//! What each list pane shows: a table made from a sample.

use quell_control::protocol::{Advised, CoreStatus, Decision, Status, TaskStatus};

use crate::sample::{CoreShares, Sample, TaskRates};
use crate::table::{Cell, Column, Row, Sorting, Subject, Table};
use crate::text;

/// A list pane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    /// Tasks, how they fare and what they may use.
    Tasks,
    /// Cores, whose they are and who ran there.
    Cores,
    /// Cores that changed hands.
    Decisions,
    /// Advice, followed and declined.
    Advice,
    /// What the daemon told, and what the host lacks.
    Events,
    /// Runtimes, what they publish and what they were granted.
    Runtimes,
    /// Threads of LC tasks that are below the rung of their task.
    Threads,
}

/// All of them, in the order of their keys.
pub const PANES: [Pane; 7] = [
    Pane::Tasks,
    Pane::Cores,
    Pane::Decisions,
    Pane::Advice,
    Pane::Events,
    Pane::Runtimes,
    Pane::Threads,
];

const TASKS: &[Column] = &[
    Column::text("TASK", 0),
    Column::text("CLASS", 1),
    Column::text("STATE", 12),
    Column::number("THR", 13),
    Column::number("RUN", 8),
    Column::number("WAIT", 7),
    Column::number("CPU%", 2),
    Column::number("WAIT%", 3),
    Column::number("DELAY", 5),
    Column::number("P50", 14),
    Column::number("P99", 15),
    Column::number("P99.9", 4),
    Column::number("CAUSED", 16),
    Column::text("OWNED", 6),
    Column::text("SHARED", 9),
    Column::text("RUNG", 10),
    Column::number("PROBLEMS", 17),
    Column::text("REASON", 11),
];

const CORES: &[Column] = &[
    Column::number("CORE", 0),
    Column::text("MODE", 6),
    Column::text("OWNER", 1),
    Column::text("NOW", 2),
    Column::number("LC%", 4),
    Column::text("OUTCOME", 7),
    Column::long_text("WHO RAN HERE", 3),
    Column::text("REASON", 5),
];

const RUNTIMES: &[Column] = &[
    Column::text("RUNTIME", 0),
    Column::number("KTHREADS", 8),
    Column::number("RUN", 5),
    Column::number("PARKED", 9),
    Column::number("REQUESTING", 3),
    Column::text("GRANTED", 2),
    Column::number("QUEUED", 4),
    Column::number("DELAY", 1),
    Column::number("LOAD", 6),
    Column::number("STEALS", 10),
    Column::number("PARKS", 11),
    Column::number("PREEMPTIONS", 12),
    Column::number("GRANTS", 13),
    Column::number("REVOKES", 14),
    Column::number("OVERDUE", 7),
];

const THREADS: &[Column] = &[
    Column::text("TASK", 0),
    Column::text("THREAD", 1),
    Column::text("NAME", 3),
    Column::text("ROLE", 2),
    Column::number("SINCE", 4),
    Column::number("BURST", 5),
    Column::number("NEEDS", 6),
];

const DECISIONS: &[Column] = &[
    Column::number("AGO", 0),
    Column::number("CORE", 1),
    Column::text("FROM", 2),
    Column::text("TO", 3),
    Column::text("REASON", 4),
];

const ADVICE: &[Column] =
    &[Column::text("TASK", 0), Column::text("RESULT", 1), Column::text("ADVICE", 2)];

const EVENTS: &[Column] = &[Column::number("#", 0), Column::text("WHAT", 1)];

impl Pane {
    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Pane::Tasks => "Tasks",
            Pane::Cores => "Cores",
            Pane::Decisions => "Decisions",
            Pane::Advice => "Advice",
            Pane::Events => "Events",
            Pane::Runtimes => "Runtimes",
            Pane::Threads => "Demoted threads",
        }
    }

    /// Its columns.
    pub fn columns(self) -> &'static [Column] {
        match self {
            Pane::Tasks => TASKS,
            Pane::Cores => CORES,
            Pane::Decisions => DECISIONS,
            Pane::Advice => ADVICE,
            Pane::Events => EVENTS,
            Pane::Runtimes => RUNTIMES,
            Pane::Threads => THREADS,
        }
    }

    /// How it is sorted at first: decisions and events with the newest on top.
    pub fn sorting(self) -> Sorting {
        Sorting { column: 0, descending: self == Pane::Events }
    }

    /// Its rows.
    pub fn table(self, sample: &Sample) -> Table {
        let status = &sample.status;
        let rows = match self {
            Pane::Tasks => status
                .tasks
                .iter()
                .zip(&sample.tasks)
                .map(|(task, rates)| of_task(task, rates))
                .collect(),
            Pane::Cores => status
                .cores
                .iter()
                .zip(&sample.cores)
                .map(|(core, ran)| of_core(core, ran))
                .collect(),
            Pane::Decisions => decisions(status),
            Pane::Advice => advice(status),
            Pane::Events => events(status),
            Pane::Runtimes => status.tasks.iter().filter_map(of_runtime).collect(),
            Pane::Threads => status.tasks.iter().flat_map(of_threads).collect(),
        };
        Table { columns: self.columns(), rows }
    }
}

fn of_task(task: &TaskStatus, rates: &TaskRates) -> Row {
    let wakes = task.wakeup_latency.as_ref();
    let state = if task.frozen { "frozen" } else { &task.state };
    Row {
        id: task.name.clone(),
        cells: vec![
            Cell::text(&task.name),
            Cell::text(&task.class),
            Cell::text(state),
            Cell::count(task.threads),
            Cell::count(task.running),
            Cell::count(task.waiting),
            Cell::number(rates.cpu_percent, text::percent),
            Cell::number(rates.wait_percent, text::percent),
            Cell::number(task.queueing_delay_us, text::time),
            Cell::number(wakes.map(|wakes| wakes.p50_us), text::time),
            Cell::number(wakes.map(|wakes| wakes.p99_us), text::time),
            Cell::number(wakes.map(|wakes| wakes.p999_us), text::time),
            Cell::number(task.lc_delay_caused_us, text::time),
            Cell::text(&task.owned),
            Cell::text(&task.shared_cores),
            Cell::text(&task.rung),
            Cell::count(task.problems.len() as u64),
            Cell::text(&task.reason),
        ],
        subject: Some(Subject::Task(task.name.clone())),
        alarming: !task.problems.is_empty() || task.frozen,
    }
}

fn of_runtime(task: &TaskStatus) -> Option<Row> {
    let runtime = task.runtime.as_ref()?;
    Some(Row {
        id: task.name.clone(),
        cells: vec![
            Cell::text(&task.name),
            Cell::count(runtime.kthreads),
            Cell::count(runtime.running),
            Cell::count(runtime.parked),
            Cell::count(runtime.requesting_core),
            Cell::text(&runtime.granted),
            Cell::count(runtime.ready_uthreads),
            Cell::number(Some(runtime.queueing_delay_us), text::time),
            Cell::number(Some(runtime.cores_used), text::short),
            Cell::count(runtime.steals),
            Cell::count(runtime.parks),
            Cell::count(runtime.preemptions),
            Cell::count(runtime.grants),
            Cell::count(runtime.revokes),
            Cell::count(runtime.forced_revokes),
        ],
        subject: Some(Subject::Task(task.name.clone())),
        alarming: runtime.forced_revokes > 0 || runtime.rejected_claims > 0,
    })
}

fn of_threads(task: &TaskStatus) -> impl Iterator<Item = Row> {
    task.roles.iter().map(|thread| Row {
        id: format!("{} {}", task.name, thread.tid),
        cells: vec![
            Cell::text(&task.name),
            Cell::text(&thread.tid.to_string()),
            Cell::text(&thread.name),
            Cell::text(&thread.role),
            Cell::number(Some(thread.since_s * 1e6), text::time),
            Cell::number(Some(thread.burst_us), text::time),
            match thread.configured {
                true => Cell::text("configured"),
                false => Cell::count(thread.needs),
            },
        ],
        subject: Some(Subject::Task(task.name.clone())),
        alarming: false,
    })
}

fn of_core(core: &CoreStatus, shares: &CoreShares) -> Row {
    Row {
        id: core.core.to_string(),
        cells: vec![
            Cell::count(core.core),
            Cell::text(&core.mode),
            Cell::text(core.owner.as_deref().unwrap_or("")),
            Cell::text(core.running.as_deref().unwrap_or("")),
            Cell::number(core.lc_busy_percent, text::percent),
            Cell::text(&core.outcome),
            Cell::text(&shares.in_words()),
            Cell::text(&core.reason),
        ],
        subject: Some(Subject::Core(core.core)),
        alarming: !matches!(core.outcome.as_str(), "done" | "pending"),
    }
}

fn decisions(status: &Status) -> Vec<Row> {
    let row = |made: &Decision| Row {
        id: format!("{} {}", made.at_us, made.core),
        cells: vec![
            Cell::number(Some(status.at_us.saturating_sub(made.at_us) as f64), text::time),
            Cell::count(made.core),
            Cell::text(made.from.as_deref().unwrap_or("nobody")),
            Cell::text(made.to.as_deref().unwrap_or("nobody")),
            Cell::text(&made.reason),
        ],
        subject: Some(Subject::Core(made.core)),
        alarming: false,
    };
    status.decisions.iter().map(row).collect()
}

fn advice(status: &Status) -> Vec<Row> {
    let row = |(at, advised): (usize, &Advised)| {
        let declined = advised.declined.as_ref();
        let words = declined
            .map_or(advised.offer.clone(), |why| format!("{}; declined: {why}", advised.offer));
        Row {
            id: at.to_string(),
            cells: vec![
                Cell::text(&advised.task),
                Cell::text(if declined.is_some() { "vetoed" } else { "followed" }),
                Cell::text(&words),
            ],
            subject: Some(Subject::Task(advised.task.clone())),
            alarming: declined.is_some(),
        }
    };
    status.advice.iter().enumerate().map(row).collect()
}

fn events(status: &Status) -> Vec<Row> {
    let row = |id: String, number: Option<f64>, what: &str| Row {
        id,
        cells: vec![Cell::number(number, text::short), Cell::text(what)],
        subject: None,
        alarming: number.is_none(),
    };
    let told = status.events.iter().enumerate();
    let told = told.map(|(at, what)| row(at.to_string(), Some(at as f64 + 1.0), what));
    let lacking = status.degraded.iter();
    told.chain(lacking.map(|what| row(what.clone(), None, &format!("degraded: {what}")))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_control::protocol::{RuntimeStatus, ThreadRoleStatus};

    #[test]
    fn every_row_has_a_cell_for_every_column() {
        let status = Status {
            tasks: vec![TaskStatus {
                runtime: Some(RuntimeStatus::default()),
                roles: vec![ThreadRoleStatus::default()],
                ..TaskStatus::default()
            }],
            cores: vec![CoreStatus::default()],
            decisions: vec![Decision::default()],
            advice: vec![Advised::default()],
            events: vec![String::new()],
            degraded: vec![String::new()],
            ..Status::default()
        };
        let sample = Sample::new(status, None);
        for pane in PANES {
            let table = pane.table(&sample);
            assert!(!table.rows.is_empty(), "{pane:?}");
            for row in table.rows {
                assert_eq!(row.cells.len(), table.columns.len(), "{pane:?}");
            }
        }
    }
}
