//! Time of cores that was wasted: idle while a thread that could have used them waited.
//!
//! The three figures of SchedViz ("idle while overloaded"), but for affinity, which that leaves out: a core counts
//! as idle only for threads that may use it.

use std::collections::{HashMap, HashSet};

use quell_model::{CoreSet, Nanos, What};
use serde::Serialize;

use crate::old_host::Host;

/// What was wasted, in the time of which the trace tells everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Wasted {
    /// Nanoseconds in which at least one core idled while a thread that may use it waited behind another.
    pub wall_ns: u64,
    /// The same, each time with as many cores as could each have relieved another: core-nanoseconds.
    pub core_ns: u64,
    /// The same, each time with as many cores as waiting threads could have used: core-nanoseconds.
    pub thread_ns: u64,
}

impl Wasted {
    /// Adds what these rates make of a time. A damaged trace may tell of any time.
    pub fn add(&mut self, rate: &Wasted, time: Nanos) {
        let add = |sum: &mut u64, rate: u64| *sum = sum.saturating_add(rate.saturating_mul(time.0));
        add(&mut self.wall_ns, rate.wall_ns);
        add(&mut self.core_ns, rate.core_ns);
        add(&mut self.thread_ns, rate.thread_ns);
    }
}

/// Where threads may run.
#[derive(Debug, Default)]
pub struct Affinity {
    allowed: HashMap<i32, CoreSet>,
    /// Threads that may not leave their core.
    bound: HashSet<i32>,
}

impl Affinity {
    /// Takes an event.
    pub fn event(&mut self, what: &What) {
        match what {
            What::Allowed { thread, cores } => drop(self.allowed.insert(*thread, *cores)),
            What::Exit { thread } => {
                self.allowed.remove(thread);
                self.bound.remove(thread);
            }
            What::Keyframe(keyframe) => {
                for state in &keyframe.threads {
                    let thread = state.thread.thread;
                    self.allowed.insert(thread, state.allowed);
                    match state.bound {
                        true => drop(self.bound.insert(thread)),
                        false => drop(self.bound.remove(&thread)),
                    }
                }
            }
            _ => {}
        }
    }

    fn of(&self, thread: i32, all: &CoreSet) -> CoreSet {
        match self.bound.contains(&thread) {
            true => CoreSet::EMPTY,
            false => self.allowed.get(&thread).copied().unwrap_or(*all),
        }
    }
}

/// What is being wasted now, for each nanosecond.
pub fn now(host: &Host, affinity: &Affinity) -> Wasted {
    let idle: CoreSet = positions(host, |core| core.is_idle());
    let crowded = positions(host, |core| core.runnable() > 1);
    if idle.is_empty() || crowded.is_empty() {
        return Wasted::default();
    }
    // Of the threads that wait for a core that nobody has yet, one is about to run there.
    let mut about_to_run = positions(host, |core| core.running == 0);
    let (mut threads, mut cores) = (Vec::new(), HashMap::new());
    for place in host.threads().filter(|place| !place.runs) {
        let core = host.id(place.at);
        if about_to_run.contains(core) {
            about_to_run.remove(core);
            continue;
        }
        let usable = affinity.of(place.thread.thread, &idle).intersection(&idle);
        if !usable.is_empty() {
            let of_core: &mut CoreSet = cores.entry(core).or_default();
            *of_core = of_core.union(&usable);
            threads.push(usable);
        }
    }
    let cores: Vec<CoreSet> = cores.into_values().collect();
    Wasted {
        wall_ns: u64::from(!threads.is_empty()),
        core_ns: pairs(&idle, &cores) as u64,
        thread_ns: pairs(&idle, &threads) as u64,
    }
}

/// The same by the sizes of queues alone, where the trace does not say who waits.
pub fn by_sizes(sizes: &[u32]) -> Wasted {
    let idle = sizes.iter().filter(|size| **size == 0).count() as u64;
    let crowded = sizes.iter().filter(|size| **size > 1).count() as u64;
    let waiting: u64 = sizes.iter().map(|size| u64::from(size.saturating_sub(1))).sum();
    Wasted {
        wall_ns: u64::from(idle > 0 && crowded > 0),
        core_ns: idle.min(crowded),
        thread_ns: idle.min(waiting),
    }
}

fn positions(host: &Host, is: impl Fn(&crate::old_host::HostCore) -> bool) -> CoreSet {
    let cores = host.cores().iter().enumerate().filter(|(_, core)| is(core));
    cores.map(|(at, _)| host.id(at)).collect()
}

/// How many of those who want a core can have one at the same time: a maximum matching of `wants` (subsets of
/// `idle`) with the cores.
fn pairs(idle: &CoreSet, wants: &[CoreSet]) -> usize {
    let (free, choosy): (Vec<&CoreSet>, Vec<&CoreSet>) =
        wants.iter().partition(|want| *want == idle);
    let mut taken: HashMap<u16, usize> = HashMap::new();
    let mut matched = 0;
    for who in 0..choosy.len() {
        if matched + free.len() >= idle.len() {
            break;
        }
        matched += usize::from(find(who, &choosy, &mut taken, &mut CoreSet::default()));
    }
    // Who takes any core takes one that is left over.
    idle.len().min(matched + free.len())
}

/// Gives a core to `who`, from somebody who can have another if need be (an augmenting path).
fn find(
    who: usize,
    wants: &[&CoreSet],
    taken: &mut HashMap<u16, usize>,
    tried: &mut CoreSet,
) -> bool {
    for core in wants[who].difference(tried).iter() {
        if tried.contains(core) {
            continue;
        }
        tried.insert(core);
        let holder = taken.get(&core.0).copied();
        if holder.is_none_or(|holder| find(holder, wants, taken, tried)) {
            taken.insert(core.0, who);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Tries every assignment.
    fn best(idle: &[u16], wants: &[CoreSet]) -> usize {
        let Some((first, rest)) = wants.split_first() else { return 0 };
        let with = idle.iter().filter(|core| first.contains(quell_model::CoreId(**core)));
        let with = with.map(|core| {
            let left: Vec<u16> = idle.iter().copied().filter(|other| other != core).collect();
            1 + best(&left, rest)
        });
        with.chain([best(idle, rest)]).max().unwrap()
    }

    proptest! {
        #[test]
        fn as_many_pairs_as_there_can_be(
            idle in proptest::collection::btree_set(0..6u16, 1..5),
            wants in vec(0..64u64, 0..6),
        ) {
            let set: CoreSet = idle.iter().map(|core| quell_model::CoreId(*core)).collect();
            let wants: Vec<CoreSet> = wants
                .into_iter()
                .map(|mask| CoreSet::from_words(&[mask]).intersection(&set))
                .filter(|want| !want.is_empty())
                .collect();
            let idle: Vec<u16> = idle.into_iter().collect();
            prop_assert_eq!(pairs(&set, &wants), best(&idle, &wants));
        }
    }

    #[test]
    fn sizes_alone_give_the_figures_without_affinity() {
        let wasted = by_sizes(&[0, 0, 3, 1, 2]);
        assert_eq!((wasted.wall_ns, wasted.core_ns, wasted.thread_ns), (1, 2, 2));
        assert_eq!(by_sizes(&[1, 2]), Wasted::default());
    }
}
