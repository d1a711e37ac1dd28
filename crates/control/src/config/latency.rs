//! Where an LC task's tail latency and load are read, and the bound that it should keep.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use quell_model::{Class, Nanos};
use serde::Deserialize;
use toml::Spanned;

use super::ConfigError;
use super::raw::Place;
use crate::exposition::Selector;

/// The percentile that is read where none is named.
const PERCENTILE: f64 = 99.9;
/// Between two readings of a command or a metrics page.
const EVERY: Nanos = Nanos::from_secs(1);
/// The longest URL that is read.
const URL_BYTES_MAX: usize = 1_024;

/// How an LC task's tail latency and load reach Quell.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyConfig {
    /// Where they come from.
    pub source: LatencySource,
    /// Which percentile of the latency, in percent.
    pub percentile: f64,
    /// Between two readings; reports come when they come.
    pub every: Nanos,
    /// The bound that the latency at that percentile should keep.
    pub slo: Option<Nanos>,
}

/// Where tail latency and load come from.
#[derive(Clone, Debug, PartialEq)]
pub enum LatencySource {
    /// The service or its client sends them over the control socket.
    Reports,
    /// What a program prints; never empty.
    Command(Vec<String>),
    /// A page of metrics of this host.
    Metrics(MetricsConfig),
}

/// A page of metrics and what to pick there.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsConfig {
    /// As typed.
    pub url: String,
    /// The server, on this host.
    pub addr: SocketAddr,
    /// What to ask it for: path and query.
    pub path: String,
    /// The latency: a value, or a histogram.
    pub metric: Selector,
    /// The unit of the latency.
    pub unit: Unit,
    /// The load: requests a second, or a counter of requests.
    pub load: Option<Selector>,
}

/// The unit of a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
}

impl Unit {
    /// How many nanoseconds it has.
    pub fn nanos(self) -> f64 {
        match self {
            Unit::S => 1e9,
            Unit::Ms => 1e6,
            Unit::Us => 1e3,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLatency {
    percentile: Option<Spanned<f64>>,
    command: Option<Spanned<Vec<String>>>,
    url: Option<Spanned<String>>,
    metric: Option<Spanned<String>>,
    unit: Option<Spanned<Unit>>,
    load: Option<Spanned<String>>,
    interval_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSlo {
    percentile: Option<Spanned<f64>>,
    latency_us: Spanned<u64>,
}

/// `None` for BE, which serves nobody.
pub(super) fn latency(
    place: &Place,
    task: &str,
    class: Class,
    raw: Option<Spanned<RawLatency>>,
    slo: Option<Spanned<RawSlo>>,
) -> Result<Option<LatencyConfig>, ConfigError> {
    if class == Class::BestEffort {
        let given = [raw.as_ref().map(Spanned::span), slo.as_ref().map(Spanned::span)];
        return match given.into_iter().flatten().next() {
            None => Ok(None),
            Some(span) => {
                let what = format!("task `{task}` is best-effort and has no latency to read");
                Err(place.error_at(span.start, what, "`latency` and `slo` go with class = \"lc\""))
            }
        };
    }
    let start = raw.as_ref().map_or(0, |raw| raw.span().start);
    let raw = raw.map(Spanned::into_inner).unwrap_or_default();
    let slo = slo.map(Spanned::into_inner);
    let percentile = percentile(place, &raw, slo.as_ref())?;
    let bound = slo.map(|slo| Some(slo.latency_us));
    let slo = match &bound {
        Some(bound) => place.time("latency_us", bound, 1..=60_000_000, 1_000)?,
        None => None,
    };
    let every = place.time("interval_ms", &raw.interval_ms, 100..=3_600_000, 1_000_000)?;
    let source = source(place, task, start, raw)?;
    if source == LatencySource::Reports && every.is_some() {
        let what = format!("task `{task}`: `interval_ms` without something to read");
        return Err(place.error_at(start, what, "it goes with `command` or `url`"));
    }
    Ok(Some(LatencyConfig { source, percentile, every: every.unwrap_or(EVERY), slo }))
}

/// One percentile serves both tables, since one value is read.
fn percentile(place: &Place, raw: &RawLatency, slo: Option<&RawSlo>) -> Result<f64, ConfigError> {
    let of_slo = slo.and_then(|slo| slo.percentile.as_ref());
    let mut agreed = None;
    for typed in [raw.percentile.as_ref(), of_slo].into_iter().flatten() {
        let value = *typed.get_ref();
        if !(1.0..=99.999).contains(&value) {
            let what = format!("`percentile` is {value}");
            return Err(place.error(typed, what, "it has to be between 1 and 99.999"));
        }
        if agreed.is_some_and(|other| other != value) {
            let what = "`latency` and `slo` name different percentiles".to_owned();
            return Err(place.error(typed, what, "name it in `slo` alone"));
        }
        agreed = Some(value);
    }
    Ok(agreed.unwrap_or(PERCENTILE))
}

fn source(
    place: &Place,
    task: &str,
    start: usize,
    raw: RawLatency,
) -> Result<LatencySource, ConfigError> {
    if raw.url.is_none() && (raw.metric.is_some() || raw.unit.is_some() || raw.load.is_some()) {
        let what = format!("task `{task}`: `metric`, `unit` and `load` without a page of metrics");
        return Err(place.error_at(start, what, "they go with `url`"));
    }
    match (raw.command, raw.url) {
        (None, None) => Ok(LatencySource::Reports),
        (Some(_), Some(url)) => {
            let what = format!("task `{task}` reads its latency in two ways");
            Err(place.error(&url, what, "either `command` or `url`"))
        }
        (Some(command), None) => {
            if command.get_ref().first().is_none_or(String::is_empty) {
                let what = format!("the latency command of task `{task}` is empty");
                return Err(place.error(&command, what, "command = [\"program\", \"argument\"]"));
            }
            Ok(LatencySource::Command(command.into_inner()))
        }
        (None, Some(url)) => {
            let Some(metric) = raw.metric else {
                let what = format!("task `{task}`: which metric of the page is its latency?");
                return Err(place.error(&url, what, "metric = 'name{label=\"value\"}'"));
            };
            let picked = selector(place, &metric)?;
            let load = raw.load.map(|typed| selector(place, &typed)).transpose()?;
            let unit = match raw.unit.map(Spanned::into_inner).or_else(|| by_name(&picked.name)) {
                Some(unit) => unit,
                None => {
                    let what = format!("the name `{}` does not tell its unit", picked.name);
                    return Err(place.error(&metric, what, "unit = \"s\", \"ms\" or \"us\""));
                }
            };
            let (addr, path) = loopback(url.get_ref()).map_err(|what| {
                let remedy =
                    "http://127.0.0.1:PORT/metrics; for another host, a `command` that asks it";
                place.error(&url, what, remedy)
            })?;
            let url = url.into_inner();
            Ok(LatencySource::Metrics(MetricsConfig {
                url,
                addr,
                path,
                metric: picked,
                unit,
                load,
            }))
        }
    }
}

fn selector(place: &Place, typed: &Spanned<String>) -> Result<Selector, ConfigError> {
    let parsed = typed.get_ref().parse();
    parsed.map_err(|err: crate::exposition::FormatError| {
        place.error(typed, err.to_string(), "as the page shows it, without the number")
    })
}

/// The unit that Prometheus' rules for names put at their end.
fn by_name(name: &str) -> Option<Unit> {
    let last = name.rsplit('_').next()?;
    match last {
        "seconds" => Some(Unit::S),
        "milliseconds" | "ms" => Some(Unit::Ms),
        "microseconds" | "us" => Some(Unit::Us),
        _ => None,
    }
}

/// Address and path of a URL of this host.
fn loopback(url: &str) -> Result<(SocketAddr, String), String> {
    if url.len() > URL_BYTES_MAX || !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("`url` is too long or has characters that a URL cannot have".to_owned());
    }
    let rest = url.strip_prefix("http://").ok_or_else(|| format!("`{url}` is not http://.."))?;
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, port.parse().ok()),
        _ => (authority, Some(80)),
    };
    let ip = match host {
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        host => host.trim_start_matches('[').trim_end_matches(']').parse().ok(),
    };
    match (ip.filter(IpAddr::is_loopback), port) {
        (Some(ip), Some(port)) => Ok((SocketAddr::new(ip, port), path.to_owned())),
        _ => Err(format!("`{authority}` is no address of this host's own network (loopback)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(rest: &str) -> Result<LatencyConfig, String> {
        let text = format!("[[task]]\nname = \"web\"\nclass = \"lc\"\npid = 42\n{rest}\n");
        let config = Config::parse(&text, "quell.toml").map_err(|err| err.to_string())?;
        Ok(config.tasks[0].latency.clone().unwrap())
    }

    #[test]
    fn without_a_table_reports_are_taken_at_the_tail() {
        let config = read("").unwrap();
        assert_eq!(
            (config.source, config.percentile, config.slo),
            (LatencySource::Reports, 99.9, None)
        );
        let slo = read("slo = { percentile = 99, latency_us = 500 }").unwrap();
        assert_eq!((slo.percentile, slo.slo), (99.0, Some(Nanos::from_micros(500))));
    }

    #[test]
    fn a_page_of_metrics_is_read_with_its_unit() {
        let page = "[task.latency]\nurl = \"http://localhost:9150/metrics?x=1\"\nload = \"calls_total\"\nmetric = ";
        let config = read(&format!("{page}'rpc_seconds{{quantile=\"0.999\"}}'")).unwrap();
        let LatencySource::Metrics(metrics) = config.source else { panic!() };
        assert_eq!(metrics.addr.to_string(), "127.0.0.1:9150");
        assert_eq!((metrics.path.as_str(), metrics.unit), ("/metrics?x=1", Unit::S));
        let unclear = read(&format!("{page}\"latency\"")).unwrap_err();
        assert!(
            unclear.starts_with("quell.toml:8: the name `latency` does not tell its unit"),
            "{unclear}"
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_line_and_remedy() {
        let cases = [
            ("slo = { latency_us = 0 }", "quell.toml:5: `latency_us` is 0"),
            ("slo = { percentile = 100, latency_us = 5 }", "quell.toml:5: `percentile` is 100"),
            ("slo = { latency_us = 5 }\n[task.latency]\nmetric = \"x\"", "they go with `url`"),
            (
                "slo = { percentile = 99, latency_us = 5 }\nlatency = { percentile = 95 }",
                "different percentiles",
            ),
            (
                "latency = { command = [] }",
                "quell.toml:5: the latency command of task `web` is empty",
            ),
            ("latency = { interval_ms = 500 }", "it goes with `command` or `url`"),
            (
                "latency = { command = [\"x\"], interval_ms = 1 }",
                "it has to be between 100 and 3600000",
            ),
            ("latency = { url = \"http://[::1]/m\" }", "which metric of the page"),
            ("latency = { url = \"http://10.0.0.1/m\", metric = \"x_ms\" }", "loopback"),
            ("latency = { url = \"http://127.0.0.1@10.0.0.1/m\", metric = \"x_ms\" }", "loopback"),
            ("latency = { url = \"https://localhost/m\", metric = \"x_ms\" }", "is not http://"),
            (
                "latency = { url = \"http://localhost/m\", metric = \"x_ms{\" }",
                "does not read as name",
            ),
            ("latency = { command = [\"x\"], url = \"http://localhost/\" }", "in two ways"),
            ("latency = { feed = true }", "unknown field `feed`"),
        ];
        for (rest, wanted) in cases {
            let refused = read(rest).unwrap_err();
            assert!(refused.contains(wanted), "{rest}: {refused}");
        }
        let be = "[[task]]\nname = \"b\"\nclass = \"be\"\npid = 42\nslo = { latency_us = 5 }\n";
        let refused = Config::parse(be, "quell.toml").unwrap_err().to_string();
        assert!(refused.starts_with("quell.toml:5: task `b` is best-effort"), "{refused}");
    }

    #[test]
    fn every_key_is_documented() {
        let page = include_str!("../../../../docs/reference/configuration.md");
        for key in
            ["percentile", "command", "url", "metric", "unit", "load", "interval_ms", "latency_us"]
        {
            assert!(
                page.contains(&format!("`{key}`")) || page.contains(&format!("{key} = ")),
                "{key}"
            );
        }
    }
}
