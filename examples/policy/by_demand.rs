//! Cores by demand: whoever has least of what it wants gets the next core, and an LC thread counts twice.

use quell_model::{Class, Nanos, Plan, Reason, Snapshot, TaskView};
use quell_policy::rivals::{blank, give, live, rung_owners, usable};
use quell_policy::{BadState, Host, Policy, Wake};

pub struct ByDemand {
    host: Host,
}

impl ByDemand {
    pub fn new(host: Host) -> ByDemand {
        ByDemand { host }
    }
}

impl Policy for ByDemand {
    fn name(&self) -> &'static str {
        "by-demand"
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        blank(&self.host, seen, plan);
        for core in usable(&self.host, seen).iter() {
            let has = |task: &TaskView| plan.owned(task.id).len() as u32;
            let wants = live(seen).filter(|task| {
                let most = task.runnable().max(1).min(task.limits.max);
                task.limits.allowed.contains(core) && has(task) < most
            });
            let weight = |task: &TaskView| match task.limits.class {
                Class::LatencyCritical => 2 * task.runnable().max(1),
                Class::BestEffort => task.runnable().max(1),
            };
            let next = wants.min_by_key(|task| (1_000 * has(task) / weight(task), task.id));
            if let Some(task) = next {
                give(&self.host, plan, core, task.id, Reason::Leftover);
            }
        }
        rung_owners(&self.host, seen, plan);
        Wake::At(now + Nanos::from_millis(1))
    }

    // It remembers nothing from one decision to the next.
    fn save(&self, _state: &mut Vec<u8>) {}

    fn restore(&mut self, _state: &mut &[u8]) -> Result<(), BadState> {
        Ok(())
    }
}
