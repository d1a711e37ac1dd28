//! Foreign threads on managed cores.

use std::fmt;

use quell_model::CoreSet;

use super::{Prep, PrepPlan, Step, text};
use crate::{Policy, host};
use quell_observe::procs;
use quell_os::ThreadRef;

/// A fair-class user thread that belongs to no task and may run on a managed core. Elevated threads
/// preempt it; it takes time from BE, and its system calls delay LC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bystander {
    /// Which thread.
    pub thread: ThreadRef,
    /// Its name.
    pub name: String,
    /// Where it may run.
    pub cores: CoreSet,
    /// It may run on managed cores only, so it cannot be moved.
    pub pinned: bool,
}

impl fmt::Display for Bystander {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bystander { thread, name, cores, pinned } = self;
        write!(f, "{} (thread {}) may run on cores {cores}", name.escape_debug(), thread.tid)?;
        if *pinned { f.write_str(", none of them unmanaged") } else { Ok(()) }
    }
}

/// Lists the bystanders, pinned ones first, and moves the others if that is configured.
pub(super) fn plan(prep: &Prep, plan: &mut PrepPlan) {
    let mine = procs::self_and_ancestors();
    let all = procs::all().unwrap_or_default();
    let foreign = all.into_iter().filter(|pid| {
        *pid != 1
            && !mine.contains(pid)
            && !prep.config.known.iter().any(|known| known.0 == *pid)
            && !procs::is_kernel_thread(*pid)
    });
    for pid in foreign {
        let threads = procs::threads(pid).unwrap_or_default();
        plan.bystanders.extend(threads.into_iter().filter_map(|thread| bystander(prep, thread)));
    }
    plan.bystanders.sort_by_key(|one| (!one.pinned, one.thread.tgid, one.thread.tid));
    if !prep.config.move_bystanders {
        return;
    }
    for one in plan.bystanders.iter().filter(|one| !one.pinned) {
        let to = one.cores.difference(&prep.config.managed);
        plan.steps.push(Step::Move { thread: one.thread, name: one.name.clone(), to });
    }
}

fn bystander(prep: &Prep, thread: ThreadRef) -> Option<Bystander> {
    let cores = host::allowed(&thread).ok()?;
    if cores.intersection(&prep.config.managed).is_empty() {
        return None;
    }
    let fair = |policy| matches!(policy, Policy::Other | Policy::Batch | Policy::Idle);
    if !quell_os::sched::attr(thread.tid).is_ok_and(|attr| fair(attr.policy)) {
        return None;
    }
    let comm = format!("/proc/{}/task/{}/comm", thread.tgid, thread.tid);
    let name = text(comm.as_ref()).unwrap_or_default();
    let pinned = cores.is_subset(&prep.config.managed);
    Some(Bystander { thread, name, cores, pinned })
}
