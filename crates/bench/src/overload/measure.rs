//! One measurement: both services under load, and what batch work gets meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quell_load::{LoadReport, LoadSpec, Step};
use quell_model::Nanos;
use quell_terminal::Stop;

use super::OverloadSpec;
use super::recovery::{Recovery, recovery};
use super::script::{SUSTAINED, Script};
use crate::services::{Canaries, Definition, Entered, Service, System, answered_share, requests};
use crate::stage::{self, nanos, share_between, tail};
use crate::stops::Request;

/// A measured value, by its metric.
pub type Values = BTreeMap<String, f64>;

/// Work of a request to the overloaded service, and its connections: as many as clients wait for an answer at once.
const WORK: Nanos = Nanos::from_micros(500);
const CONNECTIONS: usize = 64;
/// Work of a request to the neighbour, and its rate: a fifth of a core.
const NEIGHBOUR_WORK: Nanos = Nanos::from_micros(100);
const NEIGHBOUR_RPS: f64 = 2_000.0;
/// Load before a measurement begins.
const WARMUP: Duration = Duration::from_millis(500);
/// How long the service is offered twice what the core could do, to find its peak.
const PEAK: Duration = Duration::from_secs(2);
/// The place of the overloaded service, after the neighbour: its client spins.
const OVERLOADED: usize = 1;

/// Two services and batch work, started, until dropped.
pub struct Stage<'a> {
    seed: u64,
    stage: stage::Stage<'a>,
}

/// What both clients and the readings of batch work say.
struct Seen(stage::Seen);

impl Seen {
    fn neighbour(&self) -> &LoadReport {
        &self.0.reports[0]
    }

    fn service(&self) -> &LoadReport {
        &self.0.reports[OVERLOADED]
    }
}

fn definition(spec: &OverloadSpec, name: &str, workers: usize, work: Nanos) -> Result<Definition> {
    let text = format!(
        "name = \"{name}\"\nabout = \"the synthetic server\"\n\
         command = [\"quell\", \"load\", \"serve\", \"{{address}}\", \"--workers\", \"{workers}\"]\n\
         [client]\nprotocol = \"synthetic\"\nservice = \"fixed\"\nwork_ns = {}\n",
        work.0
    );
    let mut definition = Definition::parse(&text, name)?;
    let quell = spec.place.quell.to_str().context("the path of quell is no text")?;
    definition.command[0] = quell.to_owned();
    Ok(definition)
}

impl<'a> Stage<'a> {
    /// Starts all programs; the overloaded service has so many workers.
    pub fn start(
        spec: &'a OverloadSpec,
        workers: usize,
        canaries: &'a mut Canaries,
        stop: &'a Stop,
    ) -> Result<Stage<'a>> {
        let definitions = [
            definition(spec, "neighbour", 1, NEIGHBOUR_WORK)?,
            definition(spec, "overloaded", workers, WORK)?,
        ];
        let stage = stage::Stage::start(&spec.place, &definitions, canaries, stop)?;
        Ok(Stage { seed: spec.seed, stage })
    }

    /// What the service answers a second when it is offered twice what the core can do.
    pub fn peak_rps(&mut self) -> Result<f64> {
        let rate_rps = 2e9 / WORK.0 as f64;
        // Silence first: the warm-up has the rate of the first step, and its backlog would take the measured time.
        let silence = Step { rate_rps: 0.0, duration: nanos(WARMUP) };
        let steps = vec![silence, Step { rate_rps, duration: nanos(PEAK) }];
        let (seen, ()) = self.under(System::AloneIdlePoll, steps, self.seed, |_| Ok(()))?;
        let end = seen.service().overall.end_ns;
        let answered = requests(seen.service()).iter().filter(|one| one.done < end).count();
        ensure!(
            answered > 0,
            "the overloaded service answered nothing in {PEAK:?}; is its core free?"
        );
        Ok(answered as f64 / PEAK.as_secs_f64())
    }

    /// The load script under a system.
    pub fn overload(
        &mut self,
        system: System,
        script: Script,
        peak_rps: f64,
        seed: u64,
    ) -> Result<Values> {
        let (seen, ()) = self.under(system, script.steps(peak_rps), seed, |_| Ok(()))?;
        let times = script.times(seen.service().overall.start_ns);
        let mut values = Values::new();
        let mut put = |name: &str, value: f64| _ = values.insert(name.to_owned(), value);
        for (name, from, to) in [("before", times[0], times[1]), ("overload", times[1], times[2])] {
            let share = share_between(&seen.0.readings, from, to);
            let share = share.context("batch work's CPU time was not read during the load")?;
            put(&format!("batch_{name}_percent"), share * 100.0);
        }
        let (asked, stops) = (requests(seen.service()), seen.0.confirmed());
        if let Some(found) = recovery(&asked, times) {
            put("recovery_ms", found.time().0 as f64 / 1e6);
            put("recovered_share", f64::from(u8::from(matches!(found, Recovery::After(_)))));
        }
        let own: Vec<Request> = within(&asked, times[0], times[1]);
        tail(&own, &stops, 0.99, "p99_us_before", &mut put);
        put("answered_share", answered_share(seen.service()));
        let neighbour = requests(seen.neighbour());
        let parts = [("before", 0), ("overload", 1), ("after", 2)];
        for (name, at) in parts {
            let part = within(&neighbour, times[at], times[at + 1]);
            tail(&part, &stops, 0.999, &format!("neighbour_p999_us_{name}"), &mut put);
        }
        put("neighbour_answered_share", answered_share(seen.neighbour()));
        Ok(values)
    }

    /// Load just below the peak under Quell: how often roles change.
    pub fn sustained(&mut self, length: Duration, peak_rps: f64, seed: u64) -> Result<Values> {
        let rate_rps = peak_rps * SUSTAINED;
        let steps = vec![Step { rate_rps, duration: nanos(length) }];
        let changes = |entered: &Entered| {
            let status = entered.quell_status()?.context("no daemon runs")?;
            let count = status.counter("role_changes");
            count.context("the daemon counts no role changes; use a quell of this commit")
        };
        let (seen, count) = self.under(System::Quell, steps, seed, changes)?;
        let (asked, stops) = (requests(seen.service()), seen.0.confirmed());
        let mut values = Values::new();
        let mut put = |name: &str, value: f64| _ = values.insert(name.to_owned(), value);
        // An upper bound: the daemon's total begins with its start and contains the warm-up.
        put("role_changes_per_s", count / length.as_secs_f64());
        tail(&asked, &stops, 0.99, "p99_us", &mut put);
        put("answered_share", answered_share(seen.service()));
        let neighbour = requests(seen.neighbour());
        tail(&neighbour, &stops, 0.999, "neighbour_p999_us", &mut put);
        Ok(values)
    }

    /// Offers the load under a system; `last` reads what it needs before the system ends.
    fn under<T>(
        &mut self,
        system: System,
        steps: Vec<Step>,
        seed: u64,
        last: impl FnOnce(&Entered) -> Result<T>,
    ) -> Result<(Seen, T)> {
        let client = self.stage.client();
        let load = |service: &Service, steps, seed| {
            let protocol = service.protocol().context("the synthetic server has a protocol")?;
            let mut load = LoadSpec::new(service.addr, protocol.clone(), 0.0, Nanos::ZERO);
            (load.steps, load.seed, load.core) = (steps, seed, Some(client));
            (load.connections, load.pipelining) = (CONNECTIONS, false);
            load.warmup = nanos(WARMUP);
            anyhow::Ok(load)
        };
        let whole = steps.iter().fold(Nanos::ZERO, |sum, step| sum + step.duration);
        let steady = vec![Step { rate_rps: NEIGHBOUR_RPS, duration: whole }];
        let [neighbour, service] = &self.stage.services[..] else {
            unreachable!("started with two services")
        };
        let loads = vec![load(neighbour, steady, seed ^ 1)?, load(service, steps, seed)?];
        let (seen, last) = self.stage.under(system, loads, OVERLOADED, last)?;
        Ok((Seen(seen), last))
    }
}

fn within(requests: &[Request], from: Nanos, to: Nanos) -> Vec<Request> {
    requests.iter().filter(|one| (from..to).contains(&one.due)).copied().collect()
}
