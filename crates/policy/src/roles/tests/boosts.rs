//! Boosts of threads that end sleeps.

use super::super::boost::REPEAT_TIME;
use super::*;

/// A collector of one service waits behind the event threads of another.
fn collector() -> Bench {
    let mut bench = Bench::new();
    bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
    assert_eq!(bench.plan.role(HELPER), Role::Background);
    bench
}

#[test]
fn background_thread_that_ends_sleeps_goes_first_for_a_tenth() {
    let mut bench = collector();
    bench.ends_sleep(HELPER, Some(GUEST_THREAD));
    assert_eq!(bench.plan.role(HELPER), Role::Boosted);
    assert_eq!(bench.decide(), bench.now + LEND_TIME);
    bench.now += LEND_TIME;
    assert_eq!(bench.decide(), bench.now + LEND_PERIOD - LEND_TIME);
    assert_eq!(bench.plan.role(HELPER), Role::Background);
    let report = |bench: &mut Bench| bench.ends_sleep(HELPER, Some(GUEST_THREAD));
    let boosted = bench.boosted(HELPER, Nanos::from_secs(1), report);
    assert_eq!(boosted, Nanos::from_millis(100), "however often it is reported");
}

#[test]
fn threads_that_end_sleeps_share_the_tenth_of_their_core() {
    let mut bench = collector();
    bench.overrun(MAIN, Nanos::from_millis(3), HELPER);
    bench.overrun(MAIN, Nanos::from_millis(3), GUEST_THREAD);
    assert_eq!(bench.plan.role(MAIN), Role::Background);
    let mut of_each = [Nanos::ZERO; 2];
    for _ in 0..10_000 {
        bench.ends_sleep(HELPER, Some(GUEST_THREAD));
        bench.ends_sleep(MAIN, Some(GUEST_THREAD));
        for (thread, boosted) in [HELPER, MAIN].into_iter().zip(&mut of_each) {
            if bench.plan.role(thread) == Role::Boosted {
                *boosted += Nanos::from_micros(100);
            }
        }
        bench.wait(Nanos::from_micros(100));
    }
    assert_eq!(of_each, [Nanos::from_millis(50); 2], "one at a time and in turn");
}

#[test]
fn claim_that_has_expired_keeps_no_other_thread_from_a_boost() {
    let mut bench = collector();
    bench.overrun(MAIN, Nanos::from_millis(3), HELPER);
    bench.overrun(MAIN, Nanos::from_millis(3), GUEST_THREAD);
    let (first, second) = if MAIN < HELPER { (MAIN, HELPER) } else { (HELPER, MAIN) };
    bench.ends_sleep(second, None);
    bench.now += REPEAT_TIME;
    bench.ends_sleep(first, Some(GUEST_THREAD));
    assert_eq!(bench.plan.role(first), Role::Boosted);
    assert_eq!(bench.plan.role(second), Role::Background);
}

#[test]
fn boost_of_a_thread_that_ends_sleeps_repeats_for_a_while_without_reports() {
    let mut bench = collector();
    bench.ends_sleep(HELPER, Some(GUEST_THREAD));
    let boosted = bench.boosted(HELPER, REPEAT_TIME, |_| {});
    assert_eq!(boosted, Nanos::from_millis(10));
    let boosted = bench.boosted(HELPER, Nanos::from_secs(1), |_| {});
    assert_eq!(boosted, Nanos::ZERO, "it waits for nothing that is known");
    assert_eq!(bench.decide(), Nanos::MAX);
}

#[test]
fn thread_that_ends_sleeps_is_not_boosted_over_batch_work_or_its_like() {
    let mut bench = collector();
    bench.ends_sleep(HELPER, None);
    assert_eq!(bench.plan.role(HELPER), Role::Background, "batch work has the core");
    bench.ends_sleep(HELPER, Some(HELPER));
    assert_eq!(bench.plan.role(HELPER), Role::Background, "it has the core itself");
    bench.run(Some(MAIN));
    bench.wait(LEND_TIME);
    assert_eq!(bench.plan.role(HELPER), Role::Boosted, "the core went to an event thread");

    let mut bench = collector();
    bench.ends_sleep(MAIN, Some(GUEST_THREAD));
    assert_eq!(bench.plan.role(MAIN), Role::Event, "an event thread needs none");
    bench.proved(HELPER);
    bench.ends_sleep(HELPER, Some(GUEST_THREAD));
    assert_eq!(bench.plan.role(HELPER), Role::Event);
    assert!(bench.roles.demoted.iter().all(|thread| thread.ends_sleep.is_none()));
}

#[test]
fn boost_of_a_thread_that_ends_sleeps_ends_with_a_budget_of_cpu_time() {
    let mut bench = collector();
    bench.ends_sleep(HELPER, Some(GUEST_THREAD));
    bench.run(Some(HELPER));
    bench.overrun(HELPER, Nanos::from_micros(450), MAIN);
    assert_eq!((bench.plan.role(HELPER), bench.needs(HELPER)), (Role::Background, 0));
    bench.ends_sleep(HELPER, Some(MAIN));
    assert_eq!(bench.plan.role(HELPER), Role::Background, "not twice within a period");
    bench.wait(LEND_PERIOD);
    assert_eq!(bench.plan.role(HELPER), Role::Boosted);
    // A spin is another reason, with bounds of its own.
    bench.wait(LEND_TIME);
    bench.overrun(MAIN, Nanos::from_micros(500), HELPER);
    assert_eq!(bench.plan.role(HELPER), Role::Boosted);
}

#[test]
fn boost_of_a_guest_that_ends_sleeps_is_to_the_rung_of_its_task() {
    let mut bench = Bench::new();
    bench.overrun(GUEST_THREAD, Nanos::from_millis(5), MAIN);
    bench.ends_sleep(GUEST_THREAD, Some(MAIN));
    assert_eq!(bench.plan.role(GUEST_THREAD), Role::Background, "not before the core's owner");
    bench.run(Some(OTHER_GUEST_THREAD));
    bench.wait(LEND_PERIOD);
    assert_eq!(bench.plan.role(GUEST_THREAD), Role::Boosted);
    assert_eq!(Rung::LcOverflow.of_role(Role::Boosted), Rung::LcOverflow);
    bench.wait(LEND_TIME);
    assert_eq!(bench.plan.role(GUEST_THREAD), Role::Background);
}

#[test]
fn time_of_a_guest_is_not_cut_short_for_a_thread_that_ends_sleeps() {
    let mut bench = Bench::new();
    bench.overrun(MAIN, Nanos::from_millis(3), GUEST_THREAD);
    bench.ends_sleep(MAIN, Some(GUEST_THREAD));
    assert_eq!(bench.plan.role(MAIN), Role::Background);
    bench.wait(LEND_TIME);
    assert_eq!(bench.plan.role(MAIN), Role::LongEvent, "as without the report");
}

#[test]
fn role_by_the_operator_is_left_for_a_thread_that_ends_sleeps() {
    let mut bench = Bench::new();
    bench.burst(MAIN, Nanos::ZERO, BurstState::Assigned(Some(Role::LongEvent)));
    bench.burst(HELPER, Nanos::ZERO, BurstState::Assigned(Some(Role::Background)));
    bench.ends_sleep(MAIN, Some(GUEST_THREAD));
    assert_eq!(bench.plan.role(MAIN), Role::LongEvent);
    bench.ends_sleep(HELPER, Some(GUEST_THREAD));
    assert_eq!(bench.plan.role(HELPER), Role::Boosted);
    bench.wait(LEND_TIME);
    assert_eq!(bench.plan.role(HELPER), Role::Background);
    assert_eq!(bench.needs(HELPER), ThreadPlan::ASSIGNED);
}

#[test]
fn thread_that_ends_sleeps_spends_its_time_in_the_fair_class_first() {
    let mut bench = collector();
    bench.ends_sleep(HELPER, Some(GUEST_THREAD));
    bench.seen.cores[0].running = Some(OWNER);
    bench.seen.cores[0].rt_share = Signal::Measured(Permille(990));
    bench.run(Some(HELPER));
    bench.wait(Nanos::from_micros(100));
    assert_eq!(bench.plan.role(HELPER), Role::Fair);
    bench.seen.cores[0].rt_share = Signal::Measured(Permille(0));
    bench.run(Some(GUEST_THREAD));
    bench.wait(FAIR_TIME - LEND_TIME);
    assert_eq!(bench.plan.role(HELPER), Role::Fair);
    bench.wait(LEND_TIME);
    assert_eq!(bench.plan.role(HELPER), Role::Boosted, "its boosts repeat still");
}
