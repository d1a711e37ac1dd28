//! The invariants of a [`HostState`], recounted from scratch.

use std::collections::HashMap;

use super::state::is_above_idle;
use super::{HostState, Running, ThreadState};

impl HostState {
    /// Recounts everything that is kept by differences, at a cost that grows with cores and threads: for tests.
    ///
    /// # Errors
    /// The first invariant that does not hold: a thread is in one place, and counts equal lists.
    pub fn validate(&self) -> Result<(), String> {
        let mut placed = HashMap::new();
        for (index, core) in self.cores.iter().enumerate() {
            self.validate_list(index)?;
            let waiting: Vec<_> = self.waiters(index).collect();
            let waking = self.listed(index).count() - waiting.len();
            let above = waiting.iter().filter(|thread| is_above_idle(thread.prio())).count();
            let counts = (waiting.len() as u32, waking as u32, above as u32);
            if counts != (core.waiting, core.waking, core.above_idle) {
                return Err(format!("core {index}: counts differ from its list {counts:?}"));
            }
            let mut groups: HashMap<_, u32> = HashMap::new();
            waiting.iter().for_each(|thread| *groups.entry(thread.class).or_default() += 1);
            if groups != core.groups.iter().copied().collect() {
                return Err(format!("core {index}: groups differ from its list"));
            }
            if let Running::Thread(thread) = core.running {
                let thread = &self.threads[thread];
                if (thread.state, thread.core) != (ThreadState::Running, index) {
                    return Err(format!("core {index} runs tid {} in vain", thread.tid()));
                }
                placed.insert(thread.index, index);
            }
            for thread in self.listed(index) {
                if let Some(other) = placed.insert(thread.index, index) {
                    return Err(format!("tid {} is on {index} and {other}", thread.tid()));
                }
            }
        }
        let mut members: HashMap<_, u32> = HashMap::new();
        let mut pending = 0;
        for thread in self.threads() {
            *members.entry(thread.class).or_default() += 1;
            pending += u64::from(self.woken_at(thread).is_some());
            if thread.state.is_placed() != placed.contains_key(&thread.index) {
                return Err(format!("tid {} is {:?} and in no place", thread.tid(), thread.state));
            }
            if self.threads.find(thread.tid()) != Some(thread.index) {
                return Err(format!("tid {} does not lead to its thread", thread.tid()));
            }
            if self.class(thread.class).prio != thread.prio() {
                return Err(format!("tid {} has another class", thread.tid()));
            }
            if thread.since > self.now {
                return Err(format!("tid {} is in the future", thread.tid()));
            }
        }
        #[cfg(any(test, debug_assertions))]
        for (class, count) in members {
            if self.classes.members(class) != count {
                return Err(format!("class {class:?} does not have {count} threads"));
            }
        }
        match pending == self.pending_wakeups {
            true => Ok(()),
            false => Err(format!("{pending} wake-ups are pending, not {}", self.pending_wakeups)),
        }
    }

    fn validate_list(&self, core: usize) -> Result<(), String> {
        let mut previous = None;
        let mut length = 0;
        for thread in self.listed(core) {
            if thread.previous != previous || thread.core != core || !thread.state.is_listed() {
                return Err(format!("core {core}: its list is broken at tid {}", thread.tid()));
            }
            previous = Some(thread.index);
            length += 1;
            if length > self.threads.len() {
                return Err(format!("core {core}: its list has no end"));
            }
        }
        match self.cores[core].tail == previous {
            true => Ok(()),
            false => Err(format!("core {core}: its list has another end")),
        }
    }
}
