//! The guide's policy and advisor (`docs/reference/policies.md`) compile, run, and are what the guide shows.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

#[path = "../../../../examples/policy/by_demand.rs"]
mod by_demand;
#[path = "../../../../examples/policy/quiet_node.rs"]
mod quiet_node;

use crate::common::*;
use quell_model::*;
use quell_policy::Quell;
use quell_policy::invariants::Rule;
use quell_sim::{Scenario, run};

fn a_service_and_a_hog(nodes: u16) -> Scenario {
    let mut host = host(4, 1, false);
    host.topology = Topology::regular(nodes, 4 / nodes, 1).unwrap();
    let mut scenario = scenario(host.clone());
    scenario.length = Nanos(300 * MS);
    scenario.tasks = vec![service(&host, 1, 4, &[(0, 1_500)]), hog(&host, 4)];
    scenario
}

#[test]
fn the_policy_serves_both_and_its_plans_are_well_formed() {
    let scenario = a_service_and_a_hog(1);
    let report = run(&scenario, &mut by_demand::ByDemand::new(scenario.host.clone()));
    assert!(report.tasks[0].unanswered < 20, "{} unanswered", report.tasks[0].unanswered);
    assert!(report.tasks[1].ran > Nanos(300 * MS), "BE ran {}", report.tasks[1].ran);
    let shape = report.violations.iter().filter(|(_, found)| found.rule == Rule::Shape);
    assert_eq!(shape.count(), 0);
}

#[test]
fn with_the_advisor_no_invariant_is_broken() {
    let scenario = a_service_and_a_hog(2);
    let advisor = quiet_node::QuietNode::new(scenario.host.clone());
    let mut policy = Quell::with_advisors(scenario.host.clone(), vec![Box::new(advisor)]);
    let report = run(&scenario, &mut policy);
    assert_eq!(report.violations, []);
    let plain = run(&scenario, &mut Quell::with_advisors(scenario.host.clone(), Vec::new()));
    assert_ne!(report.digest, plain.digest, "it is heard");
}

#[test]
fn the_guide_shows_what_is_tested() {
    let guide = include_str!("../../../../docs/reference/policies.md");
    for file in [
        include_str!("../../../../examples/policy/by_demand.rs"),
        include_str!("../../../../examples/policy/quiet_node.rs"),
    ] {
        assert!(guide.contains(file), "docs/reference/policies.md differs from examples/policy");
    }
}
