//! When requests are due: the schedule of an open loop, fixed before the first reply.
//!
//! The schedule knows nothing of the server. A request that is due while the server is stuck stays
//! due, and its latency counts from there (coordinated omission is impossible by construction).

use std::path::PathBuf;

use quell_model::Nanos;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::spec::LoadSpec;
use crate::trace::Trace;

/// When requests are due within the load's steps. The warm-up before them is a Poisson process, or
/// uniform where they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Exponential gaps: a Poisson process, as from many independent users.
    #[default]
    Poisson,
    /// Equal gaps.
    Uniform,
    /// A Poisson process of two rates in turn: the step's, and a burst's.
    Bursts(Bursts),
    /// Those of a file ([`Trace`]), whatever the steps' rates; it is played once, from the start of the
    /// first step, and what is due after the last step is not sent.
    Trace {
        /// The file.
        file: PathBuf,
    },
}

/// A rate that comes back in each period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// Requests a second in a burst; between bursts, the step's rate holds.
    pub rate_rps: f64,
    /// From the start of one burst to the start of the next. The first one begins with the first step.
    #[serde(rename = "period_ns")]
    pub period: Nanos,
    /// Length of a burst.
    #[serde(rename = "length_ns")]
    pub length: Nanos,
}

impl Bursts {
    /// Whether a burst lasts this long after the start of the first, and until when that stays so.
    fn phase(&self, at_ns: u64) -> (bool, u64) {
        let into = at_ns % self.period.0;
        let begun = at_ns - into;
        match into < self.length.0 {
            true => (true, begun.saturating_add(self.length.0)),
            false => (false, begun.saturating_add(self.period.0)),
        }
    }

    /// Time in bursts from the start of the first until then.
    fn time_until(&self, at_ns: u64) -> u64 {
        at_ns / self.period.0 * self.length.0 + (at_ns % self.period.0).min(self.length.0)
    }
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

/// A part of a segment in which the rate stays the same.
#[derive(Clone, Copy)]
struct Piece {
    rate_rps: f64,
    start_ns: u64,
    end_ns: u64,
}

/// How requests come to their times.
enum Source {
    Poisson,
    Uniform,
    Bursts(Bursts),
    Trace { trace: Trace, next: usize },
}

/// All requests of a run in the order in which they are due.
///
/// Yields the same sequence for the same seed, whatever the server and the clock do.
pub(crate) struct Schedule {
    source: Source,
    rng: ChaCha8Rng,
    segments: Vec<Segment>,
    current: usize,
    /// The part of the current segment that is under way.
    piece: Option<Piece>,
    /// Requests yielded in this part.
    yielded: u64,
    /// Position in this part. f64 holds every nanosecond of 100 days exactly, and its fraction keeps
    /// the mean right where gaps are short.
    position_ns: f64,
    /// When the first step begins.
    window_ns: u64,
}

impl Schedule {
    /// A warm-up at the first step's rate, then the steps.
    ///
    /// # Errors
    /// When the file of a trace cannot be used.
    pub fn new(spec: &LoadSpec) -> Result<Schedule, LoadError> {
        let source = match &spec.arrivals {
            Arrivals::Poisson => Source::Poisson,
            Arrivals::Uniform => Source::Uniform,
            Arrivals::Bursts(bursts) => Source::Bursts(*bursts),
            Arrivals::Trace { file } => Source::Trace { trace: Trace::read(file)?, next: 0 },
        };
        Ok(Schedule::of(source, spec.warmup, &spec.steps, spec.seed))
    }

    fn of(source: Source, warmup: Nanos, steps: &[Step], seed: u64) -> Schedule {
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
        Schedule {
            source,
            rng: ChaCha8Rng::seed_from_u64(seed),
            segments,
            current: 0,
            piece: None,
            yielded: 0,
            position_ns: 0.0,
            window_ns: warmup.0,
        }
    }

    /// How many requests each step has: on average, or exactly in a trace.
    pub fn expected(&self) -> Vec<f64> {
        let steps = self.segments.iter().filter(|segment| segment.phase != Phase::WarmUp);
        steps.map(|step| self.expected_in(step)).collect()
    }

    fn expected_in(&self, step: &Segment) -> f64 {
        let (from, to) = (step.start_ns - self.window_ns, step.end_ns - self.window_ns);
        let requests = |rate_rps: f64, ns: u64| rate_rps * ns as f64 / 1e9;
        match &self.source {
            Source::Poisson | Source::Uniform => requests(step.rate_rps, to - from),
            Source::Bursts(bursts) => {
                let burst_ns = bursts.time_until(to) - bursts.time_until(from);
                requests(bursts.rate_rps, burst_ns) + requests(step.rate_rps, to - from - burst_ns)
            }
            Source::Trace { trace, .. } => {
                let before = |ns| trace.times().partition_point(|time| time.0 < ns);
                (before(to) - before(from)) as f64
            }
        }
    }

    /// The part of the current segment that begins at `start_ns`.
    fn piece_at(&self, start_ns: u64) -> Option<Piece> {
        let segment = self.segments.get(self.current)?;
        let whole = Piece { rate_rps: segment.rate_rps, start_ns, end_ns: segment.end_ns };
        let (Source::Bursts(bursts), Phase::Step(_)) = (&self.source, segment.phase) else {
            return Some(whole);
        };
        let (is_burst, until_ns) = bursts.phase(start_ns - self.window_ns);
        Some(Piece {
            rate_rps: if is_burst { bursts.rate_rps } else { segment.rate_rps },
            end_ns: segment.end_ns.min(until_ns.saturating_add(self.window_ns)),
            ..whole
        })
    }

    fn position_of_next(&mut self, rate_rps: f64) -> f64 {
        let gap_ns = 1e9 / rate_rps;
        match self.source {
            Source::Uniform => self.yielded as f64 * gap_ns,
            Source::Poisson | Source::Bursts(_) | Source::Trace { .. } => {
                // 1 - u is never zero, so the logarithm is finite.
                let u: f64 = self.rng.random();
                self.position_ns - (1.0 - u).ln() * gap_ns
            }
        }
    }

    /// The next request of the current segment, drawn from its rate.
    fn draw(&mut self) -> Option<u64> {
        let segment = self.segments.get(self.current)?;
        let (start_ns, end_ns) = (segment.start_ns, segment.end_ns);
        loop {
            let piece = match self.piece {
                Some(piece) => piece,
                None => *self.piece.insert(self.piece_at(start_ns)?),
            };
            if piece.rate_rps > 0.0 {
                let position = self.position_of_next(piece.rate_rps);
                let offset_ns = piece.start_ns.saturating_add(position as u64);
                if offset_ns < piece.end_ns {
                    self.position_ns = position;
                    self.yielded += 1;
                    return Some(offset_ns);
                }
            }
            // A Poisson process has no memory: starting afresh at the border keeps it Poisson.
            (self.yielded, self.position_ns, self.piece) = (0, 0.0, None);
            if piece.end_ns >= end_ns {
                return None;
            }
            self.piece = self.piece_at(piece.end_ns);
        }
    }

    /// The next request of the trace, if it falls into the current segment.
    fn play(&mut self) -> Option<u64> {
        let segment = self.segments.get(self.current)?;
        let Source::Trace { trace, next } = &mut self.source else { return None };
        let offset_ns = self.window_ns.saturating_add(trace.times().get(*next)?.0);
        (offset_ns < segment.end_ns).then(|| {
            *next += 1;
            offset_ns
        })
    }
}

impl Iterator for Schedule {
    type Item = Due;

    fn next(&mut self) -> Option<Due> {
        loop {
            let phase = self.segments.get(self.current)?.phase;
            let offset_ns = match (&self.source, phase) {
                (Source::Trace { .. }, Phase::Step(_)) => self.play(),
                _ => self.draw(),
            };
            match offset_ns {
                Some(offset_ns) => return Some(Due { offset: Nanos(offset_ns), phase }),
                None => self.current += 1,
            }
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

    fn schedule(source: Source, list: &[(f64, u64)], seed: u64) -> Vec<Due> {
        Schedule::of(source, Nanos::ZERO, &steps(list), seed).collect()
    }

    fn trace(times_us: &[u64]) -> Source {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("arrivals");
        let lines: String = times_us.iter().map(|time| format!("{time}\n")).collect();
        std::fs::write(&file, format!("times us\n{lines}")).unwrap();
        Source::Trace { trace: Trace::read(&file).unwrap(), next: 0 }
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() {
        let due = schedule(Source::Poisson, &[(50_000.0, 20_000)], 7);
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
        let due = schedule(Source::Uniform, &[(3_000.0, 10_000)], 0);
        assert_eq!(due.len(), 30_000);
        assert_eq!(due[29_997].offset, Nanos(9_999_000_000));
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule_and_another_seed_another() {
        let load = [(10_000.0, 300), (80_000.0, 100)];
        assert_eq!(schedule(Source::Poisson, &load, 1), schedule(Source::Poisson, &load, 1));
        assert_ne!(schedule(Source::Poisson, &load, 1), schedule(Source::Poisson, &load, 2));
    }

    #[test]
    fn each_step_keeps_its_own_rate_and_its_own_time() {
        let due = schedule(Source::Uniform, &[(1_000.0, 100), (0.0, 50), (10_000.0, 100)], 0);
        let of = |step| due.iter().filter(move |d| d.phase == Phase::Step(step));
        assert_eq!((of(0).count(), of(1).count(), of(2).count()), (100, 0, 1_000));
        assert!(of(2).all(|d| d.offset >= Nanos::from_millis(150)));
        assert!(due.windows(2).all(|pair| pair[0].offset <= pair[1].offset));
    }

    #[test]
    fn the_warm_up_runs_at_the_first_steps_rate() {
        let all: Vec<Due> =
            Schedule::of(Source::Uniform, Nanos::from_millis(10), &steps(&[(1_000.0, 20)]), 0)
                .collect();
        assert_eq!(all.iter().filter(|d| d.phase == Phase::WarmUp).count(), 10);
        assert_eq!(all.len(), 30);
    }

    #[test]
    fn bursts_come_back_each_period_and_keep_both_rates() {
        let bursts = Bursts {
            rate_rps: 50_000.0,
            period: Nanos::from_millis(500),
            length: Nanos::from_millis(100),
        };
        let list = steps(&[(5_000.0, 1_250), (0.0, 1_250)]);
        let schedule = Schedule::of(Source::Bursts(bursts), Nanos::from_millis(70), &list, 3);
        let expected = schedule.expected();
        // Three bursts in the first step; the second begins 250 ms into the third period.
        assert_eq!(expected, [15_000.0 + 4_750.0, 10_000.0]);
        let due: Vec<Due> = schedule.collect();
        assert!(due.windows(2).all(|pair| pair[0].offset <= pair[1].offset));
        for (step, expected) in expected.iter().enumerate() {
            let count = due.iter().filter(|d| d.phase == Phase::Step(step)).count() as f64;
            assert!((count - expected).abs() < 6.0 * expected.sqrt(), "step {step}: {count}");
        }
        let within = |from_ms: u64, to_ms: u64| {
            let window = Nanos::from_millis(70 + from_ms)..Nanos::from_millis(70 + to_ms);
            due.iter().filter(|d| window.contains(&d.offset)).count()
        };
        assert!((4_500..5_500).contains(&within(500, 600)), "{}", within(500, 600));
        assert!((1_800..2_200).contains(&within(600, 1_000)), "{}", within(600, 1_000));
        assert_eq!(within(1_250, 1_500), 0, "between bursts, the second step is silent");
        assert!(within(1_500, 1_600) > 4_500);
    }

    #[test]
    fn a_trace_is_played_once_after_the_warm_up_and_cut_off_at_the_end() {
        let source = trace(&[0, 10, 10, 1_500, 2_999, 3_000]);
        let schedule =
            Schedule::of(source, Nanos::from_millis(5), &steps(&[(9.0, 1), (0.0, 2)]), 0);
        assert_eq!(schedule.expected(), [3.0, 2.0]);
        let due: Vec<(u64, Phase)> = schedule
            .filter(|due| due.phase != Phase::WarmUp)
            .map(|due| (due.offset.0 / 1_000, due.phase))
            .collect();
        let (first, second) = (Phase::Step(0), Phase::Step(1));
        assert_eq!(
            due,
            [(5_000, first), (5_010, first), (5_010, first), (6_500, second), (7_999, second)]
        );
        assert_eq!(schedule_len(trace(&[1, 2]), 60_000), 2, "it does not start again");
    }

    fn schedule_len(source: Source, ms: u64) -> usize {
        schedule(source, &[(1_000.0, ms)], 0).len()
    }
}
