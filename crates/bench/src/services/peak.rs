//! The highest load that a service sustains alone on a core that is kept awake.

use anyhow::{Context as _, Result, bail};
use quell_load::{LimitedBy, LoadSpec, Probe, SearchSpec, Silent, search_peak_by};
use quell_model::{CoreId, Nanos};
use quell_report::stats;

use super::during::Meanwhile;
use super::log::Line;
use super::measure::{Canaries, Offer, load, requests};
use super::pause::PauseProgram;
use super::{Session, note};
use crate::stops::{CoreStop, Windows, confirmed};

/// How narrow the search becomes.
const PRECISION: f64 = 0.08;
/// Runs that a rate gets.
const ATTEMPTS: u32 = 4;

impl Session<'_> {
    fn awake(&self) -> Result<PauseProgram> {
        let spec = self.spec;
        PauseProgram::start(&spec.antagonist, &self.service.group, &spec.managed, None)
    }

    /// As the log or the service's definition has it, or searched for.
    pub(super) fn peak(&mut self) -> Result<f64> {
        let definition = &self.service.definition;
        if let Some(known) = self.log.peak_rps(&definition.name).or(definition.load.peak_rps) {
            return Ok(known);
        }
        let name = definition.name.clone();
        self.progress.note(&format!("{name}: searching for the peak load"));
        let _awake = self.awake()?;
        let offer = Offer { preload: true, ..self.plain_offer(self.spec.seed) };
        let load =
            load(&self.service, &offer).context("only a protocol has its peak searched for")?;
        let mut search = SearchSpec::new(load);
        search.start_rps = definition.load.start_rps;
        search.p99_bound = Nanos(definition.load.p99_max.as_nanos() as u64);
        let run =
            self.spec.longest.map_or(definition.load.least, |max| definition.load.least.min(max));
        search.run = Nanos(run.as_nanos() as u64);
        (search.precision, search.attempts) = (PRECISION, ATTEMPTS);
        let (canaries, stop) = (&mut *self.canaries, self.stop);
        let found = std::thread::scope(|scope| {
            let meanwhile = Meanwhile::start(scope, &self.service)?;
            let mut load = search.load.clone();
            let found = search_peak_by(&search, &mut |rate_rps| {
                let probe = probe(&mut load, rate_rps, &search, canaries)?;
                Ok::<_, anyhow::Error>((probe, !stop.is_asked()))
            });
            meanwhile.finish()?;
            found.context("search for the peak load")
        })?;
        self.stop.check()?;
        if found.peak_rps <= 0.0 {
            bail!(
                "{name} sustains no load within its bound; the last attempt: {:?}",
                found.probes.last()
            );
        }
        if found.limited_by == LimitedBy::Generator {
            let text = format!("{name}: the client was the limit of the peak, not the service");
            note(self.log, text)?;
        }
        self.preloaded = true;
        self.log.push(Line::Peak { service: name, peak_rps: found.peak_rps })?;
        Ok(found.peak_rps)
    }
}

/// A run at a rate. What a stop of the hypervisor met says nothing of the service: where one request in a hundred did, no
/// rate would be sustained.
fn probe(
    load: &mut LoadSpec,
    rate_rps: f64,
    search: &SearchSpec,
    canaries: &mut Canaries,
) -> Result<Probe> {
    load.steps = vec![quell_load::Step { rate_rps, duration: search.run }];
    canaries.begin()?;
    let report = quell_load::run(load, &mut Silent).context("offer load")?;
    let stops = canaries.end()?;
    // Once is enough: the keys stay.
    load.preload = false;
    let requests = requests(&report);
    let mut stops = confirmed(&stops, &requests);
    let stalls = report.stalls.windows.iter();
    let core = load.core.unwrap_or(CoreId(0));
    stops.extend(stalls.map(|one| CoreStop { core, start: one.start_ns, end: one.end_ns }));
    let latencies = Windows::of(&stops, &requests).sort(&requests);
    let p99 = stats::quantile(latencies.counted(), 0.99).unwrap_or(Nanos::MAX);
    Ok(Probe::of(&report, rate_rps, p99.0 as f64 / 1e3, search.p99_bound))
}
