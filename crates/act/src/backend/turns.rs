//! Turns within a task on one core: a thread whose request had its quantum goes behind those of its task that
//! wait there.
//!
//! A real-time thread that is raised to a priority goes to the tail of that priority's queue (sched(7)). So the
//! thread is lowered by a rung, upon which the next in the queue runs, and raised again at once. It stays
//! above BE all the time, and on its rung but for those microseconds.

use quell_model::{CoreId, Nanos, Plan, Rung};

use super::engine::Engine;
use super::{ApplyReport, Host};
use quell_observe::{ThreadState, ThreadView};

/// Which request let others go first last, by core.
#[derive(Debug, Default)]
pub(super) struct Turns(Vec<(CoreId, Nanos)>);

impl Turns {
    /// Whether this is the first time that this is asked for.
    fn is_new(&mut self, core: CoreId, began: Nanos) -> bool {
        match self.0.iter_mut().find(|(known, _)| *known == core) {
            Some((_, last)) => std::mem::replace(last, began) != began,
            None => {
                self.0.push((core, began));
                true
            }
        }
    }
}

impl Engine {
    /// Lets others go first where the Plan asks for it and somebody waits; once a request.
    pub fn take_turns(
        &mut self,
        plan: &Plan,
        threads: &[ThreadView],
        host: &mut dyn Host,
        report: &mut ApplyReport,
    ) {
        for core in &plan.cores {
            let (Some(began), Some(owner)) = (core.yields, core.owner) else { continue };
            let of_owner =
                |view: &&ThreadView| view.core == core.id && view.task == owner && view.lc;
            let runs = threads.iter().filter(of_owner).find(|v| v.state == ThreadState::Running);
            let waits = threads.iter().filter(of_owner).any(|v| v.state == ThreadState::Waiting);
            let Some(view) = runs.filter(|_| waits) else { continue };
            if self.turns.is_new(core.id, began) {
                self.let_others_go(view, host, report);
            }
        }
    }

    fn let_others_go(&mut self, view: &ThreadView, host: &mut dyn Host, report: &mut ApplyReport) {
        let Some(ladder) = &self.style.ladder else { return };
        let (Some(high), Some(low)) = (ladder.attr(Rung::Lc), ladder.attr(Rung::LcOverflow)) else {
            return;
        };
        let record = self.records.iter_mut().find(|record| record.thread == view.thread);
        // Only a thread that is on its rung as far as known: anything else is about to be changed anyhow.
        let Some(record) =
            record.filter(|record| record.sched == Some(high) && !record.keeps_sched)
        else {
            return;
        };
        // A refusal leaves the thread where it is, and a thread that is gone needs no turn.
        if host.set_sched(&view.thread, low).is_err() {
            return;
        }
        record.note_sched(low);
        report.lowered += 1;
        match host.set_sched(&view.thread, high) {
            Ok(()) => {
                record.note_sched(high);
                report.raised += 1;
            }
            // It lacks its rung now, which the next tick sees.
            Err(_) => self.targets.touch(view.task),
        }
    }
}
