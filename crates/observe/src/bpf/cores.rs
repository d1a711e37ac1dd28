//! The cores as last read: who runs, since when idle, how busy with LC work.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_model::{Absence, CoreSet, Nanos, Permille, Signal, Snapshot, TaskId, ThreadId};

use super::abi::{Core, CoreCopy, KIND_BE, KIND_IDLE, KIND_LC, KIND_LC_FAIR};
use super::views::Views;

/// The windows of [`quell_model::CoreView::lc_busy`] and [`quell_model::CoreView::rt_share`], and how many readings
/// each is made of.
const LC_WINDOW: Nanos = Nanos::from_millis(100);
const RT_WINDOW: Nanos = Nanos::from_millis(250);
const READINGS: usize = 10;
/// How often a sum is read again that a turn of its core changed meanwhile.
const READ_TRIES: u32 = 8;

/// Readings of a sum of run time, for its share of a window.
#[derive(Clone, Copy)]
struct Share {
    window: Nanos,
    readings: [(Nanos, Nanos); READINGS],
    oldest: usize,
    known: usize,
}

/// What has to be remembered of one core.
#[derive(Clone, Copy)]
struct Memory {
    lc: Share,
    rt: Share,
    idles: u64,
}

/// What has to be remembered of each core between ticks.
pub(super) struct Cores {
    memory: Vec<Memory>,
    pub retries: u64,
}

impl Cores {
    pub fn new(cores: usize) -> Cores {
        let blank = Memory { lc: Share::new(LC_WINDOW), rt: Share::new(RT_WINDOW), idles: 0 };
        Cores { memory: vec![blank; cores], retries: 0 }
    }

    /// Fills in the observed fields of the Snapshot's cores.
    pub fn summarise(&mut self, now: Nanos, cores: &[Core], views: &Views, seen: &mut Snapshot) {
        seen.went_idle = CoreSet::EMPTY;
        for view in &mut seen.cores {
            let at = view.id.index();
            let (Some(core), Some(memory)) = (cores.get(at), self.memory.get_mut(at)) else {
                continue;
            };
            let (copy, retries) = core.read();
            self.retries += u64::from(retries);
            // A core that never lets go of its entry keeps what was seen before.
            let Some(copy) = copy else { continue };
            let task = TaskId { index: copy.task, generation: copy.generation };
            view.running = matches!(copy.kind, KIND_LC | KIND_BE | KIND_LC_FAIR).then_some(task);
            view.idle_since = (copy.kind == KIND_IDLE).then_some(copy.since);
            let rt = time_in(&copy, KIND_LC, now);
            view.lc_busy = memory.lc.of(now, rt + time_in(&copy, KIND_LC_FAIR, now));
            view.rt_share = memory.rt.of(now, rt);
            view.burst = burst_of(&copy, views);
            view.kernel_waits = core.kernel_waits();
            if copy.idles != std::mem::replace(&mut memory.idles, copy.idles) {
                seen.went_idle.insert(view.id);
            }
        }
    }
}

/// The LC thread above the fair class that runs on the core, and its burst so far.
fn burst_of(core: &CoreCopy, views: &Views) -> Option<(ThreadId, Nanos)> {
    let index = core.slot.checked_sub(1).filter(|_| core.kind == KIND_LC)?;
    let thread = ThreadId { index, generation: core.used };
    Some((thread, views.view_of(thread)?.burst))
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
        KIND_LC | KIND_BE | KIND_LC_FAIR if holder == task => now.since(core.since),
        _ => Nanos::ZERO,
    }
}

impl Share {
    fn new(window: Nanos) -> Share {
        Share { window, readings: [(Nanos::ZERO, Nanos::ZERO); READINGS], oldest: 0, known: 0 }
    }

    /// Takes in that the sum is `ran` now.
    fn of(&mut self, now: Nanos, ran: Nanos) -> Signal<Permille> {
        let newest = (self.oldest + self.known.max(1) - 1) % READINGS;
        let due = self.readings[newest].0 + Nanos(self.window.0 / READINGS as u64);
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
        let mut busy = Share::new(LC_WINDOW);
        let mut ran = Nanos::ZERO;
        let mut last = Signal::default();
        for millisecond in 0..400 {
            // Busy for 200 ms, then not at all.
            ran += Nanos::from_millis(u64::from(millisecond < 200));
            last = busy.of(Nanos::from_millis(1 + millisecond), ran);
            match millisecond {
                0 => assert_eq!(last, Signal::Absent(Absence::Stale)),
                1..200 => assert_eq!(last, Signal::Measured(Permille::ALL)),
                _ => {}
            }
        }
        assert_eq!(last, Signal::Measured(Permille(0)));
    }
}
