//! PerfIso (ATC'18): batch work is confined to fewer cores whenever too few cores idle, and to more when more do.
//!
//! "Blind isolation": nothing is asked of the services, they run where the kernel puts them. What is kept is
//! a buffer of idle cores, so that a burst finds some at once. After each look the batch set is as large as
//! leaves the buffer: it shrinks by what the buffer lacks and grows by what it has too much. The buffer's
//! size is a setting; the abstract of the paper names none, and ours defaults to a sixth of the cores.

use quell_model::{Class, CoreSet, Nanos, Plan, Snapshot, TaskReason};

use super::{blank, is_idle, live, usable};
use crate::state::{put, take};
use crate::{BadState, Host, Policy, Wake};

/// Between two looks, if the host acts as fast (ours; the paper polls).
const LOOK_EVERY: Nanos = Nanos::from_micros(100);

/// See the module.
pub struct PerfIso {
    host: Host,
    buffer: usize,
    /// Cores of the batch set, and when that was last decided.
    batch: usize,
    looked: Option<Nanos>,
}

impl PerfIso {
    /// The policy that keeps `buffer` cores idle; 0: a sixth of the managed ones, at least one.
    pub fn new(host: Host, buffer: u32) -> PerfIso {
        let buffer = match buffer {
            0 => (host.managed.len() / 6).max(1),
            cores => cores as usize,
        };
        PerfIso { host, buffer, batch: 0, looked: None }
    }

    fn resize(&mut self, seen: &Snapshot, usable: &CoreSet) {
        let position = |core| self.host.topology.position(core);
        let idle = usable.iter().filter_map(position).filter(|at| is_idle(seen, *at)).count();
        // Without a freezer batch work cannot be left without any core.
        let least = usize::from(!self.host.caps.freezes_tasks);
        self.batch = (self.batch + idle).saturating_sub(self.buffer).max(least).min(usable.len());
    }
}

impl Policy for PerfIso {
    fn name(&self) -> &'static str {
        "perfiso"
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        blank(&self.host, seen, plan);
        let usable = usable(&self.host, seen);
        // A decision has to take effect before it is judged.
        let period = LOOK_EVERY.max(Nanos(2 * self.host.caps.actuation_delay.0));
        if self.looked.is_none_or(|looked| now.since(looked) >= period) {
            self.looked = Some(now);
            self.resize(seen, &usable);
        }
        let kept = usable.len().saturating_sub(self.batch);
        let batch: CoreSet = usable.iter().skip(kept).collect();
        for task in live(seen) {
            let (open, reason) = match task.limits.class {
                Class::LatencyCritical => (usable, TaskReason::Configured),
                Class::BestEffort => (batch, TaskReason::Guest),
            };
            let planned = &mut plan.tasks[task.id.at()];
            let open = open.intersection(&task.limits.allowed);
            planned.shared_cores = open.iter().take(task.limits.core_limit() as usize).collect();
            planned.reason =
                if planned.shared_cores.is_empty() { TaskReason::NoCore } else { reason };
        }
        Wake::At(self.looked.unwrap_or(now) + period)
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&(self.batch as u64, self.looked), state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let (batch, looked): (u64, _) = take(state)?;
        (self.batch, self.looked) = (batch.min(quell_model::CORES_MAX as u64) as usize, looked);
        Ok(())
    }
}
