//! The cores as last read: who runs, since when idle, how busy with LC work.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_model::{Absence, CoreSet, Nanos, Permille, Signal, Snapshot, TaskId};

use super::abi::{Core, CoreCopy, KIND_BE, KIND_IDLE, KIND_LC};

/// The window of [`quell_model::CoreView::lc_busy`], and how many readings it is made of.
const WINDOW: Nanos = Nanos::from_millis(100);
const READINGS: usize = 10;
/// How often a sum is read again that a turn of its core changed meanwhile.
const READ_TRIES: u32 = 8;

/// Readings of one core's LC run time.
#[derive(Clone, Copy)]
struct Busy {
    readings: [(Nanos, Nanos); READINGS],
    oldest: usize,
    known: usize,
    idles: u64,
}

/// What has to be remembered of each core between ticks.
pub(super) struct Cores {
    busy: Vec<Busy>,
    pub retries: u64,
}

impl Cores {
    pub fn new(cores: usize) -> Cores {
        let blank = Busy {
            readings: [(Nanos::ZERO, Nanos::ZERO); READINGS],
            oldest: 0,
            known: 0,
            idles: 0,
        };
        Cores { busy: vec![blank; cores], retries: 0 }
    }

    /// Fills in the observed fields of the Snapshot's cores.
    pub fn summarise(&mut self, now: Nanos, cores: &[Core], seen: &mut Snapshot) {
        seen.went_idle = CoreSet::EMPTY;
        for view in &mut seen.cores {
            let at = view.id.index();
            let (Some(core), Some(busy)) = (cores.get(at), self.busy.get_mut(at)) else { continue };
            let (copy, retries) = core.read();
            self.retries += u64::from(retries);
            // A core that never lets go of its entry keeps what was seen before.
            let Some(copy) = copy else { continue };
            let task = TaskId { index: copy.task, generation: copy.generation };
            view.running = matches!(copy.kind, KIND_LC | KIND_BE).then_some(task);
            view.idle_since = (copy.kind == KIND_IDLE).then_some(copy.since);
            view.lc_busy = busy.share(now, time_in(&copy, KIND_LC, now));
            if copy.idles != std::mem::replace(&mut busy.idles, copy.idles) {
                seen.went_idle.insert(view.id);
            }
        }
    }
}

/// The time that a core spent in a kind of work, the stretch in progress included.
pub(super) fn time_in(core: &CoreCopy, kind: u32, now: Nanos) -> Nanos {
    let ended = core.total.get(kind as usize).copied().unwrap_or_default();
    if core.kind == kind { ended + now.since(core.since) } else { ended }
}

/// The time that a task ran on a core, given the sum of its stretches there that ended.
pub(super) fn ran(core: &Core, task: TaskId, ended: &AtomicU64) -> Nanos {
    let mut before = core.read().0;
    for _ in 0..READ_TRIES {
        // The core writes the sum within its turn: between two equal copies of the core it is theirs.
        let sum = Nanos(ended.load(Ordering::Acquire));
        let copy = core.read().0;
        match (&before, &copy) {
            (Some(before), Some(copy)) if before.since != copy.since => {}
            (_, Some(copy)) => return sum + stretch_of(copy, task, quell_os::clock::now()),
            (_, None) => return sum,
        }
        before = copy;
    }
    Nanos(ended.load(Ordering::Relaxed))
}

/// How long the task has had the core now, if it has it.
fn stretch_of(core: &CoreCopy, task: TaskId, now: Nanos) -> Nanos {
    let holder = TaskId { index: core.task, generation: core.generation };
    match core.kind {
        KIND_LC | KIND_BE if holder == task => now.since(core.since),
        _ => Nanos::ZERO,
    }
}

impl Busy {
    fn share(&mut self, now: Nanos, ran: Nanos) -> Signal<Permille> {
        let newest = (self.oldest + self.known.max(1) - 1) % READINGS;
        let due = self.readings[newest].0 + Nanos(WINDOW.0 / READINGS as u64);
        if self.known == 0 || now >= due {
            let at = if self.known < READINGS { self.known } else { self.oldest };
            self.readings[at] = (now, ran);
            match self.known < READINGS {
                true => self.known += 1,
                false => self.oldest = (self.oldest + 1) % READINGS,
            }
        }
        let (from, before) = self.readings[self.oldest];
        match now.since(from) {
            Nanos(0) => Signal::Absent(Absence::Stale),
            window => Signal::Measured(Permille::of(ran.since(before), window)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_forgets_what_is_older_than_its_window() {
        let mut busy = Cores::new(1).busy[0];
        let mut ran = Nanos::ZERO;
        let mut last = Signal::default();
        for millisecond in 0..400 {
            // Busy for 200 ms, then not at all.
            ran += Nanos::from_millis(u64::from(millisecond < 200));
            last = busy.share(Nanos::from_millis(1 + millisecond), ran);
            match millisecond {
                0 => assert_eq!(last, Signal::Absent(Absence::Stale)),
                1..200 => assert_eq!(last, Signal::Measured(Permille::ALL)),
                _ => {}
            }
        }
        assert_eq!(last, Signal::Measured(Permille(0)));
    }
}
