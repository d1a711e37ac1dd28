//! What the back ends promise, against a host that records.

mod fake;
mod pins;
pub(super) mod real;
mod reliefs;
mod turns;

use fake::{Call, FakeHost, give, info, plan, set, task, thread, view};
use quell_model::{BeRung, Class, CoreMode, Nanos, Outcome, Plan, Reason, Rung};

use super::*;
use crate::{Ladder, Policy, SchedAttr};
use quell_observe::{ThreadState, ThreadView};
use quell_os::Tid;

const LC: Class = Class::LatencyCritical;
const BE: Class = Class::BestEffort;

fn ladder() -> Ladder {
    Ladder::default()
}

fn lc_attr() -> SchedAttr {
    ladder().attr(Rung::Lc).unwrap()
}

fn elevation(be: BeRung) -> Elevation {
    let host = ElevationHost { per_thread_state: true, freezes: true };
    Elevation::new(ladder(), be, host)
}

fn owner_over_be(cores: u16) -> Plan {
    let all = format!("1-{cores}");
    let mut plan = plan(cores);
    give(&mut plan, LC, Rung::Lc, &all, "");
    give(&mut plan, BE, Rung::SchedIdle, "", &all);
    plan
}

/// An LC task (threads 10, 11) over a BE task (threads 20, 21) on one managed core.
struct Pair {
    host: FakeHost,
    back: Elevation,
    views: Vec<ThreadView>,
    plan: Plan,
}

fn pair() -> Pair {
    let mut host = FakeHost::new("0-1");
    let views = vec![view(20, 1), view(10, 0), view(21, 1), view(11, 0)];
    for view in &views {
        host.thread(view.thread.tid.0, "0-1");
    }
    let mut back = elevation(BeRung::SchedIdle);
    back.admit(info(0, "lc"));
    back.admit(info(1, "be"));
    Pair { host, back, views, plan: owner_over_be(1) }
}

impl Pair {
    fn tick(&mut self) -> ApplyReport {
        self.back.apply(&self.plan, &self.views, &mut self.host)
    }

    fn outcome(&self, core: usize) -> Outcome {
        self.back.outcomes()[core].outcome
    }

    fn notices(&mut self) -> Vec<Notice> {
        let mut all = Vec::new();
        self.back.drain_notices(&mut |notice| all.push(notice));
        all
    }
}

#[test]
fn lc_is_elevated_asleep_and_be_lies_beneath() {
    let mut t = pair();
    let report = t.tick();
    assert_eq!((report.raised, report.lowered, report.moved), (2, 2, 4));
    for tid in [10, 11] {
        assert_eq!(t.host.sched_of(tid), lc_attr());
        assert!(t.host.sched_of(tid).reset_on_fork);
    }
    for tid in [20, 21] {
        assert_eq!(t.host.sched_of(tid).policy, Policy::Idle);
    }
    assert!([10, 11, 20, 21].iter().all(|&tid| t.host.cores_of(tid) == "1"));
    assert_eq!(t.outcome(1), Outcome::Done);
}

#[test]
fn a_steady_state_makes_no_call_at_all() {
    let mut t = pair();
    t.tick();
    t.host.log.clear();
    t.host.reads = 0;
    for _ in 0..100 {
        assert_eq!(t.tick(), ApplyReport::default());
    }
    assert!(t.host.log.is_empty());
    assert_eq!(t.host.reads, 0);
}

#[test]
fn all_raises_come_before_all_lowerings() {
    let mut t = pair();
    t.tick();
    let first_lowered = t.host.log.iter().position(|call| matches!(call, Call::Sched(20 | 21, _)));
    let last_raised = t.host.log.iter().rposition(|call| matches!(call, Call::Sched(10 | 11, _)));
    assert!(last_raised < first_lowered, "{:?}", t.host.log);
}

#[test]
fn a_core_is_given_before_it_is_taken() {
    let mut host = FakeHost::new("0-2");
    let views = [view(10, 0), ThreadView { lc: true, ..view(20, 1) }];
    host.thread(10, "0-2");
    host.thread(20, "0-2");
    let mut back = elevation(BeRung::SchedIdle);
    back.admit(info(0, "a"));
    back.admit(info(1, "b"));
    let mut before = plan(2);
    give(&mut before, LC, Rung::Lc, "1-2", "");
    give(&mut before, LC, Rung::LcOverflow, "", "1");
    back.apply(&before, &views, &mut host);
    host.log.clear();

    let mut after = plan(2);
    give(&mut after, LC, Rung::Lc, "1", "");
    give(&mut after, LC, Rung::Lc, "2", "");
    back.apply(&after, &views, &mut host);
    let order = [Call::Sched(20, lc_attr()), Call::Cores(20, set("2")), Call::Cores(10, set("1"))];
    assert_eq!(host.log, order);
}

#[test]
fn a_thread_keeps_to_its_own_affinity() {
    let mut host = FakeHost::new("0-3");
    host.thread(10, "2");
    host.thread(11, "0-1");
    let mut back = elevation(BeRung::SchedIdle);
    back.admit(info(0, "lc"));
    let mut plan = plan(3);
    give(&mut plan, LC, Rung::Lc, "2-3", "");
    back.apply(&plan, &[view(10, 0), view(11, 0)], &mut host);
    assert_eq!(host.cores_of(10), "2");
    assert_eq!(host.cores_of(11), "0-1", "none of its cores is its task's: it stays");
    assert_eq!(host.sched_of(11), ladder().attr(Rung::LcOverflow).unwrap());
    back.apply(&plan, &[view(10, 0), view(11, 0)], &mut host);
    assert_eq!(back.status(task(0)).unwrap().stranded, 1);
}

#[test]
fn be_without_a_core_retreats_else_freezes_else_stays_beneath() {
    let mut t = pair();
    t.tick();
    let mut off = plan(1);
    give(&mut off, LC, Rung::Lc, "1", "");
    give(&mut off, BE, Rung::SchedIdle, "", "");
    t.plan = off;

    // No consent and no way out: SCHED_IDLE on the managed core.
    t.tick();
    assert_eq!((t.host.sched_of(20).policy, t.host.cores_of(20)), (Policy::Idle, "1".into()));

    let mut consenting = info(1, "be");
    consenting.may_freeze = true;
    consenting.groups.freezer = Some("/cg/be".into());
    t.back.admit(consenting.clone());
    assert_eq!(t.tick().frozen, 1);
    assert_eq!(t.host.log.last(), Some(&Call::Freeze("/cg/be".into(), true)));
    assert_eq!(t.tick().writes(), 0);
    assert!(t.back.status(task(1)).unwrap().frozen);

    // A way out wins over freezing: its threads move there, then it is thawed.
    consenting.away = set("0");
    t.back.admit(consenting);
    t.tick();
    t.tick();
    assert_eq!((t.host.sched_of(20).policy, t.host.cores_of(20)), (Policy::Idle, "0".into()));
    assert_eq!(t.host.log.last(), Some(&Call::Freeze("/cg/be".into(), false)));
}

#[test]
fn a_be_child_of_an_lc_task_runs_beneath_it() {
    let mut t = pair();
    let mut child = view(12, 0);
    child.lc = false;
    t.host.thread(12, "0-1");
    t.views.push(child);
    t.tick();
    assert_eq!((t.host.sched_of(12).policy, t.host.cores_of(12)), (Policy::Idle, "1".into()));
    assert_eq!(t.host.sched_of(10), lc_attr());
}

#[test]
fn an_lc_task_is_never_frozen() {
    let mut t = pair();
    let mut consenting = info(0, "lc");
    consenting.may_freeze = true;
    consenting.groups.freezer = Some("/cg/lc".into());
    t.back.admit(consenting);
    t.plan = plan(1);
    give(&mut t.plan, LC, Rung::LcOverflow, "", "");
    give(&mut t.plan, BE, Rung::SchedIdle, "", "1");
    assert_eq!(t.tick().frozen + t.tick().frozen, 0);
}

#[test]
fn fifo_low_is_for_managed_cores_alone() {
    let mut t = pair();
    t.back = elevation(BeRung::FifoLow);
    let mut away = info(1, "be");
    away.away = set("0");
    t.back.admit(info(0, "lc"));
    t.back.admit(away);
    t.tick();
    assert_eq!(t.host.sched_of(20), ladder().attr(Rung::FifoLow).unwrap());
    t.plan.tasks[1].shared_cores = set("");
    t.tick();
    assert_eq!((t.host.sched_of(20).policy, t.host.cores_of(20)), (Policy::Idle, "0".into()));
}

#[test]
fn a_task_that_is_refused_realtime_does_not_hold_up_the_others() {
    let mut t = pair();
    t.host.refuses_realtime.extend([10, 11].map(Tid));
    let report = t.tick();
    assert_eq!((report.refused, report.lowered), (1, 2), "one attempt a task, and BE goes on");
    assert_eq!(t.outcome(1), Outcome::Refused { errno: libc::EPERM });
    assert_eq!(t.back.status(task(0)).unwrap().unelevated, Some(libc::EPERM));
    assert_eq!(t.host.cores_of(10), "1", "its cores it gets all the same");
    assert_eq!(t.notices(), [Notice::Unelevated { task: task(0), errno: libc::EPERM }]);

    // No storm: some ten attempts in the first minute, whatever the tick.
    let attempts =
        |t: &Pair| t.host.log.iter().filter(|c| matches!(c, Call::Sched(10 | 11, _))).count();
    for _ in 0..6_000 {
        t.host.now += Nanos::from_millis(10);
        t.tick();
    }
    assert!((5..20).contains(&attempts(&t)), "{}", attempts(&t));
    assert_eq!(t.notices(), []);

    t.host.refuses_realtime.clear();
    for _ in 0..2_000 {
        t.host.now += Nanos::from_millis(10);
        t.tick();
    }
    assert_eq!((t.host.sched_of(10), t.outcome(1)), (lc_attr(), Outcome::Done));
    assert_eq!(t.notices(), [Notice::Elevated(task(0))]);
}

#[test]
fn a_thread_that_exits_in_the_middle_holds_nobody_up() {
    let mut t = pair();
    t.host.threads.remove(&Tid(11));
    let report = t.tick();
    assert_eq!((report.gone, report.raised), (1, 1));
    assert_eq!(t.outcome(1), Outcome::Done);
    t.views.pop();
    assert_eq!(t.tick(), ApplyReport::default());
    assert_eq!(t.host.given_back, [11]);

    // Its number comes back as another thread's.
    t.host.thread(11, "0-1");
    let mut again = view(11, 0);
    again.thread.start_ticks = 99;
    t.views.push(again);
    assert_eq!(t.tick().raised, 1);
}

#[test]
fn new_threads_are_raised_at_once_and_get_their_originals_back() {
    let mut t = pair();
    t.tick();
    // A child of an LC thread starts as OTHER with its parent's affinity; one of BE inherits all.
    t.host.thread(19, "1");
    t.host.threads.insert(Tid(29), (SchedAttr::IDLE, set("1")));
    t.host.originals = [19, 29].map(|tid| (Tid(tid), (SchedAttr::OTHER, set("0-1")))).into();
    t.back.forked(&thread(11), &thread(19), true, &mut t.host);
    t.views.extend([view(19, 0), view(29, 1)]);
    assert_eq!(t.tick().raised, 1);
    assert_eq!(t.host.sched_of(19), lc_attr());

    // Left alone again, each shows what the executor said that it would show without Quell.
    t.plan.tasks[0].rung = Rung::Original;
    t.plan.tasks[1].rung = Rung::Original;
    t.plan.cores[1].owner = None;
    t.plan.tasks[1].shared_cores = set("");
    t.tick();
    for tid in [10, 19, 29] {
        assert_eq!((t.host.sched_of(tid), t.host.cores_of(tid)), (SchedAttr::OTHER, "0-1".into()));
    }
}

#[test]
fn what_a_task_changes_itself_stays() {
    let mut t = pair();
    t.tick();
    t.host.threads.get_mut(&Tid(10)).unwrap().1 = set("0");
    let own = SchedAttr { policy: Policy::Rr, priority: 77, ..SchedAttr::OTHER };
    t.host.threads.get_mut(&Tid(11)).unwrap().0 = own;
    let mut changed = 0;
    for _ in 0..300 {
        t.host.now += Nanos::from_millis(10);
        let report = t.tick();
        assert!(report.verified <= 8);
        changed += report.changed_by_task;
    }
    assert_eq!(changed, 2);
    assert_eq!(t.back.status(task(0)).unwrap().changed_by_task, 2);
    assert_eq!(t.notices().len(), 2);

    t.plan.tasks[0].rung = Rung::LcOverflow;
    t.tick();
    assert_eq!(t.host.cores_of(10), "0");
    assert_eq!(t.host.sched_of(11), own);
    assert_eq!(t.host.sched_of(10), ladder().attr(Rung::LcOverflow).unwrap(), "the rest goes on");
}

#[test]
fn a_change_made_before_the_first_write_becomes_the_own_value() {
    let mut t = pair();
    t.host.raced.insert(Tid(10));
    assert_eq!(t.tick().raced, 1);
    t.host.threads.get_mut(&Tid(10)).unwrap().0.nice = -3;
    t.tick();
    assert_eq!(t.host.sched_of(10), lc_attr());
    t.plan.tasks[0].rung = Rung::Original;
    t.tick();
    assert_eq!(t.host.sched_of(10).nice, -3);
}

#[test]
fn a_core_that_goes_away_and_comes_back_is_taken_into_account() {
    let mut t = pair();
    t.host.online = set("0-2");
    for tid in [10, 11, 20, 21] {
        t.host.thread(tid, "0-2");
    }
    t.plan = owner_over_be(2);
    t.tick();
    assert_eq!(t.host.cores_of(10), "1-2");

    // The kernel widens what is left without a core, and leaves it wide.
    t.host.online = set("0-1");
    let gone = |plan: &mut Plan| {
        plan.cores[2].owner = None;
        plan.cores[2].reason = Reason::Offline;
        plan.cores[2].mode = CoreMode::Unmanaged;
    };
    gone(&mut t.plan);
    t.tick();
    assert_eq!(t.host.cores_of(10), "1", "beneath and owner alike lose the core");
    assert_eq!(t.host.cores_of(20), "1");
    t.host.online = set("0-2");
    t.plan = owner_over_be(2);
    t.tick();
    assert_eq!((t.host.cores_of(10), t.host.cores_of(20)), ("1-2".into(), "1-2".into()));
    assert_eq!(t.notices(), []);
}

#[test]
fn a_core_that_is_back_before_anybody_looked_is_no_change_by_the_task() {
    let mut t = pair();
    t.host.online = set("0-2");
    for tid in [10, 11, 20, 21] {
        t.host.thread(tid, "0-2");
    }
    t.plan = plan(2);
    give(&mut t.plan, LC, Rung::Lc, "2", "");
    give(&mut t.plan, BE, Rung::SchedIdle, "", "2");
    t.tick();
    // Core 2 went and came: the kernel widened thread 10, the executor sees that first.
    t.host.threads.get_mut(&Tid(10)).unwrap().1 = set("0-2");
    t.host.raced.insert(Tid(10));
    t.plan.cores[2].reason = Reason::Offline;
    t.plan.cores[1].owner = Some(task(0));
    let report = t.tick();
    assert_eq!((report.repaired, report.changed_by_task), (1, 0));
    t.tick();
    assert_eq!(t.host.cores_of(10), "1");
}

#[test]
fn a_rewrite_by_the_kernel_is_repaired() {
    let mut t = pair();
    t.tick();
    // Core 1 goes, the kernel widens, and nobody planned yet.
    t.host.online = set("0");
    t.host.threads.get_mut(&Tid(10)).unwrap().1 = set("0-1");
    t.host.now += Nanos::from_secs(1);
    t.views.iter_mut().find(|view| view.thread.tid.0 == 10).unwrap().state = ThreadState::Running;
    let report = t.tick();
    assert_eq!((report.repaired, report.changed_by_task), (1, 0));
    t.host.online = set("0-1");
    t.tick();
    assert_eq!(t.host.cores_of(10), "1");
}

#[test]
fn decisions_on_a_stale_state_are_counted() {
    let mut t = pair();
    t.tick();
    let woke = t.views.iter_mut().find(|view| view.thread.tid.0 == 10).unwrap();
    woke.transitions += 1;
    woke.since = Nanos(t.host.now.0 - 5);
    assert_eq!(t.tick().stale, 1);
    assert_eq!(t.outcome(1), Outcome::Raced);
    assert_eq!(t.tick().stale, 0);
    assert_eq!(t.outcome(1), Outcome::Done);

    // What moves after the effect was decided on as it was.
    t.plan.tasks[0].rung = Rung::LcOverflow;
    t.tick();
    let woke = t.views.iter_mut().find(|view| view.thread.tid.0 == 10).unwrap();
    woke.transitions += 1;
    woke.since = Nanos(t.host.now.0 + 5);
    assert_eq!(t.tick().stale, 0);
}

#[test]
fn a_host_that_takes_no_changes_is_left_in_peace() {
    let mut t = pair();
    t.host.halted = true;
    let report = t.tick();
    assert!(report.halted);
    assert_eq!((report.writes(), report.deferred), (0, 3));
    assert_eq!(t.outcome(1), Outcome::Pending);
    t.host.halted = false;
    assert_eq!(t.tick().writes(), 8);
    assert_eq!(t.outcome(1), Outcome::Done);
}

#[test]
fn a_preview_is_what_is_done_and_does_nothing() {
    let mut t = pair();
    let preview = t.back.preview(&t.plan, &t.views, &mut t.host);
    assert!(t.host.log.is_empty());
    t.tick();
    let intended: Vec<Call> = preview
        .iter()
        .map(|intended| match &intended.change {
            Change::Sched { thread, to, .. } => Call::Sched(thread.tid.0, *to),
            Change::Cores { thread, to, .. } => Call::Cores(thread.tid.0, *to),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(intended, t.host.log);
    assert!(preview[0].to_string().contains("SCHED_OTHER nice 0 to SCHED_FIFO"), "{}", preview[0]);
}

#[test]
fn generations_count_what_was_asked_of_a_core() {
    let mut t = pair();
    t.tick();
    let before = t.back.outcomes()[1].generation;
    t.plan.cores[1].reason = Reason::Kept;
    t.tick();
    assert_eq!(t.back.outcomes()[1].generation, before, "another reason is no other wish");
    t.plan.tasks[1].shared_cores = set("");
    t.tick();
    assert_eq!(t.back.outcomes()[1].generation, before + 1);
}

#[test]
fn a_flood_of_threads_is_served_in_bounded_batches() {
    let mut t = pair();
    for tid in 100..2_100 {
        t.host.thread(tid, "0-1");
        t.views.push(view(tid, (tid % 2) as u32));
    }
    let mut ticks = 0;
    while t.outcome_or_pending() != Outcome::Done {
        let report = t.tick();
        assert!(report.raised + report.lowered <= 512);
        ticks += 1;
        assert!(ticks < 50);
    }
    assert!(t.views.iter().all(|view| t.host.cores_of(view.thread.tid.0) == "1"));
}

impl Pair {
    fn outcome_or_pending(&self) -> Outcome {
        self.back.outcomes().get(1).map_or(Outcome::Pending, |entry| entry.outcome)
    }
}

/// The cpuset back end with both tasks in groups of Quell's own.
fn confined() -> (Cpusets, FakeHost, Vec<ThreadView>) {
    let mut host = FakeHost::new("0-3");
    let mut back = Cpusets::new(true, true);
    for (index, name) in ["lc", "be"].into_iter().enumerate() {
        let mut own = info(index as u32, name);
        own.groups.cpuset = Some(format!("/cg/quell/{name}").into());
        own.groups.weight = Some(format!("/cg/quell/{name}/cpu.idle").into());
        back.admit(own);
        host.groups.insert(format!("/cg/quell/{name}/cpuset.cpus").into(), "1".into());
    }
    host.groups.insert("/cg/quell/cpuset.cpus".into(), "1".into());
    for tid in [10, 20] {
        host.thread(tid, "0-3");
    }
    (back, host, vec![view(10, 0), view(20, 1)])
}

#[test]
fn cpusets_widen_the_group_above_first_and_narrow_last() {
    let (mut back, mut host, views) = confined();
    let mut apart = plan(3);
    give(&mut apart, LC, Rung::Lc, "2-3", "");
    give(&mut apart, BE, Rung::SchedIdle, "1", "");
    let report = back.apply(&apart, &views, &mut host);
    let write =
        |file: &str, value: &str| Call::Group(format!("/cg/quell/{file}").into(), value.into());
    let idle = SchedAttr::IDLE;
    let order = [
        write("cpuset.cpus", "1-3"),
        write("lc/cpuset.cpus", "1-3"),
        write("lc/cpu.idle", "0"),
        Call::Sched(20, idle),
        write("lc/cpuset.cpus", "2-3"),
        write("be/cpu.idle", "1"),
    ];
    assert_eq!(host.log, order);
    assert_eq!((report.raised, report.lowered), (0, 1), "nobody is elevated");
    assert_eq!(host.cores_of(10), "0-3", "the group places the threads");

    host.log.clear();
    host.reads = 0;
    assert_eq!(back.apply(&apart, &views, &mut host), ApplyReport::default());
    assert!(host.log.is_empty());
    assert_eq!(host.reads, 0);

    // Cores change hands: given before taken.
    let mut swapped = plan(3);
    give(&mut swapped, LC, Rung::Lc, "1", "");
    give(&mut swapped, BE, Rung::SchedIdle, "2-3", "");
    back.apply(&swapped, &views, &mut host);
    let order = [
        write("lc/cpuset.cpus", "1-3"),
        write("be/cpuset.cpus", "1-3"),
        write("lc/cpuset.cpus", "1"),
        write("be/cpuset.cpus", "2-3"),
    ];
    assert_eq!(host.log, order);
}

#[test]
fn adopted_tasks_are_placed_thread_by_thread_under_cpusets_too() {
    let mut t = pair();
    let mut back = Cpusets::new(true, false);
    back.admit(info(0, "lc"));
    back.admit(info(1, "be"));
    back.apply(&t.plan, &t.views, &mut t.host);
    assert_eq!((t.host.sched_of(10), t.host.cores_of(10)), (SchedAttr::OTHER, "1".into()));
    assert_eq!((t.host.sched_of(20).policy, t.host.cores_of(20)), (Policy::Idle, "1".into()));
    assert!(back.caps().shares_cores && !back.caps().freezes_tasks);
    assert!(back.caps().actuation_delay > Nanos::from_millis(1));
}

#[test]
fn a_cpuset_that_is_refused_costs_its_task_alone_and_is_tried_again_later() {
    let (mut back, mut host, views) = confined();
    host.groups.remove(std::path::Path::new("/cg/quell/lc/cpuset.cpus"));
    let mut apart = plan(3);
    give(&mut apart, LC, Rung::Lc, "2-3", "");
    give(&mut apart, BE, Rung::SchedIdle, "1", "");
    let report = back.apply(&apart, &views, &mut host);
    assert_eq!((report.refused, report.lowered), (1, 1));
    let outcomes: Vec<Outcome> = back.outcomes().iter().map(|core| core.outcome).collect();
    assert_eq!(outcomes[1], Outcome::Done);
    assert_eq!(outcomes[2], Outcome::Refused { errno: libc::ENOENT });
    assert_eq!(back.apply(&apart, &views, &mut host).refused, 0, "not before its pause is over");

    host.groups.insert("/cg/quell/lc/cpuset.cpus".into(), "1".into());
    host.now += Nanos::from_secs(1);
    back.apply(&apart, &views, &mut host);
    back.apply(&apart, &views, &mut host);
    assert_eq!(back.outcomes()[2].outcome, Outcome::Done);
    assert_eq!(host.groups[std::path::Path::new("/cg/quell/lc/cpuset.cpus")], "2-3");
}
