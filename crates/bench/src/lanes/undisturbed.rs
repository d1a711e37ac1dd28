//! Latencies without what the hypervisor did to them, by the rule of [`crate::stops`].
//!
//! One that stops a core for a few milliseconds a second makes up the 99th percentile by itself, whatever has the core. Cores with
//! lanes never idle in these benchmarks, so a timer interrupt that comes late there means that the core stood still.

use anyhow::Result;
use quell_model::{CoreId, Nanos};

use super::client::Kept;
use crate::host::{Canary, Standstill};
use crate::stops::{self, CoreStop, Windows};
use quell_report::stats::quantile;

/// Runs until one has few enough stalls; the last one counts as it is.
const TRIES: usize = 4;

/// Shorter stops are within what an undisturbed core shows.
const STOP_MIN: Nanos = Nanos::from_micros(100);
/// Share of the time, and of the requests, that stops may meet in a run that counts.
const SHARE_MAX: f64 = 0.05;

/// Sees the stops of a core. Without perf events it sees none, and says why.
pub struct StallWatch {
    core: CoreId,
    canary: Option<Canary>,
}

/// The latencies of a run.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    seen: stops::Latencies,
    /// The share of the time in which the core was stopped.
    stopped: f64,
}

/// One of their figures.
pub type Figure = fn(&Latencies) -> f64;

/// What reports have of them.
pub const FIGURES: [(&str, Figure); 6] = [
    ("p50_us", |seen| us(&seen.seen.filtered, 0.5)),
    ("p99_us", Latencies::p99_us),
    ("p999_us", |seen| us(&seen.seen.filtered, 0.999)),
    ("p99_us_raw", |seen| us(&seen.seen.raw, 0.99)),
    ("stalled_percent", |seen| seen.stopped * 100.0),
    ("removed_percent", |seen| seen.seen.excluded_share() * 100.0),
];

impl StallWatch {
    /// Watches this core by a timer of this period. `notes` are for why it cannot.
    pub fn new(core: CoreId, period: Nanos, notes: &mut Vec<String>) -> StallWatch {
        let canary = Canary::start(core, period).map_err(|why| {
            notes.push(format!("stalls of the hypervisor are not seen, and stay in: {why}"));
        });
        StallWatch { core, canary: canary.ok() }
    }

    /// Runs something, again while there are too many stalls: what it returns, and its latencies.
    ///
    /// # Errors
    /// Those of what is run.
    pub fn run<T>(
        &mut self,
        mut run: impl FnMut(&mut StallWatch) -> Result<(T, Latencies)>,
    ) -> Result<(T, Latencies)> {
        let mut tries = 1;
        loop {
            let done = run(self)?;
            if done.1.is_valid() || tries == TRIES {
                return Ok(done);
            }
            tries += 1;
        }
    }

    /// A measurement begins.
    ///
    /// # Errors
    /// When the kernel takes a timer away.
    pub fn begin(&mut self) -> Result<()> {
        Ok(self.canary.as_mut().map_or(Ok(()), Canary::begin)?)
    }

    /// It is over: no timer interrupts any more.
    ///
    /// # Errors
    /// When the kernel takes a timer away.
    pub fn end(&mut self) -> Result<Vec<CoreStop>> {
        let end = |canary: &mut Canary| canary.end(STOP_MIN);
        let stills = self.canary.as_mut().map_or(Ok(Vec::new()), end)?;
        let core = self.core;
        let stop = |still: Standstill| CoreStop { core, start: still.from, end: still.to };
        Ok(stills.into_iter().map(stop).collect())
    }
}

impl Latencies {
    /// Those of these requests, beside these stops.
    pub fn of(kept: &Kept, stops: &[CoreStop]) -> Latencies {
        Latencies {
            seen: Windows::of(stops, &kept.requests).sort(&kept.requests),
            stopped: stops::stopped_share(stops, kept.from, kept.to),
        }
    }

    /// Their 99th percentile.
    pub fn p99_us(&self) -> f64 {
        us(&self.seen.filtered, 0.99)
    }

    /// Whether it counts by the rule.
    pub fn is_valid(&self) -> bool {
        self.stopped <= SHARE_MAX && self.seen.excluded_share() <= SHARE_MAX
    }
}

/// What a report says of runs that do not count by the rule, if there are any.
pub fn note_of<'a>(what: &str, runs: impl Iterator<Item = &'a Latencies>) -> Option<String> {
    let runs: Vec<bool> = runs.map(Latencies::is_valid).collect();
    let disturbed = runs.iter().filter(|valid| !**valid).count();
    (disturbed > 0).then(|| {
        format!(
            "{what}: in {disturbed} of {} runs stalls of the hypervisor cover more than {:.0} % of the time or of the requests, {TRIES} times in a row",
            runs.len(),
            SHARE_MAX * 100.0
        )
    })
}

/// Nothing that was answered has no latency.
fn us(ascending: &[Nanos], at: f64) -> f64 {
    quantile(ascending, at).map_or(f64::NAN, |time| time.0 as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stops::Request;

    fn run(stalled: Nanos) -> Latencies {
        let us = Nanos::from_micros;
        let request = |nth: u64| Request { due: us(nth * 10), done: us(nth * 10 + 5) };
        let mut kept = Kept { requests: (0..10_000).map(request).collect(), ..Kept::default() };
        kept.to = us(100_000);
        let (start, end) = (us(50_000), us(50_000) + stalled);
        for request in &mut kept.requests {
            if request.due > start && request.due < end {
                request.done = end + us(5);
            }
        }
        Latencies::of(&kept, &[CoreStop { core: CoreId(0), start, end }])
    }

    #[test]
    fn what_a_stall_delayed_does_not_count_but_is_told() {
        let latencies = run(Nanos::from_micros(2_000));
        assert_eq!(latencies.p99_us(), 5.0);
        let figure = |name: &str| {
            let (_, of) = FIGURES.iter().find(|(found, _)| *found == name).unwrap();
            of(&latencies)
        };
        assert!(figure("p99_us_raw") > 500.0);
        assert!((1.9..2.1).contains(&figure("stalled_percent")));
        assert!((1.9..2.1).contains(&figure("removed_percent")));
        assert!(note_of("it", [&latencies].into_iter()).is_none());
    }

    #[test]
    fn a_run_with_too_many_stalls_is_made_again_and_told_of_if_none_is_better() {
        let mut watch = StallWatch { core: CoreId(0), canary: None };
        let mut runs = 0;
        let (_, worst) = watch
            .run(|_| {
                runs += 1;
                Ok(((), run(Nanos::from_micros(10_000))))
            })
            .unwrap();
        assert_eq!((runs, worst.is_valid()), (TRIES, false));
        assert!(note_of("it", [&worst].into_iter()).unwrap().contains("in 1 of 1 runs"));
    }
}
