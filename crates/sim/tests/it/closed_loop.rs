//! Policies in a closed loop: what they decide changes what they see next. Time here is simulated, so
//! that its figures are exact and the same everywhere.

use crate::common::*;
use quell_model::*;
use quell_sim::{Change, Faults, Report, Scenario};

/// Two services of which one steps from 20 % of the host to 80 % and back, beside two batch tasks.
fn load_steps(shares: bool) -> Scenario {
    let host = host(4, 2, shares);
    let mut scenario = scenario(host.clone());
    scenario.length = Nanos(SECOND);
    let steps = [(0, 1_600), (400 * MS, 6_400), (700 * MS, 1_600)];
    scenario.tasks = vec![
        service(&host, 4, 8, &steps),
        service(&host, 4, 8, &[(0, 800)]),
        hog(&host, 8),
        hog(&host, 3),
    ];
    scenario
}

fn no_violations(report: &Report, label: &str) {
    let first: Vec<String> =
        report.violations.iter().take(3).map(|(at, what)| format!("{at}: {what}")).collect();
    assert!(first.is_empty(), "{label}: {first:?}");
    assert_eq!(report.broken, [], "{label}: the simulator's books");
}

/// Share of the time that LC left which BE ran.
fn leftover_used(scenario: &Scenario, report: &Report) -> f64 {
    let class = |place: usize| scenario.tasks[place].limits.class;
    let ran = |wanted: Class| -> u64 {
        let tasks = report.tasks.iter().enumerate();
        tasks.filter(|(place, _)| class(*place) == wanted).map(|(_, task)| task.ran.0).sum()
    };
    let all = scenario.length.0 * scenario.host.managed.len() as u64;
    ran(Class::BestEffort) as f64 / (all - ran(Class::LatencyCritical)) as f64
}

#[test]
fn invariants_hold_with_faulty_actions_on_a_changing_host() {
    for shares in [true, false] {
        for seed in 0..6 {
            let mut scenario = load_steps(shares);
            scenario.seed = seed;
            scenario.length = Nanos(250 * MS);
            scenario.costs = acting_within((1 + seed) * 20 * US);
            scenario.faults = Faults {
                refused: 30 * (seed % 3) as u16,
                lost: 40 * (seed % 2) as u16,
                ..Faults::default()
            };
            scenario.changes = vec![
                (Nanos(40 * MS), Change::Online(CoreId(1), false)),
                (Nanos(60 * MS), Change::Alive(3, false)),
                (Nanos(70 * MS), Change::Spin(0, true)),
                (Nanos(90 * MS), Change::Online(CoreId(1), true)),
                (Nanos(110 * MS), Change::Alive(3, true)),
                (Nanos(120 * MS), Change::Alive(1, false)),
                (Nanos(190 * MS), Change::Spin(0, false)),
                (Nanos(200 * MS), Change::Alive(1, true)),
            ];
            let report = under("quell", &scenario);
            no_violations(&report, &format!("shared cores {shares}, seed {seed}"));
            assert!(report.ticks > 100, "the loop ran");
        }
    }
}

#[test]
fn a_run_is_the_same_to_the_byte_each_time() {
    for policy in quell_policy::names_for(&load_steps(true).host) {
        let mut scenario = load_steps(true);
        scenario.length = Nanos(100 * MS);
        scenario.faults = Faults { refused: 50, lost: 50, ..scenario.faults };
        let first = under(policy, &scenario);
        assert_eq!(first, under(policy, &scenario));
        scenario.seed += 1;
        assert_ne!(first, under(policy, &scenario));
    }
}

#[test]
fn lc_keeps_its_tail_and_be_fills_what_it_leaves() {
    for shares in [true, false] {
        let host = host(4, 1, shares);
        let mut together = scenario(host.clone());
        together.length = Nanos(SECOND);
        together.tasks = vec![service(&host, 2, 4, &[(0, 1_000)]), hog(&host, 4), hog(&host, 1)];
        let mut alone = together.clone();
        alone.tasks.truncate(1);
        let (alone, report) = (under("quell", &alone), under("quell", &together));
        let (quiet, loud) = (alone.tasks[0].percentile(999), report.tasks[0].percentile(999));
        assert!(ratio(loud, quiet) < 1.3, "shared {shares}: p99.9 {loud} beside {quiet} alone");
        let used = leftover_used(&together, &report);
        assert!(used > 0.9, "shared {shares}: BE ran {used} of the leftover");
        no_violations(&report, "together");
    }
}

#[test]
fn load_steps_need_the_loop() {
    for shares in [true, false] {
        let scenario = load_steps(shares);
        let (quell, rival) = (under("quell", &scenario), under("static", &scenario));
        no_violations(&quell, "load steps");
        let (ours, theirs) = (quell.tasks[0].percentile(999), rival.tasks[0].percentile(999));
        assert!(ratio(theirs, ours) > 2.0, "shared {shares}: p99.9 {ours} against {theirs}");
        let neighbour = quell.tasks[1].percentile(999);
        let undisturbed = rival.tasks[1].percentile(999);
        assert!(ratio(neighbour, undisturbed) < 1.5, "the calm service: {neighbour}");
        assert!(leftover_used(&scenario, &quell) > 0.85);
    }
}

#[test]
fn no_lc_thread_waits_long_for_a_core_that_be_has() {
    for shares in [true, false] {
        let scenario = load_steps(shares);
        let report = under("quell", &scenario);
        // A few rounds of tick and action: at high load one thread's wait runs on into the next one's.
        let round = scenario.tick.0 + scenario.costs.preempt.0;
        let bound = Nanos(10 * US + 5 * round);
        assert!(report.longest_inversion <= bound, "{} > {bound}", report.longest_inversion);
    }
}

#[test]
fn a_runaway_service_does_not_take_its_neighbour_down() {
    let host = host(1, 1, true);
    let mut scenario = scenario(host.clone());
    scenario.length = Nanos(2 * SECOND);
    scenario.tasks =
        vec![service(&host, 1, 2, &[(0, 100)]), service(&host, 0, 2, &[(0, 200)]), hog(&host, 1)];
    scenario.changes =
        vec![(Nanos(500 * MS), Change::Spin(0, true)), (Nanos(1_500 * MS), Change::Spin(0, false))];
    let (quell, rival) = (under("quell", &scenario), under("static", &scenario));
    no_violations(&quell, "runaway");
    let (ours, theirs) = (quell.tasks[1].percentile(900), rival.tasks[1].percentile(900));
    assert!(ratio(theirs, ours) > 10.0, "the neighbour's p90 {ours} against {theirs}");
    let (ours, theirs) = (quell.tasks[2].ran, rival.tasks[2].ran);
    assert!(ratio(ours, theirs) > 1.2, "BE ran {ours} against {theirs}");
    // Once it sleeps again it is LC again: what it is asked at the end is answered.
    assert!(quell.tasks[0].unanswered <= 2, "{} unanswered", quell.tasks[0].unanswered);
}

#[test]
fn core_that_leaves_and_returns_is_used_again() {
    for shares in [true, false] {
        let host = host(3, 1, shares);
        let mut scenario = scenario(host.clone());
        scenario.length = Nanos(SECOND);
        scenario.tasks = vec![service(&host, 1, 2, &[(0, 500)]), hog(&host, 3)];
        let whole = under("quell", &scenario);
        scenario.changes = vec![
            (Nanos(300 * MS), Change::Online(CoreId(0), false)),
            (Nanos(600 * MS), Change::Online(CoreId(0), true)),
        ];
        let report = under("quell", &scenario);
        no_violations(&report, "hotplug");
        let (with, without) = (report.tasks[0].percentile(999), whole.tasks[0].percentile(999));
        assert!(ratio(with, without) < 1.5, "p99.9 {with} against {without}");
        let lost = whole.tasks[1].ran - report.tasks[1].ran;
        assert!(lost > Nanos(250 * MS) && lost < Nanos(350 * MS), "BE lost {lost} of 300 ms");
    }
}

#[test]
fn a_steady_load_moves_few_cores_on_shared_cores() {
    let host = host(4, 1, true);
    let mut scenario = scenario(host.clone());
    scenario.length = Nanos(2 * SECOND);
    scenario.tasks = vec![service(&host, 1, 4, &[(0, 1_500)]), hog(&host, 4)];
    let report = under("quell", &scenario);
    let changes = report.owner_changes + report.rung_changes;
    assert!(changes < 100, "{changes} changes of affinity or rung in 2 s");
}

#[test]
fn lane_shares_its_core_by_slices_and_yields_it_to_lc() {
    let host = host(2, 1, true);
    let mut scenario = scenario(host.clone());
    (scenario.length, scenario.warm_up) = (Nanos(400 * MS), Nanos::ZERO);
    scenario.tasks = vec![lane(&host, 3, Nanos(100 * US)), hog(&host, 2)];
    let alone = under("quell", &scenario);
    no_violations(&alone, "a lane beside batch work");
    // The lane has a core for itself, batch work the other one.
    let half = scenario.length.0;
    assert!(alone.tasks.iter().all(|task| task.ran.0 > half * 9 / 10), "{:?}", alone.tasks);

    // A service without a guarantee takes cores when it needs them, the lane's among them, and leaves them again.
    scenario.tasks = vec![
        lane(&host, 3, Nanos(100 * US)),
        service(&host, 0, 4, &[(0, 50), (100 * MS, 1_700), (200 * MS, 50)]),
    ];
    for faults in [Faults::default(), Faults { lost: 50, late: 50, ..Faults::default() }] {
        scenario.faults = faults;
        let beside = under("quell", &scenario);
        no_violations(&beside, "a lane beside a service");
        let (lane, lc) = (&beside.tasks[0], &beside.tasks[1]);
        assert!(lc.answered > lc.arrived * 9 / 10, "{lc:?}");
        // What it lost is what the service needed, and no more.
        assert!(lane.ran.0 > half / 2 && lane.ran.0 < half, "{lane:?}");
    }
}
