//! Same seed, same bytes: every example, twice, against digests that are committed. A build with optimisation and one
//! without have to give the same, and so does every other machine.

#![allow(clippy::unwrap_used, reason = "an example that does not load fails the test")]

use std::path::Path;

use quell_model::Nanos;
use quell_policy::by_name;
use quell_sim::file::Simulation;
use quell_sim::fuzz::PROMISE;
use quell_sim::run;

/// Simulated time: each example in a second or two without optimisation.
const LENGTH_MS: u64 = 4;
/// With helper threads, which wake up rarely.
const LENGTH_WITH_HELPERS_MS: u64 = 600;

/// Whoever changes the model or a policy changes these, and is to mean it.
const DIGESTS: &str = include_str!("../digests.txt");

#[test]
fn every_example_gives_the_same_digest_twice_and_everywhere() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sim");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    // It names a trace, which quell-study reads, and where its digest is.
    files.retain(|file| !file.ends_with("replay.toml"));
    files.sort();
    let lines = files.iter().map(|file| {
        let mut simulation = Simulation::load(file).unwrap();
        let helps = simulation.scenario.tasks.iter().any(|task| !task.helpers.is_empty());
        let length = Nanos::from_millis(if helps { LENGTH_WITH_HELPERS_MS } else { LENGTH_MS });
        (simulation.scenario.length, simulation.scenario.warm_up) = (length, Nanos(length.0 / 4));
        let Simulation { scenario, policy, config, .. } = simulation;
        let report = || {
            let mut policy = by_name(&policy, scenario.host.clone(), config).unwrap();
            run(&scenario, policy.as_mut())
        };
        let first = report();
        assert_eq!(first, report(), "{}", file.display());
        assert_eq!(first.broken, [], "{}", file.display());
        // Rivals break the invariants by design.
        let promised = !PROMISE.contains(&policy.as_str()) || first.violations.is_empty();
        assert!(promised, "{}: {:?}", file.display(), first.violations);
        format!("{} {:016x}\n", file.file_stem().unwrap().to_str().unwrap(), first.digest)
    });
    let found: String = lines.collect();
    assert_eq!(found, DIGESTS, "the digests are now:\n{found}");
}
