//! The core module with its advisors: the default policy, and Caladan.

use quell_model::{BytesPerSec, HostCaps, Nanos, Plan, Snapshot};

use crate::advisors::{Bandwidth, Hyperthread, KernelSections, Quantum};
use crate::reliefs::Reliefs;
use crate::roles::Roles;
use crate::{
    Advice, Advisor, Allocator, BadState, Config, Explanation, Host, Missing, Policy, Reads, Wake,
};

/// The core allocator, advised. Advice adds up, so the order of the advisors changes nothing.
pub struct Quell {
    name: &'static str,
    missing: Vec<Missing>,
    reads: Reads,
    allocator: Allocator,
    roles: Roles,
    /// `None`: switched off, or the host reports neither locks nor what threads do inside the kernel.
    reliefs: Option<Reliefs>,
    advisors: Vec<Box<dyn Advisor>>,
    advice: Advice,
    core_numbers: usize,
}

impl Quell {
    /// The policy for a host, with the advisors that its capabilities call for.
    pub fn new(host: Host, config: Config) -> Quell {
        let advisors = for_stock_kernel(&host, config);
        Quell::with_advisors(host, advisors).relieving(config)
    }

    fn relieving(self, config: Config) -> Quell {
        let relieves = config.lock_relief && self.allocator.host().caps.bursts;
        Quell { reliefs: relieves.then(Reliefs::default), ..self }
    }

    /// Caladan (OSDI'20): the allocator with the bandwidth controller, the hyperthread controller and time slices,
    /// as far as they are switched on and the host gives them what they read. On a stock kernel the advisors
    /// that keep its mechanisms from harming LC are there as well.
    pub fn caladan(host: Host, config: Config) -> Quell {
        let mut advisors = for_stock_kernel(&host, config);
        let (mut missing, mut reads) = (Vec::new(), Reads::default());
        let mut add = |advisor: Box<dyn Advisor>, lacks: Option<&'static str>| {
            match lacks {
                None => advisors.push(advisor),
                Some(needs) => missing.push(Missing { part: advisor.name(), needs }),
            }
            lacks.is_none()
        };
        let caps = host.caps;
        if config.bandwidth_limit != BytesPerSec(0) {
            let lacks = (!caps.memory_counters).then_some("counters of memory traffic");
            reads.memory = add(
                Box::new(Bandwidth::new(&host, config.bandwidth_limit, config.bandwidth_step)),
                lacks,
            );
        }
        if config.hyperthread {
            let lacks = match caps {
                _ if !host.has_siblings() => Some("siblings among the managed cores"),
                HostCaps { idles_cores: false, .. } => Some("a way to keep a core idle"),
                HostCaps { request_start_times: false, .. } => Some("the start times of requests"),
                _ => None,
            };
            reads.requests |= add(Box::new(Hyperthread::new(&host)), lacks);
        }
        if config.quantum {
            let lacks = match caps {
                HostCaps { request_start_times: false, .. } => Some("the start times of requests"),
                HostCaps { yields_requests: false, .. } => Some("a way to interrupt a request"),
                _ => None,
            };
            reads.requests |= add(Box::new(Quantum), lacks);
        }
        Quell {
            name: "caladan",
            missing,
            reads,
            ..Quell::with_advisors(host, advisors).relieving(config)
        }
    }

    /// The policy with these advisors only.
    pub fn with_advisors(host: Host, advisors: Vec<Box<dyn Advisor>>) -> Quell {
        let core_numbers = host.topology.cores().last().map_or(0, |core| core.id.index() + 1);
        let (allocator, advice) = (Allocator::new(host), Advice::default());
        Quell {
            name: "quell",
            missing: Vec::new(),
            reads: Reads::default(),
            allocator,
            roles: Roles::default(),
            reliefs: None,
            advisors,
            advice,
            core_numbers,
        }
    }

    /// The names of the advisors at work.
    pub fn advisors(&self) -> impl Iterator<Item = &'static str> {
        self.advisors.iter().map(|advisor| advisor.name())
    }
}

/// What keeps the mechanisms of a stock kernel from harming LC.
fn for_stock_kernel(host: &Host, config: Config) -> Vec<Box<dyn Advisor>> {
    let mut advisors: Vec<Box<dyn Advisor>> = Vec::new();
    if host.caps.shares_cores {
        advisors.push(Box::new(KernelSections::new(config.delay_bound)));
    }
    advisors
}

impl Policy for Quell {
    fn name(&self) -> &'static str {
        self.name
    }

    fn missing(&self) -> &[Missing] {
        &self.missing
    }

    fn reads(&self) -> Reads {
        self.reads
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        self.advice.clear(seen.tasks.len(), self.core_numbers);
        for advisor in &mut self.advisors {
            advisor.advise(now, seen, &mut self.advice);
        }
        let mut wake = self.allocator.decide(now, seen, &self.advice, plan);
        plan.roles.clear();
        plan.reliefs.clear();
        if self.allocator.host().caps.bursts {
            wake = wake.or_at(self.roles.decide(now, seen, plan));
        }
        if let Some(reliefs) = &mut self.reliefs {
            wake = wake.or_at(reliefs.decide(now, seen, plan));
        }
        wake
    }

    fn explain(&self) -> Explanation {
        self.allocator.explain()
    }

    fn save(&self, state: &mut Vec<u8>) {
        self.allocator.save(state);
        self.roles.save(state);
        self.reliefs.iter().for_each(|reliefs| reliefs.save(state));
        self.advisors.iter().for_each(|advisor| advisor.save(state));
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        self.allocator.restore(state)?;
        self.roles.restore(state)?;
        self.reliefs.iter_mut().try_for_each(|reliefs| reliefs.restore(state))?;
        self.advisors.iter_mut().try_for_each(|advisor| advisor.restore(state))
    }
}
