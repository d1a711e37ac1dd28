//! When what is due: a fixed set of timers, each armed for one time or not at all.
//!
//! A winner tree (Knuth, TAOCP volume 3, 5.4.1): the leaves are the timers, each inner node is the earlier of its
//! two children. Arming costs one comparison a level and allocates nothing; no event is ever stale, since
//! arming anew replaces the old time. Ties go to the timer with the lower number, which makes the order of events at one
//! instant part of the model rather than of luck.

use quell_model::Nanos;

/// A timer's time and number.
type Entry = (Nanos, u32);

#[derive(Clone, Debug)]
pub(crate) struct Timers {
    /// The root is at 1, the timers begin at `leaves`.
    tree: Box<[Entry]>,
    leaves: usize,
}

impl Timers {
    /// So many timers, none of them armed.
    pub fn new(timers: usize) -> Timers {
        let leaves = timers.next_power_of_two();
        let mut tree = vec![(Nanos::MAX, 0); 2 * leaves].into_boxed_slice();
        for (timer, entry) in tree[leaves..].iter_mut().enumerate() {
            entry.1 = timer as u32;
        }
        for at in (1..leaves).rev() {
            tree[at] = tree[2 * at].min(tree[2 * at + 1]);
        }
        Timers { tree, leaves }
    }

    /// Lets the timer go off at this time, whatever it was armed for before; [`Nanos::MAX`]: not at all.
    pub fn arm(&mut self, timer: usize, time: Nanos) {
        let mut at = self.leaves + timer;
        self.tree[at].0 = time;
        while at > 1 {
            let earlier = self.tree[at].min(self.tree[at ^ 1]);
            at /= 2;
            if self.tree[at] == earlier {
                return;
            }
            self.tree[at] = earlier;
        }
    }

    /// When the timer goes off.
    pub fn time(&self, timer: usize) -> Nanos {
        self.tree[self.leaves + timer].0
    }

    /// The timer that goes off next, and when; [`Nanos::MAX`] if none is armed.
    pub fn next(&self) -> (Nanos, usize) {
        let (time, timer) = self.tree[1];
        (time, timer as usize)
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
            count in 1usize..70,
            arms in proptest::collection::vec((0usize..70, prop_oneof![0u64..9, Just(u64::MAX)]), 0..200),
        ) {
            let mut timers = Timers::new(count);
            let mut times = vec![Nanos::MAX; count];
            for (timer, time) in arms {
                let timer = timer % count;
                timers.arm(timer, Nanos(time));
                times[timer] = Nanos(time);
                let expected = times.iter().enumerate().map(|(at, time)| (*time, at)).min().unwrap();
                prop_assert_eq!(timers.next(), expected);
                prop_assert_eq!(timers.time(timer), Nanos(time));
            }
        }
    }
}
