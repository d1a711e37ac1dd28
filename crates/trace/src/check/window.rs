//! How much of the last while was spent in some state.

use quell_model::{Nanos, Permille};

/// Parts of a window; what it tells is exact to one of them, and never too much.
const PARTS: u64 = 32;

/// A sliding window of time, in fixed memory.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Length of a part in nanoseconds, 1 at least.
    part: u64,
    /// Time in the state, by part; a part's place is its number modulo [`PARTS`].
    spent: [u64; PARTS as usize],
    /// Number of the newest part.
    newest: u64,
}

impl Window {
    /// An empty window of this length.
    pub(super) fn new(length: Nanos) -> Window {
        Window { part: (length.0 / PARTS).max(1), spent: [0; PARTS as usize], newest: 0 }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.spent = [0; PARTS as usize];
    }

    /// The state held from `from` to `to`, which is not before anything added earlier.
    pub(super) fn add(&mut self, from: Nanos, to: Nanos) {
        self.roll_to(to);
        let mut from = from.0.max(self.newest.saturating_sub(PARTS - 1).saturating_mul(self.part));
        while from < to.0 {
            let number = from / self.part;
            let until = to.0.min(number.saturating_add(1).saturating_mul(self.part));
            self.spent[(number % PARTS) as usize] += until - from;
            from = until;
        }
    }

    /// Time in the state within the window that ends at `now`.
    pub(super) fn spent(&mut self, now: Nanos) -> Nanos {
        self.roll_to(now);
        Nanos(self.spent.iter().sum())
    }

    /// Its share of the window's length.
    pub(super) fn share(&mut self, now: Nanos) -> Permille {
        Permille::of(self.spent(now), Nanos(self.part.saturating_mul(PARTS)))
    }

    fn roll_to(&mut self, now: Nanos) {
        let number = now.0 / self.part;
        if number <= self.newest {
            return;
        }
        for passed in (self.newest + 1..=number).take(PARTS as usize) {
            self.spent[(passed % PARTS) as usize] = 0;
        }
        self.newest = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut window = Window::new(ms(100));
        window.add(ms(1_000), ms(1_050));
        assert_eq!(window.spent(ms(1_060)), ms(50));
        assert_eq!(window.spent(ms(1_160)), Nanos::ZERO);
    }

    #[test]
    fn lasting_state_fills_the_window_but_for_one_part() {
        let mut window = Window::new(ms(100));
        window.add(ms(3), ms(60_001));
        let share = window.share(ms(60_001));
        assert!(share >= Permille(968) && share <= Permille::ALL, "{share}");
    }

    #[test]
    fn times_at_the_end_of_the_clock_do_no_harm() {
        let mut window = Window::new(Nanos(1));
        window.add(Nanos::ZERO, Nanos::MAX);
        window.add(Nanos::MAX, Nanos::MAX);
        assert!(window.spent(Nanos::MAX).0 <= PARTS);
    }
}
