//! `quell bench client`: Quell's load generator beside open-loop clients of others, on servers that have nothing else to
//! do, and beside the kernel's own time stamps. What a client adds to a latency is no service's.

mod peers;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_load::protocol::keyvalue::KeyValueSpec;
use quell_load::{Idle, LoadReport, LoadSpec, ProtocolSpec, Silent};
use quell_model::{CoreId, CoreSet, Nanos};
use quell_report::{BenchReport, stats};
use quell_terminal::{Progress, Stop};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use self::peers::{Asked, Peer, Peers};
use crate::host::{self, set_nice};
use crate::services::{Definition, PauseProgram, Service};

/// Services with the client that each is asked by as well, and a rate at which they are idle nearly all the time.
const CASES: [(&str, Peer, f64); 4] = [
    ("memcached", Peer::Spin, 2_000.0),
    ("redis", Peer::Spin, 2_000.0),
    ("postgres-select", Peer::Pgbench, 200.0),
    ("go", Peer::Vegeta, 500.0),
];
const QUELL: &str = "quell load";
/// As in `quell bench services`: a foreign thread on the client's core would be measured as latency.
const CLIENT_NICE: i32 = -10;

/// A run.
#[derive(Clone, Debug)]
pub struct ClientSpec {
    /// The command that makes the report again.
    pub command: String,
    /// Rounds; in each both clients have their turn, ours once more with the kernel's stamps.
    pub rounds: usize,
    /// Length of a turn.
    pub duration: Duration,
    /// Cores of the servers.
    pub managed: CoreSet,
    /// The clients' core.
    pub client: CoreId,
    /// `quell-antagonist`, whose PAUSE loop keeps the servers' cores awake.
    pub antagonist: PathBuf,
    /// vegeta, if it is there.
    pub vegeta: Option<PathBuf>,
}

/// Measures all cases.
///
/// # Errors
/// When a server or a client cannot be started or fails, or a stop was asked for.
pub fn run(spec: &ClientSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let _quiet = host::Quiet::keep()?;
    let directory = tempfile::tempdir().context("make a directory")?;
    let peers = Peers::prepare(directory.path(), spec.vegeta.clone())?;
    let mut report = BenchReport::new("client", &spec.command);
    for (at, (name, peer, rate_rps)) in CASES.into_iter().enumerate() {
        if !peers.has(peer) {
            report.notes.push(format!("left out: {name}: {} is not installed", peer.name()));
            continue;
        }
        let service = Service::start(&Definition::named(name)?, &spec.managed, stop)?;
        let _awake = PauseProgram::start(&spec.antagonist, &service.group, &spec.managed, None)?;
        let case = Case { spec, service: &service, peers: &peers, peer, rate_rps };
        let mut rounds = Vec::new();
        for round in 0..spec.rounds {
            progress.step(at * spec.rounds + round, CASES.len() * spec.rounds, name);
            rounds.push(case.round(round, stop).with_context(|| name)?);
        }
        tell(&mut report, name, peer.name(), &rounds);
    }
    Ok(report)
}

/// One server with both of its clients.
struct Case<'a> {
    spec: &'a ClientSpec,
    service: &'a Service,
    peers: &'a Peers,
    peer: Peer,
    rate_rps: f64,
}

/// What both clients saw, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Round {
    own: [f64; 2],
    /// From when the kernel had the replies until they were read: in a turn of its own, for stamps cost time.
    beyond: [f64; 2],
    /// From when a request was due until it was written.
    late_p99: f64,
    peer: [f64; 2],
}

/// Whose turn it is in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Quell's client, as `quell bench services` uses it.
    Own,
    /// The same with the kernel's stamps.
    Stamped,
    /// The other client.
    Peer,
}

const QUANTILES: [f64; 2] = [0.5, 0.99];

impl Case<'_> {
    fn round(&self, round: usize, stop: &Stop) -> Result<Round> {
        let mut rng = ChaCha8Rng::seed_from_u64(round as u64);
        let seed = rng.random::<u32>();
        let mut seen = Round::default();
        let mut order = [Turn::Own, Turn::Stamped, Turn::Peer];
        order.shuffle(&mut rng);
        for turn in order {
            stop.check()?;
            match turn {
                Turn::Own => {
                    let overall = self.own(u64::from(seed), false)?.overall;
                    seen.own = [overall.latency.p50_us, overall.latency.p99_us];
                    seen.late_p99 = overall.lateness.p99_us;
                }
                Turn::Stamped => {
                    let overall = self.own(u64::from(seed), true)?.overall;
                    let (read, received) = (overall.latency, overall.received);
                    let received = received.context("the kernel stamps nothing")?;
                    seen.beyond = [read.p50_us - received.p50_us, read.p99_us - received.p99_us];
                }
                Turn::Peer => seen.peer = self.peer(u64::from(seed), stop)?,
            }
        }
        Ok(seen)
    }

    /// What the other client saw, in microseconds.
    fn peer(&self, seed: u64, stop: &Stop) -> Result<[f64; 2]> {
        let asked = Asked {
            rate_rps: self.rate_rps,
            duration: self.spec.duration,
            connections: self.service.definition.load.connections,
            core: self.spec.client,
            seed,
        };
        let latencies = self.peers.run(self.peer, self.service, &asked, stop)?;
        let at = |part| stats::quantile(&latencies, part).unwrap_or_default().0 as f64;
        Ok(QUANTILES.map(|part| at(part) / 1e3))
    }

    fn own(&self, seed: u64, stamps: bool) -> Result<LoadReport> {
        let protocol = self.service.protocol().context("the service has no protocol")?;
        let protocol = if self.peer == Peer::Spin { only_gets(protocol) } else { protocol.clone() };
        let duration = Nanos(self.spec.duration.as_nanos() as u64);
        let mut load = LoadSpec::new(self.service.addr, protocol, self.rate_rps, duration);
        load.connections = self.service.definition.load.connections;
        (load.core, load.seed) = (Some(self.spec.client), seed);
        (load.idle, load.stamps) = (Idle::Sleep, stamps);
        load.pipelining = false;
        // The generator's thread inherits the value.
        set_nice(0, CLIENT_NICE).context("favour the client")?;
        let report = quell_load::run(&load, &mut Silent);
        set_nice(0, 0).context("favour the client no longer")?;
        report.context("offer load")
    }
}

/// What the spinning client asks for: GETs of one key of three bytes with five bytes of value.
fn only_gets(protocol: &ProtocolSpec) -> ProtocolSpec {
    let gets = KeyValueSpec {
        keys: 1,
        key_bytes: vec![3],
        value_bytes: 5,
        get_permille: 1_000,
        keys_per_get: 1,
    };
    match protocol {
        ProtocolSpec::Memcached(_) => ProtocolSpec::Memcached(gets),
        ProtocolSpec::Redis(_) => ProtocolSpec::Redis(gets),
        other => other.clone(),
    }
}

fn tell(report: &mut BenchReport, case: &str, peer: &str, rounds: &[Round]) {
    let column = |of: &dyn Fn(&Round) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
    for (at, metric) in ["p50_us", "p99_us"].into_iter().enumerate() {
        let (own, others) = (column(&|round| round.own[at]), column(&|round| round.peer[at]));
        report.compare(case, (QUELL, &own), (peer, &others), metric);
        report.push(case, QUELL, metric, own);
        report.push(case, peer, metric, others);
        let beyond = column(&|round| round.beyond[at]);
        report.push(case, QUELL, &format!("beyond_stamps_{metric}"), beyond);
    }
    // Late to send, and late to read.
    let error = |round: &Round| (round.late_p99 + round.beyond[1]) / round.own[1];
    report.push(case, QUELL, "error_share_of_p99", column(&error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clients_and_the_kernels_stamps_are_reported() {
        let mut report = BenchReport::new("client", "quell bench client");
        let round =
            Round { own: [20.0, 50.0], beyond: [1.0, 3.0], late_p99: 1.0, peer: [40.0, 100.0] };
        tell(&mut report, "memcached", "vegeta", &[round; 3]);
        let value = |metric| report.row("memcached", QUELL, metric).unwrap().median;
        assert_eq!((value("beyond_stamps_p50_us"), value("beyond_stamps_p99_us")), (1.0, 3.0));
        assert_eq!(value("error_share_of_p99"), 0.08);
        assert_eq!(report.ratio("memcached", QUELL, "p99_us").unwrap().median, 0.5);
    }
}
