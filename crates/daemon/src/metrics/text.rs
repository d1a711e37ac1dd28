//! The two text formats.
//!
//! Sources: OpenMetrics 1.0 (<https://prometheus.io/docs/specs/om/open_metrics_spec/>) and Prometheus' text
//! format 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>). They differ in the name that
//! a counter's or an info's description bears, in units, and in the end.

use std::fmt::Write;

use super::Scrape;
use super::table::{METRICS, Metric};

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 0.0.4.
    Prometheus,
    /// 1.0.
    OpenMetrics,
}

impl Format {
    /// The format for a client with this `Accept` header: OpenMetrics where it is named and not liked less.
    pub fn accepted(accept: &str) -> Format {
        let open = quality(accept, "application/openmetrics-text");
        match open > 0.0 && open >= quality(accept, "text/plain") {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    /// Its media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// How much a client likes a media type: its greatest `q`, zero if it does not name it.
fn quality(accept: &str, wanted: &str) -> f64 {
    let of_range = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case(wanted) {
            return None;
        }
        Some(match parts.find_map(|part| part.strip_prefix("q=")) {
            Some(typed) => typed.parse().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0),
            None => 1.0,
        })
    };
    accept.split(',').filter_map(of_range).fold(0.0, f64::max)
}

/// Every metric with its values.
pub fn render(scrape: &Scrape, format: Format) -> String {
    let mut out = String::with_capacity(16 << 10);
    for metric in METRICS {
        describe(metric, format, &mut out);
        (metric.read)(scrape, &mut Samples { metric, out: &mut out });
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

fn describe(metric: &Metric, format: Format, out: &mut String) {
    let Metric { unit, help, .. } = metric;
    let (name, kind) = match format {
        Format::Prometheus => (metric.name, metric.kind.in_prometheus()),
        Format::OpenMetrics => (metric.family(), metric.kind.in_openmetrics()),
    };
    out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    if format == Format::OpenMetrics && !unit.is_empty() {
        out.push_str(&format!("# UNIT {name} {unit}\n"));
    }
}

/// Takes the values of one metric.
pub struct Samples<'a> {
    metric: &'a Metric,
    out: &'a mut String,
}

impl Samples<'_> {
    /// One value, with one label value for each of the metric's labels.
    pub fn add(&mut self, labels: &[&str], value: f64) {
        debug_assert_eq!(labels.len(), self.metric.labels.len(), "{}", self.metric.name);
        self.out.push_str(self.metric.name);
        for (at, (name, value)) in self.metric.labels.iter().zip(labels).enumerate() {
            self.out.push(if at == 0 { '{' } else { ',' });
            self.out.push_str(name);
            self.out.push_str("=\"");
            escape(value, self.out);
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, " {value}");
    }
}

fn escape(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}
