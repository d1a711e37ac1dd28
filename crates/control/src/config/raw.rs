//! The file as typed, and its way into [`Config`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use quell_model::{
    BeRung, BytesPerSec, Children, Class, CoreSet, Nanos, TimeLimits, renamed_in, with_time_limits,
};
use serde::Deserialize;
use toml::Spanned;

use super::lane::{self, LaneConfig};
use super::latency::{self, RawLatency, RawSlo};
use super::memory::{self, RawMemory};
use super::threads::{self, RawThreadRule};
use super::{
    BackEndKind, CONFIG_BYTES_MAX, Config, ConfigError, Controllers, ForeignThreads, HostConfig,
    Launch, Named, ObserverKind, Pattern, Source, TASKS_MAX, TaskConfig, Throttling,
};

/// The version of the format that this program reads.
const VERSION: u32 = 1;
/// Keys and values of earlier releases, and their new names.
pub(super) const RENAMED: [(&str, &str); 12] = [
    ("budget", "quantum"),
    ("bystanders", "foreign_threads"),
    ("events", "tick_on_events"),
    ("every_ms", "interval_ms"),
    ("every_us", "interval_us"),
    ("freeze", "allow_freeze"),
    ("hung_after_ms", "watchdog_timeout_ms"),
    ("idle", "sched-idle"),
    ("jobs", "edf"),
    ("kernel_delay_bound_us", "nonpreemptible_delay_limit_us"),
    ("sibling_after_us", "sibling_idle_after_us"),
    ("signals", "observer"),
];
const NAME_BYTES_MAX: usize = 32;
const PATH_BYTES_MAX: usize = 1_024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    version: Option<Spanned<u32>>,
    #[serde(default)]
    host: RawHost,
    #[serde(default)]
    task: Vec<Spanned<RawTask>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawHost {
    managed: Option<Spanned<String>>,
    backend: Option<BackEndKind>,
    policy: Option<String>,
    #[serde(default)]
    controllers: RawControllers,
    #[serde(default)]
    memory: RawMemory,
    pattern: Option<Pattern>,
    tick_us: Option<Spanned<u64>>,
    tick_on_events: Option<bool>,
    observer: Option<ObserverKind>,
    be_rung: Option<BeRung>,
    rt_throttling: Option<Throttling>,
    irq_threads: Option<Vec<String>>,
    foreign_threads: Option<ForeignThreads>,
    max_threads: Option<Spanned<u32>>,
    nonpreemptible_delay_limit_us: Option<Spanned<u64>>,
    congestion_after_ms: Option<Spanned<u64>>,
    revoke_deadline_us: Option<Spanned<u64>>,
    watchdog_timeout_ms: Option<Spanned<u64>>,
    metrics: Option<Spanned<String>>,
    control_group: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawControllers {
    bandwidth_limit_mb_s: Option<Spanned<u64>>,
    bandwidth_step_us: Option<Spanned<u64>>,
    hyperthread: Option<bool>,
    lock_relief: Option<bool>,
    quantum: Option<bool>,
    idle_buffer: Option<u32>,
}

with_time_limits! {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct RawTask: Spanned<u64> {
        name: Spanned<String>,
        class: Class,
        command: Option<Spanned<Vec<String>>>,
        cwd: Option<PathBuf>,
        #[serde(default)]
        env: BTreeMap<String, String>,
        output: Option<PathBuf>,
        pid: Option<Spanned<i32>>,
        #[serde(rename = "match")]
        matches: Option<Spanned<String>>,
        cgroup: Option<Spanned<String>>,
        lane: Option<Spanned<LaneConfig>>,
        guaranteed: Option<u32>,
        max: Option<Spanned<u32>>,
        cores: Option<Spanned<String>>,
        children: Option<Children>,
        allow_freeze: Option<bool>,
        latency: Option<Spanned<RawLatency>>,
        hints: Option<Spanned<String>>,
        slo: Option<Spanned<RawSlo>>,
        #[serde(default)]
        threads: Vec<RawThreadRule>,
    }
}

/// Where in which file, for messages.
pub(super) struct Place<'a> {
    text: &'a str,
    file: &'a str,
}

impl Place<'_> {
    fn line(&self, offset: usize) -> usize {
        let upto = self.text.get(..offset).unwrap_or(self.text);
        upto.bytes().filter(|&byte| byte == b'\n').count() + 1
    }

    pub(super) fn error<T>(&self, at: &Spanned<T>, what: String, remedy: &str) -> ConfigError {
        self.error_at(at.span().start, what, remedy)
    }

    pub(super) fn error_at(&self, offset: usize, what: String, remedy: &str) -> ConfigError {
        ConfigError {
            file: self.file.to_owned(),
            line: Some(self.line(offset)),
            what,
            remedy: remedy.to_owned(),
        }
    }

    fn named(&self, typed: Spanned<String>) -> Named {
        let line = self.line(typed.span().start);
        Named { name: typed.into_inner(), line }
    }

    /// `value` in microseconds or milliseconds as typed, if it is within `range`.
    pub(super) fn time(
        &self,
        key: &str,
        value: &Option<Spanned<u64>>,
        range: RangeInclusive<u64>,
        unit_ns: u64,
    ) -> Result<Option<Nanos>, ConfigError> {
        let Some(typed) = value else { return Ok(None) };
        Ok(Some(Nanos(self.within(key, typed, &range)? * unit_ns)))
    }

    /// `typed`, if it is within `range`.
    fn within(
        &self,
        key: &str,
        typed: &Spanned<u64>,
        range: &RangeInclusive<u64>,
    ) -> Result<u64, ConfigError> {
        if !range.contains(typed.get_ref()) {
            let what = format!("`{key}` is {}", typed.get_ref());
            let remedy = format!("it has to be between {} and {}", range.start(), range.end());
            return Err(self.error(typed, what, &remedy));
        }
        Ok(*typed.get_ref())
    }

    fn cores(
        &self,
        key: &str,
        typed: &Option<Spanned<String>>,
    ) -> Result<Option<CoreSet>, ConfigError> {
        let Some(typed) = typed else { return Ok(None) };
        let set: CoreSet = typed.get_ref().parse().map_err(|err: quell_model::CoreListError| {
            self.error(typed, format!("`{key}`: {err}"), "")
        })?;
        if set.is_empty() {
            let remedy = "leave the key out for the default, or name a core";
            return Err(self.error(typed, format!("`{key}` names no core"), remedy));
        }
        Ok(Some(set))
    }
}

pub(super) fn parse(text: &str, file: &str) -> Result<Config, ConfigError> {
    let place = Place { text, file };
    if text.len() > CONFIG_BYTES_MAX {
        let what = format!("{} bytes, more than the {CONFIG_BYTES_MAX} that are read", text.len());
        return Err(place.error_at(0, what, ""));
    }
    let raw: RawConfig = toml::from_str(text).map_err(|err| ConfigError {
        file: file.to_owned(),
        line: err.span().map(|span| place.line(span.start)),
        what: renamed_in(err.message(), &RENAMED).unwrap_or_else(|| one_line(err.message())),
        remedy: "docs/reference/configuration.md lists every key".to_owned(),
    })?;
    if let Some(version) = raw.version.as_ref().filter(|version| *version.get_ref() != VERSION) {
        let what = format!("format version {} is not known", version.get_ref());
        return Err(place.error(version, what, "this program reads `version = 1`"));
    }
    let host = host(&place, raw.host)?;
    if raw.task.len() > TASKS_MAX {
        let what = format!("{} tasks, more than the {TASKS_MAX} that are possible", raw.task.len());
        return Err(place.error_at(0, what, ""));
    }
    let mut tasks: Vec<TaskConfig> = Vec::with_capacity(raw.task.len());
    for typed in raw.task {
        let start = typed.span().start;
        let (name, task) = task(&place, start, typed.into_inner())?;
        if tasks.iter().any(|other| other.name == task.name) {
            let what = format!("two tasks are named `{}`", task.name);
            return Err(place.error(&name, what, "give each task a name of its own"));
        }
        tasks.push(task);
    }
    Ok(Config { host, tasks })
}

fn host(place: &Place, raw: RawHost) -> Result<HostConfig, ConfigError> {
    let max_threads = match &raw.max_threads {
        None => 16_384,
        Some(typed) if (64..=262_144).contains(typed.get_ref()) => *typed.get_ref(),
        Some(typed) => {
            let what = format!("`max_threads` is {}", typed.get_ref());
            return Err(place.error(typed, what, "it has to be between 64 and 262144"));
        }
    };
    Ok(HostConfig {
        managed: place.cores("managed", &raw.managed)?,
        back_end: raw.backend.unwrap_or(BackEndKind::Elevation),
        policy: raw.policy.unwrap_or_else(|| "quell".to_owned()),
        controllers: controllers(place, &raw.controllers)?,
        memory: memory::memory(place, raw.memory)?,
        pattern: raw.pattern.unwrap_or(Pattern::Auto),
        tick: place.time("tick_us", &raw.tick_us, 5..=10_000_000, 1_000)?,
        tick_on_events: raw.tick_on_events.unwrap_or(true),
        observer: raw.observer.unwrap_or(ObserverKind::Auto),
        be_rung: raw.be_rung.unwrap_or_default(),
        rt_throttling: raw.rt_throttling.unwrap_or(Throttling::Auto),
        irq_threads: raw.irq_threads.unwrap_or_default(),
        foreign_threads: raw.foreign_threads.unwrap_or(ForeignThreads::List),
        max_threads,
        nonpreemptible_delay_limit: place
            .time(
                "nonpreemptible_delay_limit_us",
                &raw.nonpreemptible_delay_limit_us,
                50..=1_000_000,
                1_000,
            )?
            .unwrap_or(Nanos::from_micros(300)),
        congestion_after: place
            .time("congestion_after_ms", &raw.congestion_after_ms, 1..=3_600_000, 1_000_000)?
            .unwrap_or(Nanos::from_millis(100)),
        revoke_deadline: place
            .time("revoke_deadline_us", &raw.revoke_deadline_us, 10..=10_000_000, 1_000)?
            .unwrap_or(Nanos::from_micros(100)),
        watchdog_timeout: place
            .time("watchdog_timeout_ms", &raw.watchdog_timeout_ms, 250..=600_000, 1_000_000)?
            .unwrap_or(Nanos::from_secs(1)),
        metrics: raw.metrics.map(|typed| metrics(place, &typed)).transpose()?,
        control_group: raw.control_group.map(|typed| place.named(typed)),
    })
}

fn controllers(place: &Place, raw: &RawControllers) -> Result<Controllers, ConfigError> {
    let limit_mb_s = match &raw.bandwidth_limit_mb_s {
        None => 25_000,
        Some(typed) if *typed.get_ref() <= 10_000_000 => *typed.get_ref(),
        Some(typed) => {
            let what = format!("`bandwidth_limit_mb_s` is {}", typed.get_ref());
            return Err(place.error(typed, what, "it has to be between 0 (off) and 10000000"));
        }
    };
    Ok(Controllers {
        bandwidth_limit: BytesPerSec(limit_mb_s * 1_000_000),
        bandwidth_step: place
            .time("bandwidth_step_us", &raw.bandwidth_step_us, 0..=60_000_000, 1_000)?
            .unwrap_or(Nanos::ZERO),
        hyperthread: raw.hyperthread.unwrap_or(true),
        lock_relief: raw.lock_relief.unwrap_or(true),
        quantum: raw.quantum.unwrap_or(true),
        idle_buffer: raw.idle_buffer.unwrap_or(0),
    })
}

fn metrics(place: &Place, typed: &Spanned<String>) -> Result<SocketAddr, ConfigError> {
    typed.get_ref().parse().map_err(|_| {
        let what = format!("`{}` is not an address and a port", typed.get_ref());
        place.error(typed, what, "metrics = \"127.0.0.1:9477\"")
    })
}

fn task(
    place: &Place,
    start: usize,
    raw: RawTask,
) -> Result<(Spanned<String>, TaskConfig), ConfigError> {
    let source = source(place, start, &raw)?;
    let class = raw.class;
    let times =
        TimeLimits::read(&raw, class, |key, typed| place.within(key.name, typed, &key.range))?;
    let name = raw.name;
    check_name(place, &name)?;
    let guaranteed = raw.guaranteed.unwrap_or(0);
    if let Some(max) = raw.max.as_ref().filter(|max| *max.get_ref() < guaranteed.max(1)) {
        let what = format!(
            "task `{}` has max = {} below guaranteed = {guaranteed}",
            name.get_ref(),
            max.get_ref()
        );
        return Err(place.error(max, what, "`max` is at least 1 and at least `guaranteed`"));
    }
    let children = raw.children.unwrap_or_default();
    if let Some(typed) = &raw.lane {
        let most = raw.max.as_ref().map_or(1, |max| *max.get_ref()).max(guaranteed);
        lane::check(place, name.get_ref(), typed, most, children)?;
    }
    let launched = matches!(source, Source::Command(_));
    let task = TaskConfig {
        name: name.get_ref().clone(),
        class,
        source,
        guaranteed,
        max: raw.max.map(|max| max.into_inner()),
        cores: place.cores("cores", &raw.cores)?,
        times,
        children,
        allow_freeze: raw.allow_freeze.unwrap_or(launched),
        latency: latency::latency(place, name.get_ref(), class, raw.latency, raw.slo)?,
        hints: raw.hints.map(|path| hints(place, name.get_ref(), class, path)).transpose()?,
        threads: threads::rules(place, name.get_ref(), class, raw.lane.as_ref(), raw.threads)?,
    };
    Ok((name, task))
}

/// The page of an LC task; batch work serves nobody.
fn hints(
    place: &Place,
    task: &str,
    class: Class,
    typed: Spanned<String>,
) -> Result<PathBuf, ConfigError> {
    let path = typed.get_ref();
    if class == Class::BestEffort {
        let what = format!("task `{task}` is best-effort and serves no requests");
        return Err(place.error(&typed, what, "`hints` goes with class = \"lc\""));
    }
    if !path.starts_with('/') || path.contains('\0') || path.len() > PATH_BYTES_MAX {
        let what = format!("task `{task}`: `hints` is not an absolute path");
        return Err(place.error(&typed, what, "hints = \"/dev/shm/NAME\""));
    }
    Ok(PathBuf::from(typed.into_inner()))
}

/// Whether a task can be named so.
pub(crate) fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.')
}

fn check_name(place: &Place, name: &Spanned<String>) -> Result<(), ConfigError> {
    let typed = name.get_ref();
    if !is_name(typed) {
        let remedy = "1 to 32 letters, digits, `-`, `_` or `.`, not starting with `.`";
        return Err(place.error(name, format!("`{typed}` cannot be a task's name"), remedy));
    }
    Ok(())
}

fn source(place: &Place, start: usize, raw: &RawTask) -> Result<Source, ConfigError> {
    let name = raw.name.get_ref();
    let given = [
        raw.command.is_some(),
        raw.pid.is_some(),
        raw.matches.is_some(),
        raw.cgroup.is_some(),
        raw.lane.is_some(),
    ];
    if given.into_iter().filter(|&given| given).count() != 1 {
        let what = format!("task `{name}` has to say in exactly one way what belongs to it");
        return Err(place.error_at(
            start,
            what,
            "one of `command`, `pid`, `match`, `cgroup`, `lane`",
        ));
    }
    if let Some(command) = &raw.command {
        if command.get_ref().first().is_none_or(String::is_empty) {
            let what = format!("the command of task `{name}` is empty");
            return Err(place.error(command, what, "command = [\"program\", \"argument\"]"));
        }
        return Ok(Source::Command(Launch {
            command: command.get_ref().clone(),
            cwd: raw.cwd.clone(),
            env: raw.env.clone().into_iter().collect(),
            output: raw.output.clone(),
        }));
    }
    if raw.cwd.is_some() || raw.output.is_some() || !raw.env.is_empty() {
        let what = format!("task `{name}`: `cwd`, `env` and `output` go with `command` only");
        return Err(place.error_at(start, what, ""));
    }
    if let Some(lane) = &raw.lane {
        return Ok(Source::Lane(Box::new(lane.get_ref().clone())));
    }
    if let Some(pid) = &raw.pid {
        if *pid.get_ref() <= 1 {
            let what = format!("task `{name}`: process {} can never be a task", pid.get_ref());
            return Err(place.error(pid, what, "name a process of yours"));
        }
        return Ok(Source::Pid(*pid.get_ref()));
    }
    if let Some(matches) = &raw.matches {
        // The kernel keeps 15 bytes of a process name (TASK_COMM_LEN in include/linux/sched.h).
        if matches.get_ref().is_empty() || matches.get_ref().len() > 15 {
            let what = format!("task `{name}`: `match` has {} bytes", matches.get_ref().len());
            return Err(place.error(matches, what, "the kernel keeps 1 to 15 of a process name"));
        }
        return Ok(Source::Match(matches.get_ref().clone()));
    }
    match &raw.cgroup {
        Some(path)
            if path.get_ref().starts_with('/')
                && !path.get_ref().split('/').any(|part| part == "..")
                && path.get_ref().len() > 1 =>
        {
            Ok(Source::Cgroup(path.get_ref().clone()))
        }
        Some(path) => {
            let what = format!("task `{name}`: `{}` is not a cgroup path", path.get_ref());
            let remedy = "write it as /proc/PID/cgroup shows it, e.g. `/system.slice/x.service`";
            Err(place.error(path, what, remedy))
        }
        None => Err(place.error_at(start, format!("task `{name}` has no source"), "")),
    }
}

fn one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
