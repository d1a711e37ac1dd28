use proptest::prelude::*;
use quell_model::{CoreSet, Limits, TaskPlan, TaskReason, TaskView, TimeLimits};

use super::*;

const OWNER: TaskId = TaskId { index: 0, generation: 0 };
const GUEST: TaskId = TaskId { index: 1, generation: 0 };
const BATCH: TaskId = TaskId { index: 2, generation: 0 };
const WAITER: ThreadId = ThreadId { index: 0, generation: 1 };
const OTHER: ThreadId = ThreadId { index: 1, generation: 1 };
const HOLDER: ThreadId = ThreadId { index: 2, generation: 1 };
const CORE: CoreId = CoreId(3);

/// An LC task that owns a core, one that is a guest there, and batch work.
struct Bench {
    reliefs: Reliefs,
    seen: Snapshot,
    plan: Plan,
    now: Nanos,
}

impl Bench {
    fn new() -> Bench {
        let all = [
            (OWNER, Class::LatencyCritical, Rung::Lc),
            (GUEST, Class::LatencyCritical, Rung::LcOverflow),
            (BATCH, Class::BestEffort, Rung::SchedIdle),
        ];
        let view = |(id, class, _)| {
            TaskView::new(id, Limits { class, times: TimeLimits::default(), ..Limits::NONE })
        };
        let plan = |(id, class, rung)| TaskPlan {
            id,
            class,
            cap: 1,
            rung,
            shared_cores: CoreSet::EMPTY,
            llc_ways: None,
            reason: TaskReason::Owner,
        };
        Bench {
            reliefs: Reliefs::default(),
            seen: Snapshot { tasks: all.map(view).to_vec(), ..Snapshot::default() },
            plan: Plan { tasks: all.map(plan).to_vec(), ..Plan::default() },
            now: Nanos::from_secs(1),
        }
    }

    fn decide(&mut self) -> Nanos {
        let next = self.reliefs.decide(self.now, &self.seen, &mut self.plan);
        self.seen.locks.clear();
        next
    }

    fn lock(&mut self, waiter: ThreadId, task: TaskId, owner: Option<ThreadId>) {
        let state = match owner {
            Some(owner) => LockState::Owned { owner, task: BATCH },
            None => LockState::Released,
        };
        self.seen.locks.push(LockWait { waiter, task, state });
        self.decide();
    }

    fn stopped(&mut self, thread: ThreadId, stop: KernelStop) {
        let task = if stop == KernelStop::Sleeps { OWNER } else { BATCH };
        let since = self.now;
        self.seen.in_kernel.push(InKernel { thread, task, core: CORE, since, stop });
    }

    fn rung(&self) -> Option<Rung> {
        self.plan.relief(HOLDER)
    }
}

#[test]
fn owner_of_a_lock_goes_first_until_the_waiting_thread_is_woken() {
    let mut bench = Bench::new();
    bench.lock(WAITER, OWNER, Some(HOLDER));
    assert_eq!(bench.rung(), Some(Rung::LcBoosted));
    assert!(bench.plan.relief(WAITER) < bench.rung(), "and that one preempts it with the lock");
    bench.lock(OTHER, OWNER, None);
    assert_eq!(bench.rung(), Some(Rung::LcBoosted), "another thread's lock");
    bench.lock(WAITER, OWNER, None);
    assert_eq!((bench.rung(), bench.plan.relief(WAITER)), (None, None));
}

#[test]
fn relief_for_a_lock_ends_in_time_by_itself() {
    let mut bench = Bench::new();
    bench.lock(WAITER, OWNER, Some(HOLDER));
    assert_eq!(bench.decide(), bench.now + LOCK_TIME);
    bench.now += LOCK_TIME;
    assert_eq!(bench.decide(), Nanos::MAX);
    assert_eq!(bench.rung(), None);
}

#[test]
fn second_waiting_thread_prolongs_the_relief_and_ends_it() {
    let mut bench = Bench::new();
    bench.lock(WAITER, OWNER, Some(HOLDER));
    bench.now += Nanos(LOCK_TIME.0 / 2);
    bench.lock(OTHER, GUEST, Some(HOLDER));
    assert_eq!(bench.rung(), Some(Rung::LcBoosted), "the higher of both");
    bench.now += Nanos(LOCK_TIME.0 / 2);
    bench.lock(WAITER, OWNER, None);
    assert_eq!(bench.rung(), Some(Rung::LcBoosted));
    bench.lock(OTHER, GUEST, None);
    assert_eq!(bench.rung(), None);
}

#[test]
fn lock_of_a_guest_does_not_stop_event_threads_of_the_cores_owner() {
    let mut bench = Bench::new();
    bench.lock(WAITER, GUEST, Some(HOLDER));
    let rung = bench.rung().unwrap();
    assert!(rung > Rung::Lc && rung < Rung::LcOverflow, "{rung}");
    assert!(bench.plan.relief(WAITER).unwrap() < rung);
}

#[test]
fn owner_on_a_higher_rung_than_the_waiting_thread_needs_no_relief() {
    let mut bench = Bench::new();
    let state = LockState::Owned { owner: HOLDER, task: OWNER };
    bench.seen.locks.push(LockWait { waiter: WAITER, task: GUEST, state });
    bench.decide();
    assert_eq!(bench.rung(), None);
    let state = LockState::Owned { owner: HOLDER, task: GUEST };
    bench.seen.locks.push(LockWait { waiter: WAITER, task: OWNER, state });
    bench.decide();
    assert_eq!(bench.rung(), Some(Rung::LcBoosted), "a guest holds up the core's owner");
}

#[test]
fn batch_work_gets_no_relief_for_batch_work() {
    let mut bench = Bench::new();
    bench.lock(WAITER, BATCH, Some(HOLDER));
    assert_eq!(bench.rung(), None);
}

#[test]
fn starved_thread_runs_while_an_lc_thread_sleeps_uninterruptibly() {
    let mut bench = Bench::new();
    bench.stopped(WAITER, KernelStop::Sleeps);
    bench.stopped(HOLDER, KernelStop::Waits);
    let starved = bench.now + STARVED_AFTER;
    assert_eq!(bench.decide(), starved);
    assert_eq!(bench.rung(), None);
    bench.now = starved;
    assert_eq!(bench.decide(), starved + STARVED_TIME);
    assert_eq!(bench.rung(), Some(Rung::LcBoosted));
    bench.seen.in_kernel.truncate(1);
    bench.now += STARVED_TIME;
    bench.decide();
    assert_eq!(bench.rung(), None);
}

#[test]
fn threads_in_transactions_go_on_sooner_and_one_behind_the_other() {
    let mut bench = Bench::new();
    bench.stopped(WAITER, KernelStop::Sleeps);
    bench.stopped(HOLDER, KernelStop::InTransaction);
    bench.stopped(OTHER, KernelStop::InTransaction);
    let due = bench.now + TRANSACTION_AFTER;
    assert_eq!(bench.decide(), due);
    bench.now = due;
    assert_eq!(bench.decide(), due + STARVED_TIME);
    let first = bench.plan.reliefs[0].thread;
    assert_eq!(bench.plan.reliefs.len(), 1, "one at a time on a core");
    bench.seen.in_kernel.retain(|stopped| stopped.thread != first);
    bench.now += STARVED_TIME;
    bench.decide();
    let second = bench.plan.reliefs[0].thread;
    assert!(second != first && bench.plan.relief(second) == Some(Rung::LcBoosted));
    // What starves otherwise has a share of its own.
    bench.seen.in_kernel.retain(|stopped| stopped.thread != second);
    bench.now += STARVED_TIME;
    bench.decide();
    bench.stopped(HOLDER, KernelStop::Waits);
    bench.now += STARVED_AFTER;
    bench.decide();
    assert_eq!(bench.rung(), Some(Rung::LcBoosted));
}

#[test]
fn no_thread_starves_while_no_lc_thread_sleeps_uninterruptibly() {
    let mut bench = Bench::new();
    bench.stopped(HOLDER, KernelStop::Waits);
    bench.now += Nanos::from_secs(1);
    assert_eq!(bench.decide(), Nanos::MAX);
    assert_eq!(bench.rung(), None);
    bench.stopped(WAITER, KernelStop::Sleeps);
    assert_eq!(bench.decide(), bench.now + STARVED_AFTER);
    assert_eq!(bench.rung(), None, "that sleep has just begun");
}

#[test]
fn thread_that_lost_its_core_again_is_found_while_an_lc_thread_sleeps() {
    let mut bench = Bench::new();
    bench.stopped(WAITER, KernelStop::Sleeps);
    bench.now += STARVED_AFTER;
    assert_eq!(bench.decide(), bench.now + STARVED_AFTER, "the thread runs, as far as is seen");
    bench.stopped(HOLDER, KernelStop::Waits);
    bench.now += STARVED_AFTER;
    bench.decide();
    assert_eq!(bench.rung(), Some(Rung::LcBoosted));
}

#[test]
fn task_that_left_gets_no_relief() {
    let mut bench = Bench::new();
    bench.lock(WAITER, OWNER, Some(HOLDER));
    bench.seen.tasks[BATCH.at()].alive = false;
    bench.decide();
    assert_eq!(bench.rung(), None);
}

/// A tick.
const LATE_MAX: u64 = 1_000_000;

proptest! {
    /// However many threads starve, and however late the policy is asked, on one core they run for a fiftieth of the time, and
    /// never two at once.
    #[test]
    fn starving_threads_take_a_fiftieth_of_a_core(
        threads in 1u32..40,
        in_transactions in any::<bool>(),
        steps in proptest::collection::vec((1u64..3_000_000, 0..LATE_MAX), 50..400),
    ) {
        let mut bench = Bench::new();
        bench.stopped(WAITER, KernelStop::Sleeps);
        for index in 1..=threads {
            let stop = [KernelStop::Waits, KernelStop::InTransaction][usize::from(in_transactions)];
            bench.stopped(ThreadId { index, generation: 1 }, stop);
        }
        let (begin, mut ran) = (bench.now, 0);
        for (step, late) in steps {
            // As the daemon does: when the policy asks, or sooner by an event; or later, by a tick.
            let next = bench.decide();
            prop_assert!(bench.plan.reliefs.len() <= 1);
            prop_assert!(next > bench.now, "would be asked at once again");
            let later = next.min(bench.now + Nanos(step)) + Nanos(late);
            ran += bench.plan.reliefs.len() as u64 * (later - bench.now).0;
            bench.now = later;
        }
        let passed = bench.now.since(begin).0;
        let ahead = if in_transactions { TRANSACTION_AHEAD.0 } else { 0 };
        let most = passed / STARVED_SHARE + ahead + STARVED_TIME.0 + LATE_MAX;
        prop_assert!(ran <= most, "{ran} of {passed} ns");
    }

    #[test]
    fn saved_state_decides_as_the_one_that_saved_it(
        events in proptest::collection::vec((0u32..4, 0u32..6, 0u64..800_000), 0..40),
    ) {
        let mut bench = Bench::new();
        let mut twin = Bench::new();
        for (waiter, owner, passed) in events {
            bench.now += Nanos(passed);
            let thread = |index| ThreadId { index, generation: 1 };
            let owner = (owner > 0).then(|| thread(owner));
            let mut state = Vec::new();
            bench.reliefs.save(&mut state);
            twin.reliefs.restore(&mut state.as_slice()).unwrap();
            twin.now = bench.now;
            bench.lock(thread(waiter), OWNER, owner);
            twin.lock(thread(waiter), OWNER, owner);
            prop_assert_eq!(&bench.plan, &twin.plan);
        }
    }
}
