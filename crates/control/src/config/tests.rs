use proptest::prelude::*;
use quell_model::{Class, Nanos, TimeLimits, Topology};

use super::*;

fn error(text: &str) -> String {
    Config::parse(text, "quell.toml").unwrap_err().to_string()
}

fn host_error(text: &str) -> String {
    let host = Topology::regular(1, 2, 1).unwrap();
    Config::parse(text, "quell.toml").unwrap().check(&host, "quell.toml").unwrap_err().to_string()
}

const LC: &str = "[[task]]\nname = \"web\"\nclass = \"lc\"\npid = 42\nguaranteed = 1\n";

#[test]
fn a_small_file_gets_caladans_defaults() {
    let config = Config::parse(LC, "quell.toml").unwrap();
    let task = &config.tasks[0];
    assert_eq!((task.class, task.guaranteed, task.max), (Class::LatencyCritical, 1, None));
    assert_eq!(task.times, TimeLimits::default());
    assert!(!task.allow_freeze, "a task that was not launched has not consented to be frozen");
    let host = Topology::regular(1, 2, 1).unwrap();
    assert_eq!(config.check(&host, "quell.toml").unwrap().managed.to_string(), "1");
}

#[test]
fn the_default_leaves_the_lowest_physical_core_and_its_sibling_alone() {
    let config = Config::parse(LC, "quell.toml").unwrap();
    let host = Topology::regular(1, 4, 2).unwrap();
    assert_eq!(config.check(&host, "").unwrap().unmanaged.to_string(), "0,4");
}

#[test]
fn errors_name_file_line_and_remedy() {
    let unknown_key = error("[host]\nmanagd = \"1\"\n");
    assert!(unknown_key.starts_with("quell.toml:2: unknown field `managd`"), "{unknown_key}");
    let class = error("[[task]]\nname = \"web\"\nclass = \"vip\"\npid = 42\n");
    assert!(
        class.starts_with("quell.toml:3: unknown variant `vip`, expected `lc` or `be`"),
        "{class}"
    );
    let twice = error(&format!("{LC}{LC}"));
    assert!(twice.starts_with("quell.toml:7: two tasks are named `web`"), "{twice}");
    let syntax = error("this is no toml");
    assert!(syntax.starts_with("quell.toml:1: "), "{syntax}");
    let source = error("[[task]]\nname = \"web\"\nclass = \"be\"\n");
    assert!(source.contains("one of `command`, `pid`, `match`, `cgroup`"), "{source}");
    let empty = error("[[task]]\nname = \"web\"\nclass = \"be\"\ncommand = []\n");
    assert!(empty.contains("the command of task `web` is empty"), "{empty}");
    let init = error("[[task]]\nname = \"web\"\nclass = \"be\"\npid = 1\n");
    assert!(init.contains("process 1 can never be a task"), "{init}");
    let path = error("[[task]]\nname = \"web\"\nclass = \"be\"\ncgroup = \"/a/../b\"\n");
    assert!(path.contains("not a cgroup path"), "{path}");
    let metrics = error("[host]\nmetrics = \"localhost\"\n");
    assert!(metrics.starts_with("quell.toml:2: `localhost` is not an address"), "{metrics}");
    let name = error("[[task]]\nname = \"../etc\"\nclass = \"be\"\npid = 42\n");
    assert!(name.contains("cannot be a task's name"), "{name}");
    let hasty = error("[host]\nwatchdog_timeout_ms = 10\n");
    assert!(hasty.starts_with("quell.toml:2: `watchdog_timeout_ms` is 10"), "{hasty}");
}

#[test]
fn what_controllers_are_told_reaches_them() {
    let told =
        "[host.controllers]\nbandwidth_limit_mb_s = 0\nhyperthread = false\nidle_buffer = 3\n";
    let task = "sibling_idle_after_us = 25\nquantum_us = 0\nslo = { percentile = 99.9, latency_us = 500 }\n";
    let config = Config::parse(&format!("{told}{LC}{task}"), "quell.toml").unwrap();
    let controllers = config.host.controllers;
    assert_eq!((controllers.bandwidth_limit.0, controllers.idle_buffer), (0, 3));
    assert!(!controllers.hyperthread && controllers.quantum);
    let limits = config.tasks[0].limits(&Topology::regular(1, 4, 1).unwrap().all());
    assert_eq!(
        (limits.times.sibling_idle_after, limits.times.quantum),
        (Nanos::from_micros(25), Nanos::ZERO)
    );
    assert_eq!(limits.latency_target, Nanos::from_micros(500));
    let plain = Config::parse(LC, "quell.toml").unwrap();
    assert_eq!(plain.host.controllers.bandwidth_limit.0, 25_000_000_000);
    let wild = error("[host.controllers]\nbandwidth_limit_mb_s = 10000001\n");
    assert!(wild.starts_with("quell.toml:2: `bandwidth_limit_mb_s` is 10000001"), "{wild}");
}

#[test]
fn sources_of_memory_traffic_are_known_by_name_or_path() {
    let memory = |text: &str| {
        Config::parse(&format!("[host.memory]\n{text}"), "quell.toml").unwrap().host.memory
    };
    assert_eq!(
        memory(""),
        MemoryConfig { source: MemorySource::Auto, every: Nanos::from_millis(1) }
    );
    let file = memory("source = \"file:/run/traffic\"\n");
    assert_eq!(file.source, MemorySource::File("/run/traffic".into()));
    assert_eq!(file.every, Nanos::from_millis(10));
    let resctrl = memory("source = \"resctrl\"\ninterval_us = 200\n");
    assert_eq!((resctrl.source, resctrl.every.0), (MemorySource::Resctrl, 200_000));
    for wrong in ["perf", "file:", "file:traffic", ""] {
        let said = error(&format!("[host.memory]\nsource = \"{wrong}\"\n"));
        assert!(said.starts_with(&format!("quell.toml:2: `{wrong}` is no source")), "{said}");
    }
    let hasty = error("[host.memory]\ninterval_us = 10\n");
    assert!(hasty.starts_with("quell.toml:2: `interval_us` is 10"), "{hasty}");
    let slow = "[host.controllers]\nbandwidth_step_us = 2000000\n";
    let slow = Config::parse(slow, "quell.toml").unwrap();
    assert_eq!(slow.host.controllers.bandwidth_step, Nanos::from_secs(2));
}

#[test]
fn a_page_of_hints_is_a_services_and_has_an_absolute_path() {
    let page = |path: &str| format!("{LC}hints = \"{path}\"\n");
    let config = Config::parse(&page("/dev/shm/web"), "quell.toml").unwrap();
    assert_eq!(config.tasks[0].hints, Some("/dev/shm/web".into()));
    let relative = error(&page("web"));
    assert!(relative.starts_with("quell.toml:6: task `web`: `hints` is not"), "{relative}");
    let batch = error(&page("/dev/shm/web").replace("\"lc\"", "\"be\""));
    assert!(batch.contains("best-effort and serves no requests"), "{batch}");
}

#[test]
fn what_does_not_fit_the_host_is_refused_by_name() {
    assert!(host_error("[host]\nmanaged = \"7\"\n").contains("names core 7, this host has 0-1"));
    assert!(
        host_error("[host]\nmanaged = \"0-1\"\n").contains("one at least has to stay unmanaged")
    );
    let greedy = LC.replace("guaranteed = 1", "guaranteed = 2");
    assert!(host_error(&greedy).contains("2 cores are guaranteed, but only 1 are managed (1)"));
    let elsewhere = format!("{LC}cores = \"0\"\n");
    assert!(host_error(&elsewhere).contains("its `cores` are not all managed"));
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "[ -~\n]{0,300}") {
        let _ = Config::parse(&text, "fuzz.toml");
    }

    #[test]
    fn parsing_of_nearly_right_files_never_panics(
        key in "(managed|tick_us|policy|max_threads|x)",
        value in "(\"[0-9,-]{0,12}\"|[0-9]{1,20}|true|\\[\\])",
        field in "(pid|match|cgroup|command|max|cores|children)",
        other in "(\"[a-z/.]{0,20}\"|-?[0-9]{1,12}|\\[\"a\"\\])",
    ) {
        let text = format!("[host]\n{key} = {value}\n[[task]]\nname = \"a\"\nclass = \"lc\"\n{field} = {other}\n");
        if let Ok(config) = Config::parse(&text, "fuzz.toml") {
            let _ = config.check(&Topology::regular(2, 4, 2).unwrap(), "fuzz.toml");
        }
    }
}

#[test]
fn the_examples_are_right_and_fit_a_small_host() {
    let host = Topology::regular(1, 2, 1).unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().extension().is_some_and(|end| end == "toml") {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let config = Config::parse(&text, &entry.path().display().to_string()).unwrap();
            config.check(&host, "").unwrap();
            read += 1;
        }
    }
    assert!(read >= 3);
}

#[test]
fn every_key_is_documented() {
    let page = include_str!("../../../../docs/reference/configuration.md");
    let raw = include_str!("raw.rs").lines();
    let raw = raw.take_while(|line| !line.starts_with("/// Where in which file"));
    let memory = include_str!("memory.rs").lines();
    let memory = memory.take_while(|line| !line.starts_with("pub(super) fn"));
    let keys = raw
        .chain(memory)
        .filter_map(|line| line.strip_prefix("    ")?.split_once(": ")?.0.split_whitespace().next())
        .filter(|key| {
            key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
                && !["matches", "struct"].contains(key)
        });
    for key in keys {
        assert!(
            page.contains(&format!("`{key}`"))
                || page.contains(&format!("{key} = "))
                || page.contains(&format!("[{key}]")),
            "{key}"
        );
    }
}

#[test]
fn time_limits_are_read_bounded_and_documented() {
    let page = include_str!("../../../../docs/reference/configuration.md");
    for (at, key) in TimeLimits::KEYS.iter().enumerate() {
        let (name, least, most) = (key.name, key.range.start(), key.range.end());
        let row = format!("| `{name}` | {} | {least} to {most} | ", key.default);
        assert!(page.contains(&row), "{row}");
        let task = |value| format!("{LC}{name} = {value}\n");
        let config = Config::parse(&task(most - 1), "quell.toml").unwrap();
        let limits = config.tasks[0].limits(&Topology::regular(1, 4, 1).unwrap().all());
        assert_eq!(limits.times.to_array()[at], Nanos((most - 1) * key.unit_ns), "{name}");
        let refused = error(&task(most + 1));
        let line = LC.lines().count() + 1;
        let bounds = format!("`{name}` is {} (it has to be between {least} and {most})", most + 1);
        assert_eq!(refused, format!("quell.toml:{line}: {bounds}"));
    }
}

#[test]
fn renamed_key_is_refused_with_its_new_name() {
    let head = |old: &str| match old {
        "every_us" => "[host.memory]\n".to_owned(),
        "every_ms" => format!("{LC}[task.latency]\n"),
        "freeze" | "sibling_after_us" => LC.to_owned(),
        _ => "[host]\n".to_owned(),
    };
    for (old, new) in raw::RENAMED {
        let key =
            if old == "idle" { "be_rung = \"idle\"".to_owned() } else { format!("{old} = 1") };
        let refused = error(&format!("{}{key}\n", head(old)));
        let line = head(old).lines().count() + 1;
        let notice = format!("quell.toml:{line}: `{old}` was renamed to `{new}`");
        assert!(refused.starts_with(&notice), "{refused}");
    }
}
