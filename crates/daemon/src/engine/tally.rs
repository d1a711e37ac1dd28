//! What the threads of each task add up to, for the status.

use std::collections::BTreeSet;

use quell_model::Nanos;

use super::Engine;

/// The threads of one task place.
#[derive(Clone, Default)]
pub struct Tally {
    /// How many they are.
    pub threads: u32,
    /// The processes that they belong to.
    pub processes: BTreeSet<i32>,
    /// What this place ran and waited.
    pub times: (Nanos, Nanos),
}

impl Engine {
    /// By task place. One pass over the threads: this is asked for at each scrape, however many there are.
    pub(super) fn tallies(&self) -> Vec<Tally> {
        let (sight, now) = (&self.parts.sight, self.seen.now);
        let empty = |task: &quell_model::TaskView| Tally {
            times: sight.kept_times(task.id),
            ..Tally::default()
        };
        let mut tallies: Vec<Tally> = self.seen.tasks.iter().map(empty).collect();
        for view in sight.seen().threads() {
            let at = view.task.at();
            if self.seen.tasks.get(at).is_none_or(|task| task.id != view.task) {
                continue;
            }
            let (ran, waited) = sight.own_times(view, now);
            let tally = &mut tallies[at];
            tally.threads += 1;
            tally.processes.insert(view.thread.tgid.0);
            tally.times.0 += ran;
            tally.times.1 += waited;
        }
        tallies
    }
}

/// Running and waiting time of a task since it joined.
#[derive(Default)]
pub struct Times {
    /// What its place had seen before it.
    before: (Nanos, Nanos),
    told: (Nanos, Nanos),
}

impl Times {
    /// The totals of a task, given those of its place as it joins.
    pub fn from(before: (Nanos, Nanos)) -> Times {
        Times { before, ..Times::default() }
    }

    /// The totals, given those of its place now. They never run backwards, although a stretch that ends while
    /// they are read may be seen twice for a moment.
    pub fn tell(&mut self, (ran, waited): (Nanos, Nanos)) -> (Nanos, Nanos) {
        self.told.0 = self.told.0.max(ran.since(self.before.0));
        self.told.1 = self.told.1.max(waited.since(self.before.1));
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_begin_at_zero_and_never_run_backwards() {
        let mut times = Times::from((Nanos(100), Nanos(50)));
        assert_eq!(times.tell((Nanos(100), Nanos(50))), (Nanos(0), Nanos(0)));
        assert_eq!(times.tell((Nanos(130), Nanos(60))), (Nanos(30), Nanos(10)));
        assert_eq!(times.tell((Nanos(120), Nanos(70))), (Nanos(30), Nanos(20)));
    }
}
