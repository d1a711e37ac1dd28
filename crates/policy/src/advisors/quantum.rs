//! Time slices within a task: a request that has had its quantum lets the task's other requests go first.
//!
//! Source: Caladan's `ias_ts` (in the code since 2022, not in the paper): every 10 us, where work is queued
//! and the request on a core has run for the quantum (100 us unless the task says otherwise), it is asked to
//! yield, once. Here the Plan names the request by when it began ([`quell_model::CorePlan::yields`]), so that
//! a request that comes after it is never meant. The slices *between* BE tasks (2 ms) are the allocator's.

use quell_model::{Nanos, Snapshot};

use crate::{Advice, Advisor, BadState};

/// See the module.
pub struct Quantum;

impl Advisor for Quantum {
    fn name(&self) -> &'static str {
        "quantum"
    }

    fn advise(&mut self, now: Nanos, seen: &Snapshot, advice: &mut Advice) {
        for view in &seen.cores {
            let task = view.running.and_then(|id| seen.tasks.get(id.at()).filter(|t| t.id == id));
            let Some(task) = task.filter(|task| task.limits.times.quantum > Nanos::ZERO) else {
                continue;
            };
            let queued = task.waiting > 0 || task.queueing_delay.value().is_some();
            let Some(start) = view.request_start.value().filter(|_| queued) else { continue };
            match start + task.limits.times.quantum {
                end if end > now => advice.revisit(end),
                _ => advice.yield_to_others(view.id, start),
            }
        }
    }

    fn save(&self, _state: &mut Vec<u8>) {}

    fn restore(&mut self, _state: &mut &[u8]) -> Result<(), BadState> {
        Ok(())
    }
}
