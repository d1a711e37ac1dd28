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
use crate::stops::{CoreStop, Request, Windows, confirmed};

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

/// Stops leave out a few requests in a hundred where the queue empties soon.
const EXCLUDED_MAX: f64 = 0.1;

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
    let p99 = p99(&stops, &requests);
    Ok(Probe::of(&report, rate_rps, p99.0 as f64 / 1e3, search.p99_bound))
}

/// The p99 without what stops met. Where that is much, the queue does not empty after a stop: the doing of the rate, and all
/// requests count.
fn p99(stops: &[CoreStop], requests: &[Request]) -> Nanos {
    let sorted = Windows::of(stops, requests).sort(requests);
    let much = sorted.excluded_share() > EXCLUDED_MAX;
    let counted = if much { &sorted.raw } else { &sorted.filtered };
    stats::quantile(counted, 0.99).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_at_which_the_queue_never_empties_is_judged_by_all_requests() {
        let us = Nanos::from_micros;
        let stop = CoreStop { core: CoreId(1), start: us(10_000), end: us(10_600) };
        let requests = |wait: u64| -> Vec<Request> {
            let latency = |due: u64| if due < 10_000 { 20 } else { wait };
            let at = |due| Request { due: us(due), done: us(due + latency(due)) };
            (0..1_000).map(|n| at(n * 100)).collect()
        };
        // Six requests meet the stop; each of the others is alone.
        assert_eq!(p99(&[stop], &requests(20)), us(20));
        // From the stop on there is always one that waits.
        assert_eq!(p99(&[stop], &requests(5_000)), us(5_000));
    }
}
