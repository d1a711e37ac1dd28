//! The service whose wake-ups are to be explained: memcached, real-time, at half of its peak.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use quell_load::{LoadSpec, Probe, SearchSpec, Silent, search_peak};
use quell_model::{CoreId, CoreSet, Nanos};
use quell_terminal::{Progress, Stop};

use super::account::{Account, Seen, Used};
use super::hog::Hog;
use crate::host::{PauseLoop, Policy, set_nice};
use crate::services::{self, Definition, Offer, Service, set_roles};

/// As in `quell bench services`.
const CLIENT_NICE: i32 = -10;
/// How the peak is searched for.
const SEARCH_RUN: Nanos = Nanos::from_secs(1);
const PRECISION: f64 = 0.08;
const ATTEMPTS: u32 = 4;
/// Requests a second right after the filling.
const FILL_RPS: f64 = 1_000.0;
/// Load before the first account is read, beyond the warm-up, and after the second.
const MARGIN: Duration = Duration::from_millis(100);

/// memcached, stopped while it is not measured, until dropped.
pub struct Memcached {
    service: Service,
    client: CoreId,
    /// What it is asked.
    pub rate_rps: f64,
}

impl Memcached {
    /// Starts and fills it, and asks half of this peak of it from then on, or of one that is searched for.
    ///
    /// # Errors
    /// When it is not installed or does not start, or no load is sustained.
    pub fn start(
        managed: CoreId,
        client: CoreId,
        peak_rps: Option<f64>,
        progress: &mut dyn Progress,
        stop: &Stop,
    ) -> Result<Memcached> {
        let service =
            Service::start(&Definition::named("memcached")?, &CoreSet::of(managed), stop)?;
        let mut memcached = Memcached { service, client, rate_rps: FILL_RPS };
        // Before its workers are real-time: its LRU maintainer, which evicts, starves behind them then, and stores fail.
        let mut fill = memcached.load(MARGIN, MARGIN, 1)?;
        fill.preload = true;
        quell_load::run(&fill, &mut Silent).context("fill memcached")?;
        set_roles(&memcached.service, Policy::Fifo, 0)?;
        let peak_rps = match peak_rps {
            Some(peak_rps) => peak_rps,
            None => {
                progress.note("memcached: searching for the peak load");
                memcached.search(managed, stop)?
            }
        };
        progress.note(&format!("memcached: peak {peak_rps:.0} requests/s"));
        memcached.rate_rps = peak_rps / 2.0;
        memcached.service.group.pause()?;
        Ok(memcached)
    }

    /// Its threads.
    ///
    /// # Errors
    /// When it is gone.
    pub fn threads(&self) -> Result<Vec<i32>> {
        Ok(self.service.group.threads()?.into_iter().map(|(_, tid)| tid).collect())
    }

    /// Offers load and reads the accounts in the midst of it.
    ///
    /// # Errors
    /// When memcached or its client fails.
    pub fn measure(
        &mut self,
        hog: &Hog,
        warmup: Duration,
        time: Duration,
        seed: u64,
    ) -> Result<(Seen, [Nanos; 2])> {
        self.service.group.go_on()?;
        let measured = self.offer(hog, warmup, time, seed);
        self.service.group.pause()?;
        self.service.check()?;
        measured
    }

    fn offer(
        &self,
        hog: &Hog,
        warmup: Duration,
        time: Duration,
        seed: u64,
    ) -> Result<(Seen, [Nanos; 2])> {
        let load = self.load(time + 2 * MARGIN, warmup, seed)?;
        let account = || Account::read(hog, || self.used());
        std::thread::scope(|scope| {
            let accounts = std::thread::Builder::new().name("accounts".into());
            let accounts = accounts.spawn_scoped(scope, || {
                // The load begins a little later than this thread: the margin is for that.
                std::thread::sleep(warmup + MARGIN);
                let before = account()?;
                std::thread::sleep(time);
                Ok::<_, anyhow::Error>([before, account()?])
            });
            let accounts = accounts.context("start a thread")?;
            // The generator's thread inherits the value; the one that reads accounts has started before.
            set_nice(0, CLIENT_NICE).context("favour the client")?;
            let report = quell_load::run(&load, &mut Silent);
            set_nice(0, 0).context("favour the client no longer")?;
            let accounts = accounts.join().map_err(|_| anyhow!("a thread panicked"))?;
            let report = report.context("offer load")?;
            let [before, after] = accounts?;
            let mut seen = Seen::between(&before, &after);
            seen.requests = report.overall.achieved_rps;
            Ok((seen, [before.at, after.at]))
        })
    }

    fn used(&self) -> Result<Used> {
        let (cpu, usage) = (self.service.group.cpu_time()?, self.service.group.usage()?);
        Ok(Used { cpu, sleeps: usage.sleeps })
    }

    /// The very client of `quell bench services`.
    fn load(&self, duration: Duration, warmup: Duration, seed: u64) -> Result<LoadSpec> {
        let offer = Offer {
            rate_rps: self.rate_rps,
            duration,
            warmup,
            seed,
            client: self.client,
            preload: false,
            shape: [1.0; 3],
            rests: None,
        };
        services::load(&self.service, &offer).context("memcached has no protocol")
    }

    /// The highest load that it sustains while nothing but a PAUSE loop is beneath it.
    fn search(&self, managed: CoreId, stop: &Stop) -> Result<f64> {
        let _awake = PauseLoop::start(managed)?;
        let load = self.load(Duration::from_secs(1), MARGIN, 1)?;
        let definition = &self.service.definition.load;
        let mut search = SearchSpec::new(load);
        search.start_rps = definition.start_rps;
        search.p99_bound = Nanos(definition.p99_max.as_nanos() as u64);
        (search.run, search.precision, search.attempts) = (SEARCH_RUN, PRECISION, ATTEMPTS);
        let found = search_peak(&search, &mut |_: &Probe| !stop.is_asked());
        let found = found.context("search for the peak of memcached")?;
        stop.check()?;
        anyhow::ensure!(
            found.peak_rps > 0.0,
            "memcached sustains no load: {:?}",
            found.probes.last()
        );
        Ok(found.peak_rps)
    }
}
