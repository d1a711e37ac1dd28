//! The file as typed.

use std::ops::RangeInclusive;

use quell_model::{Class, CoreSet, Nanos, renamed_in, with_time_limits};
use quell_policy::Config;
use serde::Deserialize;
use toml::Spanned;

use super::FileError;
use super::kernel::RawKernelModel;
use super::program::{RawSync, RawThreads};
use crate::machine::{Kind, Reuse};

/// The version of the format that this program reads.
const VERSION: u32 = 1;
/// Keys of earlier releases, and their new names.
pub(super) const RENAMED: [(&str, &str); 6] = [
    ("calm", "recover"),
    ("counts_memory", "memory_counters"),
    ("feed_ms", "report_interval_ms"),
    ("sees_requests", "request_start_times"),
    ("sibling_after_us", "sibling_idle_after_us"),
    ("spin", "runaway"),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    version: Spanned<u32>,
    pub name: Option<String>,
    pub seed: Option<u64>,
    pub length_ms: Spanned<u64>,
    pub warm_up_ms: Option<Spanned<u64>>,
    pub sample_us: Option<Spanned<u64>>,
    pub report_interval_ms: Option<Spanned<u64>>,
    pub machine: Spanned<RawMachine>,
    #[serde(default)]
    pub host: RawHost,
    pub policy: Option<Config>,
    pub kernel: Option<Spanned<RawKernelModel>>,
    #[serde(default)]
    pub faults: RawFaults,
    pub kernel_threads: Option<Spanned<RawKernel>>,
    #[serde(default)]
    pub task: Vec<Spanned<RawTask>>,
    #[serde(default)]
    pub change: Vec<Spanned<RawChange>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMachine {
    pub preset: Option<Spanned<String>>,
    pub like: Option<Spanned<String>>,
    pub nodes: Option<Spanned<u64>>,
    pub physical: Option<Spanned<u64>>,
    pub smt: Option<Spanned<u64>>,
    pub distances: Option<Spanned<Vec<Vec<u32>>>>,
    pub cluster: Option<Spanned<u64>>,
    pub capacities: Option<Spanned<Vec<u16>>>,
    pub cache_mb: Option<Spanned<u64>>,
    pub memory_mb_s: Option<Spanned<u64>>,
    pub managed: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHost {
    pub policy: Option<Spanned<String>>,
    pub cores: Option<Sharing>,
    pub tick_us: Option<Spanned<u64>>,
    pub costs: Option<RawCosts>,
    pub llc_ways: Option<Spanned<u64>>,
    pub memory_counters: Option<bool>,
    pub bursts: Option<bool>,
    pub request_start_times: Option<bool>,
}

/// Whether tasks may be beneath the owner of a core.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Sharing {
    Exclusive,
    Shared,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCosts {
    pub mechanism: Option<Spanned<String>>,
    pub wake_ns: Option<Spanned<u64>>,
    pub switch_ns: Option<Spanned<u64>>,
    pub migrate_ns: Option<Spanned<u64>>,
    pub grant_ns: Option<Spanned<u64>>,
    pub preempt_ns: Option<Spanned<u64>>,
    pub idle_ns: Option<Spanned<u64>>,
    pub rights_ns: Option<Spanned<u64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFaults {
    pub late_permille: Option<Spanned<u64>>,
    pub refused_permille: Option<Spanned<u64>>,
    pub lost_permille: Option<Spanned<u64>>,
    pub raced_permille: Option<Spanned<u64>>,
}

with_time_limits! {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct RawTask: Spanned<u64> {
        pub name: Spanned<String>,
        pub model: Spanned<String>,
        pub class: Option<Class>,
        pub style: Option<RawStyle>,
        pub nice: Option<Spanned<i64>>,
        pub sched_idle: Option<Spanned<bool>>,
        pub session: Option<u32>,
        pub own_connections: Option<bool>,
        pub cpu_weight: Option<Spanned<u64>>,
        pub start_core: Option<u16>,
        pub length_permille: Option<Spanned<u64>>,
        pub trace: Option<Spanned<String>>,
        pub from_s: Option<Spanned<f64>>,
        pub length_s: Option<Spanned<f64>>,
        #[serde(default)]
        pub thread: Vec<Spanned<RawThreads>>,
        #[serde(default)]
        pub sync: Vec<Spanned<RawSync>>,
        pub lane: Option<Spanned<RawLane>>,
        pub polls_us: Option<Spanned<u64>>,
        pub threads: Option<Spanned<u64>>,
        pub guaranteed: Option<Spanned<u64>>,
        pub max: Option<Spanned<u64>>,
        pub cores: Option<Spanned<String>>,
        pub latency_target_us: Option<Spanned<u64>>,
        pub rate: Option<Spanned<u64>>,
        pub load: Option<Spanned<Vec<(u64, u64)>>>,
        pub diurnal: Option<Spanned<RawDiurnal>>,
        pub service: Option<Spanned<RawService>>,
        #[serde(default)]
        pub phase: Vec<Spanned<RawPhase>>,
        #[serde(default)]
        pub helper: Vec<Spanned<RawHelper>>,
    }
}

/// Threads of one kind beside those that serve requests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHelper {
    pub name: Spanned<String>,
    pub threads: Option<Spanned<u64>>,
    pub period_us: Spanned<u64>,
    pub burst: Spanned<RawService>,
    #[serde(default)]
    pub stops_world: bool,
}

/// A thread of the kernel on each core.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawKernel {
    pub period_us: Spanned<u64>,
    pub burst: Spanned<RawService>,
}

/// Its threads share one core by slices, round-robin.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLane {
    pub slice: Option<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawStyle {
    Runtime,
    Threads,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDiurnal {
    pub low: u64,
    pub high: u64,
    pub period_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawService {
    pub distribution: Distribution,
    pub mean_ns: u64,
    pub sigma_permille: Option<u16>,
    pub long_ns: Option<u64>,
    pub long_permille: Option<u16>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Distribution {
    Constant,
    Exponential,
    Bimodal,
    Lognormal,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPhase {
    pub core_ms: Option<u64>,
    pub kind: Option<Kind>,
    pub memory_permille: Option<u16>,
    pub traffic_mb: Option<u32>,
    pub weight_permille: Option<u16>,
    pub streams: Option<bool>,
    pub working_set_kb: Option<u64>,
    pub reuse: Option<Reuse>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawChange {
    pub at_ms: u64,
    pub offline: Option<u16>,
    pub online: Option<u16>,
    pub leave: Option<String>,
    pub join: Option<String>,
    pub runaway: Option<String>,
    pub recover: Option<String>,
    pub bind: Option<String>,
    pub cores: Option<Spanned<String>>,
}

/// Where in which file, for messages.
pub(super) struct Place<'a> {
    pub text: &'a str,
    pub file: &'a str,
}

impl Place<'_> {
    pub fn error<T>(&self, at: &Spanned<T>, what: String, remedy: &str) -> FileError {
        self.error_at(Some(at.span().start), what, remedy)
    }

    pub fn error_at(&self, offset: Option<usize>, what: String, remedy: &str) -> FileError {
        let line = offset.map(|offset| {
            let upto = self.text.get(..offset).unwrap_or(self.text);
            upto.bytes().filter(|&byte| byte == b'\n').count() + 1
        });
        FileError { file: self.file.to_owned(), line, what, remedy: remedy.to_owned() }
    }

    /// The number as typed or the default, if it is within `range`.
    pub fn number(
        &self,
        key: &str,
        typed: &Option<Spanned<u64>>,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Result<u64, FileError> {
        let Some(typed) = typed else { return Ok(default) };
        self.within(key, typed, range)
    }

    pub fn within(
        &self,
        key: &str,
        typed: &Spanned<u64>,
        range: RangeInclusive<u64>,
    ) -> Result<u64, FileError> {
        if !range.contains(typed.get_ref()) {
            let what = format!("`{key}` is {}", typed.get_ref());
            let remedy = format!("it has to be between {} and {}", range.start(), range.end());
            return Err(self.error(typed, what, &remedy));
        }
        Ok(*typed.get_ref())
    }

    /// A time of up to a minute.
    pub fn time(
        &self,
        key: &str,
        typed: &Option<Spanned<u64>>,
        default: Nanos,
        unit_ns: u64,
    ) -> Result<Nanos, FileError> {
        let most = 60_000_000_000 / unit_ns;
        Ok(Nanos(self.number(key, typed, default.0 / unit_ns, 0..=most)? * unit_ns))
    }

    pub fn cores(
        &self,
        key: &str,
        typed: &Option<Spanned<String>>,
        of: &CoreSet,
    ) -> Result<CoreSet, FileError> {
        let Some(typed) = typed else { return Ok(*of) };
        let set: CoreSet = typed.get_ref().parse().map_err(|err: quell_model::CoreListError| {
            self.error(typed, format!("`{key}`: {err}"), "")
        })?;
        if set.is_empty() || !set.is_subset(of) {
            let remedy = format!("choose among {of}");
            return Err(self.error(typed, format!("`{key}` is `{}`", typed.get_ref()), &remedy));
        }
        Ok(set)
    }
}

pub(super) fn parse(place: &Place) -> Result<RawFile, FileError> {
    let raw: RawFile = toml::from_str(place.text).map_err(|err| {
        let offset = err.span().map(|span| span.start);
        let what = renamed_in(err.message(), &RENAMED).unwrap_or_else(|| err.message().to_owned());
        place.error_at(offset, what, "docs/lab/sim.md lists the keys")
    })?;
    if *raw.version.get_ref() != VERSION {
        let what = format!("version {} of the format", raw.version.get_ref());
        return Err(place.error(&raw.version, what, "this program reads version 1"));
    }
    Ok(raw)
}
