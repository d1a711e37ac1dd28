//! Elfen (ATC'16): batch work borrows the sibling of a service's core while that core is idle, and steps
//! aside the moment it is not.
//!
//! Each physical core is split into a first lane, for LC, and the others, for BE. LC never gets a second
//! lane, BE never a first one that LC has. In the original the batch thread itself polls the first lane and
//! naps; here the policy looks as often as it is let, and parks the lane. One service and one batch job a
//! core, as published.

use quell_model::{Class, CoreId, CoreMode, Nanos, Plan, Reason, Snapshot, TaskId};

use super::{Known, blank, give, is_idle, live, rung_owners};
use crate::state::{ensure, put, take};
use crate::{BadState, Host, Policy, Wake};

/// Between two looks at the first lanes; a host may look less often.
const LOOK_EVERY: Nanos = Nanos::from_micros(5);

/// See the module.
pub struct Elfen {
    host: Host,
    known: Known,
    /// By position in the topology.
    lanes: Vec<Lane>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Lane {
    /// Who may use it.
    task: Option<TaskId>,
    /// The lane that has to be idle for that.
    beside: Option<CoreId>,
}

impl Elfen {
    /// The policy for a host with siblings.
    pub fn new(host: Host) -> Elfen {
        let lanes = vec![Lane::default(); host.topology.len()];
        Elfen { host, known: Known::default(), lanes }
    }

    /// Deals out the lanes: first lanes to LC in turns, guarantees first; the rest to BE in turns.
    fn deal(&mut self, seen: &Snapshot) {
        self.lanes.fill(Lane::default());
        let usable = self.known.usable;
        let first = |core: &CoreId| {
            let siblings = self.host.topology.siblings(*core).intersection(&usable);
            siblings.first().is_none_or(|sibling| *core < sibling)
        };
        let firsts = usable.iter().filter(first).collect();
        for guaranteed in [true, false] {
            self.deal_in_turns(seen, Class::LatencyCritical, &firsts, guaranteed);
        }
        for core in usable.difference(&firsts).iter() {
            let siblings = self.host.topology.siblings(core).intersection(&firsts);
            let served = siblings.first().filter(|first| {
                let at = self.host.topology.position(*first);
                at.is_some_and(|at| self.lanes[at].task.is_some())
            });
            if let Some(at) = self.host.topology.position(core) {
                self.lanes[at].beside = served;
            }
        }
        self.deal_in_turns(seen, Class::BestEffort, &usable, false);
    }

    /// One lane to each task a round until none takes any more.
    fn deal_in_turns(
        &mut self,
        seen: &Snapshot,
        class: Class,
        among: &quell_model::CoreSet,
        guaranteed: bool,
    ) {
        let mut dealt = true;
        while dealt {
            dealt = false;
            for task in live(seen).filter(|task| task.limits.class == class) {
                let has = self.lanes.iter().filter(|lane| lane.task == Some(task.id)).count();
                let most = match guaranteed {
                    true => task.limits.guaranteed.min(task.limits.core_limit()),
                    false => task.limits.core_limit(),
                };
                let free = |at: &usize| {
                    let core = self.host.topology.cores()[*at].id;
                    let open = among.contains(core) && task.limits.allowed.contains(core);
                    open && self.lanes[*at].task.is_none()
                };
                let lane = (0..self.lanes.len()).find(free).filter(|_| has < most as usize);
                if let Some(at) = lane {
                    self.lanes[at].task = Some(task.id);
                    dealt = true;
                }
            }
        }
    }
}

impl Policy for Elfen {
    fn name(&self) -> &'static str {
        "elfen"
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        if self.known.changed(&self.host, seen) {
            self.deal(seen);
        }
        blank(&self.host, seen, plan);
        let mut borrows = false;
        for (at, lane) in self.lanes.iter().enumerate() {
            let (Some(task), core) = (lane.task, self.host.topology.cores()[at].id) else {
                continue;
            };
            borrows |= lane.beside.is_some();
            let position = lane.beside.and_then(|first| self.host.topology.position(first));
            match lane.beside {
                Some(first) if position.is_some_and(|at| !is_idle(seen, at)) => {
                    plan.cores[at].mode = CoreMode::Idled;
                    plan.cores[at].reason = Reason::BannedFor(first);
                }
                Some(_) => give(&self.host, plan, core, task, Reason::Leftover),
                None => give(&self.host, plan, core, task, Reason::Guaranteed),
            }
        }
        rung_owners(&self.host, seen, plan);
        if borrows { Wake::At(now + LOOK_EVERY) } else { Wake::OnChange }
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&(&self.known, &self.lanes), state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let (known, lanes): (Known, Vec<Lane>) = take(state)?;
        ensure(lanes.len() == self.lanes.len(), "lanes of another host")?;
        (self.known, self.lanes) = (known, lanes);
        Ok(())
    }
}
