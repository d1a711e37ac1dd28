//! Services and batch work that share cores, started, to be put under one system after another with a load for each service.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use quell_load::{Idle, LoadReport, LoadSpec, Silent, now};
use quell_model::{CoreId, CoreSet, Nanos};
use quell_report::stats;
use quell_terminal::Stop;

use crate::host::{Group, Weight, set_nice};
use crate::services::second::{self, Script};
use crate::services::{
    BatchWork, Canaries, Definition, Entered, Kind, Meanwhile, PauseProgram, Programs, Scene,
    Service, System, enter, requests,
};
use crate::stops::{CoreStop, Request, Windows, confirmed};

/// How often batch work's CPU time is read.
const READ: Duration = Duration::from_millis(50);
/// As of the client of `quell bench services`: a foreign thread on its core would be measured as latency.
const CLIENT_NICE: i32 = -10;

/// Where all of it runs, and by which programs.
#[derive(Clone, Debug)]
pub struct Place {
    /// Cores that services and batch work share.
    pub managed: CoreSet,
    /// The clients' core.
    pub client: CoreId,
    /// The `quell` program.
    pub quell: PathBuf,
    /// The `quell-antagonist` program.
    pub antagonist: PathBuf,
}

/// Services and busy loops, started, until dropped.
pub struct Stage<'a> {
    place: &'a Place,
    /// Those with the higher guarantee first.
    pub services: Vec<Service>,
    batch: BatchWork,
    canaries: &'a mut Canaries,
    stop: &'a Stop,
}

/// What the clients and the readings of batch work say.
pub struct Seen {
    /// One for each service.
    pub reports: Vec<LoadReport>,
    /// CPU time of batch work.
    pub readings: Vec<Reading>,
    /// Stops of all cores.
    pub stops: Vec<CoreStop>,
}

/// CPU time that was used up to a moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The moment.
    pub at: Nanos,
    /// The time.
    pub cpu: Nanos,
}

impl<'a> Stage<'a> {
    /// Starts all programs.
    ///
    /// # Errors
    /// When one is missing or fails.
    pub fn start(
        place: &'a Place,
        definitions: &[Definition],
        canaries: &'a mut Canaries,
        stop: &'a Stop,
    ) -> Result<Stage<'a>> {
        let start = |definition| Service::start(definition, &place.managed, stop);
        let services = definitions.iter().map(start).collect::<Result<_>>()?;
        let programs = Programs { antagonist: place.antagonist.clone(), go_gc: None };
        let batch = BatchWork::start(Kind::Hog, &programs, None, &place.managed, stop)?;
        Ok(Stage { place, services, batch, canaries, stop })
    }

    /// The clients' core.
    pub fn client(&self) -> CoreId {
        self.place.client
    }

    /// Offers a load to each service under a system, beside batch work. The client of service `spins` never sleeps while an
    /// answer is outstanding, the others leave the core to it. `last` reads what it needs before the system ends.
    ///
    /// # Errors
    /// When a client or a program fails, the daemon does not restore the host, or a stop was asked for.
    pub fn under<T>(
        &mut self,
        system: System,
        loads: Vec<LoadSpec>,
        spins: usize,
        last: impl FnOnce(&Entered) -> Result<T>,
    ) -> Result<(Seen, T)> {
        self.stop.check()?;
        match system {
            // What it adds to `alone` is a loop that keeps the core awake.
            System::AloneIdlePoll => self.awake(System::Alone, loads, spins, last),
            _ => self.enter(system, loads, spins, last),
        }
    }

    /// The same without batch work: it is stopped, and a loop keeps the core awake.
    ///
    /// # Errors
    /// As [`Stage::under`].
    pub fn without_batch<T>(
        &mut self,
        system: System,
        loads: Vec<LoadSpec>,
        spins: usize,
        last: impl FnOnce(&Entered) -> Result<T>,
    ) -> Result<(Seen, T)> {
        self.stop.check()?;
        self.batch.group.pause()?;
        let seen = self.awake(system, loads, spins, last);
        self.batch.group.go_on()?;
        seen
    }

    fn enter<T>(
        &mut self,
        system: System,
        loads: Vec<LoadSpec>,
        spins: usize,
        last: impl FnOnce(&Entered) -> Result<T>,
    ) -> Result<(Seen, T)> {
        let scene = Scene {
            managed: self.place.managed,
            services: self.services.iter().collect(),
            batch: &self.batch,
            quell: &self.place.quell,
            antagonist: &self.place.antagonist,
            bursts: None,
            rests: None,
        };
        let entered = enter(system, &scene, self.stop)?;
        let seen =
            offer(&scene, self.canaries, loads, spins).and_then(|seen| Ok((seen, last(&entered)?)));
        let left = entered.leave(&scene);
        let seen = seen?;
        left?;
        self.services.iter_mut().try_for_each(Service::check)?;
        self.batch.check()?;
        Ok(seen)
    }

    /// Keeps the core awake by a PAUSE loop in an idle group of its own: in the group of one service it would take that one's
    /// part of the core.
    fn awake<T>(
        &mut self,
        system: System,
        loads: Vec<LoadSpec>,
        spins: usize,
        last: impl FnOnce(&Entered) -> Result<T>,
    ) -> Result<(Seen, T)> {
        let group = Group::create("pause")?;
        let place = self.place;
        let pause = PauseProgram::start(&place.antagonist, &group, &place.managed, None)?;
        group.set_weight(Weight::Idle)?;
        let seen = self.enter(system, loads, spins, last);
        // Before its group.
        drop(pause);
        seen
    }
}

/// Loads all services and reads batch work's CPU time meanwhile.
fn offer(
    scene: &Scene,
    canaries: &mut Canaries,
    loads: Vec<LoadSpec>,
    spins: usize,
) -> Result<Seen> {
    canaries.begin()?;
    let is_over = AtomicBool::new(false);
    let group = &scene.batch.group;
    let (reports, readings) = std::thread::scope(|scope| -> Result<_> {
        let reader = scope.spawn(|| readings(group, &is_over));
        let reports = offer_all(scene, loads, spins);
        // Relaxed: the join orders the rest.
        is_over.store(true, Ordering::Relaxed);
        let readings = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        Ok((reports?, readings?))
    })?;
    Ok(Seen { reports, readings, stops: canaries.end()? })
}

fn offer_all(scene: &Scene, mut loads: Vec<LoadSpec>, spins: usize) -> Result<Vec<LoadReport>> {
    let load = LoadSpec { idle: Idle::Sleep, ..loads.remove(spins) };
    std::thread::scope(|scope| {
        let services = scene.services.iter();
        let during = services.map(|service| Meanwhile::start(scope, service));
        let during = during.collect::<Result<Vec<_>>>()?;
        let following = loads.into_iter().map(|load| second::follow(Script::load(load)));
        let following = following.collect::<Result<Vec<_>>>()?;
        // The generator's thread inherits the value.
        let first = set_nice(0, CLIENT_NICE).context("favour the client").and_then(|()| {
            let report = quell_load::run(&load, &mut Silent).context("offer load");
            set_nice(0, 0).context("favour the client no longer")?;
            report
        });
        // All clients are over before an error of one ends the others' services.
        let others: Vec<_> = following.into_iter().map(second::Following::finish).collect();
        during.into_iter().try_for_each(|during| during.finish().map(|_| ()))?;
        let whole = |report: Option<LoadReport>| report.context("a client reports nothing");
        let mut reports =
            others.into_iter().map(|report| whole(report?)).collect::<Result<Vec<_>>>()?;
        reports.insert(spins, first?);
        for (report, service) in reports.iter().zip(&scene.services) {
            let name = &service.definition.name;
            if let Some(why) = &report.ended_early {
                bail!("the client of {name} ended early: {why}");
            }
            ensure!(report.samples_missing == 0, "too many requests to {name} to remember");
        }
        Ok(reports)
    })
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

/// The clock's unit.
pub fn nanos(time: Duration) -> Nanos {
    Nanos(time.as_nanos() as u64)
}

impl Seen {
    /// Stops of the hypervisor during which no service answered anything: an answer shows that the cores ran.
    pub fn confirmed(&self) -> Vec<CoreStop> {
        let all: Vec<Request> = self.reports.iter().flat_map(requests).collect();
        confirmed(&self.stops, &all)
    }
}

/// A quantile in microseconds, without what confirmed stops of the hypervisor met, and raw.
pub fn tail(
    requests: &[Request],
    stops: &[CoreStop],
    quantile: f64,
    name: &str,
    put: &mut impl FnMut(&str, f64),
) {
    let latencies = Windows::of(stops, requests).sort(requests);
    let named =
        [(name.to_owned(), latencies.counted()), (format!("{name}_raw"), &latencies.raw[..])];
    for (name, ascending) in named {
        if let Some(at) = stats::quantile(ascending, quantile) {
            put(&name, at.0 as f64 / 1e3);
        }
    }
}

/// CPU time as a share of the time between two moments, from readings in ascending order: between the last reading before
/// each and the first after it, time is taken as used evenly. `None` where the readings do not reach that far.
pub fn share_between(readings: &[Reading], from: Nanos, to: Nanos) -> Option<f64> {
    let used = used_until(readings, to)? - used_until(readings, from)?;
    (to > from).then(|| used / (to - from).0 as f64)
}

fn used_until(readings: &[Reading], at: Nanos) -> Option<f64> {
    let next = readings.partition_point(|reading| reading.at < at);
    let after = readings.get(next)?;
    if after.at == at {
        return Some(after.cpu.0 as f64);
    }
    let before = readings.get(next.checked_sub(1)?)?;
    let part = (at - before.at).0 as f64 / (after.at - before.at).0 as f64;
    Some(before.cpu.0 as f64 + (after.cpu - before.cpu).0 as f64 * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_interpolates_between_readings() {
        let reading =
            |ms, cpu| Reading { at: Nanos::from_millis(ms), cpu: Nanos::from_millis(cpu) };
        let readings = [reading(0, 0), reading(100, 100), reading(200, 100)];
        let share =
            |from, to| share_between(&readings, Nanos::from_millis(from), Nanos::from_millis(to));
        assert_eq!(share(0, 100), Some(1.0));
        assert_eq!(share(50, 150), Some(0.5));
        assert_eq!(share(100, 200), Some(0.0));
        assert_eq!(share(150, 250), None);
    }
}
