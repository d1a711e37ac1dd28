//! When requests are due: the schedule of an open loop, fixed before the first reply.
//!
//! The schedule knows nothing of the server. A request that is due while the server is stuck stays
//! due, and its latency counts from there (coordinated omission is impossible by construction).

use quell_model::Nanos;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// How the gaps between requests are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Exponential gaps: a Poisson process, as from many independent users.
    #[default]
    Poisson,
    /// Equal gaps.
    Uniform,
}

/// One step of the load: a rate held for a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Requests a second; zero is silence.
    pub rate_rps: f64,
    /// How long the rate is held.
    #[serde(rename = "duration_ns")]
    pub duration: Nanos,
}

/// Which part of a run a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the measured window; not counted.
    WarmUp,
    /// The step with this index.
    Step(usize),
}

/// One request of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// When it is due, counted from the start of the schedule.
    pub offset: Nanos,
    /// The part of the run that it belongs to.
    pub phase: Phase,
}

struct Segment {
    phase: Phase,
    rate_rps: f64,
    start_ns: u64,
    end_ns: u64,
}

/// All requests of a run in the order in which they are due.
///
/// Yields the same sequence for the same seed, whatever the server and the clock do.
pub(crate) struct Schedule {
    arrivals: Arrivals,
    rng: ChaCha8Rng,
    segments: Vec<Segment>,
    current: usize,
    /// Requests yielded in the current segment.
    yielded: u64,
    /// Position in the current segment. f64 holds every nanosecond of 100 days exactly, and its
    /// fraction keeps the mean right where gaps are short.
    position_ns: f64,
}

impl Schedule {
    /// A warm-up at the first step's rate, then the steps.
    pub fn new(arrivals: Arrivals, warmup: Nanos, steps: &[Step], seed: u64) -> Schedule {
        let first_rate = steps.first().map_or(0.0, |step| step.rate_rps);
        let mut parts = vec![(Phase::WarmUp, first_rate, warmup)];
        parts.extend(
            steps.iter().enumerate().map(|(i, s)| (Phase::Step(i), s.rate_rps, s.duration)),
        );
        let mut end = Nanos::ZERO;
        let segments = parts
            .into_iter()
            .map(|(phase, rate_rps, duration)| {
                let start = end;
                end += duration;
                Segment { phase, rate_rps, start_ns: start.0, end_ns: end.0 }
            })
            .collect();
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Schedule { arrivals, rng, segments, current: 0, yielded: 0, position_ns: 0.0 }
    }

    fn offset_of_next(&mut self, rate_rps: f64) -> f64 {
        let gap_ns = 1e9 / rate_rps;
        match self.arrivals {
            Arrivals::Uniform => self.yielded as f64 * gap_ns,
            Arrivals::Poisson => {
                // 1 - u is never zero, so the logarithm is finite.
                let u: f64 = self.rng.random();
                self.position_ns - (1.0 - u).ln() * gap_ns
            }
        }
    }
}

impl Iterator for Schedule {
    type Item = Due;

    fn next(&mut self) -> Option<Due> {
        loop {
            let &Segment { phase, rate_rps, start_ns, end_ns } = self.segments.get(self.current)?;
            if rate_rps > 0.0 {
                let position = self.offset_of_next(rate_rps);
                let offset_ns = start_ns.saturating_add(position as u64);
                if offset_ns < end_ns {
                    self.position_ns = position;
                    self.yielded += 1;
                    return Some(Due { offset: Nanos(offset_ns), phase });
                }
            }
            // A Poisson process has no memory: starting afresh at the border keeps it Poisson.
            self.current += 1;
            self.yielded = 0;
            self.position_ns = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(list: &[(f64, u64)]) -> Vec<Step> {
        list.iter()
            .map(|&(rate_rps, ms)| Step { rate_rps, duration: Nanos::from_millis(ms) })
            .collect()
    }

    fn schedule(arrivals: Arrivals, list: &[(f64, u64)], seed: u64) -> Vec<Due> {
        Schedule::new(arrivals, Nanos::ZERO, &steps(list), seed).collect()
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() {
        let due = schedule(Arrivals::Poisson, &[(50_000.0, 20_000)], 7);
        let gaps: Vec<f64> =
            due.windows(2).map(|pair| (pair[1].offset - pair[0].offset).0 as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // A million draws: the mean's standard error is 0.1 %.
        assert!((mean / 20_000.0 - 1.0).abs() < 0.005, "mean gap {mean} ns");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.01, "coefficient of variation");
        let beyond_three_means = gaps.iter().filter(|&&g| g > 60_000.0).count();
        let share = beyond_three_means as f64 / gaps.len() as f64;
        assert!((share / (-3.0f64).exp() - 1.0).abs() < 0.02, "tail share {share}");
    }

    #[test]
    fn uniform_gaps_are_equal_to_the_nanosecond_and_do_not_drift() {
        let due = schedule(Arrivals::Uniform, &[(3_000.0, 10_000)], 0);
        assert_eq!(due.len(), 30_000);
        assert_eq!(due[29_997].offset, Nanos(9_999_000_000));
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule_and_another_seed_another() {
        let load = [(10_000.0, 300), (80_000.0, 100)];
        assert_eq!(schedule(Arrivals::Poisson, &load, 1), schedule(Arrivals::Poisson, &load, 1));
        assert_ne!(schedule(Arrivals::Poisson, &load, 1), schedule(Arrivals::Poisson, &load, 2));
    }

    #[test]
    fn each_step_keeps_its_own_rate_and_its_own_time() {
        let due = schedule(Arrivals::Uniform, &[(1_000.0, 100), (0.0, 50), (10_000.0, 100)], 0);
        let of = |step| due.iter().filter(move |d| d.phase == Phase::Step(step));
        assert_eq!((of(0).count(), of(1).count(), of(2).count()), (100, 0, 1_000));
        assert!(of(2).all(|d| d.offset >= Nanos::from_millis(150)));
        assert!(due.windows(2).all(|pair| pair[0].offset <= pair[1].offset));
    }

    #[test]
    fn the_warm_up_runs_at_the_first_steps_rate() {
        let all: Vec<Due> =
            Schedule::new(Arrivals::Uniform, Nanos::from_millis(10), &steps(&[(1_000.0, 20)]), 0)
                .collect();
        assert_eq!(all.iter().filter(|d| d.phase == Phase::WarmUp).count(), 10);
        assert_eq!(all.len(), 30);
    }
}
