//! On which core a channel's work is done.
//!
//! A channel's transmission, the softirq that it raises and its reception are best on one core: 53 against 26 Gbit/s per
//! core on the development machine. So a place is one core, for all three.

use quell_model::{CoreId, CoreSet, Topology};

use crate::ids::Class;

/// A channel that needs a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelPlace {
    /// What it carries.
    pub class: Class,
    /// A core on which the application runs, if known: its node is preferred.
    pub near: Option<CoreId>,
}

/// The third decision of the scheduler.
pub trait Placement: Send {
    /// A core of `allowed` for each channel, in the order of the list. `None` for all of them where `allowed` has no core of
    /// the topology.
    fn place(
        &self,
        topology: &Topology,
        allowed: &CoreSet,
        channels: &[ChannelPlace],
    ) -> Option<Vec<CoreId>>;
}

/// Channels of the two classes never share a physical core while there are two; channels of one class are spread over the
/// cores of the application's node, and over other nodes only when those are taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Apart;

/// All channels on as few cores as possible, from the application's own core on: the others stay free.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    /// Channels on a core.
    pub per_core: usize,
}

impl Default for Packed {
    fn default() -> Packed {
        Packed { per_core: 4 }
    }
}

impl Placement for Apart {
    fn place(
        &self,
        topology: &Topology,
        allowed: &CoreSet,
        channels: &[ChannelPlace],
    ) -> Option<Vec<CoreId>> {
        let cores = usable(topology, allowed)?;
        let mut taken: Vec<(u16, Class, CoreId)> = Vec::new();
        let physical = |core: CoreId| field(topology, core, |core| core.physical);
        let mut places = Vec::with_capacity(channels.len());
        for channel in channels {
            let cost = |core: &CoreId| {
                let on_core = taken.iter().filter(|(.., other)| other == core).count();
                let own = physical(*core);
                let beside = taken.iter().filter(|(other, ..)| *other == own);
                let foreign = beside.clone().any(|(_, class, _)| *class != channel.class);
                (foreign, on_core, beside.count(), far(topology, channel.near, *core), *core)
            };
            let core = *cores.iter().min_by_key(|core| cost(core))?;
            taken.push((physical(core), channel.class, core));
            places.push(core);
        }
        Some(places)
    }
}

impl Placement for Packed {
    fn place(
        &self,
        topology: &Topology,
        allowed: &CoreSet,
        channels: &[ChannelPlace],
    ) -> Option<Vec<CoreId>> {
        let cores = usable(topology, allowed)?;
        let mut taken: Vec<CoreId> = Vec::new();
        let mut places = Vec::with_capacity(channels.len());
        for channel in channels {
            let on = |core: &CoreId| taken.iter().filter(|other| *other == core).count();
            let cost = |core: &CoreId| {
                let own = channel.near == Some(*core);
                (on(core) / self.per_core.max(1), far(topology, channel.near, *core), !own, *core)
            };
            let core = *cores.iter().min_by_key(|core| cost(core))?;
            taken.push(core);
            places.push(core);
        }
        Some(places)
    }
}

fn usable(topology: &Topology, allowed: &CoreSet) -> Option<Vec<CoreId>> {
    let cores: Vec<CoreId> = topology
        .cores()
        .iter()
        .map(|core| core.id)
        .filter(|core| allowed.contains(*core))
        .collect();
    (!cores.is_empty()).then_some(cores)
}

fn field(topology: &Topology, core: CoreId, of: impl Fn(&quell_model::Core) -> u16) -> u16 {
    topology.position(core).map_or(u16::MAX, |position| of(&topology.cores()[position]))
}

/// How far a core is from another: same last-level cache, same node, another node.
fn far(topology: &Topology, near: Option<CoreId>, core: CoreId) -> u8 {
    let Some(near) = near else { return 0 };
    let same =
        |of: fn(&quell_model::Core) -> u16| field(topology, near, of) == field(topology, core, of);
    match (same(|core| core.node), same(|core| core.llc)) {
        (true, true) => 0,
        (true, false) => 1,
        (false, _) => 2,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quell_model::Core;

    use super::*;

    /// Cores of so many nodes, with so many physical cores each and so many threads in each.
    fn topology(nodes: u16, physical: u16, threads: u16) -> Topology {
        let mut cores = Vec::new();
        for node in 0..nodes {
            for core in 0..physical {
                for _ in 0..threads {
                    let id = CoreId(cores.len() as u16);
                    cores.push(Core { id, physical: node * physical + core, llc: node, node });
                }
            }
        }
        Topology::new(cores).expect("a topology")
    }

    fn channels(latency: usize, throughput: usize, near: Option<CoreId>) -> Vec<ChannelPlace> {
        let of = |class, count| std::iter::repeat_n(ChannelPlace { class, near }, count);
        of(Class::Latency, latency).chain(of(Class::Throughput, throughput)).collect()
    }

    proptest! {
        #[test]
        fn classes_stay_apart_and_load_is_even(
            nodes in 1u16..5,
            physical in 1u16..9,
            threads in 1u16..3,
            latency in 1usize..5,
            throughput in 1usize..9,
            near in 0u16..64,
        ) {
            let topology = topology(nodes, physical, threads);
            let near = CoreId(near % topology.len() as u16);
            let wanted = channels(latency, throughput, Some(near));
            let all = topology.all();
            let places = Apart.place(&topology, &all, &wanted).expect("cores");
            prop_assert_eq!(places.len(), wanted.len());
            let physical_of = |core: CoreId| field(&topology, core, |core| core.physical);
            let cores_of = |class| {
                let own = wanted.iter().zip(&places).filter(move |(it, _)| it.class == class);
                own.map(|(_, core)| physical_of(*core)).collect::<Vec<_>>()
            };
            let (first, second) = (cores_of(Class::Latency), cores_of(Class::Throughput));
            let count = usize::from(nodes * physical);
            if count > first.len() {
                prop_assert!(first.iter().all(|core| !second.contains(core)), "{first:?} {second:?}");
            }
            // While there are enough, each channel has a core of its own, near the application first.
            if count >= wanted.len() {
                let mut sorted: Vec<u16> = first.iter().chain(&second).copied().collect();
                sorted.sort_unstable();
                sorted.dedup();
                prop_assert_eq!(sorted.len(), wanted.len());
            }
            if usize::from(physical) >= wanted.len() {
                let node = |core: CoreId| field(&topology, core, |core| core.node);
                prop_assert!(places.iter().all(|core| node(*core) == node(near)));
            }
        }

        #[test]
        fn places_are_allowed_cores(
            allowed in proptest::collection::btree_set(0u16..32, 1..8),
            latency in 0usize..4,
            throughput in 0usize..9,
            per_core in 0usize..5,
        ) {
            let topology = topology(4, 8, 1);
            let mut set = CoreSet::EMPTY;
            allowed.iter().for_each(|core| set.insert(CoreId(*core)));
            let wanted = channels(latency, throughput, None);
            let packed = Packed { per_core };
            for policy in [&Apart as &dyn Placement, &packed] {
                let places = policy.place(&topology, &set, &wanted).expect("cores");
                prop_assert!(places.iter().all(|core| set.contains(*core)));
            }
            prop_assert_eq!(Apart.place(&topology, &CoreSet::EMPTY, &wanted), None);
        }
    }

    #[test]
    fn packed_channels_begin_on_the_applications_core() {
        let topology = topology(2, 4, 1);
        let wanted = channels(1, 4, Some(CoreId(5)));
        let places = Packed { per_core: 4 }.place(&topology, &topology.all(), &wanted);
        assert_eq!(places, Some([5, 5, 5, 5, 4].map(CoreId).to_vec()));
    }
}
