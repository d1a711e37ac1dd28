//! One seed draws the host, its tasks, the faults and what changes.

use quell_model::{
    Bytes, BytesPerSec, Class, CoreId, CoreSet, HostCaps, Limits, Nanos, TaskScheduler, TimeLimits,
    Topology,
};
use quell_policy::Host;

use crate::chance::Chance;
use crate::machine::{Machine, Memory, Turbo};
use crate::scenario::{Change, Costs, Faults, Kernel, Scenario};
use crate::workload::models::{MODELS, TRACE};
use crate::workload::{Helper, Load, Phase, Service, Step, Style, Task};

const MS: u64 = 1_000_000;

pub(super) fn scenario(seed: u64) -> Scenario {
    let mut chance = Chance::new(seed, 1 << 40);
    let chance = &mut chance;
    let mut host = host(chance);
    let shares = host.caps.shares_cores;
    let length = Nanos(chance.between(5..=40) * MS * if shares { 5 } else { 1 });
    let mut tasks = tasks(chance, &host, length);
    // A stream of its own: what else a seed means does not depend on it.
    some_lanes(&mut Chance::new(seed, 1 << 41), &mut tasks);
    let mut roles = Chance::new(seed, 1 << 43);
    host.caps.bursts = shares && roles.below(4) > 0;
    if shares {
        some_helpers(&mut roles, &mut tasks);
    }
    let faulty = chance.below(3) > 0;
    let mut share =
        |most| if faulty && chance.below(2) == 0 { chance.below(most) as u16 } else { 0 };
    let faults =
        Faults { late: share(50), refused: share(100), lost: share(100), raced: share(100) };
    let tick = match shares {
        true => Nanos::from_micros([50, 200, 1_000][chance.below(3) as usize]),
        false => Nanos::from_micros(chance.between(5..=20)),
    };
    let mut scenario = Scenario {
        name: format!("fuzz {seed}"),
        changes: changes(chance, &host, tasks.len() as u64, length),
        machine: machine(chance, &host),
        kernel: Kernel::Global,
        costs: Costs { migrate: Nanos(chance.below(3_000)), ..costs(chance, shares) },
        tasks,
        faults,
        warm_up: Nanos::ZERO,
        sample: Nanos::ZERO,
        feed: Nanos(if chance.below(3) == 0 { length.0 / 10 } else { 0 }),
        length,
        tick,
        seed,
        host,
    };
    if shares && roles.below(2) == 0 {
        let period = Nanos::from_millis(roles.between(4..=20));
        let burst = Service::Fixed(Nanos::from_micros(roles.between(5..=100)));
        scenario.tasks.push(Task::kernel(&scenario.host.topology, period, burst));
    }
    scenario.host.caps.actuation_delay = scenario.costs.preempt.max(scenario.costs.rights);
    scenario
}

fn host(chance: &mut Chance) -> Host {
    let (nodes, smt) = (chance.between(1..=2) as u16, chance.between(1..=2) as u16);
    let physical = chance.between(1..=6) as u16;
    #[expect(clippy::expect_used, reason = "at most 24 distinct cores")]
    let topology = Topology::regular(nodes, physical, smt).expect("a small host");
    let managed = match topology.default_managed() {
        some if !some.is_empty() && chance.below(2) == 0 => some,
        _ => topology.all(),
    };
    let shares_cores = chance.below(2) == 0;
    let freezes_tasks = chance.below(2) == 0;
    if shares_cores {
        // Was for a capability that is gone. Without this draw a seed would name another host than before.
        chance.below(2);
    }
    let caps = HostCaps {
        shares_cores,
        idles_cores: true,
        places_threads: true,
        freezes_tasks,
        per_thread_state: true,
        bursts: false,
        request_start_times: !shares_cores,
        yields_requests: !shares_cores,
        memory_counters: chance.below(2) == 0,
        llc_ways: if chance.below(2) == 0 { 20 } else { 0 },
        // Known once the costs are drawn.
        actuation_delay: Nanos::ZERO,
    };
    Host { managed, topology, caps }
}

fn machine(chance: &mut Chance, host: &Host) -> Machine {
    let mut some = || chance.below(2) == 0;
    Machine {
        smt: host.topology.has_siblings(),
        memory: some().then_some(Memory { capacity: BytesPerSec(20_000_000_000) }),
        cache: some().then_some(Bytes(16 << 20)),
        turbo: if some() {
            vec![Turbo { active: 1, permille: 1_500 }, Turbo { active: 4, permille: 1_200 }]
        } else {
            Vec::new()
        },
    }
}

fn costs(chance: &mut Chance, shares: bool) -> Costs {
    let act = chance.between(1..=if shares { 100 } else { 10 });
    Costs::uniform(Nanos::from_micros(act), Nanos(chance.between(100..=3_000)))
}

fn tasks(chance: &mut Chance, host: &Host, length: Nanos) -> Vec<Task> {
    let mut free = host.managed.len() as u64;
    (0..chance.between(1..=5))
        .map(|at| {
            let mut task = match chance.below(2) {
                0 => service(chance, host, &mut free, length),
                _ => batch(chance, host),
            };
            task.name = format!("task-{at}");
            task
        })
        .collect()
}

/// Makes lanes of some tasks that the kernel schedules.
fn some_lanes(chance: &mut Chance, tasks: &mut [Task]) {
    for task in tasks.iter_mut().filter(|task| task.style == Style::Threads) {
        if chance.below(4) == 0 {
            let limits = &mut task.limits;
            limits.scheduler = TaskScheduler::Lane;
            (limits.max, limits.guaranteed) = (1, limits.guaranteed.min(1));
            limits.times.runaway_after = Nanos::ZERO;
            task.slice = Nanos::from_micros(chance.between(20..=2_000));
        }
    }
}

/// Gives some services collectors and crawlers.
fn some_helpers(chance: &mut Chance, tasks: &mut [Task]) {
    let is_service = |task: &&mut Task| {
        let limits = &task.limits;
        limits.class == Class::LatencyCritical && limits.scheduler == TaskScheduler::Kernel
    };
    for task in tasks.iter_mut().filter(is_service) {
        for kind in 0..chance.below(3) {
            let burst = Nanos(chance.between(50_000..=8_000_000));
            let spread = [Service::Fixed(burst), Service::Exponential(burst)];
            task.helpers.push(Helper {
                name: format!("helper-{kind}"),
                threads: chance.between(1..=2) as u32,
                period: Nanos(burst.0 * chance.between(4..=20)),
                burst: spread[chance.below(2) as usize],
                stops_world: chance.below(4) == 0,
            });
        }
    }
}

fn limits(chance: &mut Chance, host: &Host, class: Class) -> Limits {
    // Mostly all managed cores, else some of them.
    let mut allowed = host.managed;
    if chance.below(4) == 0 {
        let kept: CoreSet = host.managed.iter().filter(|_| chance.below(2) == 0).collect();
        allowed = if kept.is_empty() { allowed } else { kept };
    }
    Limits {
        class,
        max: chance.between(1..=allowed.len() as u64) as u32,
        times: TimeLimits { delay_target: Nanos::from_micros(10), ..TimeLimits::ZERO },
        allowed,
        ..Limits::NONE
    }
}

fn service(chance: &mut Chance, host: &Host, free: &mut u64, length: Nanos) -> Task {
    let mut limits = limits(chance, host, Class::LatencyCritical);
    limits.guaranteed = chance.below(free.saturating_sub(1).min(u64::from(limits.max)) + 1) as u32;
    *free -= u64::from(limits.guaranteed);
    let runtime = !host.caps.shares_cores && chance.below(4) > 0;
    if runtime {
        limits.scheduler = TaskScheduler::Runtime;
        limits.times.quantum = Nanos::from_micros(chance.below(2) * 100);
        limits.times.sibling_idle_after = Nanos::from_micros(chance.below(2) * 30);
    } else {
        limits.times.runaway_after = Nanos::from_millis(chance.between(5..=50));
    }
    let mean = Nanos(chance.between(1_000..=60_000));
    let service = match chance.below(4) {
        0 => Service::Fixed(mean),
        1 => Service::Exponential(mean),
        2 => Service::Bimodal { short: mean, long: Nanos(mean.0 * 20), long_permille: 10 },
        _ => Service::Lognormal { mean, sigma: 900 },
    };
    let steps = (0..chance.between(1..=3)).map(|step| {
        // A share of what its cores could serve, in thousandths.
        let busy = chance.between(10..=900) * u64::from(limits.max);
        let gap = Nanos(mean.0 * 1_000 / busy.max(1));
        Step::every(Nanos(step * length.0 / 3), gap.max(Nanos(200)))
    });
    let load = Load::Open { steps: steps.collect(), service };
    let models = MODELS.iter().filter(|model| model.class == Class::LatencyCritical);
    let mut task =
        Task::new(limits, chance.between(1..=2 * host.managed.len() as u64) as u32, load);
    task.phases = pick(chance, models);
    if runtime {
        task.style = Style::Runtime { polls: Nanos::from_micros(chance.below(4)) };
    }
    task
}

fn batch(chance: &mut Chance, host: &Host) -> Task {
    let limits = limits(chance, host, Class::BestEffort);
    let models =
        MODELS.iter().filter(|model| model.class == Class::BestEffort && model.name != TRACE);
    let mut task =
        Task::new(limits, chance.between(1..=2 * host.managed.len() as u64) as u32, Load::Hog);
    task.phases = pick(chance, models);
    // As long as the scenario, so that phases do change.
    for phase in &mut task.phases {
        phase.work = Nanos(phase.work.0 / 1_000);
    }
    task
}

fn pick<'a>(
    chance: &mut Chance,
    models: impl Iterator<Item = &'a crate::workload::models::Model>,
) -> Vec<Phase> {
    let models: Vec<_> = models.collect();
    models[chance.below(models.len() as u64) as usize].phases.to_vec()
}

fn changes(chance: &mut Chance, host: &Host, tasks: u64, length: Nanos) -> Vec<(Nanos, Change)> {
    let count = chance.below(3) * chance.below(6);
    let cores: Vec<CoreId> = host.topology.cores().iter().map(|core| core.id).collect();
    (0..count)
        .flat_map(|_| {
            let from = chance.below(length.0);
            let to = from + chance.below(length.0 / 4);
            let task = chance.below(tasks) as u32;
            let (first, then) = match chance.below(3) {
                0 => {
                    let core = cores[chance.below(cores.len() as u64) as usize];
                    (Change::Online(core, false), Change::Online(core, true))
                }
                1 => (Change::Alive(task, false), Change::Alive(task, true)),
                _ => (Change::Spin(task, true), Change::Spin(task, false)),
            };
            [(Nanos(from), first), (Nanos(to), then)]
        })
        .collect()
}
