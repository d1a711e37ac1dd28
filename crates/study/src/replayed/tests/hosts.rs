//! Recorded hosts on their own kernel, and the example.

use super::*;
use crate::simulate::SimResult;
use crate::simulate::source::{Setting, Source as File};

/// Recordings of real hosts that are whole.
const HOSTS: [&str; 9] = [
    "fork-storm",
    "hotplug",
    "lane",
    "make-j4",
    "make-j4-ftrace",
    "memcached-hog",
    "perf-sched",
    "trace-cmd",
    "violation",
];

/// Those that are texts, which do not tell their kernel: the README of the recordings does.
const TEXTS: [&str; 3] = ["make-j4-ftrace", "perf-sched", "trace-cmd"];

fn row_of(name: &str) -> Row {
    let recording = recorded::named(name);
    let mut source = recording.open();
    let topology = source.meta().topology.clone();
    let read = read(source.as_mut(), ALL).unwrap();
    let chosen = TEXTS.contains(&name).then_some("linux-6.18");
    let model = model_of(Path::new(name), &read, chosen).unwrap();
    compare(name, &read, &topology, model).unwrap()
}

/// Why completion or wasted time of a recording is further away than a fifth.
const EXPLAINED: [(&str, &str); 4] = [
    ("fork-storm", "0.2 s long: a wait of 10 ms is a fiftieth of its core time"),
    (
        "hotplug",
        "cores that go offline, and a partition whose cores the kernel does not balance, are not replayed",
    ),
    (
        "trace-cmd",
        "51 ms long: timers that end during the burst of another thread are charged to it",
    ),
    ("violation", "a partition whose cores the kernel does not balance is not replayed"),
];

#[test]
fn recorded_hosts_replay_alike_on_their_own_kernel_or_it_is_explained() {
    let rows: Vec<Row> = HOSTS.iter().map(|name| row_of(name)).collect();
    let table = text(&rows);
    for row in &rows {
        let is_explained = EXPLAINED.iter().any(|(name, _)| *name == row.name);
        let is_alike = row.is_alike();
        // One that has become alike needs no explanation any more.
        assert_eq!(is_alike, !is_explained, "{}\n{table}", row.name);
    }
    // Builds and what does not depend on the clock, on a kernel that balances all cores.
    assert!(rows.len() - EXPLAINED.len() >= 5, "{table}");
}

#[test]
fn kernels_have_the_newest_model_that_is_no_newer() {
    let models = [
        ("6.18.44", "linux-6.18"),
        ("6.17.0-rc1", "linux-6.12"),
        ("5.10", "linux-5.4"),
        ("4.3.0", "linux-4.3"),
        ("3.10.0-1160.el7.x86_64", "linux-4.1"),
    ];
    for (release, model) in models {
        assert_eq!(kernel_of(release), Some(model), "{release}");
    }
    for release in ["unknown", "", "6", "quell-sim 0.1.0, policy linux-default"] {
        assert_eq!(kernel_of(release), None, "{release}");
    }
}

#[test]
fn a_recording_without_a_kernel_needs_a_model() {
    for name in HOSTS {
        let read = read(recorded::named(name).open().as_mut(), ALL).unwrap();
        let file = Path::new("directory").join(name);
        assert_eq!(model_of(&file, &read, Some("linux-5.4")).unwrap(), "linux-5.4");
        let found = model_of(&file, &read, None);
        assert_eq!(found.is_err(), TEXTS.contains(&name), "{name}");
        let Err(error) = found.map_err(|error| error.to_string()) else { continue };
        assert!(error.contains(&*file.to_string_lossy()), "{error}");
        assert!(error.contains("does not tell its kernel"), "{error}");
        assert!(error.contains("--model"), "{error}");
    }
}

#[test]
fn a_model_that_there_is_not_is_refused_with_the_names_of_all() {
    let trace = wakes_and_forks;
    let read = read(&mut trace(), ALL).unwrap();
    let error = compare("x", &read, &trace().meta.topology, "nonsense").unwrap_err().to_string();
    assert!(error.contains("`nonsense`") && !error.contains("toml"), "{error}");
    for (name, _) in quell_sim::KernelModel::PRESETS {
        assert!(error.contains(name), "{error}");
        assert!(check_model(name).is_ok());
    }
    assert!(check_model("global").is_ok());
}

#[test]
fn a_bug_of_the_recorded_kernel_shows_in_the_replay_and_goes_with_its_fix() {
    // Sixteen threads on nodes two hops apart stay on the one where they began (Scheduling Group Construction).
    let text = include_str!("../../../../../examples/sim/wasted-cores-lu.toml");
    let mut file: toml::Table = text.parse().unwrap();
    // Long enough that passes of the balancer are a small part of it.
    file.insert("length_ms".to_owned(), 1_000.into());
    let (report, mut trace) = simulated(&toml::to_string(&file).unwrap());
    let read = read(&mut trace, ALL).unwrap();
    let wasted = |fix: &str| {
        let kernel = format!("model = \"linux-4.1\"\nfix = {{ group_construction = \"{fix}\" }}");
        let report = compare::replay_with(&read, &trace.meta.topology, &kernel).unwrap();
        report.waste.cores.0 as f64
    };
    let recorded = report.waste.cores.0 as f64;
    assert!(recorded > 1e9, "{recorded}");
    assert!(within(0.2, recorded, wasted("none")), "{recorded}, {}", wasted("none"));
    assert!(wasted("paper") < 0.2 * recorded, "{recorded}, {}", wasted("paper"));
}

/// `examples/traces/make-j4.pftrace`: the recording `make-j4` without the sizes of queues, which a replay does not need.
fn example() -> Vec<u8> {
    let recorded = recorded::named("make-j4").open();
    let mut writer = Writer::new(Vec::new());
    writer.meta(recorded.meta()).unwrap();
    let mut sequences = BTreeMap::<CoreId, u64>::new();
    for event in recorded.map(Result::unwrap) {
        if matches!(event.what, What::Queue { .. }) {
            continue;
        }
        let next = sequences.entry(event.core).or_default();
        *next += 1;
        writer.event(&Event { sequence: *next - 1, ..event }).unwrap();
    }
    writer.finish().unwrap();
    writer.into_inner()
}

#[test]
fn the_example_replays_the_recorded_build() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let trace = folder.join("traces/make-j4.pftrace");
    if std::env::var_os("QUELL_UPDATE_EXPECTED").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(trace.parent().unwrap()).unwrap();
        std::fs::write(&trace, example()).unwrap();
        std::fs::write(folder.join("../fuzz/corpus/replay/wakes-and-forks"), small()).unwrap();
    }
    assert!(std::fs::metadata(&trace).unwrap().len() < 300_000);
    let whole = read(recorded::named("make-j4").open().as_mut(), ALL).unwrap();
    let example = load(&trace, ALL).unwrap();
    assert_eq!(example.program, whole.program);
    assert_eq!((example.threads, example.cores), (whole.threads, whole.cores));
    assert_eq!(example.figures, whole.figures);
    // As a user runs it, and on another host.
    let source = File::open(&folder.join("sim/replay.toml")).unwrap();
    let run = |settings: &[Setting]| {
        let resolved = source.resolve(settings).unwrap();
        let mut policy = resolved.simulation.driver().unwrap();
        let scenario = &resolved.simulation.scenario;
        let report = quell_sim::run(scenario, policy.as_mut());
        let result = SimResult::new(scenario, policy.name(), &report);
        (result.text(scenario), result, resolved.fingerprint)
    };
    let (text, result, fingerprint) = run(&[]);
    let value = |system: &str, metric: &str| {
        let mut rows = result.rows.iter();
        let found = rows.find(|row| row.system == system && row.metric == metric);
        found.unwrap_or_else(|| panic!("no {metric} of {system}")).median
    };
    let [recorded, replayed] = ["recording", "linux-default"].map(|it| value(it, "completed_s"));
    assert!(within(0.2, recorded, replayed), "{text}");
    assert!(value("recording", "wasted_core_s") == 0.0, "{text}");
    assert!(value("linux-default", "wasted_core_s") < 0.01, "{text}");
    assert!(text.contains("as recorded (kernel 6.18.44"), "{text}");
    assert_eq!(result.digest, DIGEST, "the digest is now {}", result.digest);
    let model = toml::Value::String("linux-4.1".to_owned());
    let (_, other, changed) = run(&[("kernel.model", &model)]);
    assert!(other.digest != result.digest && changed != fingerprint);
}

/// Of `examples/sim/replay.toml`. As in `crates/sim/tests/digests.txt`: it changes with the model and the policies alone.
const DIGEST: &str = "601595650f69acf8";
