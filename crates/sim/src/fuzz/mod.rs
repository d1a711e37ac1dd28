//! The search for mistakes of a policy: random scenarios, each from its seed alone, and who judges what came out.

mod draw;

use std::fmt;

use quell_model::{Class, Nanos};
use quell_policy::{Config, Policy, PolicyError, by_name};

use crate::scenario::{Change, Faults, Kernel, Scenario};
use crate::workload::{Style, Task};
use crate::{Report, Sink, run, run_traced};

/// Something that should not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FuzzFailure {
    /// The simulator does not add up.
    Simulator(String),
    /// An invariant of the policy is broken.
    Invariant(String),
    /// An LC thread waited beside a core that it could have had.
    Inversion {
        /// How long.
        waited: Nanos,
        /// What would have been reasonable.
        bound: Nanos,
    },
    /// A thread of the kernel waited behind LC.
    KernelWait {
        /// How long.
        waited: Nanos,
    },
    /// Batch work got nothing although cores idled.
    Starved {
        /// The place of the task.
        task: usize,
    },
    /// Cores change hands although nothing changes.
    Oscillation {
        /// Changes of owner, rung or shared cores in a second.
        per_second: u64,
    },
    /// It decides again and again although nothing happens.
    Livelock {
        /// Decisions in a second.
        per_second: u64,
    },
}

impl fmt::Display for FuzzFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FuzzFailure::Simulator(what) => write!(f, "fault of the simulator: {what}"),
            FuzzFailure::Invariant(what) => f.write_str(what),
            FuzzFailure::Inversion { waited, bound } => {
                write!(
                    f,
                    "an LC thread waited {waited} beside a core that it could have had; {bound} is the bound"
                )
            }
            FuzzFailure::KernelWait { waited } => {
                write!(
                    f,
                    "a thread of the kernel waited {waited} for its core; {KERNEL_WAIT_MAX} is the bound"
                )
            }
            FuzzFailure::Starved { task } => {
                write!(f, "batch task {task} never ran although cores idled")
            }
            FuzzFailure::Oscillation { per_second } => {
                write!(f, "{per_second} changes a second under a load that does not change")
            }
            FuzzFailure::Livelock { per_second } => {
                write!(f, "{per_second} decisions a second although nothing happens")
            }
        }
    }
}

/// The scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    draw::scenario(seed)
}

/// The scenario of a seed, for a person.
pub fn describe(seed: u64) -> String {
    let scenario = draw::scenario(seed);
    let caps = &scenario.host.caps;
    let mut text = format!(
        "{} cores, {} managed, {}; tick {}, {:?}, {:?}\n",
        scenario.host.topology.len(),
        scenario.host.managed.len(),
        if caps.shares_cores { "shared" } else { "exclusive" },
        scenario.tick,
        scenario.costs,
        scenario.faults,
    );
    for task in &scenario.tasks {
        text += &format!(
            "{}: {} guaranteed {} of {}, {} threads, {:?}, {:?}\n",
            task.name,
            task.limits.class,
            task.limits.guaranteed,
            task.limits.allowed,
            task.threads,
            task.style,
            task.load,
        );
    }
    for (at, change) in &scenario.changes {
        text += &format!("at {at}: {change:?}\n");
    }
    text
}

/// The policies that promise to keep the invariants. Rivals break them by design.
pub const PROMISE: [&str; 2] = ["quell", "caladan"];

/// Simulates the scenario of a seed under a policy and judges what came out. Nothing, if the policy cannot run on the host
/// of this seed; of a rival, only whether the simulator adds up.
///
/// # Errors
/// When there is no policy of this name.
pub fn look(seed: u64, policy: &str) -> Result<Vec<FuzzFailure>, PolicyError> {
    look_at(&draw::scenario(seed), policy)
}

/// As [`look`], of a scenario that the caller has already. Where a kernel with a queue for each core leaves threads waiting, the
/// policy is not to blame: there only its invariants and the sums of the simulator are judged.
///
/// # Errors
/// As [`look`].
pub fn look_at(scenario: &Scenario, policy: &str) -> Result<Vec<FuzzFailure>, PolicyError> {
    look_by(scenario, policy, run)
}

/// As [`look_at`], with a sink for all that the scheduler does.
///
/// # Errors
/// As [`look`].
pub fn look_traced(
    scenario: &Scenario,
    policy: &str,
    sink: &mut dyn Sink,
) -> Result<Vec<FuzzFailure>, PolicyError> {
    look_by(scenario, policy, |scenario, policy| run_traced(scenario, policy, sink))
}

fn look_by(
    scenario: &Scenario,
    policy: &str,
    run: impl FnOnce(&Scenario, &mut dyn Policy) -> Report,
) -> Result<Vec<FuzzFailure>, PolicyError> {
    let mut policy = match by_name(policy, scenario.host.clone(), Config::default()) {
        Ok(policy) => policy,
        Err(PolicyError::Host { .. }) => return Ok(Vec::new()),
        Err(unknown) => return Err(unknown),
    };
    let report = run(scenario, policy.as_mut());
    let mut findings = judge(scenario, policy.name(), &report);
    if !PROMISE.contains(&policy.name()) {
        findings.retain(|finding| matches!(finding, FuzzFailure::Simulator(_)));
    }
    if scenario.kernel != Kernel::Global {
        findings.retain(|finding| {
            matches!(finding, FuzzFailure::Simulator(_) | FuzzFailure::Invariant(_))
        });
    }
    Ok(findings)
}

fn judge(scenario: &Scenario, policy: &str, report: &Report) -> Vec<FuzzFailure> {
    let broken = report.broken.iter().map(|what| FuzzFailure::Simulator(what.to_string()));
    let violations = report.violations.iter();
    let violations =
        violations.map(|(at, what)| FuzzFailure::Invariant(format!("at {at}: {what}")));
    let mut findings: Vec<FuzzFailure> = broken.chain(violations).collect();
    findings.extend(inversion(scenario, report));
    findings.extend(kernel_wait(scenario, report));
    findings.extend(starved(scenario, report));
    findings.extend(restless(scenario, policy, report));
    findings
}

/// A few rounds of noticing, deciding and acting; more where actions go wrong. Refusals are waited out by design, and
/// a task that idles its siblings wants some of its threads to wait. Members of lanes are above the fair class, so
/// background threads wait behind them.
fn inversion(scenario: &Scenario, report: &Report) -> Option<FuzzFailure> {
    let Faults { late, refused, lost, raced } = scenario.faults;
    let siblings =
        scenario.tasks.iter().any(|task| task.limits.times.sibling_idle_after > Nanos::ZERO);
    let lanes = scenario.host.caps.bursts && scenario.tasks.iter().any(Task::is_lane);
    if refused > 0 || siblings || lanes {
        return None;
    }
    let act = scenario.costs.preempt.max(scenario.costs.rights);
    let slow = if late > 0 { Faults::LATE } else { 1 };
    let targets = scenario.tasks.iter().map(|task| task.limits.times.delay_target);
    let mut bound = targets.max().unwrap_or_default();
    bound += Nanos(20 * (scenario.tick.0 + 2 * act.0 * slow));
    if lost > 0 || raced > 0 {
        bound += Nanos(10 * Faults::RETRY.0);
    }
    let waited = report.longest_inversion;
    (waited > bound).then_some(FuzzFailure::Inversion { waited, bound })
}

/// How long a thread of the kernel may wait for its core, where threads have roles and the back end does what it is asked to.
pub const KERNEL_WAIT_MAX: Nanos = Nanos::from_millis(100);

/// Lanes hold their cores above the fair class by design, and without its core a thread waits by definition.
fn kernel_wait(scenario: &Scenario, report: &Report) -> Option<FuzzFailure> {
    let is_online = |(_, change): &(Nanos, Change)| matches!(change, Change::Online(..));
    let judged = scenario.host.caps.bursts
        && scenario.faults == Faults::default()
        && !scenario.tasks.iter().any(Task::is_lane)
        && !scenario.changes.iter().any(is_online);
    let waited = report.longest_kernel_wait;
    (judged && waited > KERNEL_WAIT_MAX).then_some(FuzzFailure::KernelWait { waited })
}

/// Batch work that always wants to run, on a host that stands idle for a third of the time.
fn starved(scenario: &Scenario, report: &Report) -> Option<FuzzFailure> {
    let leaves = |change: &Change| matches!(change, Change::Alive(..) | Change::Online(..));
    let all = scenario.length.0 * scenario.host.managed.len() as u64;
    if report.idle.0 < all / 3 || scenario.changes.iter().any(|(_, change)| leaves(change)) {
        return None;
    }
    let mut tasks = scenario.tasks.iter().zip(&report.tasks);
    let starves = tasks.position(|(task, result)| {
        task.limits.class == Class::BestEffort
            && task.style != Style::Kernel
            && result.ran == Nanos::ZERO
            && task.limits.allowed == scenario.host.managed
    });
    starves.map(|task| FuzzFailure::Starved { task })
}

/// Cores that are shared change hands with load only, and load steps at most a few times in a scenario. A hog of memory takes
/// turns with nothing under Caladan's bandwidth controller, which has no hysteresis; beside services alone.
fn restless(scenario: &Scenario, policy: &str, report: &Report) -> Option<FuzzFailure> {
    let calm = scenario.changes.is_empty() && scenario.faults == Faults::default();
    if !calm || !scenario.host.caps.shares_cores {
        return None;
    }
    let millis = (scenario.length.0 / 1_000_000).max(1);
    let is_batch =
        |task: &Task| task.limits.class == Class::BestEffort && task.style != Style::Kernel;
    let batch_only = scenario.tasks.iter().all(is_batch);
    let takes_turns = policy == "caladan" && scenario.host.caps.memory_counters && !batch_only;
    let changes = (report.owner_changes + report.rung_changes) * 1_000 / millis;
    if !takes_turns && changes > 500 * scenario.host.managed.len() as u64 {
        return Some(FuzzFailure::Oscillation { per_second: changes });
    }
    let decisions = report.ticks * 1_000 / millis;
    let every_tick = 900_000_000_000 / scenario.tick.0.max(1) / 1_000;
    (batch_only && decisions > every_tick)
        .then_some(FuzzFailure::Livelock { per_second: decisions })
}

#[cfg(test)]
mod tests {
    use quell_model::TaskScheduler;

    use super::*;

    /// A scenario of the search in which nothing goes wrong or changes.
    fn calm(wanted: impl Fn(&Scenario) -> bool) -> Scenario {
        let is_calm = |scenario: &Scenario| {
            scenario.changes.is_empty() && scenario.faults == Faults::default()
        };
        let mut drawn = (0..10_000).map(scenario);
        drawn.find(|scenario| is_calm(scenario) && wanted(scenario)).unwrap()
    }

    #[test]
    fn each_kind_of_mistake_is_found() {
        let scenario = calm(|scenario| {
            scenario.host.caps.bursts
                && scenario.tasks.iter().all(|task| {
                    task.limits.class == Class::BestEffort
                        && task.style == Style::Threads
                        && !task.is_lane()
                        && task.limits.allowed == scenario.host.managed
                })
        });
        let mut report = Report::new(scenario.tasks.len());
        report.longest_inversion = Nanos::from_secs(1);
        report.longest_kernel_wait = KERNEL_WAIT_MAX + Nanos(1);
        report.idle = Nanos(scenario.length.0 * scenario.host.managed.len() as u64);
        report.owner_changes = u64::from(u32::MAX);
        let found = judge(&scenario, "quell", &report);
        assert!(
            found.iter().any(|what| matches!(what, FuzzFailure::Inversion { .. })),
            "{found:?}"
        );
        assert!(
            found.iter().any(|what| matches!(what, FuzzFailure::Starved { task: 0 })),
            "{found:?}"
        );
        assert!(
            found.iter().any(|what| matches!(what, FuzzFailure::Oscillation { .. })),
            "{found:?}"
        );
        assert!(
            found.iter().any(|what| matches!(what, FuzzFailure::KernelWait { .. })),
            "{found:?}"
        );
        report.owner_changes = 0;
        report.ticks = scenario.length.0 / scenario.tick.0 + 1;
        let found = judge(&scenario, "quell", &report);
        assert!(found.iter().any(|what| matches!(what, FuzzFailure::Livelock { .. })), "{found:?}");
    }

    #[test]
    fn the_search_draws_every_kind_of_host_task_fault_and_change() {
        let drawn: Vec<Scenario> = (0..200).map(scenario).collect();
        let some = |wanted: &dyn Fn(&Scenario) -> bool| drawn.iter().any(wanted);
        assert!(some(&|it| it.host.caps.shares_cores) && some(&|it| !it.host.caps.shares_cores));
        assert!(some(&|it| it.machine.smt) && some(&|it| it.machine.memory.is_some()));
        let faults: [fn(&Faults) -> u16; 4] =
            [|it| it.late, |it| it.refused, |it| it.lost, |it| it.raced];
        assert!(faults.iter().all(|fault| some(&|it| fault(&it.faults) > 0)));
        for scheduler in [TaskScheduler::Kernel, TaskScheduler::Lane, TaskScheduler::Runtime] {
            for class in [Class::LatencyCritical, Class::BestEffort] {
                let is_one = |task: &crate::workload::Task| {
                    task.limits.scheduler == scheduler && task.limits.class == class
                };
                // No batch work has a runtime in the search.
                let exists = scheduler != TaskScheduler::Runtime || class == Class::LatencyCritical;
                assert_eq!(
                    some(&|it| it.tasks.iter().any(is_one)),
                    exists,
                    "{scheduler:?} {class}"
                );
            }
        }
        let helps = |task: &Task| !task.helpers.is_empty() && task.style == Style::Threads;
        assert!(some(&|it| it.host.caps.bursts && it.tasks.iter().any(helps)));
        assert!(some(&|it| it.tasks.iter().any(|task| task.style == Style::Kernel)));
        let changes: [fn(&Change) -> bool; 3] = [
            |it| matches!(it, Change::Online(..)),
            |it| matches!(it, Change::Alive(..)),
            |it| matches!(it, Change::Spin(..)),
        ];
        assert!(
            changes.iter().all(|change| {
                some(&|scenario| scenario.changes.iter().any(|(_, it)| change(it)))
            })
        );
    }
}
