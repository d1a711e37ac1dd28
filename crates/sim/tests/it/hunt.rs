//! A bounded part of the randomised search; `quell sim fuzz --time 1h` is the long one.

#![allow(clippy::unwrap_used, reason = "a policy that is not there fails the test")]

use quell_sim::fuzz;

#[test]
fn random_scenarios_find_nothing_in_promising_policies() {
    let found: Vec<String> = (0..60)
        .flat_map(|seed| fuzz::PROMISE.map(|policy| (seed, policy)))
        .filter_map(|(seed, policy)| {
            let finding = fuzz::look(seed, policy).unwrap().into_iter().next()?;
            Some(format!("quell sim fuzz --policy {policy} --seed {seed}: {finding}"))
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_simulator_adds_up_whatever_a_policy_does() {
    for (seed, policy) in (0..10).flat_map(|seed| quell_policy::NAMES.map(|name| (seed, name))) {
        if !fuzz::PROMISE.contains(&policy) {
            assert_eq!(fuzz::look(seed, policy).unwrap(), [], "{policy}, seed {seed}");
        }
    }
}

#[test]
fn a_seed_always_means_the_same_scenario() {
    assert_eq!(fuzz::describe(7), fuzz::describe(7));
    assert_ne!(fuzz::describe(7), fuzz::describe(8));
}
