//! Where the balancer keeps CPU hogs: recipes in the models of Linux 6.1 and 6.12, beside the same in virtual machines
//! (`make validate`, scripts/vm/placement.sh).
//!
//! Many recipes have several outcomes that the balancer does not leave, in virtual machines as in the model. So runs of both are
//! compared: the typical one of either has to be near one of the other's.

#![allow(clippy::unwrap_used, reason = "golden data that cannot be read fails the test")]

mod recipes;

use std::collections::BTreeMap;

use quell_model::{Core, CoreId, NodeDistances, Topology};
use quell_sim::file::{FileError, Simulation};

use self::recipes::{CORES, MACHINES, Recipe, recipes};
use crate::common::*;

const SERIES: [&str; 2] = ["6.1", "6.12"];

/// As long as in the virtual machines.
const BOUND_MS: u64 = 1_000;
const SETTLE_MS: u64 = 3_000;
const SAMPLE_MS: u64 = 3_000;

/// Runs of the model for each recipe.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// Mean threads of a core may differ by so much.
const TOLERANCE: f64 = 0.25;

/// Mean threads of each core, sorted.
type Means = Vec<f64>;

fn data(name: &str) -> String {
    let path = format!("{}/tests/placement/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{path}: {err}"))
}

/// Siblings have adjacent numbers, as in the virtual machines.
fn topology(machine: &str) -> Topology {
    let (smt, per_node) = match machine {
        "siblings" => (2, 4),
        "nodes" => (1, 4),
        _ => (1, 2),
    };
    let core = |at: u16| Core {
        id: CoreId(at),
        physical: at / smt,
        llc: at / per_node,
        node: at / per_node,
    };
    let topology = Topology::new((0..CORES as u16).map(core).collect()).unwrap();
    if machine != "ring" {
        return topology;
    }
    let text = include_str!("../../../../../tests/vm/ring-4.distances");
    let row = |line: &str| line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let rows: Vec<Vec<u32>> = text.lines().map(row).collect();
    topology.with_distances(NodeDistances::new(&rows).unwrap()).unwrap()
}

fn sorted(mut means: Vec<f64>) -> Means {
    means.sort_by(f64::total_cmp);
    means
}

fn distance(one: &Means, other: &Means) -> f64 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
}

/// How far the nearest of these runs is: some recipes have several outcomes.
fn from_nearest(means: &Means, runs: &[Means]) -> f64 {
    runs.iter().map(|run| distance(means, run)).fold(f64::INFINITY, f64::min)
}

/// The run that is least far from the others.
fn typical(runs: &[Means]) -> &Means {
    let far = |run: &Means| runs.iter().map(|other| distance(run, other)).sum::<f64>();
    runs.iter().min_by(|one, other| far(one).total_cmp(&far(other))).unwrap()
}

fn simulated(recipe: &Recipe, series: &str, seed: u64) -> Means {
    // At any time between two passes, which are up to 512 ms apart.
    let bound = BOUND_MS + seed * 171 % 512;
    let text = recipe.scenario(series, seed, [bound, SETTLE_MS, SAMPLE_MS]);
    let like = |machine: &str| -> Result<String, FileError> {
        Ok(serde_json::to_string(&topology(machine)).unwrap())
    };
    let simulation = Simulation::parse(&text, "recipe.toml", &recipe.name, &like).unwrap();
    let report = under(&simulation.policy, &simulation.scenario);
    assert_eq!(report.broken, [], "{}", recipe.name);
    let sample = (SAMPLE_MS * MS) as f64;
    sorted(report.queued.iter().map(|time| time.0 as f64 / sample).collect())
}

/// The rounds of each recipe in the virtual machines.
fn recorded(series: &str) -> BTreeMap<String, Vec<Means>> {
    let mut rounds: BTreeMap<String, Vec<Means>> = BTreeMap::new();
    for machine in MACHINES {
        for line in data(&format!("{machine}-{series}.txt")).lines() {
            let (name, means) = line.split_once(' ').unwrap();
            let means = means.split(' ').map(|mean| mean.parse().unwrap()).collect();
            rounds.entry(name.to_owned()).or_default().push(sorted(means));
        }
    }
    rounds
}

fn show(means: &Means) -> String {
    let words: Vec<String> = means.iter().map(|mean| format!("{mean:.2}")).collect();
    words.join(" ")
}

#[test]
fn recipes_of_virtual_machines_are_those_of_the_test() {
    let expected = recipes::file(&recipes());
    assert_eq!(data("recipes.txt"), expected, "the recipes are now:\n{expected}");
}

#[test]
fn an_even_spread_fails_in_half_of_the_recipes() {
    for series in SERIES {
        let rounds = recorded(series);
        let all = recipes();
        let [mut even, mut whole] = [0, 0];
        for recipe in &all {
            let threads = recipe.hogs.iter().map(|hogs| hogs.count).sum::<u64>();
            let fails = |means: Means| from_nearest(&means, &rounds[&recipe.name]) > TOLERANCE;
            even += usize::from(fails(vec![threads as f64 / CORES as f64; CORES as usize]));
            // As even as whole threads can be.
            let share = |core: u64| ((threads + core) / CORES) as f64;
            whole += usize::from(fails((0..CORES).map(share).collect()));
        }
        let all = all.len();
        println!("{series}: an even spread fails in {even} of {all}, of whole threads in {whole}");
        assert!(2 * even >= all && 2 * whole >= all, "{series}: {even}, {whole} of {all}");
    }
}

/// Recipes under both kernels.
#[derive(Default)]
struct Tally {
    all: usize,
    /// The typical run of the model or of the kernel is near one of the other's.
    good: usize,
    /// The model's typical run is near one of the kernel's.
    near: usize,
    /// It is near the kernel's typical one.
    close: usize,
    /// All of the kernel's rounds are near the typical one, and so is the model's typical run.
    stable: usize,
    stable_good: usize,
    misses: String,
}

impl Tally {
    fn add(&mut self, recipe: &Recipe, series: &str, runs: &[Means], rounds: &[Means]) {
        let (found, expected) = (typical(runs), typical(rounds));
        let is_near = from_nearest(found, rounds) <= TOLERANCE;
        let is_good = is_near || from_nearest(expected, runs) <= TOLERANCE;
        let is_stable = rounds.iter().all(|round| distance(round, expected) <= TOLERANCE);
        self.all += 1;
        self.good += usize::from(is_good);
        self.near += usize::from(is_near);
        self.close += usize::from(distance(found, expected) <= TOLERANCE);
        self.stable += usize::from(is_stable);
        self.stable_good += usize::from(is_stable && distance(found, expected) <= TOLERANCE);
        if !is_good {
            let lines =
                |runs: &[Means]| runs.iter().map(show).collect::<Vec<_>>().join("\n         ");
            self.misses += &format!(
                "{} on {} {series}\n  kernel {}\n  model  {}\n",
                recipe.name,
                recipe.machine,
                lines(rounds),
                lines(runs)
            );
        }
    }
}

#[test]
fn models_keep_hogs_where_kernels_do() {
    let mut tally = Tally::default();
    for series in SERIES {
        let rounds = recorded(series);
        for recipe in recipes() {
            let runs: Vec<Means> = SEEDS.map(|seed| simulated(&recipe, series, seed)).collect();
            tally.add(&recipe, series, &runs, &rounds[&recipe.name]);
        }
    }
    let Tally { all, good, near, close, stable, stable_good, misses } = tally;
    println!(
        "of {all}, {good} have a typical run within {TOLERANCE} of one of the other's, {near} one of the model's, \
         {close} that is near the kernel's typical run, {stable_good} of {stable} whose rounds agree; misses:\n{misses}"
    );
    assert!(10 * good >= 9 * all, "{good} of {all}:\n{misses}");
}
