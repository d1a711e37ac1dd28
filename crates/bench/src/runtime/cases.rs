//! The cases, their metrics, and what was seen of them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::programs::System;
use quell_report::BenchReport;
use quell_report::stats;

/// Time of an operation.
pub const NS_PER_OP: &str = "ns_per_op";
/// Processor time of the program for an operation.
pub const CPU_PER_OP: &str = "cpu_ns_per_op";
/// Latencies.
pub const P50: &str = "latency_ns_p50";
/// The rare ones of them.
pub const P99: &str = "latency_ns_p99";

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What an operation is.
    pub operation: &'static str,
    /// Workers, each with a core.
    pub workers: usize,
    /// Connections of the client, if there is one.
    pub connections: usize,
    /// What is reported; the first one is what a system is judged by.
    pub metrics: &'static [&'static str],
}

const fn case(name: &'static str, operation: &'static str) -> Case {
    Case { name, operation, workers: 1, connections: 0, metrics: &[NS_PER_OP] }
}

const LATENCY: &[&str] = &[P50, P99];
const LATENCY_AND_COST: &[&str] = &[P50, P99, CPU_PER_OP];

/// All of them.
pub const CASES: [Case; 13] = [
    case("mutex", "a lock that nobody else wants is taken and given back"),
    case("yield", "one of two tasks gives way to the other"),
    case("condvar", "one of two tasks gives its turn to the other: lock, signal, wait, unlock"),
    case("spawn-join", "a task that does nothing is made and waited for"),
    case("channel-stream", "a message in bursts of 128, each burst acknowledged"),
    case("channel-ping-pong", "a message to a task that waits for it; it answers with another"),
    case("park", "one of two tasks wakes the other and sleeps"),
    Case {
        metrics: LATENCY_AND_COST,
        ..case("timer", "a sleep of 100 us: how late it ends, what it costs")
    },
    Case {
        metrics: LATENCY_AND_COST,
        ..case("sleepers", "a sleep of 10 ms, with 1,000 tasks that do nothing else")
    },
    Case {
        workers: 2,
        metrics: LATENCY,
        ..case("steal-polling", "a ready task is taken by a worker that became idle just now")
    },
    Case {
        workers: 2,
        metrics: LATENCY,
        ..case("steal-parked", "a ready task is taken by a worker that has been idle for 500 us")
    },
    Case {
        connections: 1,
        metrics: LATENCY_AND_COST,
        ..case("echo-1", "64 bytes to a server and back, one connection")
    },
    Case {
        connections: 64,
        metrics: &[NS_PER_OP, P99, CPU_PER_OP],
        ..case("echo-64", "64 bytes to a server and back, 64 connections at once")
    },
];

impl Case {
    /// Its name for the programs.
    pub(super) fn asked(&self) -> &'static str {
        if self.connections > 0 { "echo" } else { self.name }
    }
}

/// What a program answers: `protocol::Measured` of `quell-bench-peers`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Measured {
    /// Operations.
    pub ops: u64,
    /// The time that they took.
    pub ns: u64,
    /// Processor time of the program meanwhile.
    pub cpu_ns: u64,
    /// Latencies.
    #[serde(default)]
    pub samples: Vec<u64>,
}

impl Measured {
    /// Reads an answer.
    ///
    /// # Errors
    /// When it is none, or nothing was counted.
    pub fn parse(text: &str) -> Result<Measured> {
        let mut one: Measured =
            serde_json::from_str(text.trim()).context("what it answers does not read")?;
        anyhow::ensure!(one.ops > 0 && one.ns > 0, "it counted nothing");
        one.samples.sort_unstable();
        Ok(one)
    }

    /// The value of a metric; NaN where it has none.
    pub fn value(&self, metric: &str) -> f64 {
        let quantile = |at| stats::quantile(&self.samples, at).map_or(f64::NAN, |ns| ns as f64);
        match metric {
            P50 => quantile(0.5),
            P99 => quantile(0.99),
            CPU_PER_OP => self.cpu_ns as f64 / self.ops as f64,
            _ => self.ns as f64 / self.ops as f64,
        }
    }
}

/// The values of each round, by case (or primitive), system and metric. A round without one is NaN, so that rounds stay
/// paired.
#[derive(Debug, Default)]
pub struct Seen {
    values: BTreeMap<(String, System, &'static str), Vec<f64>>,
}

impl Seen {
    /// Notes the value of a round.
    pub fn note(
        &mut self,
        case: &str,
        system: System,
        metric: &'static str,
        round: usize,
        value: f64,
    ) {
        let values = self.values.entry((case.to_owned(), system, metric)).or_default();
        values.resize(round, f64::NAN);
        values.push(value);
    }

    /// The values of all rounds so far.
    pub fn values(&self, case: &str, system: System, metric: &'static str) -> &[f64] {
        self.values.get(&(case.to_owned(), system, metric)).map_or(&[], Vec::as_slice)
    }

    /// The value of a round.
    pub fn value(
        &self,
        case: &str,
        system: System,
        metric: &'static str,
        round: usize,
    ) -> Option<f64> {
        let value = self.values(case, system, metric).get(round).copied();
        value.filter(|value| value.is_finite())
    }
}

/// Puts a case into the report: rows of all systems, ratios of ours to each other one.
pub fn report(case: &Case, seen: &Seen, report: &mut BenchReport) {
    for metric in case.metrics {
        for system in System::ALL {
            let values = seen.values(case.name, system, metric);
            report.push(case.name, system.name(), metric, values.to_vec());
        }
        let ours = seen.values(case.name, System::Quell, metric);
        for system in System::ALL.into_iter().filter(|system| *system != System::Quell) {
            let theirs = seen.values(case.name, system, metric);
            report.compare(
                case.name,
                (System::Quell.name(), ours),
                (system.name(), theirs),
                metric,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_gives_the_metrics_that_it_has_samples_for() {
        let one = Measured::parse(r#"{"ops":4,"ns":400,"cpu_ns":40,"samples":[3,1,2,4]}"#).unwrap();
        let metrics = [NS_PER_OP, CPU_PER_OP, P50, P99].map(|metric| one.value(metric));
        assert_eq!(metrics, [100.0, 10.0, 2.0, 4.0]);
        let without = Measured::parse(r#"{"ops":4,"ns":400,"cpu_ns":40}"#).unwrap();
        assert!(without.value(P50).is_nan());
    }

    #[test]
    fn an_answer_without_a_count_is_refused() {
        for text in ["", "{}", r#"{"ops":0,"ns":1,"cpu_ns":1}"#, r#"{"ops":-1,"ns":1,"cpu_ns":1}"#]
        {
            assert!(Measured::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_round_that_failed_leaves_the_others_paired() {
        let mut seen = Seen::default();
        for (round, (ours, theirs)) in [(1.0, 2.0), (f64::NAN, 2.0), (3.0, 2.0)].iter().enumerate()
        {
            if ours.is_finite() {
                seen.note("yield", System::Quell, NS_PER_OP, round, *ours);
            }
            seen.note("yield", System::Go, NS_PER_OP, round, *theirs);
        }
        let mut out = BenchReport::new(super::super::BENCH, "test");
        let case = CASES.iter().find(|case| case.name == "yield").unwrap();
        report(case, &seen, &mut out);
        assert_eq!(out.row("yield", "quell", NS_PER_OP).unwrap().raw, [1.0, 3.0]);
        assert_eq!(out.ratio("yield", "quell", NS_PER_OP).unwrap().median, 1.0);
    }

    #[test]
    fn each_system_of_a_case_has_a_row_and_a_ratio() {
        let mut seen = Seen::default();
        for case in &CASES {
            for metric in case.metrics {
                for system in System::ALL {
                    seen.note(case.name, system, metric, 0, 2.0);
                }
            }
        }
        let mut out = BenchReport::new(super::super::BENCH, "test");
        CASES.iter().for_each(|case| report(case, &seen, &mut out));
        for case in &CASES {
            for system in System::ALL {
                let row = out.row(case.name, system.name(), case.metrics[0]).unwrap();
                assert_eq!(row.median, 2.0, "{}: {}", case.name, system.name());
            }
            let against = |ratio: &&quell_report::Ratio| ratio.case == case.name;
            let against: Vec<&str> =
                out.ratios.iter().filter(against).map(|ratio| ratio.against.as_str()).collect();
            assert!(against.contains(&System::Tokio.name()), "{}: {against:?}", case.name);
        }
    }
}
