//! Scenarios that the tests share.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use quell_model::*;
use quell_policy::{Config, Host, by_name};
use quell_sim::workload::Service;
use quell_sim::{Costs, Faults, Kernel, Load, Machine, Report, Scenario, Step, Task, run};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

pub fn host(physical: u16, smt: u16, shares_cores: bool) -> Host {
    let topology = Topology::regular(1, physical, smt).unwrap();
    let caps = HostCaps {
        shares_cores,
        idles_cores: true,
        places_threads: true,
        freezes_tasks: true,
        per_thread_state: true,
        actuation_delay: Nanos(20 * US),
        ..HostCaps::default()
    };
    Host { managed: topology.all(), topology, caps }
}

pub fn scenario(host: Host) -> Scenario {
    let shares = host.caps.shares_cores;
    Scenario {
        name: String::new(),
        machine: Machine::default(),
        kernel: Kernel::Global,
        tasks: Vec::new(),
        costs: acting_within(if shares { 20 * US } else { 2 * US }),
        faults: Faults::default(),
        changes: Vec::new(),
        length: Nanos(2 * SECOND),
        warm_up: Nanos(100 * MS),
        tick: Nanos(if shares { 200 * US } else { 10 * US }),
        sample: Nanos::ZERO,
        feed: Nanos::ZERO,
        seed: 1,
        host,
    }
}

/// Every action takes this long on average.
pub fn acting_within(delay: u64) -> Costs {
    Costs::uniform(Nanos(delay), Nanos(1_500))
}

fn limits(host: &Host, class: Class, guaranteed: u32) -> Limits {
    Limits {
        class,
        guaranteed,
        max: host.topology.len() as u32,
        times: TimeLimits {
            runaway_after: Nanos(100 * MS),
            quantum: Nanos::ZERO,
            ..TimeLimits::default()
        },
        allowed: host.topology.all(),
        ..Limits::NONE
    }
}

/// A service with this guarantee whose load keeps `busy` thousandths of one core busy, from each time on.
pub fn service(host: &Host, guaranteed: u32, threads: u32, busy: &[(u64, u64)]) -> Task {
    let takes = 50 * US;
    let steps =
        busy.iter().map(|(from, busy)| Step::every(Nanos(*from), Nanos(takes * 1_000 / busy)));
    let load = Load::Open { steps: steps.collect(), service: Service::Exponential(Nanos(takes)) };
    Task::new(limits(host, Class::LatencyCritical, guaranteed), threads, load)
}

pub fn hog(host: &Host, threads: u32) -> Task {
    Task::new(limits(host, Class::BestEffort, 0), threads, Load::Hog)
}

/// A lane of busy members.
pub fn lane(host: &Host, members: u32, slice: Nanos) -> Task {
    let limits =
        Limits { scheduler: TaskScheduler::Lane, max: 1, ..limits(host, Class::BestEffort, 0) };
    Task { slice, ..Task::new(limits, members, Load::Hog) }
}

pub fn under(policy: &str, scenario: &Scenario) -> Report {
    let mut policy = by_name(policy, scenario.host.clone(), Config::default()).unwrap();
    run(scenario, policy.as_mut())
}

pub fn ratio(a: Nanos, b: Nanos) -> f64 {
    a.0 as f64 / b.0.max(1) as f64
}
