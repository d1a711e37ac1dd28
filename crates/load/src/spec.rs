//! What load to offer.

use std::net::SocketAddr;

use quell_model::{CoreId, Nanos};
use serde::{Deserialize, Serialize};

use crate::arrivals::{Arrivals, Step};
use crate::error::LoadError;
use crate::protocol::ProtocolSpec;
use crate::sleep::Idle;

/// Most connections of a run.
const CONNECTIONS_MAX: usize = 10_000;
/// Longest run.
const DURATION_MAX: Nanos = Nanos::from_secs(7 * 24 * 3_600);
/// Shortest period of bursts.
const PERIOD_MIN: Nanos = Nanos::from_millis(1);
/// Highest rate asked for; far above what one thread can send.
const RATE_MAX_RPS: f64 = 1e8;

/// A run of the load generator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// The server.
    pub addr: SocketAddr,
    /// Where its endpoint takes channels, if it serves virtual sockets: `addr` is the address of their streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<SocketAddr>,
    /// How to talk to it, and the workload.
    pub protocol: ProtocolSpec,
    /// Connections, opened before the run. Requests go round them in turn; those that are due
    /// at the same moment share a connection and one write.
    pub connections: usize,
    /// When requests are due.
    pub arrivals: Arrivals,
    /// The load, step by step.
    pub steps: Vec<Step>,
    /// Load at the first step's rate before the measured window.
    #[serde(rename = "warmup_ns")]
    pub warmup: Nanos,
    /// How long to wait for replies after the last request was due.
    #[serde(rename = "grace_ns")]
    pub grace: Nanos,
    /// Seed of arrivals and workload.
    pub seed: u64,
    /// The core to run on; wherever the caller may run if absent.
    pub core: Option<CoreId>,
    /// Most samples kept (16 bytes each, allocated before the run).
    pub samples_max: usize,
    /// Whether to prepare the server first (store all keys).
    pub preload: bool,
    /// What the generator does while it has nothing to do.
    #[serde(default)]
    pub idle: Idle,
    /// Whether replies are also timed by the kernel's stamps, which no delay of the generator changes.
    #[serde(default)]
    pub stamps: bool,
    /// Whether a request may be sent on a connection that has one outstanding, where the protocol allows it. Servers then
    /// answer many at once under load, and their peak says little of what a request costs at half of it.
    #[serde(default = "pipelining")]
    pub pipelining: bool,
}

fn pipelining() -> bool {
    true
}

impl LoadSpec {
    /// Poisson arrivals at one rate, with the defaults of everything else: 16 connections, warm-up of
    /// 500 ms, grace of 1 s, room for 4 million samples, preload on, spinning.
    pub fn new(
        addr: SocketAddr,
        protocol: ProtocolSpec,
        rate_rps: f64,
        duration: Nanos,
    ) -> LoadSpec {
        LoadSpec {
            addr,
            channels: None,
            protocol,
            connections: 16,
            arrivals: Arrivals::Poisson,
            steps: vec![Step { rate_rps, duration }],
            warmup: Nanos::from_millis(500),
            grace: Nanos::from_secs(1),
            seed: 1,
            core: None,
            samples_max: 4_000_000,
            preload: true,
            idle: Idle::Spin,
            stamps: false,
            pipelining: pipelining(),
        }
    }

    /// Length of the measured window.
    pub fn measured(&self) -> Nanos {
        self.steps.iter().fold(Nanos::ZERO, |sum, step| sum + step.duration)
    }

    /// # Errors
    /// Names the number that is out of range.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let refuse = |reason: String| Err(LoadError::Spec(reason));
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return refuse(format!("{} connections; use 1 to {CONNECTIONS_MAX}", self.connections));
        }
        if self.measured() == Nanos::ZERO {
            return refuse("no step, or only steps of no duration".into());
        }
        if self.measured() + self.warmup + self.grace > DURATION_MAX {
            return refuse(format!("longer than {DURATION_MAX}"));
        }
        if self.channels.is_some() {
            if matches!(self.protocol, ProtocolSpec::Postgres(_)) {
                return refuse("PostgreSQL greets on a kernel socket, not on a virtual one".into());
            }
            if self.stamps || self.idle == Idle::Wait {
                return refuse(
                    "virtual sockets have no stamps of the kernel, and no descriptor".into(),
                );
            }
        }
        let bursts = match &self.arrivals {
            Arrivals::Bursts(bursts) => Some(bursts),
            _ => None,
        };
        let step_rates = self.steps.iter().map(|step| step.rate_rps);
        let mut rates = step_rates.chain(bursts.map(|bursts| bursts.rate_rps));
        if let Some(rate) = rates.find(|rate| !(0.0..=RATE_MAX_RPS).contains(rate)) {
            return refuse(format!("rate {rate} is not in 0..={RATE_MAX_RPS}"));
        }
        match bursts {
            Some(bursts) if bursts.period < PERIOD_MIN || bursts.length > bursts.period => {
                refuse(format!(
                    "bursts of {} every {}; a period is {PERIOD_MIN} or longer, a burst no longer than it",
                    bursts.length, bursts.period
                ))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Bursts;
    use crate::protocol::keyvalue::KeyValueSpec;

    fn spec() -> LoadSpec {
        let protocol = ProtocolSpec::Memcached(KeyValueSpec::default());
        LoadSpec::new("127.0.0.1:1".parse().unwrap(), protocol, 1_000.0, Nanos::from_secs(1))
    }

    #[test]
    fn a_run_that_makes_no_sense_is_refused() {
        assert!(spec().check().is_ok());
        let refused = |change: fn(&mut LoadSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.check().is_err()
        };
        assert!(refused(|spec| spec.connections = 0));
        assert!(refused(|spec| spec.connections = CONNECTIONS_MAX + 1));
        assert!(refused(|spec| spec.steps.clear()));
        assert!(refused(|spec| spec.steps[0].duration = Nanos::ZERO));
        assert!(refused(|spec| spec.steps[0].rate_rps = -1.0));
        assert!(refused(|spec| spec.steps[0].rate_rps = f64::NAN));
        assert!(refused(|spec| spec.steps[0].rate_rps = f64::INFINITY));
        assert!(refused(|spec| spec.grace = Nanos::MAX));
        let channels = Some("127.0.0.1:7117".parse().unwrap());
        assert!(LoadSpec { channels, ..spec() }.check().is_ok());
        assert!(LoadSpec { channels, stamps: true, ..spec() }.check().is_err());
    }

    #[test]
    fn bursts_that_make_no_sense_are_refused() {
        let refused = |rate_rps: f64, period_ms: u64, length_ms: u64| {
            let (period, length) = (Nanos::from_millis(period_ms), Nanos::from_millis(length_ms));
            let arrivals = Arrivals::Bursts(Bursts { rate_rps, period, length });
            LoadSpec { arrivals, ..spec() }.check().is_err()
        };
        assert!(!refused(10.0, 1_000, 100) && !refused(0.0, 1, 1));
        assert!(refused(-1.0, 1_000, 100) && refused(f64::NAN, 1_000, 100));
        assert!(refused(10.0, 0, 0) && refused(10.0, 100, 101));
    }

    #[test]
    fn a_spec_survives_json() {
        let (rate_rps, period, length) = (1.5, Nanos(2_000_000), Nanos(7));
        for arrivals in [
            Arrivals::Poisson,
            Arrivals::Bursts(Bursts { rate_rps, period, length }),
            Arrivals::Trace { file: "arrivals.txt".into() },
        ] {
            let spec = LoadSpec { arrivals, ..spec() };
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<LoadSpec>(&json).unwrap(), spec);
        }
    }
}
