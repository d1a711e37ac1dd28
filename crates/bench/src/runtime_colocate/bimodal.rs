//! Short requests behind long ones: a uthread a connection on one core, with a quantum of each kind and without.
//!
//! The server runs on the rung that the daemon gives a service: else what is measured is the host's own threads, which
//! hold up every server for milliseconds.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use quell_load::protocol::synthetic::{ServiceTime, SyntheticSpec};
use quell_load::{LoadSpec, ProtocolSpec};
use quell_model::{CoreSet, Nanos};

use super::RuntimeColocateSpec;
use super::programs::{Server, output, start};
use crate::host::{self, Policy};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// A short request.
const SHORT_NS: u64 = 1_000;
/// Short requests, long ones, and how many in a thousand are long (Shinjuku's shape).
const MIXED: ServiceTime =
    ServiceTime::Bimodal { short_ns: SHORT_NS, long_ns: 1_000_000, long_permille: 5 };
/// The same without long ones: what no quantum can be better than.
const SHORT: ServiceTime =
    ServiceTime::Bimodal { short_ns: SHORT_NS, long_ns: SHORT_NS, long_permille: 5 };
/// Where the daemon puts a latency-critical thread (`quell_act::Ladder`).
const RUNG: Policy = Policy::Fifo(30);
/// Requests a second: the long ones alone take 3, 10 and 20 % of the core.
pub const RATES: [f64; 3] = [6_000.0, 20_000.0, 40_000.0];
/// Connections: requests of the same one wait for each other in any case.
const CONNECTIONS: usize = 128;
/// How the server is called, and what is asked of it.
pub const SYSTEMS: [(&str, &str, ServiceTime); 4] = [
    ("no quantum", "never", MIXED),
    ("quantum of 100 us", "cooperative", MIXED),
    ("asynchronous quantum of 100 us", "asynchronous", MIXED),
    ("no long requests", "never", SHORT),
];
/// What is reported of short requests.
const METRICS: [&str; 4] = ["p50_us", "p90_us", "p99_us", "p999_us"];

/// The case of a rate, in requests a second.
pub fn case(rate: f64) -> String {
    format!("bimodal {rate:.0} rps")
}

/// Measures each rate with each kind of quantum.
pub fn measure(
    spec: &RuntimeColocateSpec,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let total = RATES.len() * spec.rounds;
    for (at, rate) in RATES.into_iter().enumerate() {
        let case = case(rate);
        let mut found: [[Vec<f64>; METRICS.len()]; SYSTEMS.len()] = Default::default();
        for round in 0..spec.rounds {
            progress.step(at * spec.rounds + round, total, &case);
            for (of, (_, quantum, service)) in SYSTEMS.iter().enumerate() {
                let short = one(spec, quantum, *service, rate, round as u64, stop)?;
                let values = [short.p50_us, short.p90_us, short.p99_us, short.p999_us];
                found[of].iter_mut().zip(values).for_each(|(all, value)| all.push(value));
            }
        }
        for ((system, ..), values) in SYSTEMS.iter().zip(&found) {
            for (metric, values) in METRICS.iter().zip(values) {
                report.push(&case, system, metric, values.clone());
            }
        }
        for of in 1..SYSTEMS.len() {
            for (metric, at) in [("p90_us", 1), ("p99_us", 2)] {
                let without = (SYSTEMS[0].0, found[0][at].as_slice());
                report.compare(&case, (SYSTEMS[of].0, &found[of][at]), without, metric);
            }
        }
    }
    Ok(())
}

/// The latency of short requests.
fn one(
    spec: &RuntimeColocateSpec,
    quantum: &str,
    service: ServiceTime,
    rate: f64,
    seed: u64,
    stop: &Stop,
) -> Result<quell_load::Latency> {
    stop.check()?;
    let directory = host::directory()?;
    let out = output(directory.path(), "serve");
    let core = spec.managed.first().map_or(spec.managed, CoreSet::of);
    let program = start("serve", &spec.quantum, &[OsStr::new(quantum)], &core, None, &out)?;
    let server = Server::listening(program, &out, stop, |line| {
        let answer: serde_json::Value = serde_json::from_str(line).ok()?;
        let port = u16::try_from(answer["port"].as_u64()?).ok()?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    })?;
    let protocol = ProtocolSpec::Synthetic(SyntheticSpec { service });
    server.program.set_policy(RUNG, 0).context("raise the server")?;
    let time = Nanos(spec.time.as_nanos() as u64);
    let mut load = LoadSpec::new(server.addr, protocol, rate, time);
    load.connections = CONNECTIONS;
    load.core = Some(spec.client);
    load.seed = seed;
    server.offer(&load)?.overall.short.context("the load has two kinds of requests")
}
