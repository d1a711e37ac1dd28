//! Roles and reliefs of single threads.

use quell_model::{Relief, ReliefCause, Role, ThreadId, ThreadPlan};

use super::*;

fn relief(view: &ThreadView, rung: Rung) -> Relief {
    let cause = ReliefCause::Lock(ThreadId { index: 0, generation: 0 });
    Relief { thread: view.id, task: view.task, rung, since: Nanos::ZERO, cause }
}

fn role(view: &ThreadView, role: Role) -> ThreadPlan {
    let ThreadView { id: thread, task, .. } = *view;
    ThreadPlan { thread, task, role, since: Nanos::ZERO, burst: Nanos::ZERO, needs: 0 }
}

#[test]
fn thread_with_relief_alone_leaves_the_rung_of_its_task_and_comes_back() {
    let mut t = pair();
    t.tick();
    let batch = t.views.iter().find(|view| view.thread.tid == Tid(20)).copied().unwrap();
    t.plan.reliefs = vec![relief(&batch, Rung::LcBoosted)];
    assert_eq!(t.tick().raised, 1);
    assert_eq!(t.host.sched_of(20), ladder().attr(Rung::LcBoosted).unwrap());
    assert_eq!(t.host.cores_of(20), "1");
    assert_eq!(t.host.sched_of(21).policy, Policy::Idle);
    t.plan.reliefs.clear();
    assert_eq!(t.tick().lowered, 1);
    assert_eq!(t.host.sched_of(20).policy, Policy::Idle);
}

#[test]
fn relief_lifts_a_demoted_thread_and_lowers_none() {
    let mut t = pair();
    let helper = t.views.iter().find(|view| view.thread.tid == Tid(11)).copied().unwrap();
    t.plan.roles = vec![role(&helper, Role::Background)];
    t.tick();
    assert_eq!(t.host.sched_of(11).policy, Policy::Other);
    t.plan.reliefs = vec![relief(&helper, Rung::LcLong)];
    t.tick();
    assert_eq!(t.host.sched_of(11), ladder().attr(Rung::LcLong).unwrap());
    t.plan.roles.clear();
    t.tick();
    assert_eq!(t.host.sched_of(11), lc_attr());
}

#[test]
fn background_threads_are_above_batch_work_where_the_fair_class_is_not() {
    let mut t = pair();
    let helper = t.views.iter().find(|view| view.thread.tid == Tid(11)).copied().unwrap();
    t.plan.roles = vec![role(&helper, Role::Background)];
    t.tick();
    t.back.elevate_background(true);
    t.tick();
    let elevated = t.host.sched_of(11);
    assert_eq!(
        (elevated.policy, elevated),
        (Policy::Rr, ladder().attr(Rung::LcBackground).unwrap())
    );
    let fifo_low = ladder().attr(Rung::FifoLow).unwrap();
    assert!(elevated.priority > fifo_low.priority && elevated.priority < lc_attr().priority);
    t.plan.roles = vec![role(&helper, Role::Fair)];
    t.tick();
    assert_eq!(
        t.host.sched_of(11).policy,
        Policy::Other,
        "its time in the fair class is for others"
    );
    t.back.elevate_background(false);
    t.plan.roles = vec![role(&helper, Role::Background)];
    t.tick();
    assert_eq!(t.host.sched_of(11).policy, Policy::Other);
}
