//! Idle cores that could run what waits in other queues: what the paper's invariant forbids for long (section 4.1).

use quell_model::{CoreId, CoreSet, Topology};

use super::{CoreQueue, Linux, Migration};

/// Idle cores and waiting threads at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WasteNow {
    /// Idle cores that could run what waits in other queues: at most as many as threads that wait.
    pub cores: u64,
    /// The threads, by how near the nearest such core is: a sibling of their core, another core of its node, one of another node.
    pub threads: [u64; 3],
}

impl Linux {
    /// How many idle cores could run what waits in other queues, and the threads that wait.
    pub fn waste(&self) -> WasteNow {
        let mut waste = WasteNow::default();
        if self.idle.is_empty() {
            return waste;
        }
        let mut usable = CoreSet::EMPTY;
        // Most threads may use the same cores as the one before.
        let (mut allowed, mut idle) = (CoreSet::EMPTY, CoreSet::EMPTY);
        for core in self.crowded.iter().map(CoreId::index) {
            for thread in waiting(&self.cores[core]).map(|thread| &self.threads[*thread]) {
                if thread.allowed != allowed {
                    allowed = thread.allowed;
                    idle = allowed.intersection(&self.idle);
                    usable = usable.union(&idle);
                }
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
        let Near { siblings, node } = &self.near[core];
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
}

impl Near {
    /// By core.
    pub fn of_all(topology: &Topology) -> Vec<Near> {
        let cores = topology.cores();
        let mut near = vec![Near::default(); cores.last().map_or(0, |core| core.id.index() + 1)];
        for core in cores {
            let node = cores.iter().filter(|other| other.node == core.node);
            near[core.id.index()] = Near {
                siblings: topology.siblings(core.id).union(&CoreSet::of(core.id)),
                node: node.map(|other| other.id).collect(),
            };
        }
        near
    }
}

/// Threads of a queue that do not run.
fn waiting(queue: &CoreQueue) -> impl Iterator<Item = &usize> {
    let threads = queue.fair.iter().chain(&queue.realtime);
    threads.filter(|thread| queue.running != Some(**thread))
}
