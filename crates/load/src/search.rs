//! The highest rate that a server sustains, found by doubling and bisection with short runs.

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use crate::arrivals::{Arrivals, Step};
use crate::error::LoadError;
use crate::report::{LimitedBy, LoadReport};
use crate::run::{Silent, run};
use crate::spec::LoadSpec;

/// How to search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchSpec {
    /// Server, protocol, connections; its steps are replaced.
    pub load: LoadSpec,
    /// First rate tried.
    pub start_rps: f64,
    /// Never try more.
    pub max_rps: f64,
    /// A rate is sustained only if 99 % of the latencies are no longer.
    #[serde(rename = "p99_bound_ns")]
    pub p99_bound: Nanos,
    /// Length of one run.
    #[serde(rename = "run_ns")]
    pub run: Nanos,
    /// Stop when the bracket is this narrow, as a share of the rate.
    pub precision: f64,
    /// Runs that a rate gets; one good one is enough, since a stall of the hypervisor spoils a short
    /// run.
    pub attempts: u32,
}

impl SearchSpec {
    /// From 5,000 to a million requests a second in runs of 600 ms, to 3 %, three attempts, p99 at
    /// most 1 ms.
    pub fn new(load: LoadSpec) -> SearchSpec {
        SearchSpec {
            load,
            start_rps: 5_000.0,
            max_rps: 1e6,
            p99_bound: Nanos::from_millis(1),
            run: Nanos::from_millis(600),
            precision: 0.03,
            attempts: 3,
        }
    }
}

/// One short run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The rate asked for.
    pub rate_rps: f64,
    /// Replies a second.
    pub achieved_rps: f64,
    /// 99 % of the latencies are no longer, in microseconds.
    pub p99_us: f64,
    /// What held it back.
    pub limited_by: LimitedBy,
    /// At least 99 % achieved, p99 within the bound, and every request answered.
    pub sustained: bool,
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeakReport {
    /// Highest rate that was sustained; zero if not even the first.
    pub peak_rps: f64,
    /// What stands above it: `generator` means that the server may do more, `none` that the search
    /// reached its highest rate.
    pub limited_by: LimitedBy,
    /// All runs in their order.
    pub probes: Vec<Probe>,
}

/// Finds the peak. `on_probe` hears of each run, and ends the search by returning `false`.
///
/// # Errors
/// As [`run`], and numbers that make no sense.
pub fn search_peak(
    spec: &SearchSpec,
    on_probe: &mut dyn FnMut(&Probe) -> bool,
) -> Result<PeakReport, LoadError> {
    let mut load = spec.load.clone();
    search_peak_by(spec, &mut |rate_rps| -> Result<(Probe, bool), LoadError> {
        load.steps = vec![Step { rate_rps, duration: spec.run }];
        let report = run(&load, &mut Silent)?;
        // Once is enough: the keys stay.
        load.preload = false;
        let probe = Probe::of(&report, rate_rps, report.overall.latency.p99_us, spec.p99_bound);
        let go_on = on_probe(&probe);
        Ok((probe, go_on))
    })
}

/// Finds the peak by runs of the caller, where not all latencies count. `probe` offers the rate it is given, and
/// ends the search by returning `false`.
///
/// # Errors
/// As `probe`, and numbers that make no sense.
pub fn search_peak_by<E: From<LoadError>>(
    spec: &SearchSpec,
    probe: &mut dyn FnMut(f64) -> Result<(Probe, bool), E>,
) -> Result<PeakReport, E> {
    if !(spec.start_rps >= 1.0 && spec.start_rps <= spec.max_rps && spec.precision > 0.0) {
        return Err(LoadError::Spec(
            "search: start_rps must be in 1..=max_rps and precision above 0".into(),
        )
        .into());
    }
    if !matches!(spec.load.arrivals, Arrivals::Poisson | Arrivals::Uniform) {
        return Err(LoadError::Spec(
            "search: arrivals must be poisson or uniform; bursts and traces have rates of their own"
                .into(),
        )
        .into());
    }
    search(spec, probe)
}

impl Probe {
    /// Judges a run at a rate, of whose latencies those that count have this 99th percentile in microseconds.
    pub fn of(report: &LoadReport, rate_rps: f64, p99_us: f64, p99_bound: Nanos) -> Probe {
        let overall = &report.overall;
        let enough = overall.achieved_rps >= 0.99 * overall.offered_rps;
        let in_time = p99_us <= p99_bound.0 as f64 / 1e3;
        let complete = overall.totals.answered == overall.totals.scheduled;
        Probe {
            rate_rps,
            achieved_rps: overall.achieved_rps,
            p99_us,
            limited_by: report.limited_by,
            sustained: enough && in_time && complete,
        }
    }
}

/// Doubles until a rate is not sustained, then halves the bracket.
fn search<E>(
    spec: &SearchSpec,
    probe: &mut dyn FnMut(f64) -> Result<(Probe, bool), E>,
) -> Result<PeakReport, E> {
    let mut found = PeakReport { peak_rps: 0.0, limited_by: LimitedBy::None, probes: Vec::new() };
    let mut beyond: Option<f64> = None;
    let mut rate = spec.start_rps;
    loop {
        let mut sustained = false;
        for _ in 0..spec.attempts.max(1) {
            let (result, go_on) = probe(rate)?;
            sustained = result.sustained;
            if sustained {
                found.peak_rps = found.peak_rps.max(rate);
            } else {
                found.limited_by = limit_of(&result);
            }
            found.probes.push(result);
            if !go_on {
                return Ok(found);
            }
            if sustained {
                break;
            }
        }
        if !sustained {
            beyond = Some(rate);
        }
        rate = match beyond {
            Some(high) if high - found.peak_rps <= spec.precision * high => break,
            // Even the first rate is too high: look below it, but not for ever.
            Some(high) if high < 1.0 => break,
            Some(high) => (found.peak_rps + high) / 2.0,
            None if rate >= spec.max_rps => {
                found.limited_by = LimitedBy::None;
                break;
            }
            None => (rate * 2.0).min(spec.max_rps),
        };
    }
    Ok(found)
}

/// A run that failed on its latency alone was limited by the server: the generator was on time.
fn limit_of(failed: &Probe) -> LimitedBy {
    match failed.limited_by {
        LimitedBy::Generator => LimitedBy::Generator,
        LimitedBy::Server | LimitedBy::None => LimitedBy::Server,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ProtocolSpec, keyvalue::KeyValueSpec};

    fn spec() -> SearchSpec {
        let protocol = ProtocolSpec::Memcached(KeyValueSpec::default());
        let addr = "127.0.0.1:1".parse().unwrap();
        SearchSpec::new(LoadSpec::new(addr, protocol, 1.0, Nanos::from_millis(1)))
    }

    /// A server that sustains `capacity`, and a generator that sustains `own`.
    fn find(spec: &SearchSpec, capacity: f64, own: f64) -> PeakReport {
        let mut probe = |rate_rps: f64| {
            let sustained = rate_rps <= capacity.min(own);
            let limited_by = match () {
                () if sustained => LimitedBy::None,
                () if rate_rps > own => LimitedBy::Generator,
                () => LimitedBy::Server,
            };
            let probe =
                Probe { rate_rps, achieved_rps: rate_rps, p99_us: 1.0, limited_by, sustained };
            Ok((probe, true))
        };
        search::<LoadError>(spec, &mut probe).unwrap()
    }

    #[test]
    fn the_peak_is_found_to_the_precision_asked_for_wherever_it_is() {
        for capacity in [37.0, 4_999.0, 5_000.0, 61_234.0, 777_777.0] {
            let found = find(&spec(), capacity, f64::MAX);
            assert!(found.peak_rps <= capacity && found.peak_rps > capacity * 0.96, "{found:?}");
            assert_eq!(found.limited_by, LimitedBy::Server);
        }
    }

    #[test]
    fn it_says_when_the_generator_is_the_limit() {
        assert_eq!(find(&spec(), f64::MAX, 123_456.0).limited_by, LimitedBy::Generator);
    }

    #[test]
    fn it_stops_at_the_highest_rate_allowed() {
        let found = find(&spec(), f64::MAX, f64::MAX);
        assert_eq!((found.peak_rps, found.limited_by), (1e6, LimitedBy::None));
    }

    #[test]
    fn a_server_that_sustains_nothing_ends_the_search() {
        let found = find(&spec(), 0.0, f64::MAX);
        assert_eq!((found.peak_rps, found.limited_by), (0.0, LimitedBy::Server));
    }
}
