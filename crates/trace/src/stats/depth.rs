//! Core-nanoseconds by the number of threads that want the core.

use quell_model::Nanos;

use crate::host::{HostCore, HostState};

/// Depths of run queues with a sum of their own; deeper ones share the last.
pub const DEPTHS: usize = 9;

type Sums = [u64; DEPTHS];

/// Adds up when a queue changes, not with each event.
#[derive(Debug)]
pub struct Depths {
    cores: Vec<Since>,
    /// Since the last keyframe.
    pending: Sums,
    judged: Sums,
    interval: u64,
    deepest: u32,
}

/// A core's runnable threads since its last change; `None` while it is offline.
#[derive(Clone, Copy, Debug)]
struct Since {
    at: Nanos,
    runnable: Option<u32>,
}

impl Depths {
    /// Of so many cores, which are online and empty until their first change.
    pub fn new(cores: usize) -> Depths {
        Depths {
            cores: vec![Since { at: Nanos::ZERO, runnable: Some(0) }; cores],
            pending: Sums::default(),
            judged: Sums::default(),
            interval: 0,
            deepest: 0,
        }
    }

    /// The time of the first event.
    pub fn begin(&mut self, at: Nanos) {
        self.cores.iter_mut().for_each(|core| core.at = at);
    }

    /// The size of a core's queue changed, or whether it is online.
    pub fn change(&mut self, core: &HostCore, at: Nanos) {
        self.pass(core.index, at);
        let runnable = core.counts.map_or(0, |counts| counts.runnable);
        self.deepest = self.deepest.max(runnable);
        self.cores[core.index].runnable = core.is_online.then_some(runnable);
    }

    /// Lets time pass on one core.
    fn pass(&mut self, core: usize, to: Nanos) {
        let Since { at, runnable } = &mut self.cores[core];
        let time = to.since(std::mem::replace(at, to));
        if let Some(runnable) = runnable {
            let sum = &mut self.pending[(*runnable as usize).min(DEPTHS - 1)];
            *sum = sum.saturating_add(time.0);
        }
    }

    /// After each event: ends the interval before a keyframe.
    pub fn close_interval(&mut self, host: &HostState) {
        if self.interval != host.interval() {
            self.close(host);
        }
    }

    /// What happened since the last keyframe counts, unless something was lost. As
    /// [`WastedTime::judged`](crate::host::WastedTime::judged).
    fn close(&mut self, host: &HostState) {
        (0..self.cores.len()).for_each(|core| self.pass(core, host.now()));
        let pending = std::mem::take(&mut self.pending);
        if self.interval > 0 && host.last_incomplete_interval() != Some(self.interval) {
            for (sum, more) in self.judged.iter_mut().zip(pending) {
                *sum = sum.saturating_add(more);
            }
        }
        self.interval = host.interval();
    }

    /// The most threads that wanted one core.
    pub fn deepest(&self) -> u32 {
        self.deepest
    }

    /// The sums, up to the deepest that is not zero.
    pub fn finish(mut self, host: &HostState) -> Vec<u64> {
        self.close(host);
        let used = self.judged.iter().rposition(|time| *time > 0).map_or(0, |last| last + 1);
        self.judged[..used].to_vec()
    }
}
