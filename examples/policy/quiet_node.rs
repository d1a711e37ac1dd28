//! An advisor: while a service is congested, batch work keeps off the service's NUMA node.

use quell_model::{Class, Nanos, Snapshot, TaskReason};
use quell_policy::{Advice, Advisor, BadState, BanScope, Host};

pub struct QuietNode {
    host: Host,
}

impl QuietNode {
    pub fn new(host: Host) -> QuietNode {
        QuietNode { host }
    }
}

impl Advisor for QuietNode {
    fn name(&self) -> &'static str {
        "quiet_node"
    }

    fn advise(&mut self, _now: Nanos, seen: &Snapshot, advice: &mut Advice) {
        let served = seen.tasks.iter().filter(|task| {
            task.alive && task.limits.class == Class::LatencyCritical && task.is_congested()
        });
        for core in served.flat_map(|task| task.running_on.iter()) {
            let Some(at) = self.host.topology.position(core) else { continue };
            let node = self.host.topology.cores()[at].node;
            for other in self.host.topology.cores().iter().filter(|other| other.node == node) {
                advice.ban(BanScope::BestEffort, other.id, core, TaskReason::Banned);
            }
        }
    }

    // It remembers nothing from one decision to the next.
    fn save(&self, _state: &mut Vec<u8>) {}

    fn restore(&mut self, _state: &mut &[u8]) -> Result<(), BadState> {
        Ok(())
    }
}
