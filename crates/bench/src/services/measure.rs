//! One measurement: load against a service for a while, and the resources that each side used.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quell_load::rests::Rests;
use quell_load::{Idle, LoadReport, LoadSpec, Step};
use quell_model::{CoreId, CoreSet, Nanos};
use quell_report::stats;

use super::batch::{BatchWork, Rates, Work};
use super::during::Meanwhile;
use super::external;
use super::pause::PauseProgram;
use super::second;
use super::service::Service;
use super::wakeups::Wakeups;
use crate::host::{Canary, Usage, set_nice};
use crate::stops::{CoreStop, Latencies, Request, STOP_MIN, Windows, confirmed, stopped_share};

/// Nice value of the client's thread: a foreign thread on its core would be measured as latency.
/// Not FIFO: that would starve the core's softirq thread.
const CLIENT_NICE: i32 = -10;
/// How often a canary interrupts its core: it takes some 14 us in a virtual machine, from every system alike.
const CANARY: Nanos = Nanos::from_millis(1);

/// The quantile that is quoted of a second service, of which some thousand requests are asked.
const SECOND_QUANTILE: f64 = 0.99;

/// A value of a measurement, by its metric.
pub type Values = BTreeMap<String, f64>;

/// A canary on each core.
pub struct Canaries(Vec<(CoreId, Canary)>);

impl Canaries {
    /// Puts them there.
    ///
    /// # Errors
    /// Where perf events are not allowed: without them stops cannot be distinguished from a scheduler's doing.
    pub fn start(cores: &CoreSet) -> Result<Canaries> {
        let canary = |core| Ok((core, Canary::start(core, CANARY)?));
        let canaries: std::io::Result<_> = cores.iter().map(canary).collect();
        canaries.map(Canaries).context("watch for stops of the hypervisor (perf_event_open)")
    }

    /// Begins to watch.
    ///
    /// # Errors
    /// When the kernel takes a perf event away.
    pub fn begin(&mut self) -> Result<()> {
        let mut canaries = self.0.iter_mut();
        canaries.try_for_each(|(_, canary)| canary.begin()).context("start timers")
    }

    /// What was seen since.
    ///
    /// # Errors
    /// When the kernel takes a perf event away.
    pub fn end(&mut self) -> Result<Vec<CoreStop>> {
        let mut stops = Vec::new();
        for (core, canary) in &mut self.0 {
            let stills = canary.end(STOP_MIN).context("stop timers")?;
            let stop = |still: crate::host::Standstill| CoreStop {
                core: *core,
                start: still.from,
                end: still.to,
            };
            stops.extend(stills.into_iter().filter(|still| !still.idle).map(stop));
        }
        Ok(stops)
    }
}

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Requests a second.
    pub rate_rps: f64,
    /// For so long.
    pub duration: Duration,
    /// Load before that does not count.
    pub warmup: Duration,
    /// Seed of the arrivals.
    pub seed: u64,
    /// The client's core.
    pub client: CoreId,
    /// Whether keys are stored first.
    pub preload: bool,
    /// The rate in each third of the time, as multiples of the one above.
    pub shape: [f64; 3],
    /// The seed of the rests of batch work, where it rests.
    pub rests: Option<u64>,
}

/// The instruments of a measurement.
pub struct Instruments<'a> {
    /// Stops of every core.
    pub canaries: &'a mut Canaries,
    /// Wake-ups of the service's threads, where the host has BPF.
    pub wakeups: Option<&'a mut Wakeups>,
    /// What is done to a second service meanwhile.
    pub second: Option<second::Script>,
}

/// Resources used and work done up to one moment.
struct Account {
    at: Instant,
    cpu: Nanos,
    usage: Usage,
    pause: Nanos,
    turns: u64,
    work: Work,
    quell: BTreeMap<String, Nanos>,
}

impl Account {
    fn read(
        service: &Service,
        batch: &BatchWork,
        pause: Option<&PauseProgram>,
        quell: &[i32],
    ) -> Result<Account> {
        Ok(Account {
            at: Instant::now(),
            cpu: service.group.cpu_time()?,
            usage: service.group.usage()?,
            pause: pause.map_or(Ok(Nanos::ZERO), PauseProgram::cpu)?,
            turns: pause.map_or(Ok(0), PauseProgram::turns)?,
            work: batch.work()?,
            quell: cpu_by_thread(quell),
        })
    }
}

/// Offers the load and measures. Returns the values, and what batch work got.
///
/// # Errors
/// When the client fails, or the service or batch work is over.
pub fn measure(
    service: &Service,
    batch: &BatchWork,
    offer: &Offer,
    pause: Option<&PauseProgram>,
    quell: &[i32],
    mut instruments: Instruments,
) -> Result<(Values, Rates)> {
    if let Some(wakeups) = &mut instruments.wakeups {
        wakeups.begin(&service.group)?;
    }
    instruments.canaries.begin()?;
    let before = Account::read(service, batch, pause, quell)?;
    let offered = std::thread::scope(|scope| {
        let meanwhile = Meanwhile::start(scope, service)?;
        let second = instruments.second.map(second::follow).transpose()?;
        let offered = ask(service, offer);
        let second = second.map(second::Following::finish).transpose()?;
        let commands = meanwhile.finish()?;
        offered.map(|offered| (offered, second.flatten(), commands))
    });
    let (offered, second, commands) = offered?;
    let after = Account::read(service, batch, pause, quell)?;
    let seen = instruments.canaries.end()?;
    let passed = (after.at - before.at).as_secs_f64();
    let mut values = Values::new();
    let mut put = |name: &str, value: f64| _ = values.insert(name.to_owned(), value);
    let Offered { requests, scheduled, answered, start, end, late, client_stalls, client_sleep } =
        offered;
    let stops = confirmed(&seen, &requests);
    let on_client = |&(start, end): &(Nanos, Nanos)| CoreStop { core: offer.client, start, end };
    let stalls: Vec<CoreStop> = client_stalls.iter().map(on_client).collect();
    let rests: Vec<CoreStop> =
        offer.rests.map_or_else(Vec::new, |seed| rests(seed, offer.client, start, end));
    let (latencies, [by_stops, by_client, by_rests]) =
        sort_out(&requests, [&stops, &stalls, &rests]);
    quantiles(&latencies, service.definition.load.quantile, &mut put);
    if let Some(second) = second {
        second_service(&second, &seen, &mut put);
    }
    put("offered_rps", scheduled as f64 / (end - start).0.max(1) as f64 * 1e9);
    put("served_share", answered as f64 / (scheduled as f64).max(1.0));
    put("excluded_share", by_stops);
    put("client_excluded_share", by_client);
    if offer.rests.is_some() {
        put("rest_share", by_rests);
    }
    put("stopped_share", stopped_share(&stops, start, end));
    put("stops_per_s", stops.len() as f64 / passed);
    put("late_share", late as f64 / (scheduled as f64).max(1.0));
    let lost = client_stalls.iter().fold(Nanos::ZERO, |sum, (from, to)| sum + (*to - *from));
    put("client_lost_share", lost.0 as f64 / (end - start).0.max(1) as f64);
    if let Some((slept, wake_up)) = client_sleep {
        put("client_slept_share", slept);
        put("client_wake_up_p99_us", wake_up.0 as f64 / 1e3);
    }
    let of_service = (after.cpu - before.cpu) - (after.pause - before.pause);
    put("service_cpu", of_service.0 as f64 / 1e9 / passed);
    put("pause_cpu", (after.pause - before.pause).0 as f64 / 1e9 / passed);
    if pause.is_some() {
        put("pause_turns_per_s", (after.turns - before.turns) as f64 / passed);
    }
    let sleeps = after.usage.sleeps.saturating_sub(before.usage.sleeps);
    put("wakes_per_s", sleeps as f64 / passed);
    put("commands", commands as f64);
    for (thread, cpu) in &after.quell {
        let before = before.quell.get(thread).copied().unwrap_or_default();
        put(&format!("cpu_of_{thread}"), (*cpu - before).0 as f64 / 1e9 / passed);
    }
    if let Some(wakeups) = &mut instruments.wakeups {
        let names = ["wakeup_p50_us", "wakeup_p99_us", "wakeup_p999_us"];
        for (name, wait) in names.into_iter().zip(wakeups.end()) {
            wait.iter().for_each(|wait| put(name, wait.0 as f64 / 1e3));
        }
    }
    let rates = after.work.rates_since(&before.work);
    put("batch_cpu", rates.cpu);
    Ok((values, rates))
}

/// Latencies without what these met, and which share of the requests each adds to those that are left out.
fn sort_out(requests: &[Request], causes: [&[CoreStop]; 3]) -> (Latencies, [f64; 3]) {
    let (mut unusual, mut latencies, mut before) = (Vec::new(), Latencies::default(), 0.0);
    let shares = causes.map(|cause| {
        unusual.extend_from_slice(cause);
        latencies = Windows::of(&unusual, requests).sort(requests);
        let share = latencies.excluded_share() - before;
        before += share;
        share
    });
    (latencies, shares)
}

/// Rests of batch work, which end starvation and let the core halt: what they meet is left out as what a stop met.
fn rests(seed: u64, core: CoreId, start: Nanos, end: Nanos) -> Vec<CoreStop> {
    let rests = Rests::new(seed).between(start, end).into_iter();
    rests.map(|(start, end)| CoreStop { core, start, end }).collect()
}

/// Latencies in microseconds, of those that count and of all.
fn quantiles(latencies: &Latencies, quoted: f64, put: &mut impl FnMut(&str, f64)) {
    for (suffix, ascending) in [("", latencies.counted()), ("_raw", &latencies.raw)] {
        let named = [
            ("min", 0.0),
            ("p50", 0.5),
            ("p99", 0.99),
            ("p999", 0.999),
            ("max", 1.0),
            ("tail", quoted),
        ];
        for (name, quantile) in named {
            if let Some(at) = stats::quantile(ascending, quantile) {
                put(&format!("{name}_us{suffix}"), at.0 as f64 / 1e3);
            }
        }
    }
}

/// The same of a second service that was offered load.
fn second_service(report: &LoadReport, stops: &[CoreStop], put: &mut impl FnMut(&str, f64)) {
    let requests = requests(report);
    let stops = &confirmed(stops, &requests);
    let latencies = Windows::of(stops, &requests).sort(&requests);
    for (suffix, ascending) in [("", latencies.counted()), ("_raw", &latencies.raw)] {
        for (name, quantile) in [("second_tail_us", SECOND_QUANTILE), ("second_p999_us", 0.999)] {
            if let Some(at) = stats::quantile(ascending, quantile) {
                put(&format!("{name}{suffix}"), at.0 as f64 / 1e3);
            }
        }
    }
    put("second_served_share", answered_share(report));
}

/// The share of the requests of a run that was answered.
pub(crate) fn answered_share(report: &LoadReport) -> f64 {
    let totals = report.overall.totals;
    totals.answered as f64 / (totals.scheduled as f64).max(1.0)
}

/// What a client reports.
pub(super) struct Offered {
    /// All of them; one without an answer ends with the run.
    pub requests: Vec<Request>,
    /// How many were answered.
    pub answered: u64,
    /// How many there were to be.
    pub scheduled: u64,
    pub start: Nanos,
    pub end: Nanos,
    /// Sent late by the client's own fault.
    pub late: u64,
    /// When its loop did not run: another program or the hypervisor had its core, which no service is to blame for.
    pub client_stalls: Vec<(Nanos, Nanos)>,
    /// Share of the time that it slept, and what 99 % of its wake-ups took; none where the client is a program.
    pub client_sleep: Option<(f64, Nanos)>,
}

fn ask(service: &Service, offer: &Offer) -> Result<Offered> {
    let Some(load) = load(service, offer) else { return external::ask(service, offer) };
    // The generator's thread inherits the value.
    set_nice(0, CLIENT_NICE).context("favour the client")?;
    let report = quell_load::run(&load, &mut quell_load::Silent);
    set_nice(0, 0).context("favour the client no longer")?;
    Ok(offered(&report.context("offer load")?))
}

/// The load for Quell's own client; `None` where the service has one of its own.
pub fn load(service: &Service, offer: &Offer) -> Option<LoadSpec> {
    let nanos = |time: Duration| Nanos(time.as_nanos() as u64);
    let protocol = service.protocol()?.clone();
    let mut load = LoadSpec::new(service.addr, protocol, offer.rate_rps, nanos(offer.duration));
    if offer.shape != [1.0; 3] {
        let step =
            |times| Step { rate_rps: offer.rate_rps * times, duration: nanos(offer.duration / 3) };
        load.steps = offer.shape.map(step).to_vec();
    }
    load.connections = service.definition.load.connections;
    load.warmup = nanos(offer.warmup);
    load.seed = offer.seed;
    load.core = Some(offer.client);
    load.preload = offer.preload;
    load.idle = Idle::Sleep;
    load.pipelining = false;
    Some(load)
}

/// The requests of a run; one without an answer ends with it.
pub(crate) fn requests(report: &LoadReport) -> Vec<Request> {
    let request = |sample: &quell_load::Sample| Request {
        due: sample.sent_ns,
        done: sample.sent_ns + sample.latency_ns,
    };
    report.samples.iter().map(request).collect()
}

fn offered(report: &LoadReport) -> Offered {
    let stalls = report.stalls.windows.iter();
    Offered {
        requests: requests(report),
        answered: report.overall.totals.answered,
        scheduled: report.overall.totals.scheduled,
        start: report.overall.start_ns,
        end: report.overall.end_ns,
        late: report.overall.totals.late,
        client_stalls: stalls.map(|one| (one.start_ns, one.end_ns)).collect(),
        client_sleep: Some((report.generator.slept_share, report.generator.wake_up_p99_ns)),
    }
}

/// CPU time of the threads of these processes, by their names.
fn cpu_by_thread(pids: &[i32]) -> BTreeMap<String, Nanos> {
    let mut found = BTreeMap::new();
    for pid in pids {
        let threads =
            std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).ok();
            let cpu = read("schedstat").and_then(|text| text.split(' ').next()?.parse().ok());
            if let (Some(name), Some(cpu)) = (read("comm"), cpu) {
                *found.entry(name.trim().to_owned()).or_default() += Nanos(cpu);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_an_answer_counts_as_asked_and_not_as_served() {
        use quell_load::protocol::synthetic::{ServiceTime, SyntheticSpec};
        use quell_load::serve::{ServeSpec, Server};
        let server = Server::start(&ServeSpec::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let service = ServiceTime::Fixed { work_ns: 50_000_000 };
        let protocol = quell_load::ProtocolSpec::Synthetic(SyntheticSpec { service });
        let duration = Nanos::from_millis(300);
        let mut load = LoadSpec::new(server.addr(), protocol, 500.0, duration);
        (load.warmup, load.grace) = (Nanos::ZERO, Nanos::from_millis(1));
        let offered = offered(&quell_load::run(&load, &mut quell_load::Silent).unwrap());
        assert_eq!(offered.requests.len() as u64, offered.scheduled);
        assert!(offered.answered < offered.scheduled / 2, "{}", offered.answered);
    }

    #[test]
    fn what_the_client_missed_is_left_out_and_counted_apart_from_stops() {
        let us = Nanos::from_micros;
        let request = |due, done| Request { due: us(due), done: us(done) };
        let at = |start, end| CoreStop { core: CoreId(0), start: us(start), end: us(end) };
        let requests: Vec<Request> = (0..10).map(|n| request(n * 1_000, n * 1_000 + 20)).collect();
        // The third meets a stop, the third and the fourth a stall of the client.
        let (latencies, shares) =
            sort_out(&requests, [&[at(2_010, 2_600)], &[at(2_900, 3_010), at(2_015, 2_100)], &[]]);
        assert_eq!(latencies.raw.len(), 10);
        assert_eq!(latencies.filtered.len(), 8);
        assert_eq!(shares.map(|share| (share * 1e3).round()), [100.0, 100.0, 0.0]);
    }
}
