//! What was decided lately, and what advice was given, for the status.

use quell_control::protocol::{Advised, Decision};
use quell_model::{TaskId, TaskReason};
use quell_policy::{Explanation, Offer, TaskWhy};

use super::Engine;

/// Decisions that a status tells.
const DECISIONS_TOLD: usize = 64;

impl Engine {
    /// The newest changes of ownership, oldest first.
    pub(super) fn decisions(&self, explanation: &Explanation) -> Vec<Decision> {
        let changes = &explanation.changes;
        let name = |id: TaskId| self.members.name(id);
        let newest = &changes[changes.len().saturating_sub(DECISIONS_TOLD)..];
        let told = newest.iter().map(|change| Decision {
            at_us: change.at.as_micros(),
            core: u32::from(change.core.0),
            from: change.from.map(name),
            to: change.to.map(name),
            reason: change.reason.to_string(),
        });
        told.collect()
    }

    /// The advice to the last plan: first what is followed, then what was declined.
    pub(super) fn advised(&self, explanation: &Explanation) -> Vec<Advised> {
        let mut told: Vec<Advised> =
            explanation.tasks.iter().flat_map(|why| self.followed(why)).collect();
        told.extend(explanation.vetoes.iter().map(|veto| Advised {
            task: self.members.name(veto.task),
            offer: veto.offer.to_string(),
            declined: Some(veto.to_string()),
        }));
        told
    }

    fn followed(&self, why: &TaskWhy) -> Vec<Advised> {
        let most = self.seen.tasks[why.id.at()].limits.core_limit();
        let bans = why.banned.iter().map(|core| Offer::Ban(core).to_string());
        let cap = (why.cap < most).then(|| Offer::Cap(why.cap).to_string());
        let away = match why.reason {
            TaskReason::DelaysLc(delay) => {
                Some(format!("keep it off LC's cores: it delayed LC by {delay}"))
            }
            _ => None,
        };
        let task = self.members.name(why.id);
        let followed = |offer| Advised { task: task.clone(), offer, declined: None };
        bans.chain(cap).chain(away).map(followed).collect()
    }
}
