//! A maximum matching of idle cores with waiting threads, in layers, and always the same one.
//!
//! Cores are taken in ascending order, and one that was matched stays matched while later ones are added (an
//! augmenting path moves threads between cores only). So the matched cores of each layer are the lowest in the
//! lexicographic order among all maximum matchings that contain the layers before: the sets of cores that can be
//! matched are the independent sets of a transversal matroid, and this is its greedy algorithm.

use quell_model::{CoreId, CoreSet};

/// So many threads may use each of these cores.
#[derive(Clone, Copy, Debug)]
struct Demand {
    cores: CoreSet,
    threads: usize,
}

/// Stands for the demand of a core that has none.
const FREE: u32 = u32::MAX;

/// Matches in memory that it keeps.
#[derive(Clone, Debug, Default)]
pub(super) struct Matcher {
    demands: Vec<Demand>,
    /// The demand of each matched core, by number.
    demand_of: Vec<u32>,
    /// Cores that each demand has.
    used: Vec<usize>,
    matched: CoreSet,
    visited: Vec<bool>,
}

impl Matcher {
    /// Begins a new matching.
    pub fn clear(&mut self) {
        self.demands.clear();
        self.used.clear();
        for core in self.matched.iter() {
            self.demand_of[core.index()] = FREE;
        }
        self.matched = CoreSet::EMPTY;
    }

    /// The cores that are matched.
    pub fn matched(&self) -> &CoreSet {
        &self.matched
    }

    /// Threads that may use some of these cores; returns their demand.
    pub fn add(&mut self, cores: CoreSet, threads: usize) -> usize {
        self.demands.push(Demand { cores, threads });
        self.used.push(0);
        self.demands.len() - 1
    }

    /// A demand may use more cores than before, by more threads.
    pub fn extend(&mut self, demand: usize, cores: &CoreSet, threads: usize) {
        let demand = &mut self.demands[demand];
        debug_assert!(demand.cores.is_subset(cores), "a demand may lose no core");
        demand.cores = *cores;
        demand.threads += threads;
    }

    /// Matches as many of the idle cores as can be matched, besides those that are.
    pub fn run(&mut self, idle: &CoreSet) {
        let mut left = self.demands.iter().map(|demand| demand.threads).sum::<usize>();
        left = left.saturating_sub(self.matched.len());
        if let Some(last) = idle.iter().last() {
            let cores = self.demand_of.len().max(last.index() + 1);
            self.demand_of.resize(cores, FREE);
        }
        for core in idle.difference(&self.matched).iter() {
            if left == 0 {
                break;
            }
            self.visited.clear();
            self.visited.resize(self.demands.len(), false);
            if self.place(core) {
                self.matched.insert(core);
                left -= 1;
            }
        }
        let used: usize = self.used.iter().sum();
        debug_assert_eq!(used, self.matched.len(), "matched cores, and those that demands have");
    }

    /// Gives a core to a demand, which may give one of its own to another in turn.
    fn place(&mut self, core: CoreId) -> bool {
        for index in 0..self.demands.len() {
            if self.visited[index] || !self.demands[index].cores.contains(core) {
                continue;
            }
            self.visited[index] = true;
            if self.used[index] < self.demands[index].threads {
                self.used[index] += 1;
                self.demand_of[core.index()] = index as u32;
                return true;
            }
            // Full: one of its cores has to go elsewhere.
            let may_be_held = self.matched.intersection(&self.demands[index].cores);
            for other in may_be_held.iter() {
                if self.demand_of[other.index()] == index as u32 && self.place(other) {
                    self.demand_of[core.index()] = index as u32;
                    return true;
                }
            }
        }
        false
    }
}
