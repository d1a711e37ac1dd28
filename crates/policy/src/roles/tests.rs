mod backlog;
mod boosts;
mod lowered;

use proptest::prelude::*;
use quell_model::{
    CoreId, CoreSet, CoreView, Limits, Permille, Signal, TaskPlan, TaskReason, TaskView, TimeLimits,
};

use super::others::KERNEL_TIME_MIN;
use super::*;

const OWNER: TaskId = TaskId { index: 0, generation: 0 };
const GUEST: TaskId = TaskId { index: 1, generation: 0 };
const MAIN: ThreadId = ThreadId { index: 0, generation: 1 };
const HELPER: ThreadId = ThreadId { index: 1, generation: 1 };
const GUEST_THREAD: ThreadId = ThreadId { index: 2, generation: 1 };
const OTHER_GUEST_THREAD: ThreadId = ThreadId { index: 4, generation: 1 };

/// A thread of the owner without a record.
const NEW: ThreadId = ThreadId { index: 3, generation: 1 };

fn is_guest(thread: ThreadId) -> bool {
    [GUEST_THREAD, OTHER_GUEST_THREAD].contains(&thread)
}

/// A host with one core, an LC task that owns it, and one that is a guest there.
struct Bench {
    roles: Roles,
    seen: Snapshot,
    plan: Plan,
    now: Nanos,
}

impl Bench {
    fn new() -> Bench {
        let limits = Limits {
            class: Class::LatencyCritical,
            times: TimeLimits::default(),
            allowed: CoreSet::of(CoreId(0)),
            ..Limits::NONE
        };
        let plan = |id, rung| TaskPlan {
            id,
            class: Class::LatencyCritical,
            cap: 1,
            rung,
            shared_cores: CoreSet::EMPTY,
            llc_ways: None,
            reason: TaskReason::Owner,
        };
        let tasks = vec![TaskView::new(OWNER, limits), TaskView::new(GUEST, limits)];
        Bench {
            roles: Roles::default(),
            seen: Snapshot { tasks, cores: vec![CoreView::new(CoreId(0))], ..Snapshot::default() },
            plan: Plan {
                tasks: vec![plan(OWNER, Rung::Lc), plan(GUEST, Rung::LcOverflow)],
                ..Plan::default()
            },
            now: Nanos::from_secs(1),
        }
    }

    fn decide(&mut self) -> Nanos {
        let next = self.roles.decide(self.now, &self.seen, &mut self.plan);
        self.seen.bursts.clear();
        next
    }

    fn burst(&mut self, thread: ThreadId, length: Nanos, state: BurstState) {
        self.burst_of(thread, length, length, state);
    }

    fn burst_of(&mut self, thread: ThreadId, length: Nanos, whole: Nanos, state: BurstState) {
        let task = if is_guest(thread) { GUEST } else { OWNER };
        let has_record = thread != NEW;
        let core = CoreId(0);
        self.seen.bursts.push(Burst { thread, task, core, length, whole, has_record, state });
        self.decide();
    }

    fn overrun(&mut self, thread: ThreadId, length: Nanos, waiter: ThreadId) {
        self.long_as_a_whole(thread, length, length, waiter);
    }

    /// An overrun with inputs.
    fn long_as_a_whole(
        &mut self,
        thread: ThreadId,
        whole: Nanos,
        stretch: Nanos,
        waiter: ThreadId,
    ) {
        let waiter_task = if waiter == GUEST_THREAD { GUEST } else { OWNER };
        let same_process = thread != GUEST_THREAD && waiter != GUEST_THREAD;
        let has_record = waiter != NEW;
        let waiter = Waiter { thread: waiter, task: waiter_task, same_process, has_record };
        let length = Burst::weigh(whole, stretch);
        self.burst_of(thread, length, whole, BurstState::Overran(Some(waiter)));
    }

    /// The thread waits while one sleeps whose sleeps it ends; `running` has its core.
    fn ends_sleep(&mut self, thread: ThreadId, running: Option<ThreadId>) {
        self.run(running);
        self.burst(thread, Nanos::ZERO, BurstState::EndsSleep);
    }

    /// The LC thread above the fair class that has the core.
    fn run(&mut self, thread: Option<ThreadId>) {
        let task = |thread| if is_guest(thread) { GUEST } else { OWNER };
        self.seen.cores[0].running = thread.map(task);
        self.seen.cores[0].burst = thread.map(|thread| (thread, Nanos::from_micros(20)));
    }

    /// The time out of so much for which a thread is boosted, in steps of 100 us; `each` comes before each step.
    fn boosted(
        &mut self,
        thread: ThreadId,
        time: Nanos,
        mut each: impl FnMut(&mut Bench),
    ) -> Nanos {
        let step = Nanos::from_micros(100);
        let (end, mut boosted) = (self.now + time, Nanos::ZERO);
        while self.now < end {
            each(self);
            if self.plan.role(thread) == Role::Boosted {
                boosted += step;
            }
            self.wait(step);
        }
        boosted
    }

    fn proved(&mut self, thread: ThreadId) {
        self.burst(thread, Nanos::ZERO, BurstState::Proved);
    }

    fn needs(&self, thread: ThreadId) -> u32 {
        let planned = self.plan.roles.iter().find(|planned| planned.thread == thread);
        planned.map_or(0, |planned| planned.needs)
    }

    fn wait(&mut self, time: Nanos) {
        self.now += time;
        self.decide();
    }
}

#[test]
fn long_burst_behind_which_a_thread_waits_loses_its_role_step_by_step() {
    let mut bench = Bench::new();
    bench.overrun(HELPER, Nanos::from_micros(350), MAIN);
    assert_eq!(bench.plan.role(HELPER), Role::Event, "within its budget");
    bench.overrun(HELPER, Nanos::from_micros(450), MAIN);
    assert_eq!(bench.plan.role(HELPER), Role::LongEvent);
    bench.overrun(HELPER, Nanos::from_millis(3), MAIN);
    // The waiting thread is above the long event rung already.
    assert_eq!(bench.plan.role(HELPER), Role::Background);
    assert_eq!(bench.plan.role(MAIN), Role::Event);
}

#[test]
fn first_demotion_ends_with_its_burst() {
    let mut bench = Bench::new();
    bench.overrun(MAIN, Nanos::from_millis(11), HELPER);
    assert_eq!(bench.needs(MAIN), 0);
    bench.proved(MAIN);
    assert_eq!(bench.plan.role(MAIN), Role::Event);
    bench.wait(FORGIVE_AFTER);
    assert!(bench.roles.demoted.is_empty(), "nothing is held against it for longer");
}

/// A stop of the hypervisor of 2 to 11 ms counts as CPU time of the thread that ran: as a long burst that it has not made.
#[test]
fn stops_of_the_hypervisor_cost_a_role_no_longer_than_until_the_next_sleep() {
    let mut bench = Bench::new();
    for stop in 0..30 {
        bench.wait(Nanos::from_millis(1_500));
        bench.overrun(MAIN, Nanos::from_millis(2 + stop % 10), HELPER);
        assert_eq!(bench.needs(MAIN), 0, "stop {stop}");
        bench.proved(MAIN);
        assert_eq!(bench.plan.role(MAIN), Role::Event, "stop {stop}");
    }
}

/// A thread of Go's scheduler marks the heap for a second and serves requests from then on.
#[test]
fn thread_that_changes_its_work_has_its_rung_back_after_a_few_short_bursts() {
    let mut bench = Bench::new();
    for _ in 0..100 {
        bench.wait(Nanos::from_millis(10));
        bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
        // The burst ends: the first time that suffices, from then on it does not.
        if bench.needs(HELPER) == 0 {
            bench.proved(HELPER);
        }
    }
    assert_eq!(bench.plan.role(HELPER), Role::Background);
    let mut short_bursts = 0;
    while bench.plan.role(HELPER) != Role::Event {
        short_bursts += bench.needs(HELPER).max(1);
        bench.wait(Nanos::from_micros(100));
        bench.proved(HELPER);
    }
    assert!(short_bursts <= 8, "{short_bursts} short bursts");
}

#[test]
fn relapses_double_what_a_thread_has_to_prove_and_time_forgives() {
    let mut bench = Bench::new();
    for needs in [0, 1, 2, 4] {
        bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
        assert_eq!((bench.plan.role(HELPER), bench.needs(HELPER)), (Role::Background, needs));
        bench.proved(HELPER);
    }
    assert_eq!(bench.plan.role(HELPER), Role::LongEvent, "one step at a time");
    for _ in 0..4 {
        bench.wait(FORGIVE_AFTER);
    }
    assert_eq!(bench.needs(HELPER), 0);
}

#[test]
fn demotion_that_lets_no_waiting_thread_pass_is_left_out() {
    let mut bench = Bench::new();
    bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
    bench.overrun(MAIN, Nanos::from_millis(1), HELPER);
    assert_eq!(
        bench.plan.role(MAIN),
        Role::Event,
        "a background thread waits on the lower rung, too"
    );
    bench.wait(LEND_TIME);
    bench.overrun(MAIN, Nanos::from_millis(5), HELPER);
    assert_eq!(bench.plan.role(MAIN), Role::Background, "both share the core from here on");
}

#[test]
fn role_that_the_operator_gave_outlasts_bursts_boosts_and_proofs() {
    let mut bench = Bench::new();
    bench.burst(MAIN, Nanos::ZERO, BurstState::Assigned(Some(Role::Event)));
    bench.burst(HELPER, Nanos::ZERO, BurstState::Assigned(Some(Role::Background)));
    assert_eq!(bench.needs(HELPER), ThreadPlan::ASSIGNED);
    bench.overrun(MAIN, Nanos::from_millis(5), GUEST_THREAD);
    assert_eq!(bench.plan.role(MAIN), Role::Event);
    bench.overrun(MAIN, Nanos::from_micros(450), HELPER);
    assert_eq!(bench.plan.role(HELPER), Role::Boosted, "it may hold a lock");
    bench.proved(HELPER);
    bench.wait(LEND_TIME);
    assert_eq!(bench.plan.role(HELPER), Role::Background);
    bench.overrun(GUEST_THREAD, Nanos::from_millis(5), MAIN);
    for _ in 0..3 {
        bench.wait(FORGIVE_AFTER);
    }
    assert_eq!((bench.plan.role(MAIN), bench.plan.role(HELPER)), (Role::Event, Role::Background));

    bench.burst(HELPER, Nanos::ZERO, BurstState::Assigned(None));
    assert_eq!(bench.plan.role(HELPER), Role::Event);
    bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
    assert_eq!((bench.plan.role(HELPER), bench.needs(HELPER)), (Role::Background, 0));
}

#[test]
fn roles_by_the_operator_leave_places_for_demotions() {
    let mut bench = Bench::new();
    let (task, core, length, has_record) = (OWNER, CoreId(0), Nanos::ZERO, true);
    let state = BurstState::Assigned(Some(Role::Background));
    let threads = (10..10 + THREADS_MAX as u32).map(|index| ThreadId { index, generation: 1 });
    let whole = length;
    let assigned =
        threads.map(|thread| Burst { thread, task, core, length, whole, has_record, state });
    bench.seen.bursts.extend(assigned);
    bench.decide();
    assert_eq!(bench.plan.roles.len(), ASSIGNED_MAX);
    bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
    assert_eq!(bench.plan.role(HELPER), Role::Background);
}

#[test]
fn thread_with_a_role_by_the_operator_gets_it_back_after_a_time_in_the_fair_class() {
    let mut bench = Bench::new();
    bench.burst(MAIN, Nanos::ZERO, BurstState::Assigned(Some(Role::LongEvent)));
    let core = &mut bench.seen.cores[0];
    core.running = Some(OWNER);
    core.rt_share = Signal::Measured(Permille(990));
    core.burst = Some((MAIN, Nanos::from_millis(9)));
    bench.decide();
    assert_eq!(bench.plan.role(MAIN), Role::Fair);
    bench.seen.cores[0].rt_share = Signal::Measured(Permille(0));
    bench.wait(FAIR_TIME);
    assert_eq!(bench.plan.role(MAIN), Role::LongEvent);
}

#[test]
fn background_thread_goes_first_for_one_budget_where_an_event_thread_may_spin() {
    let mut bench = Bench::new();
    bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
    bench.overrun(MAIN, Nanos::from_micros(500), HELPER);
    assert_eq!((bench.plan.role(MAIN), bench.plan.role(HELPER)), (Role::Event, Role::Boosted));
    // BPF reports it after the budget of an event thread.
    bench.overrun(HELPER, Nanos::from_millis(6), MAIN);
    assert_eq!((bench.plan.role(HELPER), bench.needs(HELPER)), (Role::Background, 0));
    bench.overrun(MAIN, Nanos::from_micros(1_300), HELPER);
    bench.wait(LEND_TIME);
    assert_eq!(bench.plan.role(HELPER), Role::Background, "or it slept, or waits elsewhere");
}

#[test]
fn kernel_thread_waits_for_bursts_of_the_background_alone() {
    let mut bench = Bench::new();
    bench.burst(MAIN, Nanos::from_millis(1), BurstState::Overran(None));
    assert_eq!(bench.plan.role(MAIN), Role::Event, "either rung is above the kernel thread");
    bench.burst(MAIN, Nanos::from_millis(3), BurstState::Overran(None));
    assert_eq!(bench.plan.role(MAIN), Role::Background);
}

#[test]
fn new_thread_does_not_cost_a_server_its_role() {
    let mut bench = Bench::new();
    // A fork that takes long: the child waits.
    bench.overrun(MAIN, Nanos::from_millis(8), NEW);
    assert_eq!(bench.plan.role(MAIN), Role::Event);
    bench.overrun(MAIN, Nanos::from_millis(9), HELPER);
    assert_eq!(bench.plan.role(MAIN), Role::Background, "a helper with a record may pass");
    // The child computes, and the server still has its backlog.
    bench.overrun(NEW, Nanos::from_micros(500), MAIN);
    assert_eq!((bench.plan.role(MAIN), bench.plan.role(NEW)), (Role::Event, Role::LongEvent));
    assert_eq!(bench.needs(MAIN), 0, "that was no relapse");
}

#[test]
fn guest_passes_a_long_burst_of_the_owner_for_a_tenth_of_the_time() {
    let mut bench = Bench::new();
    bench.overrun(MAIN, Nanos::from_micros(500), GUEST_THREAD);
    assert_eq!(bench.plan.role(MAIN), Role::Event, "above the guest on either rung");
    bench.overrun(MAIN, Nanos::from_millis(3), GUEST_THREAD);
    assert_eq!(bench.plan.role(MAIN), Role::Background);
    bench.wait(LEND_TIME);
    assert_eq!(bench.plan.role(MAIN), Role::LongEvent);
    bench.overrun(MAIN, Nanos::from_millis(5), GUEST_THREAD);
    assert_eq!(bench.plan.role(MAIN), Role::LongEvent, "not twice within a period");
    bench.wait(LEND_PERIOD);
    bench.overrun(MAIN, Nanos::from_millis(5), GUEST_THREAD);
    assert_eq!(bench.plan.role(MAIN), Role::Background);
}

#[test]
fn thread_that_holds_its_core_spends_a_tenth_of_the_time_in_the_fair_class() {
    let mut bench = Bench::new();
    bench.seen.cores[0].running = Some(OWNER);
    bench.seen.cores[0].burst = Some((MAIN, Nanos::from_secs(1)));
    bench.seen.cores[0].rt_share = Signal::Measured(Permille(900));
    bench.decide();
    assert_eq!(bench.plan.role(MAIN), Role::Event, "at the limit");
    bench.seen.cores[0].rt_share = Signal::Measured(Permille(901));
    bench.decide();
    assert_eq!(bench.plan.role(MAIN), Role::Fair);
    bench.seen.cores[0].burst = None;
    bench.proved(MAIN);
    assert_eq!(bench.plan.role(MAIN), Role::Fair, "though it sleeps now and then");
    bench.wait(FAIR_TIME);
    assert_eq!(bench.plan.role(MAIN), Role::Event);
}

#[test]
fn threads_with_short_bursts_leave_a_full_core_to_others_too() {
    let mut bench = Bench::new();
    bench.seen.cores[0].running = Some(OWNER);
    bench.seen.cores[0].burst = Some((MAIN, Nanos::from_micros(50)));
    bench.seen.cores[0].rt_share = Signal::Measured(RT_SHARE_HARD);
    bench.decide();
    assert_eq!(bench.plan.role(MAIN), Role::Event, "one with a long burst may come");
    bench.seen.cores[0].rt_share = Signal::Measured(Permille(RT_SHARE_HARD.0 + 1));
    bench.decide();
    assert_eq!(bench.plan.role(MAIN), Role::Fair);
}

#[test]
fn kernel_thread_that_waits_for_long_has_all_threads_leave() {
    let mut bench = Bench::new();
    bench.seen.cores[0].running = Some(OWNER);
    let began = bench.now;
    bench.seen.cores[0].kernel_waits = Some(began);
    bench.seen.cores[0].burst = Some((MAIN, Nanos::from_micros(20)));
    assert_eq!(bench.decide(), bench.now + KERNEL_WAITS);
    assert_eq!(bench.plan.role(MAIN), Role::Event);
    bench.now += KERNEL_WAITS_SHORT;
    let next = bench.decide();
    assert_eq!(bench.plan.role(MAIN), Role::Fair);
    assert!(next < bench.now + Nanos::from_millis(1), "the next one has the core now");
    bench.seen.cores[0].burst = Some((HELPER, Nanos::from_micros(20)));
    bench.now = next;
    bench.decide();
    assert_eq!(bench.plan.role(HELPER), Role::Fair);
    bench.now = began + Nanos::from_millis(99);
    bench.decide();
    assert_eq!([MAIN, HELPER].map(|thread| bench.plan.role(thread)), [Role::Fair; 2], "at once");
    bench.seen.cores[0].kernel_waits = None;
    bench.decide();
    assert_eq!([MAIN, HELPER].map(|thread| bench.plan.role(thread)), [Role::Event; 2]);
}

#[test]
fn kernel_thread_has_the_long_burst_leave_and_not_its_neighbour() {
    let mut bench = Bench::new();
    bench.seen.cores[0].running = Some(OWNER);
    bench.seen.cores[0].kernel_waits = Some(bench.now);
    bench.run(Some(MAIN));
    bench.now += KERNEL_WAITS;
    let next = bench.decide();
    assert_eq!(bench.plan.role(MAIN), Role::Event, "it sleeps soon");
    assert!(next <= bench.now + Nanos::from_millis(1), "the other one may have the core now");
    bench.seen.cores[0].running = Some(GUEST);
    bench.seen.cores[0].burst = Some((GUEST_THREAD, Nanos::from_millis(30)));
    bench.now = next;
    bench.decide();
    assert_eq!(bench.plan.role(GUEST_THREAD), Role::Fair);
    // The kernel thread runs in the next gap.
    bench.seen.cores[0].kernel_waits = None;
    bench.run(Some(MAIN));
    bench.wait(KERNEL_TIME_MIN);
    assert_eq!([MAIN, GUEST_THREAD].map(|thread| bench.plan.role(thread)), [Role::Event; 2]);
}

#[test]
fn exited_threads_and_tasks_are_forgotten() {
    let mut bench = Bench::new();
    bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
    bench.burst(HELPER, Nanos::ZERO, BurstState::Exited);
    assert!(bench.roles.demoted.is_empty());
    bench.overrun(MAIN, Nanos::from_millis(5), HELPER);
    bench.seen.tasks[0].alive = false;
    bench.decide();
    assert!(bench.plan.roles.is_empty());
}

fn any_state() -> impl Strategy<Value = BurstState> {
    prop_oneof![
        3 => (0u32..6).prop_map(|index| BurstState::Overran(Some(Waiter {
            thread: ThreadId { index, generation: 1 },
            task: if index % 2 == 0 { OWNER } else { GUEST },
            same_process: index < 3,
            has_record: index < 5,
        }))),
        1 => Just(BurstState::Overran(None)),
        3 => Just(BurstState::Proved),
        3 => Just(BurstState::EndsSleep),
        1 => Just(BurstState::Exited),
        1 => proptest::option::of(0usize..3)
            .prop_map(|role| BurstState::Assigned(role.map(|role| Role::ALL[role]))),
    ]
}

proptest! {
    /// Whatever is observed: each thread is listed once, below the event role, within the bounds, and the next look comes
    /// before a time in the fair class ends.
    #[test]
    fn any_sequence_of_bursts_keeps_the_table_sound(
        steps in proptest::collection::vec(
            ((0u32..6, 0u64..20_000_000, any_state()), 0u64..50_000_000, 0u16..1_001), 1..200),
        elevated_background in any::<bool>(),
    ) {
        let mut bench = Bench::new();
        bench.seen.elevated_background = elevated_background;
        for ((index, length, state), passed, share) in steps {
            let thread = ThreadId { index, generation: 1 };
            let task = if index % 2 == 0 { OWNER } else { GUEST };
            bench.now += Nanos(passed);
            let length = Nanos(length);
            bench.seen.cores[0].running = Some(task);
            // A thread that waits is not the one that runs.
            let waits = u32::from(state == BurstState::EndsSleep);
            bench.seen.cores[0].burst = Some((ThreadId { index: index ^ waits, ..thread }, length));
            bench.seen.cores[0].rt_share = Signal::Measured(Permille(share));
            let (core, has_record) = (CoreId(0), index < 5);
            let whole = length;
            bench.seen.bursts.push(Burst { thread, task, core, length, whole, has_record, state });
            let next = bench.decide();
            for planned in &bench.plan.roles {
                let is_assigned = planned.needs == ThreadPlan::ASSIGNED;
                prop_assert!(planned.role != Role::Event);
                prop_assert!(is_assigned || planned.needs <= NEEDS_MAX);
                let fair = planned.role == Role::Fair;
                let most = if elevated_background { RT_WINDOW } else { Nanos::ZERO };
                prop_assert!(!fair || next <= bench.now + most + FAIR_TIME);
                let boosted = planned.role == Role::Boosted;
                prop_assert!(!boosted || next <= bench.now + LEND_TIME);
            }
            let mut saved = Vec::new();
            bench.roles.save(&mut saved);
            let mut restored = Roles::default();
            prop_assert!(restored.restore(&mut &saved[..]).is_ok());
            prop_assert_eq!(&restored.demoted, &bench.roles.demoted);
            prop_assert_eq!(&restored.boosted, &bench.roles.boosted);
            prop_assert_eq!(&restored.lowered, &bench.roles.lowered);
        }
    }

    #[test]
    fn restoring_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Roles::default().restore(&mut &bytes[..]);
    }
}
