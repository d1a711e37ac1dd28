//! Traces made up to try the viewer with: of any size, the same for the same seed, with planted violations.
//!
//! It is no simulation of a scheduler: threads wake, run, wait and sleep at random times, an idle core steals, and in
//! each planted violation a node gets nothing while the others are given too much.

use std::collections::VecDeque;
use std::sync::Arc;

use quell_model::{
    Activity, Certainty, CoreId, CoreSet, CoreState, Event, Keyframe, Left, Meta, MoveCause, Nanos,
    Rank, Runner, Search, Source, ThreadName, ThreadState, Topology, TopologyError, Violation,
    What,
};

/// The mean time between two actions of one core.
const PACE_NS: u64 = 400_000;
const KEYFRAME_NS: u64 = 1_000_000_000;
const NAMES: [&str; 8] =
    ["postgres", "memcached", "cc1plus", "R", "nginx", "java", "redis-server", "stress-ng"];

/// What to make up.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic {
    /// NUMA nodes, each with a last-level cache.
    pub nodes: u16,
    /// Cores of each.
    pub cores_per_node: u16,
    /// Threads.
    pub threads: usize,
    /// Events, at least.
    pub events: u64,
    /// The same seed gives the same trace.
    pub seed: u64,
}

impl Synthetic {
    /// Sixty-four cores on eight nodes, as in the Wasted Cores paper.
    pub fn paper(events: u64) -> Synthetic {
        Synthetic { nodes: 8, cores_per_node: 8, threads: 160, events, seed: 1 }
    }

    /// What the trace says of itself.
    ///
    /// # Errors
    /// Without a core, or with more than [`quell_model::CORES_MAX`].
    pub fn meta(&self) -> Result<Meta, TopologyError> {
        Ok(Meta {
            source: Source::Simulator,
            topology: Topology::regular(self.nodes, self.cores_per_node, 1)?,
            kernel: "synthetic".to_owned(),
            host: format!("made up, seed {}", self.seed),
            hooks: Vec::new(),
            absent: Vec::new(),
            wall_offset_ns: 0,
        })
    }

    /// The events in order of time.
    pub fn events(&self) -> impl Iterator<Item = Event> + use<> {
        let mut host = Host::new(*self);
        std::iter::from_fn(move || host.next())
    }

    /// How long the trace is, about.
    fn span_ns(&self) -> u64 {
        let cores = u64::from(self.nodes * self.cores_per_node);
        // An action makes about five events.
        (self.events / 5).saturating_mul(PACE_NS / cores).max(1)
    }
}

struct Core {
    running: Option<usize>,
    queue: VecDeque<usize>,
    sequence: u64,
}

struct Host {
    spec: Synthetic,
    cores: Vec<Core>,
    runners: Vec<Runner>,
    allowed: Vec<CoreSet>,
    asleep: Vec<usize>,
    now: u64,
    keyframe_at: u64,
    made: u64,
    random: u64,
    /// The node that is starved, and since when.
    violated: Option<(usize, Nanos)>,
    out: VecDeque<Event>,
}

impl Host {
    fn new(spec: Synthetic) -> Host {
        let cores = usize::from(spec.nodes * spec.cores_per_node);
        let runner = |at: usize| Runner {
            thread: 1000 + at as i32,
            process: 1000 + (at - at % 8) as i32,
            rank: Rank::FAIR,
            name: ThreadName::new(NAMES[at / 8 % NAMES.len()].as_bytes()),
        };
        let all: CoreSet = (0..cores as u16).map(CoreId).collect();
        // One in sixteen is pinned.
        let allowed = |at: usize| match at % 16 {
            15 => CoreSet::of(CoreId((at % cores) as u16)),
            _ => all,
        };
        let core = || Core { running: None, queue: VecDeque::new(), sequence: 0 };
        Host {
            cores: (0..cores).map(|_| core()).collect(),
            runners: (0..spec.threads).map(runner).collect(),
            allowed: (0..spec.threads).map(allowed).collect(),
            asleep: (0..spec.threads).collect(),
            now: 0,
            keyframe_at: 0,
            made: 0,
            random: spec.seed,
            violated: None,
            out: VecDeque::new(),
            spec,
        }
    }

    fn next(&mut self) -> Option<Event> {
        while self.out.is_empty() {
            if self.made >= self.spec.events {
                return None;
            }
            self.step();
        }
        self.out.pop_front()
    }

    /// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    fn emit(&mut self, core: usize, what: What) {
        let slot = &mut self.cores[core];
        let (at, core_id) = (Nanos(self.now), CoreId(core as u16));
        self.out.push_back(Event { at, core: core_id, sequence: slot.sequence, what });
        slot.sequence += 1;
        self.made += 1;
    }

    /// Told after each change of a queue.
    fn tell_queue(&mut self, core: usize) {
        let size = self.size(core) as u32;
        let of = CoreId(core as u16);
        self.emit(core, What::Queue { of, queued: size, runnable: size });
        let weight = u64::from(size) * 1024;
        self.emit(core, What::Load { of, weight, average: weight });
    }

    fn size(&self, core: usize) -> usize {
        self.cores[core].queue.len() + usize::from(self.cores[core].running.is_some())
    }

    /// The node that gets nothing now: three times in a trace, for a thirtieth of it.
    fn starved(&self) -> Option<usize> {
        let phase = self.now.saturating_mul(30) / self.spec.span_ns();
        let node = match phase {
            7 => 1,
            14 => 5,
            22 => 3,
            _ => return None,
        };
        Some(node % usize::from(self.spec.nodes)).filter(|_| self.spec.nodes > 1)
    }

    fn node(&self, core: usize) -> usize {
        core / usize::from(self.spec.cores_per_node)
    }

    fn step(&mut self) {
        let cores = self.cores.len() as u64;
        self.now += 1 + self.below(2 * PACE_NS / cores);
        if self.now >= self.keyframe_at {
            self.keyframe_at = self.now + KEYFRAME_NS;
            self.keyframe();
        }
        self.tell_violation();
        let core = self.below(cores) as usize;
        if self.made % 40_000 < 4 {
            self.emit(core, What::Lost { count: 3 });
            return self.tell_queue(core);
        }
        if self.cores[core].running.is_none() {
            self.fill(core);
        } else if self.below(100) < self.share_that_wakes() {
            self.wake(core);
        } else {
            self.leave(core);
        }
    }

    /// Load comes and goes six times in a trace, between three threads awake for four cores and six: of a hundred
    /// actions, so many wake somebody, the more the fewer are awake.
    fn share_that_wakes(&self) -> u64 {
        let turn = self.now as f64 / self.spec.span_ns() as f64 * 6.0 * std::f64::consts::TAU;
        let wanted = self.cores.len() as f64 * (1.1 + 0.4 * turn.sin());
        let awake = (self.spec.threads - self.asleep.len()) as f64;
        (50.0 * wanted / awake.max(1.0)).min(100.0) as u64
    }

    /// Tells a planted violation once it is over.
    fn tell_violation(&mut self) {
        let starved = self.starved();
        if starved == self.violated.map(|(node, _)| node) {
            return;
        }
        if let Some((node, from)) = self.violated {
            let cores = 0..self.cores.len();
            let busiest = cores.clone().max_by_key(|at| self.size(*at)).unwrap_or_default();
            let idle = cores.filter(|at| self.node(*at) == node).map(|at| CoreId(at as u16));
            let violation = Violation {
                core: CoreId(busiest as u16),
                from,
                until: Nanos(self.now),
                waiters: Vec::new(),
                idle: idle.collect(),
                text: format!("node {node} idles while threads wait on other nodes (planted)")
                    .into(),
            };
            self.emit(0, What::Violation(Arc::new(violation)));
        }
        self.violated = starved.map(|node| (node, Nanos(self.now)));
    }

    /// An idle core steals, or wakes somebody.
    fn fill(&mut self, core: usize) {
        if !self.steal(core) && self.below(100) < self.share_that_wakes() {
            self.wake(core);
        }
    }

    /// Takes a thread from the longest queue, unless nothing is to come here. Whether it did.
    fn steal(&mut self, core: usize) -> bool {
        let by = CoreId(core as u16);
        let movable = |at: &usize| {
            let waiting = self.cores[*at].queue.iter();
            waiting.filter(|thread| self.allowed[**thread].contains(by)).count()
        };
        let starved = self.starved() == Some(self.node(core));
        let busiest = (0..self.cores.len()).max_by_key(|at| (movable(at), *at));
        let Some(from) = busiest.filter(|at| !starved && movable(at) > 0) else { return false };
        self.search(core);
        let at = self.cores[from].queue.iter().position(|at| self.allowed[*at].contains(by));
        let Some(thread) = at.and_then(|at| self.cores[from].queue.remove(at)) else {
            return false;
        };
        let (from_id, cause) = (CoreId(from as u16), MoveCause::NewIdle);
        let number = self.runners[thread].thread;
        self.now += 2_000;
        self.emit(core, What::Migrate { thread: number, from: from_id, to: by, cause });
        self.tell_queue(from);
        self.run(core, Some(thread), None, Left::Sleeping);
        self.tell_queue(core);
        true
    }

    /// Tells that the core looked at its node before it looked elsewhere.
    fn search(&mut self, core: usize) {
        let (by, per_node) = (CoreId(core as u16), self.spec.cores_per_node);
        let first = self.node(core) as u16 * per_node;
        let cores: CoreSet = (first..first + per_node).map(CoreId).collect();
        let (search, certainty) = (Search::BusiestQueue, Certainty::Inferred);
        self.emit(core, What::Considered { by, search, cores: cores.into(), certainty });
    }

    fn wake(&mut self, waker: usize) {
        let thread = self.below(self.asleep.len() as u64) as usize;
        if self.asleep.is_empty() {
            return;
        }
        let thread = self.asleep.swap_remove(thread);
        let onto = self.place(thread, waker);
        let by = self.cores[waker].running.map_or(0, |at| self.runners[at].thread);
        let (runner, on) = (self.runners[thread], CoreId(onto as u16));
        self.emit(waker, What::Waking { thread: runner, by, target: on });
        self.now += 1_000;
        self.emit(onto, What::Woken { thread: runner, on, is_new: false });
        if self.cores[onto].running.is_none() {
            self.run(onto, Some(thread), None, Left::Sleeping);
        } else {
            self.cores[onto].queue.push_back(thread);
        }
        self.tell_queue(onto);
    }

    /// Where a woken thread goes: mostly to an idle core, now and then to the waker's; never to a starved node.
    fn place(&mut self, thread: usize, waker: usize) -> usize {
        let allowed = self.allowed[thread];
        if allowed.len() == 1 {
            return allowed.first().map_or(0, CoreId::index);
        }
        let starved = self.starved();
        let idle = (0..self.cores.len()).filter(|at| self.cores[*at].running.is_none());
        let idle: Vec<usize> = idle.filter(|at| starved != Some(self.node(*at))).collect();
        if idle.is_empty() || self.below(100) < 4 {
            let other = self.below(self.cores.len() as u64) as usize;
            return if starved == Some(self.node(waker)) { other } else { waker };
        }
        idle[self.below(idle.len() as u64) as usize]
    }

    /// The running thread sleeps, or the next one's turn comes.
    fn leave(&mut self, core: usize) {
        let Some(left) = self.cores[core].running else { return };
        let next = self.cores[core].queue.pop_front();
        let starved = self.starved() == Some(self.node(core));
        if next.is_some() && self.below(3) == 0 && !starved {
            self.cores[core].queue.push_back(left);
            return self.run(core, next, Some(left), Left::Preempted);
        }
        self.asleep.push(left);
        self.run(core, next, Some(left), Left::Sleeping);
        self.tell_queue(core);
        if next.is_none() {
            self.steal(core);
        }
    }

    fn run(&mut self, core: usize, next: Option<usize>, left: Option<usize>, how: Left) {
        self.cores[core].running = next;
        let idle =
            Runner { thread: 0, process: 0, rank: Rank::NOBODY, name: ThreadName::new(b"swapper") };
        let next = next.map_or(idle, |at| self.runners[at]);
        let left = left.map_or(0, |at| self.runners[at].thread);
        self.emit(core, What::Switch { next, left, how, stolen: Nanos::ZERO });
    }

    fn keyframe(&mut self) {
        let domain: CoreSet = (0..self.cores.len() as u16).map(CoreId).collect();
        let cores = (0..self.cores.len()).map(|at| CoreState {
            core: CoreId(at as u16),
            running: self.cores[at].running.map_or(0, |at| self.runners[at].thread),
            queued: self.size(at) as u32,
            runnable: self.size(at) as u32,
            weight: self.size(at) as u64 * 1024,
            average: self.size(at) as u64 * 1024,
            wake_pending: false,
            domain,
        });
        let cores = cores.collect();
        let mut threads: Vec<ThreadState> = Vec::new();
        for (at, core) in self.cores.iter().enumerate() {
            let on = |state| move |thread: usize| (thread, at, state);
            let running = core.running.into_iter().map(on(Activity::Running));
            let all = running.chain(core.queue.iter().copied().map(on(Activity::Waiting)));
            threads.extend(all.map(|of| self.state(of)));
        }
        threads.extend(self.asleep.iter().map(|at| self.state((*at, 0, Activity::Sleeping))));
        self.emit(0, What::Keyframe(Arc::new(Keyframe { cores, threads })));
    }

    fn state(&self, (thread, core, state): (usize, usize, Activity)) -> ThreadState {
        ThreadState {
            thread: self.runners[thread],
            core: CoreId(core as u16),
            state,
            allowed: self.allowed[thread],
            bound: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_trace() {
        let trace = |seed| {
            let spec = Synthetic { seed, ..Synthetic::paper(5_000) };
            spec.events().collect::<Vec<_>>()
        };
        assert_eq!(trace(1), trace(1));
        assert_ne!(trace(1), trace(2));
        assert!(trace(1).is_sorted_by_key(|event| event.at));
    }
}
