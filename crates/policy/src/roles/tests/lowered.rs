//! Background threads with a real-time rung, on a core that LC threads fill.

use super::*;

const FULL: Signal<Permille> = Signal::Measured(Permille(1_000));
const ROOM: Signal<Permille> = Signal::Measured(Permille(700));

/// A server and its child, which is in the background, fill a core.
fn full_with_a_child() -> Bench {
    let mut bench = Bench::new();
    bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
    bench.seen.elevated_background = true;
    bench.run(Some(MAIN));
    bench.seen.cores[0].rt_share = FULL;
    bench.decide();
    bench
}

fn roles(bench: &Bench) -> [Role; 2] {
    [MAIN, HELPER].map(|thread| bench.plan.role(thread))
}

#[test]
fn background_thread_leaves_before_the_server() {
    let mut bench = full_with_a_child();
    assert_eq!(roles(&bench), [Role::Event, Role::Fair]);
    bench.wait(RT_WINDOW - Nanos(1));
    assert_eq!(roles(&bench), [Role::Event, Role::Fair]);
    bench.seen.cores[0].rt_share = ROOM;
    bench.wait(FAIR_TIME + Nanos(1));
    assert_eq!(roles(&bench), [Role::Event, Role::Background], "it has made room");
    bench.seen.cores[0].rt_share = FULL;
    bench.wait(Nanos::from_millis(100));
    assert_eq!(roles(&bench), [Role::Event, Role::Fair]);
}

#[test]
fn server_that_fills_a_core_by_itself_takes_its_turns_and_not_behind_the_background() {
    let mut bench = full_with_a_child();
    bench.wait(RT_WINDOW);
    assert_eq!(roles(&bench), [Role::Fair; 2]);
    bench.wait(FAIR_TIME);
    // For some seconds only the server's turns help.
    bench.run(None);
    bench.decide();
    assert_eq!(roles(&bench), [Role::Event, Role::Background]);
    bench.run(Some(MAIN));
    bench.decide();
    assert_eq!(roles(&bench), [Role::Fair, Role::Background]);
}

#[test]
fn background_thread_that_has_the_core_leaves_it_alone() {
    let mut bench = full_with_a_child();
    let mut alone = Bench::new();
    alone.overrun(HELPER, Nanos::from_millis(5), MAIN);
    alone.overrun(NEW, Nanos::from_millis(5), MAIN);
    alone.seen.elevated_background = true;
    alone.seen.cores[0].running = Some(OWNER);
    alone.seen.cores[0].burst = Some((HELPER, Nanos::from_millis(9)));
    alone.seen.cores[0].rt_share = FULL;
    alone.decide();
    assert_eq!([HELPER, NEW].map(|it| alone.plan.role(it)), [Role::Fair, Role::Background]);
    bench.overrun(NEW, Nanos::from_millis(5), MAIN);
    assert_eq!(
        bench.plan.role(NEW),
        Role::Fair,
        "one that comes to the background later leaves, too"
    );
}

#[test]
fn server_does_not_leave_for_one_that_has_left_alone() {
    let mut bench = Bench::new();
    bench.overrun(HELPER, Nanos::from_millis(5), MAIN);
    bench.seen.elevated_background = true;
    bench.seen.cores[0].running = Some(OWNER);
    bench.seen.cores[0].burst = Some((HELPER, Nanos::from_millis(9)));
    bench.seen.cores[0].rt_share = FULL;
    bench.decide();
    assert_eq!(roles(&bench), [Role::Event, Role::Fair]);
    bench.run(Some(MAIN));
    bench.wait(Nanos::from_millis(10));
    assert_eq!(roles(&bench), [Role::Event, Role::Fair]);
    bench.wait(FAIR_TIME);
    assert_eq!(roles(&bench), [Role::Event, Role::Fair], "nor when it would be back");
}

#[test]
fn what_it_proves_and_its_boosts_go_on() {
    let mut bench = full_with_a_child();
    // The server may spin for a lock of its child.
    bench.overrun(MAIN, Nanos::from_micros(500), HELPER);
    assert_eq!(roles(&bench), [Role::Event, Role::Boosted]);
    bench.wait(LEND_TIME);
    assert_eq!(roles(&bench), [Role::Event, Role::Fair]);
    bench.proved(HELPER);
    assert_eq!(roles(&bench), [Role::Event; 2], "its first demotion ends with its burst");
}

#[test]
fn each_full_core_is_left() {
    let mut bench = full_with_a_child();
    bench.seen.cores.push(CoreView {
        running: Some(GUEST),
        burst: Some((GUEST_THREAD, Nanos::from_micros(20))),
        rt_share: FULL,
        ..CoreView::new(CoreId(1))
    });
    for task in &mut bench.seen.tasks {
        task.limits.allowed.insert(CoreId(1));
    }
    bench.wait(Nanos(RT_WINDOW.0 / 2));
    assert_eq!(bench.plan.role(GUEST_THREAD), Role::Event);
    bench.seen.cores[0].rt_share = ROOM;
    bench.wait(Nanos(RT_WINDOW.0 / 4 * 3));
    assert_eq!(roles(&bench), [Role::Event, Role::Fair], "still for the other core");
}

#[test]
fn core_that_it_may_not_use_is_none_of_its_business() {
    let mut bench = full_with_a_child();
    bench.seen.tasks[0].limits.allowed = CoreSet::of(CoreId(7));
    bench.decide();
    assert_eq!(bench.plan.role(HELPER), Role::Background);
}
