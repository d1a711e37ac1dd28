//! Flags that say what load is offered.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use quell_load::protocol::http::HttpSpec;
use quell_load::protocol::keyvalue::KeyValueSpec;
use quell_load::protocol::postgres::{PostgresSpec, Transaction};
use quell_load::protocol::synthetic::{ServiceTime, SyntheticSpec};
use quell_load::{Arrivals, Bursts, Idle, LoadSpec, ProtocolSpec, Step, Trace};
use quell_model::{CoreId, Nanos};

use super::why::OfRequests;

/// Flags of every load.
#[derive(Args)]
pub struct Common {
    /// Requests a second [default: 10000]
    #[arg(long, short, conflicts_with = "steps")]
    rate: Option<f64>,
    /// Seconds to measure [default: 5, or the length of a trace]
    #[arg(long, short, conflicts_with = "steps")]
    duration: Option<f64>,
    /// Load steps as RATE:SECONDS, e.g. 10000:2,40000:2,10000:2
    #[arg(long, value_delimiter = ',', value_parser = step)]
    steps: Vec<Step>,
    /// When requests are due: `poisson`, `uniform`, `bursts:RATE:SECONDS:SECONDS` (in bursts, from one to the
    /// next, how long each; --rate holds between them) or `trace:FILE` (docs/lab/load.md has the format)
    #[arg(long, default_value = "poisson", value_parser = arrivals)]
    arrivals: Arrivals,
    /// Connections
    #[arg(long, short, default_value_t = 16)]
    connections: usize,
    /// Seconds of load before the measured window
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// Seed of arrivals and workload
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The core to run on [default: wherever the kernel likes]
    #[arg(long)]
    core: Option<u16>,
    /// Sleep where no answer is outstanding and time is left, rather than spin: a virtual machine whose cores are all
    /// busy is stopped more often
    #[arg(long)]
    sleep: bool,
    /// Also show latencies until the kernel received each reply, by its time stamps
    #[arg(long)]
    stamps: bool,
    /// Send one request at a time on a connection, as most clients do; give more --connections then
    #[arg(long)]
    no_pipelining: bool,
    /// Do not prepare the server first (memcached, Redis: store all keys)
    #[arg(long)]
    no_preload: bool,
    /// Write the report as JSON to this file, `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    transport: Transported,
    #[command(flatten)]
    pub why: OfRequests,
}

/// Flags of a key-value workload: memcached's and Redis'.
#[derive(Args)]
pub struct Keys {
    /// Keys that exist
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Key lengths in bytes, spread evenly over the keys
    #[arg(long, value_delimiter = ',', default_values_t = [16, 21])]
    key_bytes: Vec<usize>,
    /// Value length in bytes
    #[arg(long, default_value_t = 2)]
    value_bytes: usize,
    /// GETs in a thousand requests, the rest SETs
    #[arg(long, default_value_t = 998)]
    get_permille: u16,
    /// Keys that one GET asks for; more than one with memcached's text protocol only
    #[arg(long, default_value_t = 1)]
    keys_per_get: usize,
}

/// Flags of a PostgreSQL workload: a database that `pgbench -i` made.
#[derive(Args)]
pub struct Transactions {
    /// The user; the server has to trust it without a password
    #[arg(long, default_value = "postgres")]
    user: String,
    /// The database
    #[arg(long, default_value = "postgres")]
    database: String,
    /// The scale that `pgbench -i -s` was given
    #[arg(long, default_value_t = 1)]
    scale: u32,
    /// Ask only for balances, not for pgbench's TPC-B-like transactions
    #[arg(long)]
    select_only: bool,
}

impl Transactions {
    pub fn protocol(&self) -> ProtocolSpec {
        ProtocolSpec::Postgres(PostgresSpec {
            user: self.user.clone(),
            database: self.database.clone(),
            transaction: if self.select_only { Transaction::SelectOnly } else { Transaction::TpcB },
            scale: self.scale,
        })
    }
}

/// Flags of an HTTP workload.
#[derive(Args)]
pub struct Pages {
    /// Path to ask for; several are asked for equally often
    #[arg(long = "path", value_name = "PATH", default_value = "/")]
    paths: Vec<String>,
    /// The `Host` field [default: HOST:PORT as given]
    #[arg(long)]
    host: Option<String>,
}

/// Flags of the fake work.
#[derive(Args)]
pub struct Work {
    /// Service time: `fixed:US`, `exponential:US` or `bimodal:US:US:PERMILLE` (short, long, how many long)
    #[arg(long, default_value = "fixed:10", value_parser = service)]
    service: ServiceTime,
}

impl Keys {
    /// In the protocol that `speak` makes of it.
    pub fn protocol(&self, speak: fn(KeyValueSpec) -> ProtocolSpec) -> ProtocolSpec {
        speak(KeyValueSpec {
            keys: self.keys,
            key_bytes: self.key_bytes.clone(),
            value_bytes: self.value_bytes,
            get_permille: self.get_permille,
            keys_per_get: self.keys_per_get,
        })
    }
}

impl Pages {
    /// As asked of the server at `addr`.
    pub fn protocol(&self, addr: &str) -> ProtocolSpec {
        let host = self.host.clone().unwrap_or_else(|| addr.to_owned());
        ProtocolSpec::Http(HttpSpec { host, paths: self.paths.clone() })
    }
}

impl Work {
    pub fn protocol(&self) -> ProtocolSpec {
        ProtocolSpec::Synthetic(SyntheticSpec { service: self.service })
    }
}

impl Common {
    pub fn spec(&self, addr: &str, protocol: ProtocolSpec) -> Result<LoadSpec> {
        Ok(LoadSpec {
            channels: self.transport.channels()?,
            connections: self.connections,
            arrivals: self.arrivals.clone(),
            steps: self.steps()?,
            warmup: seconds(self.warmup),
            seed: self.seed,
            core: self.core.map(CoreId),
            preload: !self.no_preload,
            idle: if self.sleep { Idle::Sleep } else { Idle::Spin },
            stamps: self.stamps,
            pipelining: !self.no_pipelining,
            ..LoadSpec::new(resolve(addr)?, protocol, 0.0, Nanos::ZERO)
        })
    }

    /// The steps asked for. A trace has a rate and a length of its own.
    fn steps(&self) -> Result<Vec<Step>> {
        if let Arrivals::Trace { file } = &self.arrivals {
            if self.rate.is_some() || !self.steps.is_empty() {
                bail!("a trace has its own rate: leave out --rate and --steps");
            }
            let trace = Trace::read(file)?;
            let length = trace.length();
            let duration = self.duration.map_or(length, |most| seconds(most).min(length));
            return Ok(vec![Step { rate_rps: trace.mean_rps(), duration }]);
        }
        if !self.steps.is_empty() {
            return Ok(self.steps.clone());
        }
        let (rate_rps, duration) = (self.rate.unwrap_or(10_000.0), self.duration.unwrap_or(5.0));
        Ok(vec![Step { rate_rps, duration: seconds(duration) }])
    }
}

/// What carries connections.
#[derive(Args)]
pub struct Transported {
    /// What carries connections: sockets of the kernel, or virtual sockets
    #[arg(long, value_enum, default_value_t = Transport::Kernel)]
    transport: Transport,
    /// With `--transport quell`: where the server's endpoint takes channels; the server's address is that of its streams
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7117")]
    channels: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Kernel,
    Quell,
}

impl Transported {
    fn channels(&self) -> Result<Option<SocketAddr>> {
        match self.transport {
            Transport::Kernel => Ok(None),
            Transport::Quell => resolve(&self.channels).map(Some),
        }
    }
}

/// A name or address with a port.
pub fn resolve(addr: &str) -> Result<SocketAddr> {
    let mut found = addr.to_socket_addrs().with_context(|| format!("`{addr}` is not HOST:PORT"))?;
    found.next().with_context(|| format!("`{addr}` has no address"))
}

pub fn seconds(seconds: f64) -> Nanos {
    Nanos((seconds.max(0.0) * 1e9) as u64)
}

fn step(text: &str) -> Result<Step> {
    let (rate, time) = text.split_once(':').context("a step is RATE:SECONDS")?;
    Ok(Step { rate_rps: rate.parse()?, duration: seconds(time.parse()?) })
}

fn arrivals(text: &str) -> Result<Arrivals> {
    let mut parts = text.splitn(2, ':');
    let kind = parts.next().unwrap_or_default();
    match (kind, parts.next()) {
        ("poisson", None) => Ok(Arrivals::Poisson),
        ("uniform", None) => Ok(Arrivals::Uniform),
        ("trace", Some(file)) => Ok(Arrivals::Trace { file: file.into() }),
        ("bursts", Some(numbers)) => {
            let [rate, period, length] = numbers.split(':').collect::<Vec<_>>()[..] else {
                bail!("bursts are RATE:SECONDS:SECONDS");
            };
            let (period, length) = (seconds(period.parse()?), seconds(length.parse()?));
            Ok(Arrivals::Bursts(Bursts { rate_rps: rate.parse()?, period, length }))
        }
        _ => bail!("`{text}` is none of poisson, uniform, bursts:RATE:SECONDS:SECONDS, trace:FILE"),
    }
}

fn service(text: &str) -> Result<ServiceTime> {
    let mut parts = text.split(':');
    let kind = parts.next().unwrap_or_default();
    let ns = |part: Option<&str>| -> Result<u64> {
        let us: f64 = part.context("a time in microseconds is missing")?.parse()?;
        Ok((us.max(0.0) * 1e3) as u64)
    };
    let service = match kind {
        "fixed" => ServiceTime::Fixed { work_ns: ns(parts.next())? },
        "exponential" => ServiceTime::Exponential { mean_ns: ns(parts.next())? },
        "bimodal" => ServiceTime::Bimodal {
            short_ns: ns(parts.next())?,
            long_ns: ns(parts.next())?,
            long_permille: parts.next().context("how many in a thousand are long?")?.parse()?,
        },
        other => bail!("`{other}` is none of fixed, exponential, bimodal"),
    };
    Ok(service)
}
