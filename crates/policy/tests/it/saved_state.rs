//! A policy that takes back what another saved decides as that one does, and a false state harms nobody.

use crate::common::{Dice, host, snapshots};
use proptest::prelude::*;
use quell_model::*;
use quell_policy::{Config, Policy, by_name, names_for};

fn saved(policy: &dyn Policy) -> Vec<u8> {
    let mut state = Vec::new();
    policy.save(&mut state);
    state
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_policy_decides_identically(
        rolls in proptest::collection::vec(any::<u16>(), 0..4000),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let seen = snapshots(&mut dice, &host);
        let (before, after) = seen.split_at(cut.index(seen.len() + 1));
        for name in names_for(&host) {
            let build = || by_name(name, host.clone(), Config::default()).unwrap();
            let (mut first, mut second) = (build(), build());
            let (mut plan, mut again) = (Plan::default(), Plan::default());
            for seen in before {
                first.decide(seen.now, seen, &mut plan);
            }
            let state = saved(first.as_ref());
            let mut rest = state.as_slice();
            second.restore(&mut rest).unwrap();
            prop_assert!(rest.is_empty());
            prop_assert_eq!(saved(second.as_ref()), state);
            for seen in after {
                let wake = first.decide(seen.now, seen, &mut plan);
                prop_assert_eq!(second.decide(seen.now, seen, &mut again), wake);
                prop_assert_eq!(&again, &plan);
                prop_assert_eq!(saved(second.as_ref()), saved(first.as_ref()));
            }
        }
    }

    #[test]
    fn a_false_state_is_refused_or_harmless(
        rolls in proptest::collection::vec(any::<u16>(), 0..2000),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let seen = snapshots(&mut dice, &host);
        for name in names_for(&host) {
            let mut policy = by_name(name, host.clone(), Config::default()).unwrap();
            let mut plan = Plan::default();
            for seen in &seen {
                policy.decide(seen.now, seen, &mut plan);
            }
            let mut state = saved(policy.as_ref());
            if state.is_empty() {
                continue;
            }
            for (at, byte) in &flips {
                let at = at.index(state.len());
                state[at] = *byte;
            }
            if policy.restore(&mut state.as_slice()).is_ok() {
                for seen in &seen {
                    policy.decide(seen.now, seen, &mut plan);
                }
            }
        }
    }
}
