//! Decayed averages of the past (PELT, kernel/sched/pelt.c): what happened 32 ms ago counts half.
//!
//! The kernel sums whole periods of 1,024 us; here time is continuous. The difference is below one period in 47.

use quell_model::Nanos;

use super::model::LoadMetric;

/// All of the past.
pub(super) const FULL: u64 = 1 << 20;

/// After this time the past counts half: 32 periods of 1,024 us of 1,024 ns.
const HALF_LIFE: u64 = 32 << 20;

/// Steps within a half-life between which the factor is interpolated.
const STEPS: u64 = 32;

/// By how much the past has lost weight after some time, as a share of [`FULL`].
pub(super) fn decay(time: Nanos) -> u64 {
    let (halvings, rest) = (time.0 / HALF_LIFE, time.0 % HALF_LIFE);
    if halvings >= 20 {
        return 0;
    }
    const STEP: u64 = HALF_LIFE / STEPS;
    let (at, within) = (rest / STEP, rest % STEP);
    let (from, to) = (POWERS[at as usize], POWERS[at as usize + 1]);
    (from - (from - to) * within / STEP) >> halvings
}

/// 2^(-step / 32) as a share of [`FULL`], by squaring: integers alone, so that every platform has the same.
const POWERS: [u64; STEPS as usize + 1] = {
    // 2^(-1/32), 2^(-1/16), 2^(-1/8), 2^(-1/4), 2^(-1/2) in 1/2^32nds.
    const ROOTS: [u64; 5] =
        [4_202_935_003, 4_112_874_773, 3_938_502_376, 3_611_622_603, 3_037_000_500];
    let mut powers = [FULL; STEPS as usize + 1];
    let mut step = 1;
    while step < STEPS as usize {
        let mut bit = 0;
        while bit < ROOTS.len() {
            if step >> bit & 1 == 1 {
                powers[step] = (powers[step] * ROOTS[bit]) >> 32;
            }
            bit += 1;
        }
        step += 1;
    }
    powers[STEPS as usize] = FULL / 2;
    powers
};

/// A sum that only decays.
pub(super) fn decayed(sum: u64, time: Nanos) -> u64 {
    if sum == 0 || time == Nanos::ZERO {
        return sum;
    }
    ((u128::from(sum) * u128::from(decay(time))) >> 20) as u64
}

/// For how much of its decayed past a thread was in some state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Of [`FULL`].
    value: u64,
    /// The past that there is, of [`FULL`]: less than all of it for a thread that is new.
    life: u64,
    at: Nanos,
}

impl Share {
    /// A new thread counts as if it had been in the state: for a slice by [`LoadMetric::Contribution`]
    /// (`init_task_runnable_average`, Linux 4.1), for ever by [`LoadMetric::Average`] (`init_entity_runnable_average`, 4.3).
    pub fn new(metric: LoadMetric, slice: Nanos, now: Nanos) -> Share {
        let life = match metric {
            LoadMetric::Contribution => (FULL - decay(slice)).max(1),
            LoadMetric::Average => FULL,
        };
        Share { value: life, life, at: now }
    }

    /// Nothing yet.
    pub fn none(now: Nanos) -> Share {
        Share { value: 0, life: FULL, at: now }
    }

    /// It was in the state too long ago to count, or never: as long as it does not get into it this stays so.
    pub fn is_none(&self) -> bool {
        self.value == 0
    }

    /// The time since the last update was in the state, or not.
    pub fn pass(&mut self, now: Nanos, was_in: bool) {
        let kept = decay(now.since(self.at));
        self.at = self.at.max(now);
        let came = FULL - kept;
        self.value = self.value * kept / FULL + if was_in { came } else { 0 };
        self.life = self.life * kept / FULL + came;
    }

    /// As [`Share::pass`], of so many that were in the state at once.
    pub fn pass_all(&mut self, now: Nanos, count: usize) {
        let kept = decay(now.since(self.at));
        self.at = self.at.max(now);
        self.value = self.value * kept / FULL + (FULL - kept) * count as u64;
    }

    /// The sum that [`Share::pass_all`] keeps, in 1/1,024ths of one.
    pub fn sum(&self) -> u64 {
        self.value / (FULL / 1_024)
    }

    /// Adds another one that is as up to date: that of a thread which comes.
    pub fn add(&mut self, other: &Share) {
        self.value += other.value;
    }

    /// Subtracts that of a thread which leaves.
    pub fn subtract(&mut self, other: &Share) {
        self.value = self.value.saturating_sub(other.value);
    }

    /// This much of all of the past, in 1/1,024ths.
    pub fn part(part: u64, now: Nanos) -> Share {
        Share { value: FULL / 1_024 * part.min(1_024), life: FULL, at: now }
    }

    /// This much of a weight.
    pub fn of(&self, weight: u64) -> u64 {
        weight * self.value.min(self.life) / self.life.max(1)
    }

    /// Up to when the past is in it.
    pub fn updated(&self) -> Nanos {
        self.at
    }

    /// As of some later time, if the state is this one until then.
    pub fn at(mut self, now: Nanos, is_in: bool) -> Share {
        self.pass(now, is_in);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_024 << 10;

    #[test]
    fn the_past_halves_in_32_periods() {
        assert_eq!(decay(Nanos::ZERO), FULL);
        assert_eq!(decay(Nanos(32 * MS)), FULL / 2);
        assert_eq!(decay(Nanos(64 * MS)), FULL / 4);
        for ms in 0..200 {
            let exact = FULL as f64 * (-(ms as f64) / 32.0).exp2();
            let error = (decay(Nanos(ms * MS)) as f64 - exact).abs();
            assert!(error < FULL as f64 / 1_000.0, "{ms}: {error}");
        }
        assert_eq!(decay(Nanos::MAX), 0);
    }

    #[test]
    fn load_is_full_when_new_and_decays_as_the_metric_says() {
        for (metric, after) in
            [(LoadMetric::Contribution, 190..230), (LoadMetric::Average, 820..826)]
        {
            let mut share = Share::new(metric, Nanos(3 * MS), Nanos::ZERO);
            assert_eq!(share.of(1_024), 1_024, "{metric:?}");
            share.pass(Nanos(10 * MS), false);
            // Contribution: 3 ms of a life of 13; average: 2^(-10/32).
            assert!(after.contains(&share.of(1_024)), "{metric:?}: {}", share.of(1_024));
        }
    }

    #[test]
    fn half_of_the_time_is_half_of_the_weight() {
        let mut share = Share::none(Nanos::ZERO);
        for ms in 1..2_000 {
            share.pass(Nanos(ms * MS / 10), ms % 2 == 0);
        }
        assert!((500..525).contains(&share.of(1_024)), "{}", share.of(1_024));
    }
}
