//! One measurement: both services under load, and what batch work gets meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quell_load::{Idle, LoadReport, LoadSpec, Step, now};
use quell_model::Nanos;
use quell_report::stats;
use quell_terminal::Stop;

use super::OverloadSpec;
use super::recovery::{Recovery, recovery};
use super::script::{Reading, SUSTAINED, Script, nanos, share_between};
use crate::host::{Group, Weight, set_nice};
use crate::services::second::{self, Asked};
use crate::services::{
    BatchWork, Canaries, Definition, Entered, Kind, PauseProgram, Programs, Scene, Service, System,
    enter, requests,
};
use crate::stops::{CoreStop, Request, Windows, confirmed};

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
/// How often batch work's CPU time is read.
const READ: Duration = Duration::from_millis(50);
/// As of the client of `quell bench services`: a foreign thread on its core would be measured as latency.
const CLIENT_NICE: i32 = -10;

/// Two services and batch work, started, until dropped.
pub struct Stage<'a> {
    spec: &'a OverloadSpec,
    neighbour: Service,
    service: Service,
    batch: BatchWork,
    canaries: &'a mut Canaries,
    stop: &'a Stop,
}

/// What both clients and the readings of batch work say.
struct Seen {
    report: LoadReport,
    neighbour: Vec<Asked>,
    readings: Vec<Reading>,
    stops: Vec<CoreStop>,
}

fn definition(spec: &OverloadSpec, name: &str, workers: usize, work: Nanos) -> Result<Definition> {
    let text = format!(
        "name = \"{name}\"\nabout = \"the synthetic server\"\n\
         command = [\"quell\", \"load\", \"serve\", \"{{address}}\", \"--workers\", \"{workers}\"]\n\
         [client]\nprotocol = \"synthetic\"\nservice = \"fixed\"\nwork_ns = {}\n",
        work.0
    );
    let mut definition = Definition::parse(&text, name)?;
    definition.command[0] = spec.quell.to_str().context("the path of quell is no text")?.to_owned();
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
        let start = |name, workers, work| {
            Service::start(&definition(spec, name, workers, work)?, &spec.managed, stop)
        };
        let programs = Programs { antagonist: spec.antagonist.clone(), go_gc: None };
        Ok(Stage {
            spec,
            neighbour: start("neighbour", 1, NEIGHBOUR_WORK)?,
            service: start("overloaded", workers, WORK)?,
            batch: BatchWork::start(Kind::Hog, &programs, None, &spec.managed, stop)?,
            canaries,
            stop,
        })
    }

    /// What the service answers a second when it is offered twice what the core can do.
    pub fn peak_rps(&mut self) -> Result<f64> {
        let rate_rps = 2e9 / WORK.0 as f64;
        // Silence first: the warm-up has the rate of the first step, and its backlog would take the measured time.
        let silence = Step { rate_rps: 0.0, duration: nanos(WARMUP) };
        let steps = vec![silence, Step { rate_rps, duration: nanos(PEAK) }];
        let (seen, _) = self.under(System::AloneIdlePoll, steps, self.spec.seed, |_| Ok(()))?;
        let end = seen.report.overall.end_ns;
        let answered = requests(&seen.report).iter().filter(|one| one.done < end).count();
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
        let times = script.times(seen.report.overall.start_ns);
        let mut values = Values::new();
        let mut put = |name: &str, value: f64| _ = values.insert(name.to_owned(), value);
        for (name, from, to) in [("before", times[0], times[1]), ("overload", times[1], times[2])] {
            let share = share_between(&seen.readings, from, to);
            let share = share.context("batch work's CPU time was not read during the load")?;
            put(&format!("batch_{name}_percent"), share * 100.0);
        }
        let asked = requests(&seen.report);
        if let Some(found) = recovery(&asked, times) {
            put("recovery_ms", found.time().0 as f64 / 1e6);
            put("recovered_share", f64::from(u8::from(matches!(found, Recovery::After(_)))));
        }
        let own: Vec<Request> = within(&asked, times[0], times[1]);
        tail(&own, &seen.stops, 0.99, "p99_us_before", &mut put);
        put("answered_share", answered_share(&seen.report));
        let neighbour: Vec<Request> = seen.neighbour.iter().map(|one| one.request).collect();
        let parts = [("before", 0), ("overload", 1), ("after", 2)];
        for (name, at) in parts {
            let part = within(&neighbour, times[at], times[at + 1]);
            tail(&part, &seen.stops, 0.999, &format!("neighbour_p999_us_{name}"), &mut put);
        }
        let answered = seen.neighbour.iter().filter(|one| one.answered).count();
        put("neighbour_answered_share", answered as f64 / seen.neighbour.len().max(1) as f64);
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
        let asked = requests(&seen.report);
        let mut values = Values::new();
        let mut put = |name: &str, value: f64| _ = values.insert(name.to_owned(), value);
        // An upper bound: the daemon's total begins with its start and contains the warm-up.
        put("role_changes_per_s", count / length.as_secs_f64());
        tail(&asked, &seen.stops, 0.99, "p99_us", &mut put);
        put("answered_share", answered_share(&seen.report));
        let neighbour: Vec<Request> = seen.neighbour.iter().map(|one| one.request).collect();
        tail(&neighbour, &seen.stops, 0.999, "neighbour_p999_us", &mut put);
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
        self.stop.check()?;
        let awake = (system == System::AloneIdlePoll).then(|| self.awake()).transpose()?;
        // What `alone-idle-poll` adds to `alone` is the loop above.
        let entering = if awake.is_some() { System::Alone } else { system };
        let scene = Scene {
            managed: self.spec.managed,
            services: vec![&self.neighbour, &self.service],
            batch: &self.batch,
            quell: &self.spec.quell,
            antagonist: &self.spec.antagonist,
            bursts: None,
            rests: None,
        };
        let entered = enter(entering, &scene, self.stop)?;
        let seen = offer(self.spec, &scene, self.canaries, steps, seed)
            .and_then(|seen| Ok((seen, last(&entered)?)));
        let left = entered.leave(&scene);
        let seen = seen?;
        left?;
        drop(awake);
        self.neighbour.check()?;
        self.service.check()?;
        self.batch.check()?;
        Ok(seen)
    }

    fn awake(&self) -> Result<(PauseProgram, Group)> {
        let group = Group::create("pause")?;
        let spec = self.spec;
        let pause = PauseProgram::start(&spec.antagonist, &group, &spec.managed, None)?;
        group.set_weight(Weight::Idle)?;
        // In this order, so that the program ends before its group.
        Ok((pause, group))
    }
}

/// Loads both services and reads batch work's CPU time meanwhile.
fn offer(
    spec: &OverloadSpec,
    scene: &Scene,
    canaries: &mut Canaries,
    steps: Vec<Step>,
    seed: u64,
) -> Result<Seen> {
    let [neighbour, service] = scene.services[..] else { unreachable!("a stage has two services") };
    let load = load(spec, service, steps, seed)?;
    // The neighbour's load covers the warm-up and the grace of the other.
    let whole = load.warmup + load.measured() + Nanos::from_secs(1);
    let steady = second::Script::Steps {
        work: NEIGHBOUR_WORK,
        rates_rps: [NEIGHBOUR_RPS; 3],
        step: Duration::from_nanos(whole.0 / 3),
    };
    canaries.begin()?;
    let is_over = AtomicBool::new(false);
    let group = &scene.batch.group;
    let (report, neighbour, readings) = std::thread::scope(|scope| -> Result<_> {
        let reader = scope.spawn(|| readings(group, &is_over));
        let following = second::follow(neighbour.addr, steady, now(), seed ^ 1)?;
        // The generator's thread inherits the value.
        let report = set_nice(0, CLIENT_NICE).context("favour the client").and_then(|()| {
            let report = quell_load::run(&load, &mut quell_load::Silent).context("offer load");
            set_nice(0, 0).context("favour the client no longer")?;
            report
        });
        let asked = following.finish();
        // Relaxed: the join orders the rest.
        is_over.store(true, Ordering::Relaxed);
        let readings = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        Ok((report?, asked?, readings?))
    })?;
    Ok(Seen { report, neighbour, readings, stops: canaries.end()? })
}

fn load(spec: &OverloadSpec, service: &Service, steps: Vec<Step>, seed: u64) -> Result<LoadSpec> {
    let protocol = service.protocol().context("the synthetic server has a protocol")?.clone();
    let mut load = LoadSpec::new(service.addr, protocol, 0.0, Nanos::ZERO);
    load.steps = steps;
    load.connections = CONNECTIONS;
    load.warmup = nanos(WARMUP);
    load.seed = seed;
    load.core = Some(spec.client);
    load.idle = Idle::Sleep;
    load.pipelining = false;
    Ok(load)
}

fn readings(group: &Group, is_over: &AtomicBool) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    loop {
        // Read first, so that the last reading is later than the load.
        let over = is_over.load(Ordering::Relaxed);
        readings.push(Reading { at: now(), cpu: group.cpu_time()? });
        if over {
            return Ok(readings);
        }
        std::thread::sleep(READ);
    }
}

fn within(requests: &[Request], from: Nanos, to: Nanos) -> Vec<Request> {
    requests.iter().filter(|one| (from..to).contains(&one.due)).copied().collect()
}

/// A quantile in microseconds, without what stops of the hypervisor met and raw.
fn tail(
    requests: &[Request],
    stops: &[CoreStop],
    quantile: f64,
    name: &str,
    put: &mut impl FnMut(&str, f64),
) {
    let latencies = Windows::of(&confirmed(stops, requests), requests).sort(requests);
    let named =
        [(name.to_owned(), latencies.counted()), (format!("{name}_raw"), &latencies.raw[..])];
    for (name, ascending) in named {
        if let Some(at) = stats::quantile(ascending, quantile) {
            put(&name, at.0 as f64 / 1e3);
        }
    }
}

fn answered_share(report: &LoadReport) -> f64 {
    let totals = report.overall.totals;
    totals.answered as f64 / (totals.scheduled as f64).max(1.0)
}
