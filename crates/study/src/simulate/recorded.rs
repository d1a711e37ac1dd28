//! Figures of recorded hosts, beside those of their replays.

use quell_report::Row;
use quell_report::table::number;
use quell_sim::{Load, RecordedFigures, Scenario};

use super::{HOST, MIGRATIONS, row};

/// The system of rows that a recording has.
const RECORDING: &str = "recording";

/// The tasks that replay a recorded host, and what it made of it.
fn figures(scenario: &Scenario) -> impl Iterator<Item = (&str, &RecordedFigures)> {
    scenario.tasks.iter().filter_map(|task| match &task.load {
        Load::Recorded(recording) => Some((task.name.as_str(), &recording.figures)),
        Load::Program(_) | Load::Hog | Load::Open { .. } => None,
    })
}

/// The metrics of a replay, as the recorded hosts had them. Those of the host are left out where there are several.
pub(super) fn rows(scenario: &Scenario) -> Vec<Row> {
    let mut rows = Vec::new();
    let several = figures(scenario).count() > 1;
    for (task, figures) in figures(scenario) {
        let length = figures.length.0.max(1) as f64;
        rows.push(row(task, RECORDING, "cores", figures.ran.0 as f64 / length));
        rows.push(row(task, RECORDING, "completed_s", figures.completed.0 as f64 / 1e9));
        if several {
            continue;
        }
        rows.push(row(HOST, RECORDING, "wasted_core_s", figures.wasted.0 as f64 / 1e9));
        for (cause, metric) in MIGRATIONS {
            if let Some(count) = figures.migrations.get(&cause) {
                rows.push(row(HOST, RECORDING, metric, *count as f64));
            }
        }
    }
    rows
}

/// One line for each recorded host.
pub(super) fn text(scenario: &Scenario) -> String {
    let lines = figures(scenario).map(|(task, figures)| {
        let RecordedFigures { kernel, cores, completed, wasted, migrations, .. } = figures;
        let seconds = [completed, wasted].map(|time| number(time.0 as f64 / 1e9));
        let moved: u64 = migrations.values().sum();
        format!(
            "{task} as recorded (kernel {kernel}, {cores} cores): ended after {} s; {} core seconds \
             idled beside threads that waited; {moved} migrations, new threads left out\n",
            seconds[0], seconds[1],
        )
    });
    lines.collect()
}
