//! The kernel's fair server: for how long real-time threads stop for fair ones that starve (Linux 6.12).
//!
//! What the host did was counted by hand, once, on Linux 6.18; no benchmark of a host makes it again.

use anyhow::{Result, ensure};
use quell_model::{Class, Event, Left, Nanos, Plan, Rung, Runner, Snapshot, What};
use quell_policy::{BadState, Policy, Wake};
use quell_report::BenchReport;
use quell_sim::file::Simulation;
use quell_sim::run_traced;
use quell_terminal::Stop;

use super::SIMULATOR;
use crate::simulate;

const SCENARIO: &str = include_str!("fair-server.toml");

/// The name of its threads.
const SERVICE: &[u8] = b"service";

/// The service runs for so many microseconds of this many.
const CYCLE_US: u64 = 1_000;

/// Not a host that was measured in this run.
const BY_HAND: &str = "counted-by-hand";

/// Shorter waits are no stops.
const STOP_MIN: Nanos = Nanos::from_millis(20);

/// A service, and batch work beside it.
struct Case {
    busy_percent: u64,
    /// The rung of batch work.
    batch: Rung,
    /// Stops in five seconds on the host, and the median of their lengths, ms.
    host: (u32, f64),
}

const CASES: [Case; 3] = [
    Case { busy_percent: 95, batch: Rung::SchedIdle, host: (4, 52.0) },
    Case { busy_percent: 95, batch: Rung::FifoLow, host: (0, 0.0) },
    Case { busy_percent: 90, batch: Rung::SchedIdle, host: (0, 0.0) },
];

impl Case {
    fn name(&self) -> String {
        let batch = if self.batch == Rung::SchedIdle { "sched-idle" } else { "fifo" };
        format!("fair server, {} % busy, {batch}", self.busy_percent)
    }

    /// Stops of the service in five seconds.
    fn stops(&self) -> Result<Vec<Nanos>> {
        let busy_us = CYCLE_US * self.busy_percent / 100;
        let text = SCENARIO
            .replace("$BUSY", &busy_us.to_string())
            .replace("$IDLE", &(CYCLE_US - busy_us).to_string());
        let none = |name: &str| unreachable!("{name}: the scenario names no file");
        let simulation = Simulation::parse(&text, "fair-server.toml", "fair-server", &none)?;
        let inner = simulate::policy(&simulation)?;
        let mut policy = OnRung { inner, batch: self.batch };
        let mut waits = Waits::default();
        let mut sink = |event: Event| waits.note(&event);
        let report = run_traced(&simulation.scenario, &mut policy, &mut sink);
        ensure!(report.broken.is_empty(), "{}: {:?}", self.name(), report.broken);
        Ok(waits.stops)
    }
}

/// A policy, with batch work on another rung.
struct OnRung {
    inner: Box<dyn Policy>,
    batch: Rung,
}

impl Policy for OnRung {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        let wake = self.inner.decide(now, seen, plan);
        let tasks = plan.tasks.iter_mut().filter(|task| task.class == Class::BestEffort);
        tasks.for_each(|task| task.rung = self.batch);
        wake
    }

    fn save(&self, state: &mut Vec<u8>) {
        self.inner.save(state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        self.inner.restore(state)
    }
}

/// How long the service waits for its core.
#[derive(Default)]
struct Waits {
    since: Option<Nanos>,
    stops: Vec<Nanos>,
}

impl Waits {
    fn note(&mut self, event: &Event) {
        let is_service = |thread: &Runner| thread.name.as_bytes() == SERVICE;
        match &event.what {
            What::Waking { thread, .. } if is_service(thread) => self.since = Some(event.at),
            What::Switch { next, .. } if is_service(next) => {
                let waited = self.since.take().map(|since| event.at.since(since));
                self.stops.extend(waited.filter(|waited| *waited >= STOP_MIN));
            }
            What::Switch { how: Left::Preempted, left: 1.., .. } => {
                self.since.get_or_insert(event.at);
            }
            _ => {}
        }
    }
}

/// Adds the rows of both sides.
///
/// # Errors
/// When the simulator finds a fault of its own, or a stop was asked for.
pub(super) fn measure(report: &mut BenchReport, stop: &Stop) -> Result<()> {
    for case in &CASES {
        stop.check()?;
        let mut stops = case.stops()?;
        stops.sort_unstable();
        let median = stops.get(stops.len() / 2).map_or(0.0, |stop| stop.0 as f64 / 1e6);
        let (count, ms) = case.host;
        let sides = [(BY_HAND, f64::from(count), ms), (SIMULATOR, stops.len() as f64, median)];
        for (side, count, ms) in sides {
            report.push(&case.name(), side, "stops_in_5_s", vec![count]);
            report.push(&case.name(), side, "stop_ms", vec![ms]);
        }
    }
    report.notes.push(
        "fair server: stops of 20 ms and more, the host's counted by hand once, on Linux 6.18"
            .to_owned(),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_stopped_as_often_and_as_long_as_on_the_host() {
        let mut report = BenchReport::new("test", "test");
        measure(&mut report, &Stop::default()).unwrap();
        for case in &CASES {
            let of = |metric| report.row(&case.name(), SIMULATOR, metric).unwrap().median;
            let (count, ms) = case.host;
            assert_eq!(of("stops_in_5_s"), f64::from(count), "{}", case.name());
            // The stop ends at a tick, of which there is one in 4 ms.
            assert!((of("stop_ms") - ms).abs() <= 4.0, "{}: {} ms", case.name(), of("stop_ms"));
        }
    }
}
