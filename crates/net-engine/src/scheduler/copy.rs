//! Which thread copies between the application's buffers and the socket's: the fourth decision of the scheduler.

use quell_model::{CoreId, CoreSet, Topology};

/// One call of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyWork {
    /// Bytes to copy.
    pub bytes: u64,
    /// Where the application runs, if known.
    pub core: Option<CoreId>,
    /// Bytes of this socket that workers copy already.
    pub in_flight: u64,
}

/// A copy worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Where it runs.
    pub core: CoreId,
    /// Bytes that wait for it.
    pub queued: u64,
}

/// Divides a call between the calling thread and copy workers.
pub trait CopyPolicy: Send + Sync {
    /// The cores that are to have a worker, of those that may have one. By default none.
    fn workers(&self, topology: &Topology, allowed: &CoreSet) -> Vec<CoreId> {
        let _ = (topology, allowed);
        Vec::new()
    }

    /// Whether there can be workers at all.
    fn has_workers(&self) -> bool {
        false
    }

    /// Appends the parts in the order of their offsets: bytes, and the worker as an index into `workers`, or `None` for the
    /// calling thread. Together they have all bytes of the call.
    fn split(
        &self,
        topology: &Topology,
        work: &CopyWork,
        workers: &[WorkerLoad],
        parts: &mut Vec<(u64, Option<usize>)>,
    );
}

/// The calling thread copies all.
#[derive(Clone, Copy, Debug, Default)]
pub struct InlineCopy;

impl CopyPolicy for InlineCopy {
    fn split(
        &self,
        _topology: &Topology,
        work: &CopyWork,
        _workers: &[WorkerLoad],
        parts: &mut Vec<(u64, Option<usize>)>,
    ) {
        parts.push((work.bytes, None));
    }
}

/// The calling thread copies the first part of a call; further chunks go to workers on other cores of its node, as long as
/// they keep up. Constants as in the authors' code.
#[derive(Clone, Debug)]
pub struct PerCoreCopy {
    /// Bytes of a call that the calling thread copies first.
    pub inline_bytes: u64,
    /// Bytes of a part.
    pub chunk_bytes: u64,
    /// Bytes of one socket that workers copy at a time.
    pub in_flight_max: u64,
    /// Bytes that wait for a worker at most.
    pub queue_max: u64,
    /// Where workers may run.
    pub cores: CoreSet,
}

impl PerCoreCopy {
    /// With workers on these cores.
    pub fn new(cores: CoreSet) -> PerCoreCopy {
        PerCoreCopy {
            inline_bytes: 64 << 10,
            chunk_bytes: 64 << 10,
            in_flight_max: 768 << 10,
            queue_max: 640 << 10,
            cores,
        }
    }

    /// Whether a worker may copy for a thread on that core: on its node, but not in its place.
    fn may_serve(&self, topology: &Topology, worker: CoreId, caller: Option<CoreId>) -> bool {
        let node = |core: CoreId| topology.position(core).map(|at| topology.cores()[at].node);
        let near = caller.is_none_or(|caller| caller != worker && node(caller) == node(worker));
        self.cores.contains(worker) && near
    }
}

impl CopyPolicy for PerCoreCopy {
    fn workers(&self, topology: &Topology, allowed: &CoreSet) -> Vec<CoreId> {
        let may = |core: &CoreId| self.cores.contains(*core) && allowed.contains(*core);
        topology.cores().iter().map(|core| core.id).filter(may).collect()
    }

    fn has_workers(&self) -> bool {
        true
    }

    fn split(
        &self,
        topology: &Topology,
        work: &CopyWork,
        workers: &[WorkerLoad],
        parts: &mut Vec<(u64, Option<usize>)>,
    ) {
        let first = work.bytes.min(self.inline_bytes);
        let mut queued: Vec<u64> = workers.iter().map(|worker| worker.queued).collect();
        let (mut left, mut in_flight) = (work.bytes - first, work.in_flight);
        let mut push = |bytes: u64, worker: Option<usize>| match parts.last_mut() {
            // Neighbouring parts of the calling thread are one.
            Some((known, None)) if worker.is_none() => *known += bytes,
            _ => parts.push((bytes, worker)),
        };
        if first > 0 {
            push(first, None);
        }
        while left > 0 {
            let bytes = left.min(self.chunk_bytes.max(1));
            let fits = |index: &usize| queued[*index] + bytes <= self.queue_max;
            let serves = |index: &usize| self.may_serve(topology, workers[*index].core, work.core);
            let worker = (0..workers.len())
                .filter(|index| in_flight + bytes <= self.in_flight_max && serves(index))
                .filter(fits)
                .min_by_key(|index| queued[*index]);
            if let Some(worker) = worker {
                queued[worker] += bytes;
                in_flight += bytes;
            }
            push(bytes, worker);
            left -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(
        policy: &dyn CopyPolicy,
        topology: &Topology,
        work: &CopyWork,
        workers: &[WorkerLoad],
    ) -> Vec<(u64, Option<usize>)> {
        let mut parts = Vec::new();
        policy.split(topology, work, workers, &mut parts);
        parts
    }

    fn four_nodes() -> Topology {
        let core =
            |id: u16| quell_model::Core { id: CoreId(id), physical: id, llc: id / 8, node: id / 8 };
        Topology::new((0..32).map(core).collect()).expect("a topology")
    }

    proptest! {
        #[test]
        fn parts_cover_the_call_and_workers_are_near_and_not_overloaded(
            bytes in 0u64..8 << 20,
            caller in 0u16..32,
            in_flight in 0u64..1 << 20,
            queued in proptest::collection::vec(0u64..1 << 20, 0..32),
        ) {
            let topology = four_nodes();
            let workers: Vec<WorkerLoad> = queued
                .into_iter()
                .enumerate()
                .map(|(core, queued)| WorkerLoad { core: CoreId(core as u16), queued })
                .collect();
            let policy = PerCoreCopy::new(topology.all());
            let work = CopyWork { bytes, core: Some(CoreId(caller)), in_flight };
            let parts = split(&policy, &topology, &work, &workers);
            prop_assert_eq!(parts.iter().map(|(bytes, _)| bytes).sum::<u64>(), bytes);
            prop_assert!(parts.first().is_none_or(|(_, worker)| worker.is_none()));
            for (index, worker) in workers.iter().enumerate() {
                let own = parts.iter().filter(|(_, by)| *by == Some(index));
                let given: u64 = own.map(|(bytes, _)| bytes).sum();
                if given > 0 {
                    prop_assert!(worker.core.0 / 8 == caller / 8 && worker.core.0 != caller);
                    prop_assert!(worker.queued + given <= policy.queue_max);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn workers_are_on_cores_that_both_the_policy_and_the_endpoint_allow(
            wanted in proptest::collection::btree_set(0u16..40, 0..9),
            allowed in proptest::collection::btree_set(0u16..40, 0..9),
        ) {
            let (topology, set) = (four_nodes(), |cores: &std::collections::BTreeSet<u16>| {
                cores.iter().map(|core| CoreId(*core)).collect::<CoreSet>()
            });
            let workers = PerCoreCopy::new(set(&wanted)).workers(&topology, &set(&allowed));
            let both = wanted.intersection(&allowed).filter(|core| **core < 32);
            let both: Vec<CoreId> = both.map(|core| CoreId(*core)).collect();
            prop_assert_eq!(workers, both);
            prop_assert!(InlineCopy.workers(&topology, &set(&allowed)).is_empty());
        }
    }

    #[test]
    fn small_calls_and_hosts_without_workers_copy_inline() {
        let topology = four_nodes();
        let policy = PerCoreCopy::new(topology.all());
        let worker = WorkerLoad { core: CoreId(1), queued: 0 };
        let work = CopyWork { bytes: 4_096, core: Some(CoreId(0)), in_flight: 0 };
        assert_eq!(split(&policy, &topology, &work, &[worker]), [(4_096, None)]);
        let large = CopyWork { bytes: 1 << 20, ..work };
        assert_eq!(split(&policy, &topology, &large, &[]), [(1 << 20, None)]);
        assert_eq!(split(&InlineCopy, &topology, &large, &[worker]), [(1 << 20, None)]);
        let parts = split(&policy, &topology, &large, &[worker]);
        assert!(parts.iter().any(|(_, by)| *by == Some(0)), "{parts:?}");
    }
}
