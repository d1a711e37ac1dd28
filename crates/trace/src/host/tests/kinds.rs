//! The kinds of differences that are explained, each by a predicate; their reasons are in
//! `docs/host-state-differences.md`.

use std::collections::BTreeSet;

use super::differential::{Case, Subject, said_by};
use super::*;

/// A kind of difference.
pub(super) struct Kind {
    pub name: &'static str,
    pub is: fn(&Case<'_>) -> bool,
}

/// The explained kinds of differences.
pub(super) const KINDS: &[Kind] = &[
    Kind { name: "lost-events", is: |case| case.history.is_lost },
    Kind { name: "waking-without-wakeups", is: waking_without_wakeups },
    Kind { name: "core-unknown-at-first", is: core_unknown_at_first },
    Kind { name: "idle-switch-empties-queue", is: idle_switch_empties_queue },
    Kind { name: "queued-core-is-not-idle", is: queued_core_is_not_idle },
    Kind { name: "simulated-queues-are-shared", is: simulated_queues_are_shared },
    Kind { name: "keyframe-is-taken", is: keyframe_is_taken },
    Kind { name: "one-place-for-a-thread", is: one_place_for_a_thread },
    Kind { name: "contradicting-events", is: contradicting_events },
    Kind { name: "reused-tid", is: reused_tid },
    Kind { name: "wakeup-in-flight", is: wakeup_in_flight },
    Kind { name: "follows-from-its-threads", is: follows_from_its_threads },
];

fn state_of(case: &Case<'_>) -> Option<ThreadState> {
    let Subject::Waiting(tid) = case.subject else { return None };
    case.host.thread_by_tid(tid).map(|thread| thread.state)
}

/// In a stream without `sched_wakeup`, the host state has threads wait from `sched_waking`; check never does.
fn waking_without_wakeups(case: &Case<'_>) -> bool {
    let is_waiting = state_of(case) == Some(ThreadState::Waiting);
    match case.subject {
        Subject::Waiting(tid) => {
            is_waiting && (!case.history.has_wakeups || case.history.woken_early.contains(&tid))
        }
        // Check has it waking still when the core has idled meanwhile.
        Subject::Idle(core) => case
            .history
            .woken_early
            .iter()
            .any(|tid| case.host.thread_by_tid(*tid).is_some_and(|thread| thread.core == core)),
        Subject::Running(_) => false,
    }
}

/// Before its first event, and when it comes online, nothing is known of a core.
fn core_unknown_at_first(case: &Case<'_>) -> bool {
    match case.subject {
        Subject::Running(core) | Subject::Idle(core) => {
            case.host.cores()[core].running == Running::Unknown
                && !case.history.switched.contains(&core)
        }
        Subject::Waiting(_) => false,
    }
}

/// A kernel with a runnable thread in the queue does not switch to the idle thread.
fn idle_switch_empties_queue(case: &Case<'_>) -> bool {
    let idles =
        |event: &Event| matches!(&event.what, What::Switch { next, .. } if next.thread == 0);
    state_of(case) == Some(ThreadState::Unknown) && case.step.iter().any(idles)
}

/// A core in whose queue a thread is, or for which one is on its way, is not idle.
fn queued_core_is_not_idle(case: &Case<'_>) -> bool {
    let Subject::Idle(core) = case.subject else { return false };
    let core = &case.host.cores()[core];
    case.old == Some(1) && (core.waiting + core.waking > 0 || core.wake_pending)
}

/// Simulated cores idle whatever is filed under them.
fn simulated_queues_are_shared(case: &Case<'_>) -> bool {
    matches!(case.subject, Subject::Idle(_)) && case.host.queues() == Queues::Shared
}

/// A keyframe is taken for the truth; where entries of one contradict each other the core's own decides.
fn keyframe_is_taken(case: &Case<'_>) -> bool {
    case.step.iter().any(|event| matches!(event.what, What::Keyframe(_)))
}

/// A thread that is elsewhere by now does not run on the core that still names it; that core is unknown.
fn one_place_for_a_thread(case: &Case<'_>) -> bool {
    let core = match case.subject {
        Subject::Running(core) | Subject::Idle(core) => core,
        Subject::Waiting(_) => return false,
    };
    case.host.cores()[core].running == Running::Unknown
        && case.history.contradicted_cores.contains(&core)
}

/// Events that contradict what is known of a thread: a switch away from a thread that did not run there, the move
/// or the switch-in of a running thread.
fn contradicting_events(case: &Case<'_>) -> bool {
    match case.subject {
        Subject::Waiting(tid) => case.history.contradicted.contains(&tid),
        Subject::Running(core) | Subject::Idle(core) => {
            case.history.contradicted_cores.contains(&core)
                || case.old.is_some_and(|tid| case.history.contradicted.contains(&(tid as i32)))
        }
    }
}

/// A reused tid is a new thread.
fn reused_tid(case: &Case<'_>) -> bool {
    let Subject::Waiting(tid) = case.subject else { return false };
    case.step.iter().any(|event| match &event.what {
        What::Fork { child, .. } => child.thread == tid,
        What::Woken { thread, is_new: true, .. } => thread.thread == tid,
        What::Exit { thread } => *thread == tid,
        _ => false,
    })
}

/// A wake-up that meets its thread on the way to sleep goes on; check forgets it. It is in flight to another core
/// already when it is woken again.
fn wakeup_in_flight(case: &Case<'_>) -> bool {
    let Subject::Idle(core) = case.subject else { return false };
    let is_again = |event: &Event| match &event.what {
        What::Waking { thread, target, .. } => {
            let thread = case.host.thread_by_tid(thread.thread);
            target.index() == core
                && thread.is_some_and(|thread| thread.state == ThreadState::Waking)
        }
        _ => false,
    };
    case.host.cores()[core].waking > 0 || case.step.iter().any(is_again)
}

/// A core is idle for one and not for the other where they do not have the same threads run or wait there; that is
/// a difference of its own.
fn follows_from_its_threads(case: &Case<'_>) -> bool {
    let Subject::Idle(core) = case.subject else { return false };
    let there = case.old_said.waiting.iter().filter(|(_, at)| **at == core);
    let there: BTreeSet<i32> = there.map(|(tid, _)| *tid).collect();
    let here: BTreeSet<i32> = case.host.waiters(core).map(HostThread::tid).collect();
    there != here || case.old_said.running[core] != said_by(case.host).running[core]
}
