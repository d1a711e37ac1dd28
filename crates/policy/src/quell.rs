//! The default policy: the core module with its advisors.

use quell_model::{Nanos, Plan, Snapshot};

use crate::advisors::{FairServer, KernelSections};
use crate::{Advice, Advisor, Allocator, BadState, Config, Explanation, Host, Policy, Wake};

/// The core allocator, advised. Advice adds up, so the order of the advisors changes nothing.
pub struct Quell {
    allocator: Allocator,
    advisors: Vec<Box<dyn Advisor>>,
    advice: Advice,
    core_numbers: usize,
}

impl Quell {
    /// The policy for a host, with the advisors that its capabilities call for.
    pub fn new(host: Host, config: Config) -> Quell {
        let mut advisors: Vec<Box<dyn Advisor>> = Vec::new();
        if host.caps.shares_cores {
            if host.caps.fair_server {
                advisors.push(Box::new(FairServer::new(&host)));
            }
            advisors.push(Box::new(KernelSections::new(config.delay_bound)));
        }
        Quell::with_advisors(host, advisors)
    }

    /// The policy with these advisors only.
    pub fn with_advisors(host: Host, advisors: Vec<Box<dyn Advisor>>) -> Quell {
        let core_numbers = host.topology.cores().last().map_or(0, |core| core.id.index() + 1);
        let (allocator, advice) = (Allocator::new(host), Advice::default());
        Quell { allocator, advisors, advice, core_numbers }
    }

    /// The names of the advisors at work.
    pub fn advisors(&self) -> impl Iterator<Item = &'static str> {
        self.advisors.iter().map(|advisor| advisor.name())
    }
}

impl Policy for Quell {
    fn name(&self) -> &'static str {
        "quell"
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        self.advice.clear(seen.tasks.len(), self.core_numbers);
        for advisor in &mut self.advisors {
            advisor.advise(now, seen, &mut self.advice);
        }
        self.allocator.decide(now, seen, &self.advice, plan)
    }

    fn explain(&self) -> Explanation {
        self.allocator.explain()
    }

    fn save(&self, state: &mut Vec<u8>) {
        self.allocator.save(state);
        self.advisors.iter().for_each(|advisor| advisor.save(state));
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        self.allocator.restore(state)?;
        self.advisors.iter_mut().try_for_each(|advisor| advisor.restore(state))
    }
}
