//! Scenarios under kernel models with a queue for each core.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use std::path::Path;

use quell_model::Nanos;
use quell_sim::file::FileError;
use quell_sim::{Kernel, KernelModel, Scenario};

use crate::common::*;

pub fn example(name: &str) -> quell_sim::file::Simulation {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sim").join(name);
    quell_sim::file::Simulation::load(&path).unwrap()
}

#[test]
fn accounting_holds_in_every_model_over_random_hosts() {
    for seed in 0..60 {
        let (_, model) = KernelModel::PRESETS[seed as usize % KernelModel::PRESETS.len()];
        let scenario = Scenario { kernel: Kernel::Linux(model), ..quell_sim::fuzz::scenario(seed) };
        let report = under("quell", &scenario);
        assert!(report.broken.is_empty(), "seed {seed}: {:?}", report.broken);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut simulation = example("stock-kernel.toml");
    simulation.scenario.kernel = Kernel::Linux(KernelModel::LINUX_6_12);
    let digests = [(); 2].map(|()| under("quell", &simulation.scenario).digest);
    assert_eq!(digests[0], digests[1]);
}

/// Policies act on the model as on a host: a service that wakes behind batch work for milliseconds under plain Linux goes first.
#[test]
fn quell_keeps_the_tail_that_plain_linux_does_not() {
    let mut simulation = example("stock-kernel.toml");
    simulation.scenario.length = Nanos(2 * SECOND);
    for model in [KernelModel::LINUX_6_1, KernelModel::LINUX_6_12] {
        simulation.scenario.kernel = Kernel::Linux(model);
        let [plain, quell] = ["linux-default", "quell"].map(|policy| {
            let report = under(policy, &simulation.scenario);
            assert!(report.broken.is_empty(), "{:?}", report.broken);
            (report.tasks[0].percentile(999), report.tasks[1].work)
        });
        assert!(
            ratio(plain.0, quell.0) > 2.0,
            "p99.9 {} under Linux, {} under Quell",
            plain.0,
            quell.0
        );
        assert!(ratio(quell.1, plain.1) > 0.8, "batch work {} of {}", quell.1, plain.1);
    }
}

/// A scenario of the paper's machine under plain Linux.
fn on_the_papers_machine(kernel: &str, length_ms: u64, rest: &str) -> quell_sim::Report {
    let text = format!(
        "version = 1\nlength_ms = {length_ms}\nwarm_up_ms = 0\n\
         [machine]\npreset = \"wasted-cores\"\nmanaged = \"0-63\"\n\
         [host]\npolicy = \"linux-default\"\ncores = \"shared\"\n{kernel}\n{rest}"
    );
    let other = |name: &str| {
        let what = "no other file is read".to_owned();
        Err(FileError { file: name.to_owned(), line: None, what, remedy: String::new() })
    };
    let simulation =
        quell_sim::file::Simulation::parse(&text, "test.toml", "test", &other).unwrap();
    under(&simulation.policy, &simulation.scenario)
}

#[test]
fn threads_start_on_their_cores_though_wake_ups_take_time() {
    let thread = |core: u16| {
        format!(
            "[[task.thread]]\nname = \"t{core}\"\ncount = 1\nstart_core = {core}\nsteps = [\"compute 20ms\"]\n"
        )
    };
    let tasks = format!(
        "[[task]]\nname = \"a\"\nmodel = \"program\"\n{}{}{}",
        thread(9),
        thread(33),
        thread(50)
    );
    let kernel = "costs = { wake_ns = 1000 }\n[kernel]\nmodel = \"linux-6.12\"";
    let report = on_the_papers_machine(kernel, 100, &tasks);
    assert_eq!(report.migrations.values().sum::<u64>(), 0, "{:?}", report.migrations);
    let used = report.queued.iter().enumerate().filter(|(_, time)| time.0 > 0);
    assert_eq!(used.map(|(core, _)| core).collect::<Vec<_>>(), [9, 33, 50]);
}

#[test]
fn lu_on_nodes_two_hops_apart_is_slow_without_groups_of_its_own() {
    let lu = "[[task]]\nname = \"lu\"\nmodel = \"nas-lu\"\nthreads = 16\ncores = \"8-23\"\nlength_permille = 4\n";
    let time = |fix: &str| {
        let kernel = format!("[kernel]\nmodel = \"linux-4.1\"\n{fix}");
        on_the_papers_machine(&kernel, 60_000, lu).tasks[0].completed.unwrap()
    };
    let fixed = time("[kernel.fix]\ngroup_construction = \"paper\"\n");
    let slow = ratio(time(""), fixed);
    assert!(slow > 4.0, "{slow} times as long");
}

#[test]
fn computing_threads_slow_down_with_fewer_cores() {
    let ep = "[[task]]\nname = \"ep\"\nmodel = \"nas-ep\"\nthreads = 16\ncores = \"8-23\"\nlength_permille = 50\n";
    let time = |fix: &str| {
        let kernel = format!("[kernel]\nmodel = \"linux-4.1\"\n{fix}");
        on_the_papers_machine(&kernel, 60_000, ep).tasks[0].completed.unwrap()
    };
    let slow = ratio(time(""), time("[kernel.fix]\ngroup_construction = \"mainline\"\n"));
    assert!((1.8..2.2).contains(&slow), "{slow} times as long");
}
