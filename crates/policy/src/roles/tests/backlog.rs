//! Backlogs of short requests: long as a whole, short in each stretch.

use super::*;

const WHOLE: Nanos = Nanos::from_millis(10);
const STRETCH: Nanos = Nanos::from_micros(50);

/// The owner's main thread works off a backlog while another thread waits.
fn backlog(whole: Nanos, stretch: Nanos, waiter: ThreadId) -> Bench {
    let mut bench = Bench::new();
    bench.long_as_a_whole(MAIN, whole, stretch, waiter);
    bench
}

#[test]
fn backlog_costs_no_role_while_threads_of_its_own_task_wait() {
    assert_eq!(backlog(WHOLE, STRETCH, HELPER).plan.role(MAIN), Role::Event);
    let long = backlog(Nanos::from_millis(13), STRETCH, HELPER);
    assert_eq!(long.plan.role(MAIN), Role::LongEvent, "not without end");
}

#[test]
fn backlog_is_a_long_burst_to_threads_of_other_tasks() {
    assert_eq!(backlog(WHOLE, STRETCH, GUEST_THREAD).plan.role(MAIN), Role::Background);
}

#[test]
fn thread_with_a_backlog_is_not_taken_for_one_that_waits_for_a_lock() {
    for (stretch, role) in [(STRETCH, Role::Background), (Nanos::from_millis(1), Role::Boosted)] {
        let mut bench = Bench::new();
        bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
        bench.long_as_a_whole(MAIN, Nanos::from_millis(20), stretch, HELPER);
        assert_eq!(bench.plan.role(HELPER), role, "{stretch}");
    }
}
