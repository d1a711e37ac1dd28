//! When what is due: a fixed set of timers, each armed for one time or not at all.
//!
//! A tree of the earliest times, eight timers or inner nodes below each inner node, which is one cache line. Arming a timer
//! that is not the earliest of its eight touches two of them and allocates nothing; no event is ever stale, since
//! arming anew replaces the old time. Ties go to the timer with the lower number, which makes the order of events at one
//! instant part of the model rather than of luck.

use quell_model::Nanos;

/// Children of an inner node, and the bits that tell them apart.
const WIDTH: usize = 1 << BITS;
const BITS: u32 = 3;

/// A time, and below it the place among its eight: the least key of a node says both when and where.
type Key = u64;

/// The latest time that a key can hold, 73 years; it stands for never.
const NEVER: u64 = u64::MAX >> BITS;

fn key(time: u64, place: usize) -> Key {
    time << BITS | place as u64
}

/// Eight keys, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Eight([Key; WIDTH]);

impl Eight {
    fn earliest(&self) -> Key {
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
        let never = Eight(std::array::from_fn(|place| key(NEVER, place)));
        let mut levels = Vec::new();
        let mut entries = timers;
        loop {
            entries = entries.div_ceil(WIDTH).max(1);
            levels.push(vec![never; entries].into_boxed_slice());
            if entries == 1 {
                return Timers { levels };
            }
        }
    }

    /// Lets the timer go off at this time, whatever it was armed for before; from 73 years on: not at all.
    pub fn arm(&mut self, timer: usize, time: Nanos) {
        let (mut at, mut time) = (timer, time.0.min(NEVER));
        for level in &mut self.levels {
            let eight = &mut level[at / WIDTH];
            let key = key(time, at % WIDTH);
            let before = std::mem::replace(&mut eight.0[at % WIDTH], key);
            if before == key {
                return;
            }
            // What was not the earliest before and is not now changes nothing above.
            time = eight.earliest() >> BITS;
            at /= WIDTH;
        }
    }

    /// When the timer goes off; [`Nanos::MAX`]: not at all.
    pub fn time(&self, timer: usize) -> Nanos {
        when(self.levels[0][timer / WIDTH].0[timer % WIDTH])
    }

    /// The timer that goes off next, and when; [`Nanos::MAX`] if none is armed.
    pub fn next(&self) -> (Nanos, usize) {
        let mut at = 0;
        let mut earliest = key(NEVER, 0);
        for level in self.levels.iter().rev() {
            earliest = level[at].earliest();
            at = at * WIDTH + (earliest as usize % WIDTH);
        }
        (when(earliest), at)
    }
}

fn when(key: Key) -> Nanos {
    match key >> BITS {
        NEVER => Nanos::MAX,
        time => Nanos(time),
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
