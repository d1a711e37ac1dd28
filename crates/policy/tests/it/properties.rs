//! What must hold for any host and any Snapshot, also for Snapshots that contradict themselves.

use crate::common::{Adversary, Dice, caps, host, mix_schedulers, snapshots};
use proptest::prelude::*;
use quell_model::*;
use quell_policy::invariants::{Rule, Violation, check};
use quell_policy::{Config, Host, Policy, Quell, by_name, names_for};

fn numbers(most: usize) -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::vec(any::<u16>(), 0..most)
}

/// At least 1,500 cases; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    ProptestConfig { cases: config.cases.max(1500), ..config }
}

/// All breaches, each with the decision explained.
fn violations(policy: &mut dyn Policy, host: &Host, seen: &[Snapshot]) -> Vec<(Violation, String)> {
    let (mut plan, mut found, mut all) = (Plan::default(), Vec::new(), Vec::new());
    for (tick, seen) in seen.iter().enumerate() {
        policy.decide(seen.now, seen, &mut plan);
        check(host, seen, &plan, &mut found);
        let wishes = seen.tasks.iter().map(|task| format!("{}: {:?}\n", task.id, task.limits));
        let wishes: String = wishes.collect();
        let told = |_: &Violation| {
            format!("tick {tick} at {}\n{}{wishes}{:?}", seen.now, policy.explain(), host.caps)
        };
        all.extend(found.drain(..).map(|violation| (violation, told(&violation))));
    }
    all
}

fn none_of(found: &[(Violation, String)]) -> Result<(), TestCaseError> {
    match found.first() {
        None => Ok(()),
        Some((violation, told)) => Err(TestCaseError::fail(format!("{violation}\n{told}"))),
    }
}

/// Owners and rights without the reasons, which may name the current tick.
fn effect(plan: &Plan) -> (Vec<Option<TaskId>>, Vec<(Rung, CoreSet)>) {
    let owners = plan.cores.iter().map(|core| core.owner);
    let rights = plan.tasks.iter().map(|task| (task.rung, task.shared_cores));
    (owners.collect(), rights.collect())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_invariants_hold_whatever_is_seen(rolls in numbers(4000)) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let mut seen = snapshots(&mut dice, &host);
        mix_schedulers(&mut Dice::new(&rolls), &mut seen);
        let mut policy = Quell::new(host.clone(), Config::default());
        none_of(&violations(&mut policy, &host, &seen))?;
    }

    #[test]
    fn any_controllers_keep_the_invariants(rolls in numbers(4000), switches in any::<[bool; 3]>()) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let mut seen = snapshots(&mut dice, &host);
        mix_schedulers(&mut Dice::new(&rolls), &mut seen);
        let [bandwidth, hyperthread, quantum] = switches;
        let bandwidth_limit = BytesPerSec(if bandwidth { 1_000_000_000 } else { 0 });
        let config = Config { bandwidth_limit, hyperthread, quantum, ..Config::default() };
        let mut policy = Quell::caladan(host.clone(), config);
        none_of(&violations(&mut policy, &host, &seen))?;
    }

    #[test]
    fn no_advice_can_break_the_invariants(rolls in numbers(4000), advice in numbers(200)) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let mut seen = snapshots(&mut dice, &host);
        mix_schedulers(&mut Dice::new(&rolls), &mut seen);
        let mut policy = Quell::with_advisors(host.clone(), vec![Box::new(Adversary::new(&advice))]);
        none_of(&violations(&mut policy, &host, &seen))?;
    }

    #[test]
    fn a_lane_has_one_core_at_most_and_its_mode(rolls in numbers(4000), advice in numbers(200)) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let mut seen = snapshots(&mut dice, &host);
        mix_schedulers(&mut Dice::new(&rolls), &mut seen);
        let mut policy = Quell::with_advisors(host, vec![Box::new(Adversary::new(&advice))]);
        let mut plan = Plan::default();
        for seen in &seen {
            policy.decide(seen.now, seen, &mut plan);
            for (task, planned) in seen.tasks.iter().zip(&plan.tasks) {
                let is_lane = task.limits.scheduler == TaskScheduler::Lane && task.alive;
                let usable = plan.usable(task.id);
                prop_assert!(!is_lane || usable.len() <= 1, "{} may use {usable}", task.id);
                let owns = plan.owned(task.id) == usable && !usable.is_empty();
                prop_assert!(planned.rung != Rung::Dispatcher || (is_lane && owns), "{planned:?}");
            }
            for core in &plan.cores {
                let owner = core.owner.map(|id| seen.tasks[id.at()].limits.scheduler.core_mode());
                prop_assert!(owner.is_none_or(|mode| mode == core.mode), "{core:?}");
            }
        }
    }

    #[test]
    fn the_same_snapshots_give_the_same_plans(rolls in numbers(3000)) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let mut seen = snapshots(&mut dice, &host);
        mix_schedulers(&mut Dice::new(&rolls), &mut seen);
        for name in names_for(&host) {
            let mut first = by_name(name, host.clone(), Config::default()).unwrap();
            let mut second = by_name(name, host.clone(), Config::default()).unwrap();
            let (mut plan, mut again) = (Plan::default(), Plan::default());
            for seen in &seen {
                let wake = first.decide(seen.now, seen, &mut plan);
                prop_assert_eq!(wake, second.decide(seen.now, seen, &mut again));
                prop_assert_eq!(&plan, &again);
            }
            prop_assert_eq!(first.explain(), second.explain());
        }
    }

    #[test]
    fn the_plans_of_every_rival_are_well_formed(rolls in numbers(3000)) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let mut seen = snapshots(&mut dice, &host);
        mix_schedulers(&mut Dice::new(&rolls), &mut seen);
        for name in names_for(&host) {
            let mut policy = by_name(name, host.clone(), Config::default()).unwrap();
            let mut found = violations(policy.as_mut(), &host, &seen);
            found.retain(|(violation, _)| violation.rule == Rule::Shape);
            none_of(&found)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..config() })]

    #[test]
    fn what_does_not_change_is_left_alone(rolls in numbers(2000)) {
        let mut dice = Dice::new(&rolls);
        let mut host = host(&mut dice);
        host.caps = caps(true);
        let Some(mut seen) = snapshots(&mut dice, &host).pop() else { return Ok(()) };
        for core in &mut seen.cores {
            core.outcome = Outcome::Done;
        }
        let mut policy = Quell::with_advisors(host, Vec::new());
        let mut plan = Plan::default();
        let mut settled = None;
        for tick in 0..600u64 {
            seen.now += Nanos::from_millis(1);
            policy.decide(seen.now, &seen, &mut plan);
            match &settled {
                None if tick == 400 => settled = Some(effect(&plan)),
                Some(settled) => prop_assert_eq!(settled, &effect(&plan), "at tick {}", tick),
                None => {}
            }
        }
    }

    #[test]
    fn refused_grants_are_not_tried_each_tick(rolls in numbers(2000)) {
        let mut dice = Dice::new(&rolls);
        let mut host = host(&mut dice);
        host.caps = caps(false);
        let Some(mut seen) = snapshots(&mut dice, &host).pop() else { return Ok(()) };
        let mut policy = Quell::with_advisors(host, Vec::new());
        let mut plan = Plan::default();
        let mut tries = std::collections::HashMap::new();
        for _ in 0..90 {
            seen.now += Nanos::from_millis(1);
            policy.decide(seen.now, &seen, &mut plan);
            for (core, view) in plan.cores.iter().zip(&mut seen.cores) {
                view.outcome = match core.owner {
                    Some(owner) => {
                        *tries.entry((core.id, owner)).or_insert(0) += 1;
                        Outcome::Refused { errno: 1 }
                    }
                    None => Outcome::Done,
                };
            }
        }
        // The wait doubles from 1 ms on. Another task's refusal in between forgets a core's record, so
        // only a lone task is held to the exact number.
        let tasks = seen.tasks.len();
        for ((core, task), tried) in tries {
            prop_assert!(tasks > 1 || tried <= 8, "core {core} tried {tried} times for {task}");
        }
    }
}
