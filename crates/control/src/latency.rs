//! Tail latency and load of a service, on the wire.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a service or its client measured over an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatencyReport {
    /// The LC task that served.
    pub task: String,
    /// Length of the interval in milliseconds, 10 to 60,000. The report holds for three of them.
    pub interval_ms: u64,
    /// Requests a second that were offered.
    #[serde(default)]
    pub load_rps: Option<f64>,
    /// Latencies at some percentiles, the configured one among them; 16 at most.
    pub latency: Vec<Quantile>,
}

/// The latency at one percentile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quantile {
    /// The percentile, in percent: 99.9.
    pub percentile: f64,
    /// The latency that so many requests did not exceed, in microseconds.
    pub latency_us: f64,
}

/// Tail latency and load of an LC task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyStatus {
    /// The percentile that is read, in percent.
    pub percentile: f64,
    /// The latency at it, in microseconds; null when it is not known.
    pub latency_us: Option<f64>,
    /// Requests a second; null when it is not known.
    pub load_rps: Option<f64>,
    /// How the latency is known: `measured`, `estimated: ..` or `absent: ..`.
    pub provenance: String,
    /// Milliseconds since it was last reported; null before the first report.
    pub age_ms: Option<f64>,
    /// Where it comes from.
    pub source: String,
    /// Why the last reading failed.
    pub problem: Option<String>,
    /// The configured bound.
    pub slo: Option<SloStatus>,
}

/// Whether a bound is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SloStatus {
    /// The bound of the latency, in microseconds.
    pub latency_us: f64,
    /// Whether it is kept now.
    pub state: SloState,
    /// For how long that has been so, in seconds.
    pub since_s: f64,
    /// Share of the time with a known latency that the bound was missed, in percent; null before any.
    pub missed_percent: Option<f64>,
}

/// Whether a bound is kept now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SloState {
    /// The latency is not known.
    #[default]
    Unknown,
    /// The latency is within the bound.
    Met,
    /// The latency exceeds the bound.
    Missed,
}
