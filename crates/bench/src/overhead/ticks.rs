//! How long deciding takes, and a whole tick.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quell_model::{
    Class, CoreView, HostCaps, Limits, Nanos, Permille, Plan, Signal, Snapshot, TaskId,
    TaskScheduler, TaskView, TimeLimits, Topology,
};
use quell_policy::{Config, Host, by_name};

use super::OverheadSpec;
use crate::daemon::{Adopted, Adoptee, Daemon, DaemonSpec, Status};
use crate::host::Program;
use quell_report::BenchReport;
use quell_report::stats;
use quell_terminal::Stop;

/// Decisions in each round.
const DECISIONS: u64 = 2_000;
/// How long a real daemon is left to tick.
const TICKING: Duration = Duration::from_millis(1_500);
/// Tasks that change between two ticks.
const CHANGES: u64 = 4;

/// Times decisions of the default policy for `tasks` tasks on a host with the cores to need it.
pub fn decisions(report: &mut BenchReport, tasks: u32, rounds: usize) -> Result<()> {
    // As many cores as such a number of tasks would have: 8 at 10, 64 at 100, 256 at 1,000.
    let physical = (u16::try_from(tasks).unwrap_or(u16::MAX) / 2).clamp(1, 128);
    let topology = Topology::regular(1, physical, 2).context("make a topology")?;
    let case = format!("decide {tasks} tasks");
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut times = times(&topology, tasks)?;
        times.sort_unstable();
        p50.extend(stats::quantile(&times, 0.5).map(|ns| ns as f64 / 1e3));
        p99.extend(stats::quantile(&times, 0.99).map(|ns| ns as f64 / 1e3));
    }
    report.push(&case, "quell", "decide_us_p50", p50);
    report.push(&case, "quell", "decide_us_p99", p99);
    Ok(())
}

fn times(topology: &Topology, tasks: u32) -> Result<Vec<u64>> {
    let caps = HostCaps {
        shares_cores: true,
        idles_cores: true,
        places_threads: true,
        freezes_tasks: true,
        per_thread_state: true,
        actuation_delay: Nanos::from_micros(100),
        ..HostCaps::default()
    };
    let host = Host { topology: topology.clone(), managed: topology.all(), caps };
    let mut policy = by_name("quell", host, Config::default())?;
    let mut seen = Snapshot {
        cores: topology.cores().iter().map(|core| core_view(core.id)).collect(),
        tasks: (0..tasks).map(|index| task_view(index, topology)).collect(),
        ..Snapshot::default()
    };
    let mut plan = Plan::default();
    let mut times = Vec::new();
    for tick in 1..=DECISIONS {
        seen.now = Nanos::from_micros(tick * 100);
        for nth in 0..CHANGES {
            let place = |tick: u64| ((tick * 31 + nth * 17) % u64::from(tasks)) as usize;
            let task = &mut seen.tasks[place(tick)];
            task.running = (tick % 3) as u32;
            task.waiting = ((tick + nth) % 2) as u32;
            task.queueing_delay = Signal::Measured(Nanos::from_micros(20));
            let earlier = &mut seen.tasks[place(tick.saturating_sub(3))];
            (earlier.running, earlier.waiting) = (0, 0);
        }
        let start = Instant::now();
        policy.decide(seen.now, &seen, &mut plan);
        times.push(start.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

fn task_view(index: u32, topology: &Topology) -> TaskView {
    let is_lc = index.is_multiple_of(4);
    TaskView {
        sleeping: 4,
        ..TaskView::new(
            TaskId { index, generation: 0 },
            Limits {
                class: if is_lc { Class::LatencyCritical } else { Class::BestEffort },
                scheduler: TaskScheduler::Kernel,
                guaranteed: u32::from(is_lc && (index as usize) < topology.len()),
                max: 8.min(topology.len() as u32),
                times: TimeLimits {
                    runaway_after: Nanos::from_millis(100),
                    quantum: Nanos::ZERO,
                    ..TimeLimits::default()
                },
                allowed: topology.all(),
                ..Limits::NONE
            },
        )
    }
}

fn core_view(id: quell_model::CoreId) -> CoreView {
    CoreView {
        idle_since: Some(Nanos::ZERO),
        lc_busy: Signal::Measured(Permille(300)),
        ..CoreView::new(id)
    }
}

/// Lets a real daemon manage so many sleeping programs and reads its own account of its ticks.
pub fn daemon(
    report: &mut BenchReport,
    spec: &OverheadSpec,
    tasks: u32,
    stop: &Stop,
) -> Result<()> {
    let mut programs = Vec::new();
    for _ in 0..tasks {
        let mut command = Command::new("sleep");
        command.arg("600").stdout(Stdio::null()).stderr(Stdio::null());
        programs.push(Program::start("sleep", &mut command)?);
    }
    let adopted = programs.iter().enumerate().map(|(at, program)| Adopted {
        name: format!("task-{at}"),
        class: if at % 4 == 0 { Class::LatencyCritical } else { Class::BestEffort },
        what: Adoptee::Process(program.pid()),
        guaranteed: 0,
        max: 1,
        runaway: None,
    });
    let daemon = Daemon::start(
        &DaemonSpec {
            program: spec.quell.clone(),
            managed: spec.managed,
            host: Vec::new(),
            tasks: adopted.collect(),
        },
        stop,
    )?;
    let before = daemon.status()?;
    let start = Instant::now();
    stop.sleep(TICKING)?;
    let after = daemon.status()?;
    let passed = start.elapsed();
    daemon.stop()?;
    let case = format!("tick {tasks} tasks");
    let ticks = difference(&before, &after, "ticks");
    let total_us = |status: &Status| {
        status.counter("ticks").unwrap_or(f64::NAN)
            * status.counter("tick_mean_us").unwrap_or(f64::NAN)
    };
    let mean_us = (total_us(&after) - total_us(&before)) / ticks;
    report.push(&case, "quell", "tick_us_mean", vec![mean_us]);
    report.push(&case, "quell", "ticks_per_s", vec![ticks / passed.as_secs_f64()]);
    report.push(&case, "quell", "cpu_percent", vec![cpu_percent(&before, &after, passed)]);
    Ok(())
}

/// CPU time of the scheduler thread between two moments, in percent of a core.
pub fn cpu_percent(before: &Status, after: &Status, passed: Duration) -> f64 {
    difference(before, after, "scheduler_cpu_ms") / passed.as_secs_f64() / 10.0
}

fn difference(before: &Status, after: &Status, counter: &str) -> f64 {
    after.counter(counter).unwrap_or(f64::NAN) - before.counter(counter).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_timed_for_any_number_of_tasks() {
        let mut report = BenchReport::new("overhead", "test");
        for tasks in [2, 100] {
            decisions(&mut report, tasks, 1).unwrap();
            let row =
                report.row(&format!("decide {tasks} tasks"), "quell", "decide_us_p50").unwrap();
            assert!(row.median > 0.0);
        }
    }
}
