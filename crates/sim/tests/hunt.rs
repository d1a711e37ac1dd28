//! A bounded part of the randomised search; `quell sim hunt --time 1h` is the long one.

#![allow(clippy::unwrap_used, reason = "a policy that is not there fails the test")]

use quell_sim::hunt;

#[test]
fn a_few_hundred_random_scenarios_find_nothing_in_the_default_policy() {
    let found: Vec<String> = (0..300)
        .filter_map(|seed| {
            let finding = hunt::look(seed, "quell").unwrap().into_iter().next()?;
            Some(format!("quell sim hunt --policy quell --seed {seed}: {finding}"))
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_seed_always_means_the_same_scenario() {
    assert_eq!(hunt::describe(7), hunt::describe(7));
    assert_ne!(hunt::describe(7), hunt::describe(8));
}
