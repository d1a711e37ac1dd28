use proptest::prelude::*;
use quell_model::{Class, CoreSet, Nanos, TaskScheduler, TimeLimits};

use super::*;
use crate::kernel::linux::{Fix, KernelModel, LoadMetric, Picker};
use crate::scenario::{Change, Kernel};
use crate::workload::{Load, ProgramStep, Service, Style};

const SMALL: &str = r#"
version = 1
length_ms = 100
[machine]
preset = "caladan"
[[task]]
name = "cache"
model = "memcached"
guaranteed = 4
load = [[0, 100000], [50, 800000]]
[[task]]
name = "stream"
model = "stream-dram"
threads = 22
[[change]]
at_ms = 20
offline = 5
"#;

fn parse(text: &str) -> Result<Simulation, FileError> {
    Simulation::parse(text, "x.toml", "x", &|name| {
        Err(FileError {
            file: name.to_owned(),
            line: None,
            what: "is not there".to_owned(),
            remedy: String::new(),
        })
    })
}

#[test]
fn a_file_becomes_the_scenario_that_it_describes() {
    let Simulation { scenario, policy, .. } = parse(SMALL).unwrap();
    assert_eq!((policy.as_str(), scenario.name.as_str()), ("quell", "x"));
    assert_eq!(scenario.host.topology.len(), 24);
    assert_eq!(scenario.host.managed.to_string(), "1-11,13-23");
    let [cache, stream] = &scenario.tasks[..] else { panic!("two tasks") };
    assert_eq!((cache.limits.class, cache.limits.guaranteed), (Class::LatencyCritical, 4));
    assert!(matches!(cache.style, Style::Runtime { .. }));
    let Load::Open { steps, .. } = &cache.load else { panic!("an open load") };
    assert_eq!(steps[1].from, Nanos::from_millis(50));
    assert_eq!(steps[1].per_second(), 800_000);
    assert_eq!((stream.limits.class, stream.load.clone()), (Class::BestEffort, Load::Hog));
    assert_eq!(scenario.changes.len(), 1);
}

#[test]
fn classes_cgroups_and_bindings_are_read() {
    let text = SMALL
        .replace("guaranteed = 4", "guaranteed = 4\nsched_idle = true\ncpu_weight = 250")
        .replace("offline = 5", "bind = \"cache\"\ncores = \"1-2\"");
    let scenario = parse(&text).unwrap().scenario;
    assert_eq!((scenario.tasks[0].sched_idle, scenario.tasks[0].cpu_weight), (true, Some(250)));
    let cores: CoreSet = "1-2".parse().unwrap();
    assert_eq!(scenario.changes, [(Nanos::from_millis(20), Change::Bind(0, cores))]);
}

#[test]
fn lane_is_a_task_with_one_core_and_a_slice() {
    let lane = SMALL.replace("threads = 22", "threads = 3\nlane = { slice = \"50us\" }");
    let task = parse(&lane).unwrap().scenario.tasks[1].clone();
    assert_eq!((task.limits.scheduler, task.limits.max), (TaskScheduler::Lane, 1));
    assert_eq!((task.threads, task.slice), (3, Nanos::from_micros(50)));
    let two_cores = lane.replace("threads = 3", "threads = 3\nmax = 2");
    assert!(parse(&two_cores).unwrap_err().to_string().contains("between 1 and 1"));
    let runtime = SMALL.replace("guaranteed = 4", "style = \"runtime\"\nlane = {}");
    assert!(parse(&runtime).unwrap_err().to_string().contains("style = \"threads\""));
    let short = lane.replace("50us", "1us");
    assert!(parse(&short).unwrap_err().to_string().contains("`slice` is 1.0 us"));
    let unknown = lane.replace("slice =", "slyce =");
    assert!(parse(&unknown).unwrap_err().to_string().contains("slyce"));
}

/// A service with a helper, beside threads of the kernel.
const HELPED: &str = r#"
version = 1
length_ms = 100
[machine]
physical = 2
[host]
cores = "shared"
[kernel_threads]
period_us = 4000
burst = { distribution = "constant", mean_ns = 50000 }
[[task]]
name = "web"
model = "memcached"
rate = 1000
style = "threads"
[[task.helper]]
name = "collector"
threads = 2
period_us = 100000
burst = { distribution = "constant", mean_ns = 8000000 }
stops_world = true
"#;

#[test]
fn helpers_and_kernel_threads_are_threads_beside_servers() {
    let Simulation { scenario, .. } = parse(HELPED).unwrap();
    assert!(scenario.host.caps.bursts);
    let [web, kernel] = &scenario.tasks[..] else { panic!("two tasks") };
    let [collector] = &web.helpers[..] else { panic!("one helper") };
    assert_eq!((collector.name.as_str(), collector.stops_world), ("collector", true));
    assert_eq!((collector.period, web.all_threads()), (Nanos::from_millis(100), web.threads + 2));
    assert_eq!((kernel.style, kernel.threads, kernel.all_threads()), (Style::Kernel, 0, 2));
    let without = parse(&HELPED.replace("[host]", "[host]\nbursts = false")).unwrap();
    assert!(!without.scenario.host.caps.bursts);
}

#[test]
fn what_is_wrong_with_helpers_is_said_with_line_and_remedy() {
    let cases = [
        ("period_us = 100000", "period_us = 1", 19, "between 10 and"),
        ("threads = 2", "threads = 300", 18, "between 1 and 256"),
        ("\"collector\"", "\"concurrent-collector\"", 17, "1 to 15 bytes"),
        ("mean_ns = 8000000", "mean_ns = 0", 20, "1 ns to 1 s"),
        ("style = \"threads\"", "style = \"runtime\"", 16, "style = \"threads\""),
        ("rate = 1000", "rate = 1000\nlane = {}", 17, "no lane"),
        ("cores = \"shared\"", "", 8, "needs cores = \"shared\""),
        ("stops_world", "stop_world", 21, "docs/lab/sim.md"),
    ];
    for (from, to, line, remedy) in cases {
        let error = parse(&HELPED.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(remedy), "{to}: {error}");
        assert_eq!(error.line, Some(line), "{to}: {error}");
    }
}

#[test]
fn what_is_wrong_is_said_with_line_and_remedy() {
    let cases = [
        ("length_ms = 100", "length_ms = 0", 3, "between 1 and"),
        ("\"caladan\"", "\"calidan\"", 5, "choose one of: caladan"),
        ("\"memcached\"", "\"memcache\"", 8, "choose one of: memcached"),
        ("guaranteed = 4", "guaranteed = 40", 9, "between 0 and 22"),
        ("guaranteed = 4", "garanteed = 4", 9, "docs/lab/sim.md"),
        ("[50, 800000]", "[0, 800000]", 10, "ascending"),
        ("name = \"stream\"", "name = \"cache\"", 12, "name of its own"),
        ("threads = 22", "threads = 22\nrate = 5", 11, "batch work takes none"),
        ("offline = 5", "offline = 99", 15, "name a core"),
        ("offline = 5", "bind = \"cache\"\ncores = \"0-99\"", 18, "choose among"),
        ("offline = 5", "offline = 5\ncores = \"1\"", 18, "name the task with `bind`"),
        ("guaranteed = 4", "nice = 5\nsched_idle = true", 10, "leave out `nice` or"),
        ("guaranteed = 4", "cpu_weight = 0", 9, "between 1 and 10000"),
        ("offline = 5", "leave = \"nobody\"", 15, "of this file"),
        ("version = 1", "version = 2", 2, "version 1"),
        ("at_ms = 20", "at_ms = 101", 15, "nothing changes after the end"),
        ("[machine]", "[policy]\nhyperthread = true\nbandwith_limit = 0\n[machine]", 6, "sim.md"),
        ("[machine]", "[host]\ncosts = { mechanism = \"x.json\" }\n[machine]", 5, "is not there"),
    ];
    for (from, to, line, remedy) in cases {
        let error = parse(&SMALL.replace(from, to)).unwrap_err();
        assert_eq!(error.line, Some(line), "{to}: {error}");
        assert!(error.to_string().contains(remedy), "{to}: {error}");
    }
}

#[test]
fn time_limits_are_those_of_the_daemons_file() {
    let task =
        |line: &str| SMALL.replace("guaranteed = 4", &format!("style = \"threads\"\n{line}"));
    let limits = |text: &str| parse(text).unwrap().scenario.tasks[0].limits.times;
    assert_eq!(limits(&task("")), TimeLimits::default());
    assert_eq!(limits(SMALL), TimeLimits { runaway_after: Nanos::ZERO, ..TimeLimits::default() });
    for (at, key) in TimeLimits::KEYS.iter().enumerate() {
        let most = *key.range.end();
        let read = limits(&task(&format!("{} = {most}", key.name))).to_array()[at];
        assert_eq!(read, Nanos(most * key.unit_ns), "{}", key.name);
        let error = parse(&task(&format!("{} = {}", key.name, most + 1))).unwrap_err();
        assert_eq!(error.line, Some(10), "{error}");
        assert!(error.to_string().contains(&format!("and {most})")), "{error}");
    }
}

#[test]
fn a_policy_that_cannot_run_is_said_with_line_and_remedy() {
    let refused = |host: &str| {
        let text = SMALL.replace("[[change]]", &format!("[host]\n{host}\n[[change]]"));
        let simulation = parse(&text).unwrap();
        let error = simulation.driver().err().unwrap();
        (error.line, error.to_string(), simulation)
    };
    let (line, text, simulation) = refused("policy = \"perfiso\"");
    assert_eq!(line, Some(16), "{text}");
    assert!(text.contains("set `cores = \"shared\"` in `[host]`"), "{text}");
    assert!(simulation.lacks().unwrap().unwrap().contains("shares cores"));
    let (_, text, _) = refused("policy = \"shenango\"\ncores = \"shared\"");
    assert!(text.contains("set `cores = \"exclusive\"`"), "{text}");
    let (line, text, mut simulation) = refused("policy = \"oracle\"");
    assert!(line == Some(16) && text.contains("quell sim oracle"), "{text}");
    simulation.choose("best".to_owned(), "--policy best");
    let error = simulation.lacks().unwrap_err();
    assert_eq!(error.line, None);
    assert!(error.to_string().contains("x.toml: `--policy best`: there is no policy"), "{error}");
    simulation.choose("static".to_owned(), "--policy static");
    assert_eq!(simulation.driver().unwrap().name(), "static");
}

#[test]
fn every_model_and_machine_can_be_named() {
    let models = crate::workload::models::MODELS.iter();
    // `recording_tests` have the one left out.
    for model in models.filter(|model| model.name != crate::workload::models::TRACE) {
        let load = match model.class {
            Class::LatencyCritical => {
                "rate = 1000\nservice = { distribution = \"constant\", mean_ns = 900 }"
            }
            Class::BestEffort => "",
        };
        for preset in &crate::machine::PRESETS {
            let steps = match model.name {
                crate::workload::models::PROGRAM => {
                    "[[task.thread]]\nname = \"b\"\ncount = 1\nsteps = [\"compute 1ms\"]"
                }
                _ => "",
            };
            let text = format!(
                "version = 1\nlength_ms = 1\n[machine]\npreset = \"{}\"\n[[task]]\nname = \"a\"\nmodel = \"{}\"\n{load}{steps}",
                preset.name, model.name
            );
            parse(&text).unwrap();
        }
    }
}

#[test]
fn kernel_is_a_version_with_parts_set_apart() {
    let kernel = |lines: &str| {
        parse(&SMALL.replace(
            "[[task]]\nname = \"cache\"",
            &format!("[kernel]\n{lines}\n[[task]]\nname = \"cache\""),
        ))
    };
    assert_eq!(parse(SMALL).unwrap().scenario.kernel, Kernel::Global);
    assert_eq!(kernel("model = \"global\"").unwrap().scenario.kernel, Kernel::Global);
    for (name, model) in KernelModel::PRESETS {
        let found = kernel(&format!("model = \"{name}\"")).unwrap().scenario.kernel;
        assert_eq!(found, Kernel::Linux(model), "{name}");
    }
    let changed = kernel(
        "model = \"linux-6.1\"\nhz = 1000\npicker = \"eevdf\"\nload_metric = \"4.1\"\n[kernel.fix]\noverload_on_wakeup = \"paper\"",
    );
    let Kernel::Linux(model) = changed.unwrap().scenario.kernel else { panic!("Linux") };
    assert_eq!(model.tick, Nanos::from_millis(1));
    assert_eq!(model.picker, Picker::Eevdf { delayed_dequeue: false });
    assert_eq!(model.load, LoadMetric::Contribution);
    assert_eq!(model.fixes.overload_on_wakeup, Fix::Paper);
    assert_eq!(model.fixes.group_imbalance, Fix::Mainline, "as 6.1 has it");
    let changed = kernel("model = \"linux-6.12\"\n[kernel.fix]\neven_idle = \"paper\"");
    let Kernel::Linux(model) = changed.unwrap().scenario.kernel else { panic!("Linux") };
    assert_eq!((model.fixes.even_idle, model.fixes.imbalanced_group), (Fix::Paper, Fix::None));
    for (lines, says) in [
        ("model = \"linux-2.6\"", "choose one of: global, linux-4.1"),
        ("model = \"global\"\nnohz = false", "has no parts"),
        ("model = \"linux-4.1\"\nhz = 1", "`hz` is 1"),
        ("model = \"linux-4.1\"\npicker = \"o1\"", "unknown variant `o1`"),
        ("nohz = false", "missing field `model`"),
        (
            "model = \"linux-6.1\"\n[kernel.fix]\nimbalanced_group = \"mainline\"",
            "expected `none` or `paper`",
        ),
    ] {
        let error = kernel(lines).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn machine_is_like_a_recorded_host() {
    let text = "version = 1\nlength_ms = 1\n[machine]\nlike = \"host.json\"\n[[task]]\nname = \"a\"\nmodel = \"hog\"\n";
    let host = quell_model::Topology::regular(2, 3, 2).unwrap();
    let read = |text: &str| {
        let other = |_: &str| Ok(serde_json::to_string(&host).unwrap());
        Simulation::parse(text, "x.toml", "x", &other)
    };
    let scenario = read(text).unwrap().scenario;
    assert_eq!((scenario.host.topology, scenario.machine.smt), (host.clone(), true));
    let both = text.replace("like =", "nodes = 2\nlike =");
    assert!(read(&both).unwrap_err().to_string().contains("leave out preset"));
    let slow = host.clone().with_capacities(vec![512; 12]).unwrap();
    let slow = |_: &str| Ok(serde_json::to_string(&slow).unwrap());
    let error = Simulation::parse(text, "x.toml", "x", &slow).unwrap_err().to_string();
    assert!(error.contains("have one capacity"), "{error}");
    assert!(parse(text).unwrap_err().to_string().contains("is not there"));
}

#[test]
fn machine_has_clusters_and_capacities() {
    let machine = |lines: &str| {
        let task = "[[task]]\nname = \"a\"\nmodel = \"hog\"\n";
        parse(&format!("version = 1\nlength_ms = 1\n[machine]\n{lines}\n{task}"))
    };
    let topology = machine("nodes = 2\ncluster = 2").unwrap().scenario.host.topology;
    assert_eq!(topology.clusters(), Some(&[0, 0, 1, 1, 2, 2, 3, 3][..]));
    let topology = machine("physical = 2\ncapacities = [512, 1024]").unwrap();
    assert_eq!(topology.scenario.host.topology.capacity(quell_model::CoreId(0)), 512);
    for (lines, says) in [
        ("cluster = 0", "`cluster` is 0"),
        ("capacities = [1024]", "1 capacities for 4 cores"),
        ("physical = 2\ncapacities = [1024, 2000]", "core 1 has capacity 2000"),
        ("physical = 1\nsmt = 2\ncapacities = [1024, 1024]", "have one capacity"),
        ("like = \"host.json\"\ncluster = 2", "leave out preset"),
    ] {
        let error = machine(lines).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

const STEPS: &str = r#"
version = 1
length_ms = 100
[machine]
physical = 2
[[task]]
name = "steps"
model = "program"
threads = 3
[[task.thread]]
name = "first"
count = 1
steps = ["repeat 3", "compute 1ms ~20%", "lock log", "unlock log", "end", "fork second"]
[[task.thread]]
name = "second"
steps = ["exec", "wait all", "sleep 2ms"]
[[task.sync]]
name = "log"
tokens = 1
[[task.sync]]
name = "all"
parties = 1
waits = "spin"
"#;

#[test]
fn steps_become_a_program() {
    let task = parse(STEPS).unwrap().scenario.tasks[0].clone();
    let Load::Program(program) = &task.load else { panic!("a program") };
    assert_eq!((task.threads, program.threads(), program.kinds.len()), (3, 1, 2));
    let [compute, take, post, repeat, fork] = program.kinds[0].steps[..] else {
        panic!("five steps")
    };
    assert!(matches!(compute, ProgramStep::Compute(Service::Lognormal { sigma: 200, .. })));
    assert_eq!((take, post), (ProgramStep::Take(0), ProgramStep::Post(0)));
    assert_eq!(repeat, ProgramStep::Repeat { from: 0, times: 3 });
    assert_eq!(fork, ProgramStep::Fork(1));
    assert_eq!(program.kinds[1].steps[1], ProgramStep::Take(1));
}

#[test]
fn steps_that_make_no_sense_are_refused_with_their_line() {
    for (from, to, says) in [
        ("\"repeat 3\"", "\"repeat x\"", "a number follows `repeat`"),
        ("\"end\", ", "", "each `repeat` has its `end`"),
        ("fork second", "fork third", "name a `[[task.thread]]`"),
        ("lock log", "lock door", "name a `[[task.sync]]`"),
        ("~20%", "~900%", "up to 200 %"),
        ("compute 1ms", "compute 9000s", "between 1 ns and an hour"),
        ("\"exec\"", "\"run\"", "write compute, sleep"),
        ("tokens = 1", "tokens = 1\nparties = 2", "neither tokens nor a barrier"),
        ("count = 1\n", "", "give one kind a `count`"),
        ("model = \"program\"", "model = \"hog\"", "they go with `model = \"program\"`"),
    ] {
        assert!(STEPS.contains(from), "{from}");
        let error = parse(&STEPS.replace(from, to)).unwrap_err();
        assert!(error.line.is_some() && error.to_string().contains(says), "{error}");
    }
}

proptest! {
    #[test]
    fn damaged_steps_are_read_or_refused(at in 0..STEPS.len(), with in "[ -~]{0,6}", cut in 0usize..12) {
        let end = (at + cut).min(STEPS.len());
        let _ = parse(&format!("{}{with}{}", &STEPS[..at], &STEPS[end..]));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(?s).{0,400}") {
        let _ = parse(&text);
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(at in 0..SMALL.len(), with in "[ -~]{0,6}", cut in 0usize..12) {
        let end = (at + cut).min(SMALL.len());
        let _ = parse(&format!("{}{with}{}", &SMALL[..at], &SMALL[end..]));
    }

    #[test]
    fn any_numbers_are_read_or_refused(numbers in proptest::array::uniform6(any::<u64>())) {
        let [a, b, c, d, e, f] = numbers;
        let _ = parse(&format!(
            "version = 1\nlength_ms = {a}\nsample_us = {b}\n[machine]\nnodes = {c}\nphysical = {d}\nsmt = 2\n\
             memory_mb_s = {e}\n[host.costs]\npreempt_ns = {f}\n[[task]]\nname = \"a\"\nmodel = \"memcached\"\n\
             diurnal = {{ low = {a}, high = {b}, period_ms = {c} }}\n"
        ));
    }
}

#[test]
fn renamed_key_is_refused_with_its_new_name() {
    for (old, new) in super::raw::RENAMED {
        let head = match old {
            "feed_ms" => "version = 1\nlength_ms = 5\n",
            "counts_memory" | "sees_requests" => "version = 1\nlength_ms = 5\n[host]\n",
            "calm" | "spin" => "version = 1\nlength_ms = 5\n[[change]]\nat_ms = 1\n",
            _ => "version = 1\nlength_ms = 5\n[[task]]\nname = \"web\"\nmodel = \"memcached\"\n",
        };
        let text = format!("{head}{old} = 1\n");
        let error = Simulation::parse(&text, "a.toml", "a", &|_| unreachable!()).unwrap_err();
        assert_eq!(error.what, format!("`{old}` was renamed to `{new}`"));
        assert_eq!(error.line, Some(head.lines().count() + 1));
    }
}
