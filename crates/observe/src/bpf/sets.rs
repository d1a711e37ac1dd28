//! Sets of managed cores that LC tasks may use: where a waiting LC thread is counted.
//!
//! Set 0 is all managed cores. A task that may use only some of them has another one, shared with those
//! that may use the same. There are few sets, since each change of a core is counted in all sets that it
//! belongs to; a task for which none is left is counted in set 0.

use std::sync::atomic::Ordering;

use quell_model::{CoreId, CoreSet, TaskId};

use super::abi::SETS;
use super::programs::Programs;

pub(super) struct Sets {
    managed: CoreSet,
    /// What the tasks of a set may use, managed or not; `None`: the set is free.
    allowed: [Option<CoreSet>; SETS],
    /// By task place: the generation last told of, and its set.
    of_task: Vec<(u32, u8)>,
    /// Tasks counted in set 0 although they may use less.
    pub coarse: u64,
}

impl Sets {
    pub fn new(tasks: usize) -> Sets {
        let mut allowed = [None; SETS];
        allowed[0] = Some(everything());
        Sets { managed: CoreSet::EMPTY, allowed, of_task: vec![(u32::MAX, 0); tasks], coarse: 0 }
    }

    /// Changes which cores are managed. Each core that this concerns applies it at once.
    pub fn manage(&mut self, cores: &CoreSet, programs: &Programs) {
        let concerned = self.managed.union(cores);
        self.managed = *cores;
        self.write(programs);
        concerned.iter().for_each(|core| programs.settle(core));
    }

    /// Tells which cores a task may use. Cheap if nothing changed.
    pub fn allow(&mut self, task: TaskId, cores: &CoreSet, programs: &Programs) {
        let Some(&(generation, set)) = self.of_task.get(task.at()) else { return };
        let cores = if cores.is_empty() { everything() } else { *cores };
        if generation == task.generation && self.allowed[set as usize] == Some(cores) {
            return;
        }
        self.of_task[task.at()] = (task.generation, 0);
        let set = self.find_or_make(&cores, programs);
        self.of_task[task.at()].1 = set;
        // Read by the programs when a thread of the task begins to wait; nothing else depends on it.
        programs.tasks[task.at()].set.store(set.into(), Ordering::Relaxed);
    }

    fn find_or_make(&mut self, cores: &CoreSet, programs: &Programs) -> u8 {
        let same = |set: &Option<CoreSet>| {
            set.is_some_and(|set| {
                set == *cores
                    || set.intersection(&self.managed) == cores.intersection(&self.managed)
            })
        };
        if let Some(at) = self.allowed.iter().position(same) {
            return at as u8;
        }
        let in_use = |at: usize| at == 0 || self.of_task.iter().any(|&(_, set)| set as usize == at);
        let Some(free) = (1..SETS).find(|&at| !in_use(at)) else {
            self.coarse += 1;
            return 0;
        };
        self.allowed[free] = Some(*cores);
        self.write(programs);
        self.managed.iter().for_each(|core| programs.settle(core));
        free as u8
    }

    fn write(&self, programs: &Programs) {
        for (set, allowed) in self.allowed.iter().enumerate() {
            let cores = allowed.map_or(0, |allowed| allowed.intersection(&self.managed).len());
            programs.sets[set].cores.store(cores as u32, Ordering::Relaxed);
        }
        for (core, order) in programs.orders.iter().enumerate() {
            let core = CoreId(core as u16);
            let has = |set: usize| {
                self.managed.contains(core)
                    && self.allowed[set].is_some_and(|allowed| allowed.contains(core))
            };
            let bits = (0..SETS).filter(|&set| has(set)).fold(0, |bits, set| bits | 1 << set);
            order.sets.store(bits, Ordering::Relaxed);
        }
    }
}

fn everything() -> CoreSet {
    CoreSet::from_words(&[u64::MAX; quell_model::CORES_MAX / 64])
}
