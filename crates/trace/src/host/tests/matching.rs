//! Matchings against every assignment.

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::super::matching::Matcher;
use super::*;

/// Whether each of these cores can be given to a thread of its own.
pub(super) fn is_matchable(cores: &[u16], threads: &mut Vec<CoreSet>) -> bool {
    let Some((first, rest)) = cores.split_first() else { return true };
    (0..threads.len()).any(|at| {
        if !threads[at].contains(CoreId(*first)) {
            return false;
        }
        let thread = threads.swap_remove(at);
        let found = is_matchable(rest, threads);
        threads.push(thread);
        let last = threads.len() - 1;
        threads.swap(at, last);
        found
    })
}

/// The largest set of idle cores that contains `kept` and can be matched with threads; of those the lowest.
pub(super) fn lowest(idle: &CoreSet, threads: &[CoreSet], kept: &CoreSet) -> CoreSet {
    let idle: Vec<u16> = idle.iter().map(|core| core.0).collect();
    let sets = (0u32..1 << idle.len()).map(|mask| {
        let member = |at: &usize| mask >> at & 1 == 1;
        (0..idle.len()).filter(member).map(|at| idle[at]).collect::<Vec<u16>>()
    });
    let contains_kept = |set: &Vec<u16>| kept.iter().all(|core| set.contains(&core.0));
    let sets = sets.filter(contains_kept).filter(|set| is_matchable(set, &mut threads.to_vec()));
    let best = sets.max_by_key(|set| (set.len(), std::cmp::Reverse(set.clone())));
    best.unwrap_or_default().into_iter().map(CoreId).collect()
}

fn set(mask: u64) -> CoreSet {
    CoreSet::from_words(&[mask])
}

proptest! {
    #[test]
    fn matching_is_the_largest_and_lowest_in_each_layer(
        idle in btree_set(0..6u16, 0..6),
        demands in vec((0..64u64, 0..64u64, 1..3usize), 0..4),
    ) {
        let idle: CoreSet = idle.into_iter().map(CoreId).collect();
        let mut matcher = Matcher::default();
        for _ in 0..2 {
            // The second round finds memory that was used.
            matcher.clear();
            let mut threads = [Vec::new(), Vec::new()];
            for (first, more, count) in &demands {
                let first = set(*first).intersection(&idle);
                let all = first.union(&set(*more).intersection(&idle));
                matcher.add(first, *count);
                for _ in 0..*count {
                    threads[0].push(first);
                    threads[1].push(all);
                }
            }
            matcher.run(&idle);
            let kept = *matcher.matched();
            prop_assert_eq!(kept, lowest(&idle, &threads[0], &CoreSet::EMPTY));
            let mut next = 0;
            for (demand, (_, _, count)) in demands.iter().enumerate() {
                matcher.extend(demand, &threads[1][next], 0);
                next += count;
            }
            matcher.run(&idle);
            prop_assert_eq!(*matcher.matched(), lowest(&idle, &threads[1], &kept));
        }
    }
}
