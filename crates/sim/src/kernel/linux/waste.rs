//! Idle cores that could run what waits in other queues: what the paper's invariant forbids for long (section 4.1).

use quell_model::{CoreId, CoreSet, Topology};

use super::masks::Masks;
use super::{CoreQueue, Linux, Migration};

/// Idle cores and waiting threads at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WasteNow {
    /// Idle cores that could run what waits in other queues: at most as many as threads that wait.
    pub cores: u64,
    /// The threads, by how near the nearest such core is: a sibling of their core, another core of its node, one of another node.
    pub threads: [u64; 3],
}

/// What [`Linux::waste`] counts, kept from one time to the next: only cores of which the queue changed are counted again, and what
/// else changes is the set of idle cores.
#[derive(Clone, Debug)]
pub(super) struct WasteCounts {
    pub masks: Masks,
    /// By core: masks of the threads in its queue, real-time ones and fair ones, and how many have them.
    queued: Vec<[Vec<(u32, i32)>; 2]>,
    /// By core: masks of the threads that wait there, and how many have them.
    waiting: Vec<Vec<(u32, i32)>>,
    /// Cores of which the queue changed.
    changed: CoreSet,
    changed_list: Vec<usize>,
    /// Scratch.
    found: Vec<(u32, i32)>,
}

impl WasteCounts {
    pub fn new(cores: usize) -> WasteCounts {
        WasteCounts {
            masks: Masks::default(),
            queued: vec![Default::default(); cores],
            waiting: vec![Vec::new(); cores],
            changed: CoreSet::EMPTY,
            changed_list: Vec::with_capacity(cores),
            found: Vec::new(),
        }
    }

    /// The queue of a core, what it runs, or what one of its threads may use, changed.
    pub fn note(&mut self, core: usize) {
        if !self.changed.contains(Linux::id(core)) {
            self.changed.insert(Linux::id(core));
            self.changed_list.push(core);
        }
    }

    /// Threads with this mask come into the queue of a core, or leave it.
    pub fn add_queued(&mut self, core: usize, mask: u32, is_fair: bool, by: i32) {
        add(&mut self.queued[core][usize::from(is_fair)], mask, by);
        self.note(core);
    }

    /// All real-time threads in the queue of a core may use the same cores.
    pub fn are_alike(&self, core: usize) -> bool {
        self.queued[core][0].len() < 2
    }

    /// What waits on a core are the threads in `found` from now on.
    fn replace(&mut self, core: usize, near: &[Near]) {
        if self.waiting[core] == self.found {
            return;
        }
        std::mem::swap(&mut self.waiting[core], &mut self.found);
        for (mask, count) in self.found.drain(..) {
            self.masks.add_waiting(mask, core, -count, near);
        }
        for (mask, count) in &self.waiting[core] {
            self.masks.add_waiting(*mask, core, *count, near);
        }
    }
}

impl Linux {
    /// How many idle cores could run what waits in other queues, and the threads that wait.
    pub fn waste(&mut self) -> WasteNow {
        if self.idle.is_empty() {
            return WasteNow::default();
        }
        self.waste.masks.follow_idle(&self.idle, &self.near);
        while let Some(core) = self.waste.changed_list.pop() {
            self.waste.changed.remove(Linux::id(core));
            self.count_waiting(core);
            self.waste.replace(core, &self.near);
        }
        let waste = self.waste.masks.sum();
        debug_assert_eq!(waste, self.waste_anew(), "counts of idle cores and waiting threads");
        waste
    }

    /// Lists what waits on a core: what is in its queue, but for what runs.
    fn count_waiting(&mut self, core: usize) {
        let WasteCounts { found, queued, .. } = &mut self.waste;
        found.clear();
        if !self.crowded.contains(Linux::id(core)) {
            return;
        }
        for (mask, count) in queued[core].iter().flatten() {
            add(found, *mask, *count);
        }
        if let Some(running) = self.cores[core].running {
            add(found, self.threads[running].mask, -1);
        }
    }

    /// [`Linux::waste`] by a look at all queues.
    fn waste_anew(&self) -> WasteNow {
        let mut waste = WasteNow::default();
        let mut usable = CoreSet::EMPTY;
        for core in self.crowded.iter().map(CoreId::index) {
            for thread in waiting(&self.cores[core]) {
                let idle = self.threads[*thread].allowed.intersection(&self.idle);
                usable = usable.union(&idle);
                if !idle.is_empty() {
                    waste.threads[self.distance(core, &idle)] += 1;
                }
            }
        }
        let threads: u64 = waste.threads.iter().sum();
        waste.cores = threads.min(usable.len() as u64);
        waste
    }

    /// Cores that are online and have nothing in their queues.
    pub fn idle_cores(&self) -> u64 {
        self.idle.len() as u64
    }

    /// The siblings of a core, itself included.
    pub(super) fn siblings_of(&self, core: usize) -> &CoreSet {
        &self.near[core].siblings
    }

    /// The core and all of its siblings that are online idle (`is_core_idle`).
    pub(super) fn idles_whole(&self, core: CoreId) -> bool {
        self.siblings_of(core.index()).intersection(&self.online).is_subset(&self.idle)
    }

    /// The thread went to a core of another node.
    pub fn crosses_nodes(&self, migration: &Migration) -> bool {
        !self.near[migration.from].node.contains(Linux::id(migration.to))
    }

    /// How near the nearest of these cores is: 0 for a sibling, 1 within the node.
    fn distance(&self, core: usize, among: &CoreSet) -> usize {
        let Near { siblings, node, .. } = &self.near[core];
        if !siblings.is_disjoint(among) {
            0
        } else if !node.is_disjoint(among) {
            1
        } else {
            2
        }
    }
}

/// Cores near another one, itself included.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Near {
    siblings: CoreSet,
    node: CoreSet,
    /// The lowest of each.
    pub first_sibling: usize,
    pub first_of_node: usize,
}

impl Near {
    /// By core.
    pub fn of_all(topology: &Topology) -> Vec<Near> {
        let cores = topology.cores();
        let mut near = vec![Near::default(); cores.last().map_or(0, |core| core.id.index() + 1)];
        for core in cores {
            let node = cores.iter().filter(|other| other.node == core.node);
            let node: CoreSet = node.map(|other| other.id).collect();
            let siblings = topology.siblings(core.id).union(&CoreSet::of(core.id));
            let first = |cores: &CoreSet| cores.first().unwrap_or(core.id).index();
            let (first_sibling, first_of_node) = (first(&siblings), first(&node));
            near[core.id.index()] = Near { siblings, node, first_sibling, first_of_node };
        }
        near
    }
}

/// Adds to the count of a mask; those that are 0 are left out.
fn add(counts: &mut Vec<(u32, i32)>, mask: u32, by: i32) {
    match counts.iter().position(|(known, _)| *known == mask) {
        Some(at) => {
            counts[at].1 += by;
            if counts[at].1 == 0 {
                counts.swap_remove(at);
            }
        }
        None => counts.push((mask, by)),
    }
}

/// Threads of a queue that do not run.
fn waiting(queue: &CoreQueue) -> impl Iterator<Item = &usize> {
    let threads = queue.fair.iter().chain(&queue.realtime);
    threads.filter(|thread| queue.running != Some(**thread))
}
