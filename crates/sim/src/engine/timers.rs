//! When what is due: a fixed set of timers, each armed for one time or not at all.
//!
//! A tree of the earliest times, eight timers or inner nodes below each inner node, which is one cache line. Arming a timer
//! that is not the earliest of its eight touches two of them and allocates nothing; no event is ever stale, since
//! arming anew replaces the old time. Ties go to the timer with the lower number, which makes the order of events at one
//! instant part of the model rather than of luck.

use quell_model::Nanos;

/// Children of an inner node.
const WIDTH: usize = 8;

/// Eight times, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Eight([Nanos; WIDTH]);

impl Eight {
    fn earliest(&self) -> Nanos {
        let [a, b, c, d, e, f, g, h] = self.0;
        a.min(b).min(c.min(d)).min(e.min(f).min(g.min(h)))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Timers {
    /// From the timers up to the root; an entry is the earliest of the eight with its number one level below.
    levels: Vec<Box<[Eight]>>,
}

impl Timers {
    /// So many timers, none of them armed.
    pub fn new(timers: usize) -> Timers {
        let mut levels = Vec::new();
        let mut entries = timers;
        loop {
            entries = entries.div_ceil(WIDTH).max(1);
            levels.push(vec![Eight([Nanos::MAX; WIDTH]); entries].into_boxed_slice());
            if entries == 1 {
                return Timers { levels };
            }
        }
    }

    /// Lets the timer go off at this time, whatever it was armed for before; [`Nanos::MAX`]: not at all.
    pub fn arm(&mut self, timer: usize, time: Nanos) {
        let (mut at, mut time) = (timer, time);
        for level in &mut self.levels {
            let eight = &mut level[at / WIDTH];
            let before = std::mem::replace(&mut eight.0[at % WIDTH], time);
            if before == time {
                return;
            }
            // What was not the earliest before and is not now changes nothing above.
            time = eight.earliest();
            at /= WIDTH;
        }
    }

    /// When the timer goes off.
    pub fn time(&self, timer: usize) -> Nanos {
        self.levels[0][timer / WIDTH].0[timer % WIDTH]
    }

    /// The timer that goes off next, and when; [`Nanos::MAX`] if none is armed.
    pub fn next(&self) -> (Nanos, usize) {
        let mut at = 0;
        let mut time = Nanos::MAX;
        for level in self.levels.iter().rev() {
            let eight = &level[at];
            time = eight.earliest();
            at = at * WIDTH + eight.0.iter().position(|entry| *entry == time).unwrap_or_default();
        }
        (time, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_single_timer_works() {
        let mut timers = Timers::new(1);
        assert_eq!(timers.next().0, Nanos::MAX);
        timers.arm(0, Nanos(3));
        assert_eq!(timers.next(), (Nanos(3), 0));
    }

    proptest! {
        #[test]
        fn the_next_timer_is_the_earliest_and_among_equals_the_first(
            count in 1usize..600,
            arms in proptest::collection::vec((0usize..600, prop_oneof![0u64..9, Just(u64::MAX)]), 0..200),
        ) {
            let mut timers = Timers::new(count);
            let mut times = vec![Nanos::MAX; count];
            for (timer, time) in arms {
                let timer = timer % count;
                timers.arm(timer, Nanos(time));
                times[timer] = Nanos(time);
                let expected = times.iter().enumerate().map(|(at, time)| (*time, at)).min().unwrap();
                if expected.0 < Nanos::MAX {
                    prop_assert_eq!(timers.next(), expected);
                }
                prop_assert_eq!(timers.time(timer), Nanos(time));
            }
        }
    }
}
