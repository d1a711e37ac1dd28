//! What lane policies promise, on a lane in simulated time whose members sleep and wake as they like.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/lane.rs"]
mod lane;

mod counting;

use lane::{BUSY, Event, Habit, Lane, Ran, us};
use proptest::prelude::*;
use quell_model::Nanos;
use quell_policy::lanes::{Job, Look, Member, Members, Seen, Slot, Spec};

fn habits(busy_too: bool) -> impl Strategy<Value = Vec<Habit>> {
    let lives = prop_oneof![Just(u32::MAX), 1u32..9];
    let habit = (1u64..3_000, 1u64..3_000, any::<bool>(), lives);
    let habit = habit.prop_map(move |(works, sleeps, busy, lives)| match busy && busy_too {
        true => BUSY,
        false => Habit { lives, ..Habit::of(us(works), us(sleeps)) },
    });
    proptest::collection::vec(habit, 1..7)
}

/// A job whose deadline lies so many hundredths of the way from its budget to its period's end.
fn job(budget: u64, period: u64, hundredths: u64) -> Job {
    let deadline = us(budget) + Nanos(us(period - budget).0 / 100 * hundredths);
    Job { period: us(period), budget: us(budget), deadline }
}

/// With deadlines that are put off, halfway to the periods' ends each time, until they can be met.
fn that_fit(mut jobs: Vec<Job>) -> Vec<Job> {
    while let Err(error) = (Spec::Edf { jobs: jobs.clone() }).check(jobs.len()) {
        assert!(jobs.iter().any(|job| job.deadline < job.period), "{error} {jobs:?}");
        for job in &mut jobs {
            job.deadline += Nanos((job.period - job.deadline).0.div_ceil(2));
        }
    }
    jobs
}

/// Any policy for so many members.
fn spec(members: usize) -> impl Strategy<Value = Spec> {
    let slice = (5u64..300).prop_map(us);
    let order: Vec<u8> = (0..members as u8).collect();
    let slots = (Just(order).prop_shuffle(), proptest::collection::vec(0..members as u8, 0..6));
    let job = (5u64..200, 1u64..20, 0u64..=100).prop_map(move |(budget, times, hundredths)| {
        job(budget, budget * (members as u64 + times), hundredths)
    });
    prop_oneof![
        slice.clone().prop_map(|slice| Spec::RoundRobin { slice }),
        (slots, slice.clone()).prop_map(|((each, more), slice)| {
            let slot = |member| Slot { member: Member(member), slice };
            Spec::Table { slots: each.into_iter().chain(more).map(slot).collect() }
        }),
        (slice.clone(), 5u64..2_000)
            .prop_map(|(budget, after)| Spec::Preemptive { budget, resume_after: us(after) }),
        proptest::collection::vec(job, members).prop_map(|jobs| Spec::Edf { jobs: that_fit(jobs) }),
        (slice, proptest::collection::vec(1u32..20, members))
            .prop_map(|(slice, weights)| Spec::Fair { slice, weights }),
        Just(Spec::Fifo),
    ]
}

fn lanes() -> impl Strategy<Value = (Vec<Habit>, Spec)> {
    habits(true).prop_flat_map(|habits| {
        let spec = spec(habits.len());
        (Just(habits), spec)
    })
}

proptest! {
    #[test]
    fn whoever_can_run_is_run_each_look_lies_ahead_and_each_change_has_a_reason(
        (habits, spec) in lanes(), late in 0u64..40, switch in 0u64..60
    ) {
        let mut lane = Lane::new(&spec, &habits);
        (lane.late, lane.switch) = (us(late), us(switch));
        lane.run(us(100_000));
        prop_assert_eq!(lane.stuck, 0);
        let busy: u64 = lane.shares().values().map(|share| share.0).sum();
        prop_assert!(busy > 0);
        for change in &lane.changes {
            let is_one = |event: &Event| match event {
                Event::Slept(who) | Event::Exited(who) => change.from == Some(*who),
                Event::Woke(_) | Event::Due => true,
            };
            prop_assert!(change.reasons.iter().any(is_one), "{change:?}");
        }
    }

    #[test]
    fn the_same_lane_gives_the_same_turns((habits, spec) in lanes()) {
        let turns = || {
            let mut lane = Lane::new(&spec, &habits);
            lane.run(us(30_000));
            lane.ran
        };
        prop_assert_eq!(turns(), turns());
    }

    #[test]
    fn round_robin_keeps_nobody_waiting_for_more_than_a_slice_of_each_other(
        habits in habits(true), slice in 5u64..300, late in 0u64..40, switch in 0u64..10
    ) {
        let mut lane = Lane::new(&Spec::RoundRobin { slice: us(slice) }, &habits);
        (lane.late, lane.switch) = (us(late), us(switch));
        lane.run(us(100_000));
        let bound = (habits.len() as u64) * (slice + late + 2 * switch);
        prop_assert!(lane.longest_wait(us(100_000)) <= us(bound));
    }

    #[test]
    fn a_table_is_run_in_order_and_sleepers_are_left_out(
        members in 1usize..6, more in proptest::collection::vec(0u8..6, 0..6),
        asleep in any::<u8>(), late in 0u64..40
    ) {
        let awake = |member: &u8| *member == 0 || asleep & (1 << member) == 0;
        let habit = |member: u8| match awake(&member) {
            true => BUSY,
            false => Habit::of(Nanos(1), Nanos::from_secs(10)),
        };
        let table: Vec<u8> =
            (0..members as u8).chain(more.into_iter().map(|at| at % members as u8)).collect();
        let slot = |member: &u8| Slot { member: Member(*member), slice: us(20) };
        let spec = Spec::Table { slots: table.iter().map(slot).collect() };
        let habits: Vec<Habit> = (0..members as u8).map(habit).collect();
        let mut lane = Lane::new(&spec, &habits);
        // From when on those that sleep do.
        lane.run(us(3_000));
        lane.ran.clear();
        lane.late = us(late);
        lane.run(us(9_000));
        let mut round: Vec<u8> = table.iter().copied().filter(awake).collect();
        round.dedup();
        if round.len() > 1 && round.first() == round.last() {
            round.pop();
        }
        let order = lane.order();
        let begin = (0..round.len()).find(|begin| {
            order.iter().enumerate().all(|(at, member)| *member == round[(begin + at) % round.len()])
        });
        prop_assert!(begin.is_some(), "{round:?} is not the order of {order:?}");
        prop_assert!(round.len() == 1 || order.len() >= 6_000 / (20 + late as usize) / table.len());
    }

    #[test]
    fn a_table_gives_each_member_its_slots(counts in proptest::collection::vec(1usize..5, 2..5)) {
        // Members in blocks: A-A-B-C.
        let blocks = counts.iter().enumerate().flat_map(|(at, count)| vec![at as u8; *count]);
        let slots: Vec<Slot> =
            blocks.map(|member| Slot { member: Member(member), slice: us(50) }).collect();
        let round = 50 * slots.len() as u64;
        let mut lane = Lane::new(&Spec::Table { slots }, &vec![BUSY; counts.len()]);
        lane.run(us(1_000 + 20 * round));
        for (at, count) in counts.iter().enumerate() {
            prop_assert_eq!(lane.shares()[&(at as u8)], us(20 * 50 * *count as u64));
        }
    }

    #[test]
    fn short_work_waits_for_no_more_than_the_budgets_before_it(
        budget in 5u64..50, short in 1u64..5, sleeps in 2_000u64..4_000, hogs in 1usize..4
    ) {
        // Hogs beside one that works for less than a budget; nothing is resumed by its age.
        let spec = Spec::Preemptive { budget: us(budget), resume_after: Nanos::from_secs(1) };
        let mut habits = vec![BUSY; hogs];
        habits.push(Habit::of(us(short), us(sleeps)));
        let mut lane = Lane::new(&spec, &habits);
        lane.run(us(200_000));
        let short = Member(hogs as u8);
        let turns: Vec<Ran> = lane.ran.iter().copied().filter(|ran| ran.member == short).collect();
        prop_assert!(turns.len() > 30);
        for pair in turns.windows(2).skip(1) {
            let woke = pair[0].to + us(sleeps);
            // The hogs have used up their budgets long ago: they make way at once.
            prop_assert_eq!(pair[1].from, woke);
        }
    }

    #[test]
    fn the_preempted_are_resumed_in_the_time_promised(
        budget in 5u64..50, resume_after in 100u64..2_000, crowd in 2usize..6, late in 0u64..20
    ) {
        // The crowd works less than a budget and hardly sleeps: one of it waits always.
        let spec = Spec::Preemptive { budget: us(budget), resume_after: us(resume_after) };
        let mut habits = vec![Habit::of(us(budget - 1), us(1)); crowd];
        habits.push(BUSY);
        let mut lane = Lane::new(&spec, &habits);
        lane.late = us(late);
        lane.run(us(100_000));
        let bound = resume_after + (crowd as u64 + 1) * (budget + late);
        prop_assert!(lane.longest_wait(us(100_000)) <= us(bound));
    }

    #[test]
    fn the_one_with_budget_and_the_earliest_deadline_has_the_turn(
        jobs in proptest::collection::vec((5u64..100, 4u64..20, 0u64..=100), 2..5)
    ) {
        let members = jobs.len() as u64;
        let jobs = jobs.into_iter().map(|(budget, times, hundredths)| {
            job(budget, budget * times.max(members), hundredths)
        });
        let jobs = that_fit(jobs.collect());
        let mut lane = Lane::new(&Spec::Edf { jobs: jobs.clone() }, &vec![BUSY; jobs.len()]);
        lane.run(us(50_000));
        // A model of its own: periods from the start, budgets used up by what ran.
        let start = us(1_000);
        let period_of = |at: usize, now: Nanos| now.since(start).0 / jobs[at].period.0;
        let used = |at: usize, now: Nanos| -> Nanos {
            let from = Nanos(start.0 + period_of(at, now) * jobs[at].period.0);
            let parts = lane.ran.iter().filter(|ran| ran.member.at() == at && ran.from < now);
            Nanos(parts.map(|ran| ran.to.min(now).since(ran.from.max(from)).0).sum())
        };
        let deadline = |at: usize, now: Nanos| {
            let ready = used(at, now) < jobs[at].budget;
            let begin = start.0 + period_of(at, now) * jobs[at].period.0;
            ready.then_some(begin + jobs[at].deadline.0)
        };
        for ran in lane.ran.iter().take(300) {
            let first = (0..jobs.len()).filter_map(|at| deadline(at, ran.from)).min();
            if let Some(first) = first {
                prop_assert_eq!(deadline(ran.member.at(), ran.from), Some(first), "{:?}", ran);
            }
        }
    }

    #[test]
    fn budgets_that_fit_are_met_by_each_deadline(
        jobs in proptest::collection::vec((5u64..100, 1u64..20, 0u64..=100), 1..6)
    ) {
        let members = jobs.len() as u64;
        let jobs = jobs.into_iter().map(|(budget, times, hundredths)| {
            job(budget, budget * (members + times), hundredths)
        });
        let jobs = that_fit(jobs.collect());
        let mut lane = Lane::new(&Spec::Edf { jobs: jobs.clone() }, &vec![BUSY; jobs.len()]);
        lane.run(us(60_000));
        for (at, job) in jobs.iter().enumerate() {
            let mut from = us(1_000);
            while from + job.period <= us(60_000) {
                let by = from + job.deadline;
                let own = lane.ran.iter().filter(|ran| ran.member.at() == at);
                let got: u64 = own.map(|ran| ran.to.min(by).since(ran.from.max(from)).0).sum();
                prop_assert!(got >= job.budget.0, "member {at} got {} from {from}", Nanos(got));
                from += job.period;
            }
        }
    }

    #[test]
    fn who_keeps_to_its_budget_meets_its_deadline_whenever_others_sleep_and_wake(
        own in (5u64..100, 1u64..20, 0u64..=100),
        others in proptest::collection::vec(
            ((5u64..100, 1u64..20, 0u64..=100), 1u64..400, 1u64..2_000), 1..5
        )
    ) {
        let members = others.len() as u64 + 1;
        // Each has the core evenly within its deadline, at most.
        let job = |(budget, times, hundredths): (u64, u64, u64)| {
            let even = budget * members;
            let deadline = us(even) + Nanos(us(budget * times).0 / 100 * hundredths);
            Job { period: us(even + budget * times), budget: us(budget), deadline }
        };
        let keeps = job(own);
        let habit = |(_, works, sleeps): &((u64, u64, u64), u64, u64)| {
            Habit::of(us(*works), us(*sleeps))
        };
        let habits: Vec<Habit> = std::iter::once(Habit::of(keeps.budget, keeps.period))
            .chain(others.iter().map(habit))
            .collect();
        let jobs = std::iter::once(keeps).chain(others.iter().map(|(other, ..)| job(*other)));
        let mut lane = Lane::new(&Spec::Edf { jobs: jobs.collect() }, &habits);
        lane.run(us(100_000));
        for took in lane.times_to_work(0) {
            prop_assert!(took <= keeps.deadline, "{took}");
        }
    }

    #[test]
    fn nobody_gets_more_than_its_budget_while_one_with_budget_waits(
        greedy in 5u64..100, other in 5u64..100, late in 0u64..20
    ) {
        // Both want the whole core, and their budgets take it up.
        let period = us(greedy + other);
        let job = |budget| Job { period, budget: us(budget), deadline: period };
        let spec = Spec::Edf { jobs: vec![job(greedy), job(other)] };
        let mut lane = Lane::new(&spec, &[BUSY, BUSY]);
        lane.late = us(late);
        lane.run(us(50_000));
        let longest = lane.ran.iter().filter(|ran| ran.member == Member(0));
        let longest = longest.map(|ran| ran.to.since(ran.from)).max().unwrap();
        // One period's budget may follow the last one's without a gap.
        prop_assert!(longest <= us(2 * greedy + 2 * late), "{longest}");
    }

    #[test]
    fn shares_are_those_of_the_weights(
        weights in proptest::collection::vec(1u32..20, 2..6), slice in 5u64..100
    ) {
        let spec = Spec::Fair { slice: us(slice), weights: weights.clone() };
        let mut lane = Lane::new(&spec, &vec![BUSY; weights.len()]);
        let length = us(slice) .0 * 20 * 500;
        lane.run(Nanos(us(1_000).0 + length));
        let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let shares = lane.shares();
        for (at, weight) in weights.iter().enumerate() {
            let due = length / sum * u64::from(*weight);
            let got = shares[&(at as u8)].0;
            // To within a few slices over ten thousand of them.
            prop_assert!(got.abs_diff(due) <= us(slice).0 * 8, "{at}: {got} for {due}");
        }
    }

    #[test]
    fn sleeping_earns_no_credit(slice in 5u64..100, sleeps in 100u64..5_000) {
        let mut lane = Lane::new(
            &Spec::Fair { slice: us(slice), weights: vec![1, 1] },
            &[BUSY, Habit::of(us(2_000), us(sleeps))],
        );
        lane.run(us(100_000));
        // While both are awake neither is ahead for more than its slices: the sleeper never takes its
        // sleep back in one go.
        let sleeper = lane.ran.iter().filter(|ran| ran.member == Member(1));
        let longest = sleeper.map(|ran| ran.to.since(ran.from)).max().unwrap();
        prop_assert!(longest <= us(2 * slice), "{longest}");
    }
}

/// A job of these microseconds, and what its member does: works and sleeps.
fn member(period: u64, budget: Nanos, deadline: Nanos, works: Nanos, sleeps: u64) -> (Job, Habit) {
    (Job { period: us(period), budget, deadline }, Habit::of(works, us(sleeps)))
}

#[test]
fn who_runs_alone_into_its_next_period_uses_up_that_budget() {
    let ns = Nanos;
    for members in [
        vec![
            member(72, us(36), us(72), us(36), 72),
            (Job { period: us(128), budget: us(64), deadline: us(128) }, BUSY),
        ],
        vec![
            member(108, us(6), ns(23_400), us(6), 108),
            member(180, us(30), ns(106_200), us(306), 1_353),
            member(187, us(17), ns(167_960), us(147), 1_377),
        ],
        vec![member(152, us(19), us(38), us(19), 152), member(765, us(51), us(102), us(395), 19)],
    ] {
        let (jobs, habits): (Vec<Job>, Vec<Habit>) = members.into_iter().unzip();
        let mut lane = Lane::new(&Spec::Edf { jobs: jobs.clone() }, &habits);
        lane.run(us(200_000));
        let longest = lane.times_to_work(0).into_iter().max().unwrap();
        assert!(longest <= jobs[0].deadline, "{longest} {jobs:?}");
    }
}

#[test]
fn who_wakes_often_and_works_little_is_never_put_off() {
    let (often, habit) = member(100, us(10), us(20), us(1), 50);
    let busy = Job { period: us(100), budget: us(50), deadline: us(100) };
    let mut lane = Lane::new(&Spec::Edf { jobs: vec![often, busy] }, &[habit, BUSY]);
    lane.run(us(50_000));
    let times = lane.times_to_work(0);
    assert!(times.len() > 300);
    assert!(times.iter().all(|took| *took <= often.deadline), "{times:?}");
}

#[test]
fn first_come_is_first_served_until_it_sleeps() {
    let works = |works| Habit::of(us(works), us(10_000));
    let mut lane = Lane::new(&Spec::Fifo, &[works(700), works(5), works(300)]);
    lane.run(us(3_000));
    assert_eq!(lane.order(), [0, 1, 2]);
    assert_eq!(lane.shares().values().copied().collect::<Vec<_>>(), [us(700), us(5), us(300)]);
}

#[test]
fn a_lane_of_one_sets_no_timer() {
    let job = Job { period: us(100), budget: us(50), deadline: us(100) };
    for spec in [
        Spec::RoundRobin { slice: us(20) },
        Spec::Table { slots: vec![Slot { member: Member(0), slice: us(20) }] },
        Spec::Preemptive { budget: us(20), resume_after: us(100) },
        Spec::Edf { jobs: vec![job] },
        Spec::Fair { slice: us(20), weights: vec![1] },
        Spec::Fifo,
    ] {
        let mut lane = Lane::new(&spec, &[BUSY]);
        assert_eq!(lane.look(), Look::OnChange, "{}", spec.name());
        lane.now += us(500);
        assert_eq!(lane.look(), Look::OnChange, "{}", spec.name());
    }
}

#[test]
fn deciding_allocates_nothing() {
    let job =
        |at: u64| Job { period: us(100 * (at + 8)), budget: us(50), deadline: us(50 * (at + 8)) };
    let slots = (0..8).map(|member| Slot { member: Member(member), slice: us(20) }).collect();
    for spec in [
        Spec::RoundRobin { slice: us(20) },
        Spec::Table { slots },
        Spec::Preemptive { budget: us(20), resume_after: us(100) },
        Spec::Edf { jobs: (0..8).map(job).collect() },
        Spec::Fair { slice: us(20), weights: vec![2; 8] },
        Spec::Fifo,
    ] {
        let mut policy = spec.build(8).unwrap();
        let mut turn = None;
        let before = counting::allocations();
        for step in 0..10_000u64 {
            let now = us(step * 13);
            let asleep = Member((step / 7 % 8) as u8);
            let runnable = Members::first_of(8).without(asleep);
            let seen = Seen { now, runnable, turn };
            turn = policy.decide(&seen).member.map(|member| (member, now));
        }
        assert_eq!(counting::allocations(), before, "{}", spec.name());
    }
}
