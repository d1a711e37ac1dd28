//! The kernel alone: what a host does without Quell.
//!
//! A Plan says so by naming no owner: every task may run beneath nobody on all cores that it may use, on its
//! own rung (`linux-default`: as its administrator started it), or with BE at SCHED_IDLE (`sched-idle`, the
//! Linux of Caladan's evaluation). On a real host no thread is raised and each task is held to the managed cores
//! that it may use, as under every policy, so that all have the same cores; on a simulated one the kernel
//! model decides who runs.

use quell_model::{Class, Nanos, Plan, Rung, Snapshot, TaskReason};

use super::{blank, live, usable};
use crate::{BadState, Host, Policy, Wake};

/// See the module.
pub struct Kernel {
    host: Host,
    name: &'static str,
    be: Rung,
}

impl Kernel {
    /// Everything as found.
    pub fn untouched(host: Host) -> Kernel {
        Kernel { host, name: "linux-default", be: Rung::Original }
    }

    /// BE at SCHED_IDLE, LC as found.
    pub fn be_idle(host: Host) -> Kernel {
        Kernel { host, name: "sched-idle", be: Rung::SchedIdle }
    }
}

impl Policy for Kernel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&mut self, _now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        blank(&self.host, seen, plan);
        let usable = usable(&self.host, seen);
        for task in live(seen) {
            let planned = &mut plan.tasks[task.id.at()];
            let open = usable.intersection(&task.limits.allowed);
            planned.shared_cores = open.iter().take(task.limits.core_limit() as usize).collect();
            planned.reason = TaskReason::Configured;
            if task.limits.class == Class::BestEffort {
                planned.rung = self.be;
            }
        }
        Wake::OnChange
    }

    fn save(&self, _state: &mut Vec<u8>) {}

    fn restore(&mut self, _state: &mut &[u8]) -> Result<(), BadState> {
        Ok(())
    }
}
