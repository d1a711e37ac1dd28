//! A tick allocates nothing once the tables have the size of the host.

mod common;
mod counting;

use common::{Dice, Scene};
use quell_model::*;
use quell_policy::invariants::Checker;
use quell_policy::{Config, by_name, names_for};

/// Demand that changes every tick, so that cores change hands all the time.
fn stir(scene: &mut Scene, tick: u64) {
    let numbers: Vec<u16> = (0..4096u64).map(|at| (at * 7919 + tick * 104_729) as u16).collect();
    let mut dice = Dice::new(&numbers);
    for index in 0..scene.seen.tasks.len() {
        let id = scene.seen.tasks[index].id;
        scene.demand(id, dice.below(3) as u32, dice.below(4) as u32);
        scene.task(id).delay_caused = Signal::Measured(Nanos(dice.below(60_000) * 10));
    }
    for core in 0..64 {
        let task = scene.seen.tasks.get(dice.below(60) as usize).map(|task| task.id);
        scene.runs(core, task);
    }
    let now = scene.seen.now;
    scene.seen.memory = Signal::Measured(Bytes(now.0 * (20 + dice.below(20))));
    for view in &mut scene.seen.cores {
        view.serving = view.running;
        view.request_start = Signal::Measured(Nanos(now.0 - dice.below(60_000)));
        view.memory = Signal::Measured(Bytes(now.0 * (1 + dice.below(2))));
        view.lc_busy = Signal::Measured(Permille(dice.below(1001) as u16));
        view.outcome = match dice.below(20) {
            0 => Outcome::Pending,
            1 => Outcome::Refused { errno: 1 },
            _ => Outcome::Done,
        };
    }
}

#[test]
fn a_steady_state_allocates_nothing() {
    let both = [true, false].map(|shares| Scene::new(32, 2, shares).host);
    let policies =
        both.iter().flat_map(|host| names_for(host).map(|name| (name, host.caps.shares_cores)));
    for (name, shares) in policies {
        let mut scene = Scene::new(32, 2, shares);
        for _ in 0..20 {
            let lc = scene.lc(1, 8);
            scene.task(lc).limits.times.sibling_idle_after = Nanos(25_000);
            scene.task(lc).limits.times.quantum = Nanos(40_000);
            scene.be(16);
        }
        let mut policy = by_name(name, scene.host.clone(), Config::default()).unwrap();
        let (mut checker, mut found) = (Checker::default(), Vec::new());
        let mut during = 0;
        let mut plans = std::collections::HashSet::new();
        for tick in 0..300 {
            stir(&mut scene, tick);
            let before = counting::allocations();
            scene.tick(policy.as_mut(), Nanos::from_millis(1));
            checker.check(&scene.host, &scene.seen, &scene.plan, &mut found);
            let after = counting::allocations();
            found.clear();
            plans.insert(format!("{:?}", scene.plan.cores));
            if tick >= 100 {
                during += after - before;
            }
        }
        assert_eq!(during, 0, "{name} on shared cores: {shares}");
        let decides = ["quell", "caladan", "shenango"].contains(&name);
        assert!(!decides || plans.len() > 50, "cores did change hands: {name}");
    }
}
