//! What the threads of each task add up to, for the status.

use std::collections::BTreeSet;

use quell_model::Nanos;
use quell_observe::bpf::TaskTimes;

use super::Engine;

/// The threads of one task place.
#[derive(Clone, Default)]
pub struct Tally {
    /// How many they are.
    pub threads: u32,
    /// The processes that they belong to.
    pub processes: BTreeSet<i32>,
    /// What they ran and waited beyond what is counted by task.
    pub times: (Nanos, Nanos),
}

impl Tally {
    /// Running and waiting time, with what is counted by task.
    pub fn with(&self, counted: &TaskTimes) -> (Nanos, Nanos) {
        let ran = counted.ran_on.iter().fold(self.times.0, |sum, &ran| sum + ran);
        (ran, self.times.1 + counted.waited)
    }
}

impl Engine {
    /// By task place. One pass over the threads: this is asked for at each scrape, however many there are.
    pub(super) fn tallies(&self) -> Vec<Tally> {
        let (sight, now) = (&self.parts.sight, self.seen.now);
        let mut tallies = vec![Tally::default(); self.seen.tasks.len()];
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
