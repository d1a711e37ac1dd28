//! The shared part of the machine in motion: memory, caches and clock rate.
//!
//! A *cell* is what one task does in one last-level-cache domain. Its threads share a stretch (but for what siblings add),
//! so that a change of the node's memory costs as many steps as there are cells, not threads.
//!
//! Memory: the node's latency factor `x` is where supply meets demand. More latency slows threads down and so lowers their
//! traffic; the smallest `x` that covers the latency which this traffic causes is found by bisection. Past
//! [`Memory::WORST`] single accesses get no slower, and streams alone are held back until the traffic fits.
//!
//! Caches: what a task reads fills the cache and evicts others in proportion to what they hold (random replacement).

use std::ops::Range;

use quell_model::{Nanos, Topology};

use super::{Machine, Memory, ONE, Profile};

/// Above this utilisation the latency is [`Memory::WORST`] times that of an idle memory.
const FULL: u64 = 975;
/// Streams are held back to at most 1/64.
const SLOWEST: u64 = 64 * ONE;
/// A change of a stretch or of misses below one 64th is not worth new timers.
const GRAIN: u64 = 64;
/// How often caches and clock rates are looked at.
pub(crate) const CACHE_STEP: Nanos = Nanos::from_micros(100);
/// A clock rate follows the number of active cores within some milliseconds.
const TURBO_STEPS: u32 = 20;

/// What one task does in one last-level-cache domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// Sum over its running threads of how fast their siblings let them be, in 1/1,024ths of a thread.
    threads: u64,
    /// The stretch of its threads but for their siblings.
    base: u64,
    /// How many times as many misses as with all its working set cached.
    misses: u64,
    /// Bytes of the cache that it holds.
    occupied: u64,
    /// Its traffic, in MB/s.
    traffic: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub node: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    domains: Range<usize>,
    /// Latency factor, and how much longer streams wait.
    factor: u64,
    /// Clock rate in thousandths of nominal.
    clock: u64,
    /// Physical cores at work.
    active: u16,
    /// Steps since the clock rate was looked at.
    steps: u32,
    booked: Nanos,
    /// Traffic so far, in MB/s times nanoseconds: thousandths of a byte.
    moved: u64,
}

pub(crate) struct Hardware {
    machine: Machine,
    tasks: usize,
    pub nodes: Vec<Node>,
    pub domains: Vec<Domain>,
    cells: Vec<Cell>,
    profiles: Vec<Profile>,
    /// By task, the share of each cache that is its own: ways, of so many.
    ways: Vec<Option<(u16, u16)>>,
}

impl Hardware {
    pub fn new(machine: Machine, topology: &Topology, profiles: Vec<Profile>) -> Hardware {
        let (domains, nodes) = shape(topology);
        let tasks = profiles.len();
        let mut hardware = Hardware {
            tasks,
            cells: Vec::with_capacity(domains.len() * tasks),
            ways: vec![None; tasks],
            nodes,
            domains,
            machine,
            profiles,
        };
        let wanted: u64 = hardware.profiles.iter().map(|profile| profile.working_set.0).sum();
        let size = hardware.machine.cache.map_or(u64::MAX, |size| size.0);
        for _ in 0..hardware.domains.len() {
            for profile in &hardware.profiles {
                let wants = profile.working_set.0;
                let has = if wanted > size { mul_div(wants, size, wanted) } else { wants };
                hardware.cells.push(Cell {
                    threads: 0,
                    base: ONE,
                    misses: profile.misses(has),
                    occupied: has,
                    traffic: 0,
                });
            }
        }
        for node in 0..hardware.nodes.len() {
            hardware.settle(node, Nanos::ZERO, &mut Vec::new());
        }
        hardware
    }

    /// Whether memory can hold anybody up.
    pub fn contends(&self) -> bool {
        self.machine.memory.is_some()
    }

    /// Whether caches or clock rates change.
    pub fn drifts(&self) -> bool {
        self.machine.cache.is_some() || !self.machine.turbo.is_empty()
    }

    pub fn has_smt(&self) -> bool {
        self.machine.smt
    }

    pub fn profile(&self, task: usize) -> &Profile {
        &self.profiles[task]
    }

    /// The stretch of the task's threads in the domain, but for their siblings.
    pub fn base(&self, domain: usize, task: usize) -> u64 {
        self.cells[domain * self.tasks + task].base
    }

    /// A thread with this speed beside its sibling starts (or, negative, stops) to use the memory. Returns whether
    /// the node is to be settled.
    pub fn add(&mut self, domain: usize, task: usize, threads: i64) -> bool {
        let cell = &mut self.cells[domain * self.tasks + task];
        let sum = cell.threads.checked_add_signed(threads);
        debug_assert!(sum.is_some(), "{threads} of {} threads of task {task} stop", cell.threads);
        cell.threads = sum.unwrap_or_default();
        self.contends() && self.profiles[task].traffic_mb > 0
    }

    /// A physical core of the node starts or stops to work.
    pub fn count_active(&mut self, node: usize, starts: bool) {
        let active = &mut self.nodes[node].active;
        debug_assert!(starts || *active > 0, "more cores of node {node} stop than worked");
        *active = if starts { *active + 1 } else { active.saturating_sub(1) };
    }

    /// The task uses the machine in another way from now on.
    pub fn set_profile(&mut self, task: usize, profile: Profile) {
        self.profiles[task] = profile;
        for cell in self.cells.iter_mut().skip(task).step_by(self.tasks) {
            cell.misses = profile.misses(cell.occupied);
        }
    }

    /// Brings a node's latencies in line with what its cores do; adds (domain, task) where the stretch moved.
    pub fn settle(&mut self, node: usize, now: Nanos, moved: &mut Vec<(usize, usize)>) {
        self.book(node, now);
        if let Some(memory) = self.machine.memory {
            let capacity = memory.capacity.0 / 1_000_000;
            self.nodes[node].factor = self.meet(node, capacity);
        }
        let Node { ref domains, factor, clock, .. } = self.nodes[node];
        for domain in domains.clone() {
            for task in 0..self.tasks {
                let profile = &self.profiles[task];
                let cell = &mut self.cells[domain * self.tasks + task];
                let base = base(profile, factor, clock, cell.misses);
                let alone = base == ONE && cell.base != ONE;
                if base.abs_diff(cell.base) * GRAIN >= cell.base || alone {
                    cell.base = base;
                    moved.push((domain, task));
                }
                let busy = u64::from(profile.traffic_mb) * cell.threads / ONE;
                cell.traffic = busy * cell.misses / cell.base;
            }
        }
    }

    /// Where the latency covers what the traffic at this latency causes.
    fn meet(&self, node: usize, capacity: u64) -> u64 {
        let too_low = |factor: u64| {
            let used = self.demand(node, factor) * ONE / capacity.max(1);
            match factor < Memory::WORST * ONE {
                true => latency(used) > factor,
                false => used > FULL,
            }
        };
        if !too_low(ONE) {
            return ONE;
        }
        let last = self.nodes[node].factor;
        let grain = last / GRAIN;
        if too_low((last - grain).max(ONE)) && !too_low(last + grain) {
            return last;
        }
        let (mut low, mut high) = (ONE, SLOWEST);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if too_low(middle) { low = middle } else { high = middle }
        }
        high
    }

    /// What the node's threads ask of the memory at a latency factor, in weighted MB/s.
    fn demand(&self, node: usize, factor: u64) -> u64 {
        let Node { ref domains, clock, .. } = self.nodes[node];
        let mut sum = 0;
        for domain in domains.clone() {
            let cells = &self.cells[domain * self.tasks..][..self.tasks];
            for (cell, profile) in cells.iter().zip(&self.profiles) {
                if cell.threads > 0 && profile.traffic_mb > 0 {
                    let alone = u64::from(profile.traffic_mb) * u64::from(profile.weight) / 1_000;
                    let stretch = base(profile, factor, clock, cell.misses);
                    sum += alone * cell.threads / ONE * cell.misses / stretch;
                }
            }
        }
        sum
    }

    /// Moves the caches and the clock rate of a node on by [`CACHE_STEP`]. Returns whether the node is to be settled.
    pub fn drift(&mut self, node: usize) -> bool {
        let mut moved = false;
        if let Some(size) = self.machine.cache {
            for domain in self.nodes[node].domains.clone() {
                moved |= self.refill(domain, size.0);
            }
        }
        let state = &mut self.nodes[node];
        state.steps += 1;
        if state.steps >= TURBO_STEPS {
            state.steps = 0;
            let step = self.machine.turbo.iter().find(|step| step.active >= state.active);
            let step = step.or(self.machine.turbo.last());
            let clock = step.map_or(1_000, |step| u64::from(step.permille));
            moved |= clock != state.clock;
            state.clock = clock;
        }
        moved
    }

    /// What was read since the last step evicts what was there, within each partition.
    fn refill(&mut self, domain: usize, size: u64) -> bool {
        let own = |(ways, of): (u16, u16)| size * u64::from(ways) / u64::from(of);
        let taken: u64 = self.ways.iter().flatten().map(|share| own(*share)).sum();
        let mut moved = self.evict(domain, size.saturating_sub(taken), |_, ways| ways.is_none());
        for task in 0..self.tasks {
            if let Some(share) = self.ways[task] {
                moved |= self.evict(domain, own(share), |other, _| other == task);
            }
        }
        moved
    }

    /// Lets the tasks that share a part of a cache evict each other.
    fn evict(
        &mut self,
        domain: usize,
        size: u64,
        shares: impl Fn(usize, Option<(u16, u16)>) -> bool,
    ) -> bool {
        let Hardware { cells, profiles, ways, tasks, .. } = self;
        let cells = &mut cells[domain * *tasks..][..*tasks];
        let size = size.max(1);
        let fill = |cell: &Cell, profile: &Profile| match profile.fills() {
            true => cell.traffic * CACHE_STEP.0 / 1_000,
            false => 0,
        };
        let sharing = |task: &usize| shares(*task, ways[*task]);
        let filled: u64 =
            (0..*tasks).filter(sharing).map(|task| fill(&cells[task], &profiles[task])).sum();
        let held: u64 = (0..*tasks).filter(sharing).map(|task| cells[task].occupied).sum();
        let evicted = (held + filled).saturating_sub(size);
        let mut moved = false;
        for task in (0..*tasks).filter(sharing) {
            let (cell, profile) = (&mut cells[task], &profiles[task]);
            // Rounded so that the cache never holds more than it has.
            let goes =
                (u128::from(cell.occupied) * u128::from(evicted)).div_ceil(u128::from(held.max(1)));
            let stays = cell.occupied.saturating_sub(goes as u64);
            cell.occupied = (stays + fill(cell, profile)).min(profile.working_set.0).min(size);
            let misses = profile.misses(cell.occupied);
            if misses.abs_diff(cell.misses) * GRAIN >= cell.misses || misses == ONE {
                moved |= cell.misses != misses;
                cell.misses = misses;
            }
        }
        moved
    }

    /// Adds the traffic since the last time to the sums.
    pub fn book(&mut self, node: usize, now: Nanos) {
        let state = &mut self.nodes[node];
        let passed = now.since(state.booked).0;
        state.booked = now;
        if passed == 0 {
            return;
        }
        for domain in state.domains.clone() {
            let cells = &self.cells[domain * self.tasks..][..self.tasks];
            state.moved += cells.iter().map(|cell| cell.traffic).sum::<u64>() * passed;
        }
    }

    /// The task's present traffic, in bytes a second.
    pub fn bandwidth_of(&self, task: usize) -> u64 {
        let cells = self.cells.iter().skip(task).step_by(self.tasks.max(1));
        cells.map(|cell| cell.traffic * 1_000_000).sum()
    }

    /// So many of the ways of each cache are the task's alone from now on; `None`: it shares the rest.
    pub fn partition(&mut self, task: usize, ways: Option<u16>, of: u16) {
        let share = ways.filter(|_| of > 0).map(|ways| (ways.min(of), of));
        self.ways[task] = share;
    }

    /// Bytes that all nodes have moved so far; after [`Hardware::book`].
    pub fn moved(&self) -> u64 {
        self.nodes.iter().map(|node| node.moved).sum::<u64>() / 1_000
    }

    /// The traffic, in MB/s, of a thread with this speed beside its sibling.
    pub fn traffic_of(&self, domain: usize, task: usize, threads: u64) -> u64 {
        let cell = &self.cells[domain * self.tasks + task];
        u64::from(self.profiles[task].traffic_mb) * threads / ONE * cell.misses / cell.base
    }
}

impl Profile {
    /// Whether what it moves goes through the cache.
    fn fills(&self) -> bool {
        self.weight < 2_000
    }
}

/// How many times as long a thread takes at this latency factor, clock rate and miss ratio.
fn base(profile: &Profile, factor: u64, clock: u64, misses: u64) -> u64 {
    let memory = u64::from(profile.memory) * ONE / 1_000;
    let factor = if profile.streams { factor } else { factor.min(Memory::WORST * ONE) };
    ((ONE - memory) * 1_000 / clock + memory * factor / ONE * misses / ONE).max(1)
}

/// The latency at a utilisation (1/1,024ths) against that of an idle memory.
fn latency(used: u64) -> u64 {
    match used {
        used if used >= ONE => u64::MAX,
        used => ONE + ONE * Memory::KNEE / 1_000 * used / (ONE - used),
    }
}

fn mul_div(a: u64, b: u64, by: u64) -> u64 {
    (u128::from(a) * u128::from(b) / u128::from(by.max(1))) as u64
}

/// Domains in the order of their nodes, and the nodes.
fn shape(topology: &Topology) -> (Vec<Domain>, Vec<Node>) {
    let mut pairs = places(topology);
    pairs.dedup();
    let mut nodes: Vec<Node> = Vec::new();
    let mut domains: Vec<Domain> = Vec::new();
    let mut last = None;
    for (node, _) in pairs {
        if last != Some(node) {
            nodes.push(Node {
                domains: domains.len()..domains.len(),
                factor: ONE,
                clock: 1_000,
                active: 0,
                steps: TURBO_STEPS,
                booked: Nanos::ZERO,
                moved: 0,
            });
            last = Some(node);
        }
        domains.push(Domain { node: nodes.len() - 1 });
        if let Some(node) = nodes.last_mut() {
            node.domains.end = domains.len();
        }
    }
    (domains, nodes)
}

/// The (node, cache) of each core, sorted.
fn places(topology: &Topology) -> Vec<(u16, u16)> {
    let mut pairs: Vec<_> = topology.cores().iter().map(|core| (core.node, core.llc)).collect();
    pairs.sort_unstable();
    pairs
}

/// The dense number of each core's domain, by the core's position.
pub(crate) fn domains_of(topology: &Topology) -> Vec<usize> {
    let mut pairs = places(topology);
    pairs.dedup();
    let at = |pair| pairs.binary_search(&pair).unwrap_or_default();
    topology.cores().iter().map(|core| at((core.node, core.llc))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Kind, Reuse, preset};
    use quell_model::Bytes;

    const STREAM: Profile = Profile {
        kind: Kind::Memory,
        memory: 900,
        traffic_mb: 11_000,
        weight: 1_000,
        streams: true,
        working_set: Bytes(30 << 20),
        reuse: Reuse::None,
    };
    const SERVICE: Profile = Profile {
        kind: Kind::Service,
        memory: 200,
        traffic_mb: 300,
        weight: 1_700,
        streams: false,
        working_set: Bytes(8 << 20),
        reuse: Reuse::Root,
    };

    fn with_streams(threads: i64, cache: bool) -> Hardware {
        let preset = preset("caladan").unwrap();
        let mut machine = preset.machine();
        machine.cache = machine.cache.filter(|_| cache);
        let topology = preset.topology().unwrap();
        let mut host = Hardware::new(machine, &topology, vec![SERVICE, STREAM]);
        host.add(0, 0, ONE as i64);
        host.add(0, 1, threads * ONE as i64);
        host.settle(0, Nanos::ZERO, &mut Vec::new());
        host
    }

    #[test]
    fn many_streams_fill_the_memory_and_one_disturbs_nothing() {
        assert!(with_streams(1, false).base(0, 0) < ONE + ONE / 50);
        let mut last = 0;
        for threads in 1..=22 {
            let host = with_streams(threads, false);
            let used = host.demand(0, host.nodes[0].factor);
            assert!(used >= last - last / 20, "{threads} streams move {used} MB/s after {last}");
            assert!(used < 60_000, "{threads} streams move {used} MB/s");
            last = used;
        }
        assert!(last > 50_000, "all streams together move {last} MB/s");
    }

    #[test]
    fn a_saturated_memory_about_halves_a_memory_bound_service() {
        let stretch = with_streams(20, false).base(0, 0) as f64 / ONE as f64;
        assert!((1.6..2.0).contains(&stretch), "{stretch}");
    }

    #[test]
    fn streams_evict_others_that_return_after_them() {
        let mut host = with_streams(6, true);
        let misses = |host: &Hardware| host.cells[0].misses;
        for _ in 0..200 {
            host.drift(0);
            host.settle(0, Nanos::ZERO, &mut Vec::new());
        }
        assert!(misses(&host) > 2 * ONE, "{}", misses(&host));
        let all: u64 = host.cells.iter().map(|cell| cell.occupied).sum();
        assert!(all <= 30_720 << 10, "{all} bytes");
        host.add(0, 1, -6 * ONE as i64);
        for _ in 0..2_000 {
            host.settle(0, Nanos::ZERO, &mut Vec::new());
            host.drift(0);
        }
        assert!(misses(&host) < ONE + ONE / 20, "{}", misses(&host));
    }

    #[test]
    fn fewer_active_cores_run_faster() {
        let preset = preset("parties").unwrap();
        let topology = preset.topology().unwrap();
        let mut host = Hardware::new(preset.machine(), &topology, vec![Profile::COMPUTE]);
        let mut bases = Vec::new();
        for active in [1, 20] {
            (0..active).for_each(|_| host.count_active(0, true));
            (0..TURBO_STEPS).for_each(|_| {
                host.drift(0);
            });
            host.settle(0, Nanos::ZERO, &mut Vec::new());
            bases.push(host.base(0, 0));
        }
        assert!(bases[0] < bases[1] && bases[1] < ONE, "{bases:?}");
    }
}
