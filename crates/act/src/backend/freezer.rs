//! Freezing: what is done with a task for which no core is left and which cannot retreat.
//!
//! A low priority does not keep a thread off an idle core, and an affinity needs one core at least, so
//! at zero cores the cgroup freezer stops the task as a whole. Only tasks that Quell launched or whose
//! operator consented are frozen, and only BE. SIGSTOP is never used: the parent would see it.

use std::path::Path;

use quell_model::{Class, Rung, TaskId};

use super::engine::{Engine, Failure};
use super::record::Backoff;
use super::target::Want;
use super::{ApplyReport, Host, Notice, TaskInfo, TaskStatus};

/// Freezes and thaws what the last Plan asks for. Runs after the threads were served: a thawed thread
/// finds its affinity narrowed already.
pub(super) fn serve(engine: &mut Engine, host: &mut dyn Host, report: &mut ApplyReport) {
    for at in 0..engine.tasks.len() {
        let Some(state) = engine.tasks[at].as_mut() else { continue };
        let Some((want, _)) = engine.targets.of(state.info.id) else { continue };
        let Some(frozen) = wanted(&state.info, &state.status, want) else { continue };
        let Some(group) = state.info.groups.freezer.clone() else { continue };
        if state.group_refused.is_some_and(|refused| host.now() < refused.until) || report.halted {
            continue;
        }
        match host.freeze(&group, frozen) {
            Ok(()) => {
                state.status.frozen = frozen;
                state.group_refused = None;
                report.frozen += u32::from(frozen);
                report.thawed += u32::from(!frozen);
            }
            Err(error) => refuse(engine, at, "freezer", &group, Failure::of(&error), host, report),
        }
    }
}

/// The state that the freezer of a task should be in, if it is in another.
pub(super) fn wanted(info: &TaskInfo, status: &TaskStatus, want: &Want) -> Option<bool> {
    let frozen = want.off_core()
        && want.class == Class::BestEffort
        && want.rung != Rung::Original
        && info.may_freeze
        && status.threads > 0
        && (want.away.is_empty() || status.stranded > 0);
    let ready = frozen || status.unsettled == 0;
    (frozen != status.frozen && ready).then_some(frozen)
}

/// Notes that a group of a task could not be written.
pub(super) fn refuse(
    engine: &mut Engine,
    task: usize,
    what: &'static str,
    target: &Path,
    failure: Failure,
    host: &mut dyn Host,
    report: &mut ApplyReport,
) {
    let errno = match failure {
        Failure::Refused(errno) => errno,
        Failure::Gone => libc::ENOENT,
        Failure::Raced => {
            // An administrator wrote the file; the next attempt goes ahead.
            report.raced += 1;
            return;
        }
        Failure::Halted => {
            report.halted = true;
            return;
        }
    };
    report.refused += 1;
    let now = host.now();
    let Some(state) = engine.tasks.get_mut(task).and_then(Option::as_mut) else { return };
    let before = state.group_refused;
    state.group_refused = Some(Backoff::after(before, errno, now));
    let task: TaskId = state.info.id;
    if before.is_none() {
        engine.notice(Notice::Refused { task, what, target: target.to_owned(), errno });
    }
}
