//! One simulation in a process of its own, which says what it cost: memory that an earlier one left behind would count
//! for all that come after.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use quell_sim::file::Simulation;
use serde::{Deserialize, Serialize};

use crate::simulate;

/// What one simulation cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Events of the simulator.
    pub events: u64,
    /// Requests that were answered to the first task.
    pub answered: u64,
    /// Their mean latency, microseconds.
    pub mean_us: f64,
    /// Decisions of the policy.
    pub decisions: u64,
    /// Seconds that were simulated.
    pub simulated_s: f64,
    /// Seconds that it took.
    pub took_s: f64,
    /// The most memory that the process had, MB.
    pub peak_mb: f64,
    /// What it had of that before the simulation began: the program and the scenario, MB.
    pub before_mb: f64,
}

/// Simulates a scenario file in this process; `is_checked`: with a trace that the checker reads.
///
/// # Errors
/// When it cannot be simulated.
pub fn measure(file: &Path, is_checked: bool) -> Result<Cost> {
    let simulation = Simulation::load(file)?;
    let mut policy = simulate::policy(&simulation)?;
    let scenario = &simulation.scenario;
    let before_mb = resident_mb("VmRSS:");
    let began = Instant::now();
    let report = match is_checked {
        true => {
            // As `quell sim --trace` does, but for the disk.
            let nowhere = Path::new("/dev/null");
            simulate::run_checked(scenario, policy.as_mut(), Some(nowhere))?.0
        }
        false => quell_sim::run(scenario, policy.as_mut()),
    };
    let took_s = began.elapsed().as_secs_f64();
    let peak_mb = resident_mb("VmHWM:");
    let first = report.tasks.first().context("a scenario without a task")?;
    Ok(Cost {
        events: report.events,
        answered: first.answered,
        mean_us: first.latency.mean().0 as f64 / 1e3,
        decisions: report.ticks,
        simulated_s: scenario.length.0 as f64 / 1e9,
        took_s,
        peak_mb,
        before_mb,
    })
}

/// Lets `quell` simulate a scenario in a process of its own (`quell bench sim --measure FILE`).
///
/// # Errors
/// When the process fails, or what it prints is no cost.
pub(super) fn apart(quell: &Path, scenario: &str, is_checked: bool) -> Result<Cost> {
    let folder = tempfile::tempdir().context("a scratch directory")?;
    let file = folder.path().join("scenario.toml");
    std::fs::write(&file, scenario).context("write the scenario")?;
    let checked = is_checked.then_some("--checked");
    let output =
        Command::new(quell).args(["bench", "sim", "--measure"]).arg(&file).args(checked).output();
    let output = output.with_context(|| quell.display().to_string())?;
    let error = String::from_utf8_lossy(&output.stderr);
    let cost = serde_json::from_slice(&output.stdout);
    cost.with_context(|| error.lines().last().unwrap_or("it printed nothing").to_owned())
}

/// A line of /proc/self/status; not a number where there is none.
fn resident_mb(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kb = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kb.map_or(f64::NAN, |kb| kb / 1e3)
}
