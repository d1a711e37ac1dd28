//! Wake-to-run histograms by task: since the task has its place, and of the last second.

use quell_model::{Absence, Class, Nanos, Signal, Snapshot, TaskId};

use super::abi::Histograms;
use super::histogram::{Histogram, Recent};

/// How often the signal is computed anew: it is a 99.9th percentile over a second.
const REFRESH: Nanos = Nanos::from_millis(50);

/// Longest waits of a second that do not count: a busy virtual machine shows some seven stalls of more than
/// 500 us in that time, each of which holds up one wake-up.
const SPARED: u64 = 8;

/// What a task's place has counted before, and what its BE task caused lately.
struct Place {
    generation: u32,
    own_before: Histogram,
    caused_before: Histogram,
    recent: Recent,
    recent_own: Recent,
    signal: Signal<Nanos>,
    due: Nanos,
}

/// The wake-to-run times of all tasks.
pub(super) struct Delays {
    places: Vec<Option<Box<Place>>>,
    scratch: Histogram,
}

impl Delays {
    pub fn new(tasks: usize) -> Delays {
        Delays { places: (0..tasks).map(|_| None).collect(), scratch: Histogram::default() }
    }

    /// Wake-to-run times of the task's own threads.
    pub fn own(&mut self, task: TaskId, shared: &[Histograms]) -> Histogram {
        let Some(shared) = shared.get(task.at()) else { return Histogram::default() };
        self.scratch.read(&shared.own);
        let before =
            self.places[task.at()].as_ref().filter(|place| place.generation == task.generation);
        before.map_or_else(|| self.scratch.clone(), |place| self.scratch.since(&place.own_before))
    }

    /// Wake-to-run times of the task's own threads in the last second.
    pub fn own_recent(&mut self, task: TaskId, shared: &[Histograms]) -> Histogram {
        let place = self.places.get_mut(task.at()).and_then(Option::as_mut);
        let place = place.filter(|place| place.generation == task.generation);
        let (Some(place), Some(shared)) = (place, shared.get(task.at())) else {
            return Histogram::default();
        };
        self.scratch.read(&shared.own);
        place.recent_own.so_far(&self.scratch)
    }

    /// Wake-to-run times of LC threads that the task held up.
    pub fn caused(&mut self, task: TaskId, shared: &[Histograms]) -> Histogram {
        let Some(shared) = shared.get(task.at()) else { return Histogram::default() };
        self.scratch.read(&shared.caused);
        let before =
            self.places[task.at()].as_ref().filter(|place| place.generation == task.generation);
        before
            .map_or_else(|| self.scratch.clone(), |place| self.scratch.since(&place.caused_before))
    }

    /// Fills in [`quell_model::TaskView::delay_caused`].
    pub fn summarise(&mut self, now: Nanos, shared: &[Histograms], seen: &mut Snapshot) {
        for task in seen.tasks.iter_mut().filter(|task| task.alive) {
            let at = task.id.at();
            let (Some(place), Some(shared)) = (self.places.get_mut(at), shared.get(at)) else {
                continue;
            };
            if place.as_ref().is_none_or(|place| place.generation != task.id.generation) {
                // The first holder of a place has all that was counted; a later one begins here.
                let (mut own, mut caused) = (Histogram::default(), Histogram::default());
                if place.is_some() {
                    own.read(&shared.own);
                    caused.read(&shared.caused);
                }
                *place = Some(Box::new(Place {
                    generation: task.id.generation,
                    recent: Recent::new(now, &caused),
                    recent_own: Recent::new(now, &own),
                    own_before: own,
                    caused_before: caused,
                    signal: Signal::Absent(Absence::NotApplicable),
                    due: Nanos::ZERO,
                }));
            }
            let Some(place) = place else { continue };
            if now >= place.due {
                place.due = now + REFRESH;
                match task.limits.class {
                    Class::LatencyCritical => {
                        self.scratch.read(&shared.own);
                        place.recent_own.pass(now, &self.scratch);
                    }
                    Class::BestEffort => {
                        self.scratch.read(&shared.caused);
                        let recent = place.recent.at(now, &self.scratch);
                        place.signal = recent
                            .quantile_sparing(999, SPARED)
                            .map_or(Signal::Absent(Absence::NotApplicable), Signal::Measured);
                    }
                }
            }
            task.delay_caused = place.signal;
        }
    }
}
