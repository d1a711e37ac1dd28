//! Caladan's hyperthread controller: keeps the siblings of a core idle once the request on it takes long.
//!
//! A request past its task's threshold (`sibling_idle_after`, a little above the median service time) is one of
//! the tail, and a busy sibling costs it a third of its speed. So the siblings are idled until it ends. The
//! controller knows nothing of the last tick: it says for each Snapshot which requests are late, the latest
//! first. What has to hold before a sibling is taken, and who gets it back when cores are short, is the
//! allocator's affair (`allocator::shields`).
//!
//! Source: Caladan (OSDI'20), `ias_ht`. As published: budget = time served / threshold; the largest budget
//! first; no protection from a sibling on which a request of the same task is late too. Not as published: the
//! time served there has 32 bits, so that a request of some two seconds looks young again; here it has 64.

use quell_model::{Class, CoreId, Nanos, Snapshot, TaskId};

use crate::advisors::STEP;
use crate::{Advice, Advisor, BadState, Host};

/// See the module.
pub struct Hyperthread {
    /// By core number.
    siblings: Vec<Box<[CoreId]>>,
    /// Scratch, by core number: whose late request runs there.
    serves: Vec<Option<TaskId>>,
    /// Scratch: late requests, as thousandths of their threshold, and their cores.
    late: Vec<(u64, CoreId)>,
}

impl Hyperthread {
    /// The controller for a host with siblings.
    pub fn new(host: &Host) -> Hyperthread {
        let numbers = host.topology.cores().last().map_or(0, |core| core.id.index() + 1);
        let siblings = (0..numbers).map(|core| CoreId(core as u16));
        let siblings = siblings.map(|core| host.topology.siblings(core).iter().collect());
        Hyperthread {
            siblings: siblings.collect(),
            serves: vec![None; numbers],
            late: Vec::with_capacity(numbers),
        }
    }

    fn collect_late(&mut self, now: Nanos, seen: &Snapshot, advice: &mut Advice) {
        self.late.clear();
        self.serves.fill(None);
        for view in &seen.cores {
            let task = view.serving.and_then(|id| seen.tasks.get(id.at()).filter(|t| t.id == id));
            let Some(task) = task.filter(|task| task.limits.class == Class::LatencyCritical) else {
                continue;
            };
            let threshold = task.limits.times.sibling_idle_after;
            let Some(start) = view.request_start.value().filter(|_| threshold > Nanos::ZERO) else {
                continue;
            };
            if start + threshold > now {
                advice.revisit(start + threshold);
                continue;
            }
            let budget = u128::from(now.since(start).0) * 1_000 / u128::from(threshold.0);
            let Some(serves) = self.serves.get_mut(view.id.index()) else { continue };
            *serves = Some(task.id);
            self.late.push((u64::try_from(budget).unwrap_or(u64::MAX), view.id));
        }
        self.late.sort_unstable_by_key(|&(budget, core)| (std::cmp::Reverse(budget), core));
    }
}

impl Advisor for Hyperthread {
    fn name(&self) -> &'static str {
        "hyperthread"
    }

    fn advise(&mut self, now: Nanos, seen: &Snapshot, advice: &mut Advice) {
        self.collect_late(now, seen, advice);
        for &(_, core) in &self.late {
            for &sibling in &self.siblings[core.index()] {
                if self.serves[sibling.index()] != self.serves[core.index()] {
                    advice.keep_idle(sibling, core);
                }
            }
        }
        // A request can end without any event of the kernel.
        if !self.late.is_empty() {
            advice.revisit(now + STEP);
        }
    }

    fn save(&self, _state: &mut Vec<u8>) {}

    fn restore(&mut self, _state: &mut &[u8]) -> Result<(), BadState> {
        Ok(())
    }
}
