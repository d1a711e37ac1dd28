//! What became of a Plan, core by core.

use quell_model::{CoreMode, CoreSet, Outcome, Plan};

use super::CoreOutcome;
use super::engine::TaskState;
use super::record::Records;
use super::target::Targets;
use quell_observe::{ThreadState, ThreadView};

/// The outcomes of the cores of the last Plan, in its order.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    cores: Vec<CoreOutcome>,
}

impl Outcomes {
    pub fn cores(&self) -> &[CoreOutcome] {
        &self.cores
    }

    /// A new Plan: cores on which something else is wanted get a new generation.
    pub fn take_in(&mut self, plan: &Plan, before: &Plan, moved: &CoreSet) {
        self.cores.truncate(plan.cores.len());
        for (at, wanted) in plan.cores.iter().enumerate() {
            let pending = CoreOutcome { core: wanted.id, generation: 1, outcome: Outcome::Pending };
            match self.cores.get_mut(at) {
                None => self.cores.push(pending),
                Some(entry) if entry.core != wanted.id => *entry = pending,
                Some(entry) => {
                    let same = before
                        .cores
                        .get(at)
                        .is_some_and(|old| old.owner == wanted.owner && old.mode == wanted.mode);
                    entry.generation += u64::from(!same || moved.contains(wanted.id));
                }
            }
        }
    }

    /// Judges each core anew. The worst of what concerns a core counts: refused, raced, pending.
    pub fn settle(
        &mut self,
        plan: &Plan,
        threads: &[ThreadView],
        targets: &Targets,
        tasks: &[Option<TaskState>],
        records: &Records,
    ) {
        for entry in &mut self.cores {
            entry.outcome = Outcome::Done;
        }
        for (position, view) in threads.iter().enumerate() {
            let Some((want, generation)) = targets.of(view.task) else { continue };
            let Some(record) = records.at_position(position) else { continue };
            if record.gone {
                continue;
            }
            if let Some(refused) = record.refused {
                self.note(plan, &want.usable, Outcome::Refused { errno: refused.errno });
            } else if record.stale {
                self.note(plan, &want.usable, Outcome::Raced);
            } else if record.settled != generation {
                self.note(plan, &want.usable, Outcome::Pending);
            }
            let elsewhere = view.state == ThreadState::Running
                && !record.keeps_cores
                && record.cores.is_some_and(|cores| !cores.contains(view.core));
            if elsewhere {
                self.note(plan, &CoreSet::of(view.core), Outcome::Pending);
            }
        }
        for want in targets.iter() {
            let state = tasks.get(want.task.at()).and_then(Option::as_ref);
            let Some(state) = state.filter(|state| state.info.id == want.task) else { continue };
            if let Some(errno) = state.status.unelevated {
                self.note(plan, &want.owned, Outcome::Refused { errno });
            }
            if let Some(refused) = state.group_refused {
                self.note(plan, &want.usable, Outcome::Refused { errno: refused.errno });
            }
        }
    }

    fn note(&mut self, plan: &Plan, cores: &CoreSet, outcome: Outcome) {
        for core in cores.iter() {
            let Some(at) = position(plan, core) else { continue };
            let unmanaged = plan.cores[at].mode == CoreMode::Unmanaged;
            if let Some(entry) = self.cores.get_mut(at).filter(|_| !unmanaged)
                && severity(outcome) > severity(entry.outcome)
            {
                entry.outcome = outcome;
            }
        }
    }
}

fn severity(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Done => 0,
        Outcome::Pending => 1,
        Outcome::Raced => 2,
        Outcome::Refused { .. } => 3,
    }
}

/// The position of a core in the Plan. Core numbers rarely have holes, so the number is nearly always
/// the position.
fn position(plan: &Plan, core: quell_model::CoreId) -> Option<usize> {
    match plan.cores.get(core.index()) {
        Some(entry) if entry.id == core => Some(core.index()),
        _ => plan.cores.iter().position(|entry| entry.id == core),
    }
}
