//! `quell load peak`: the highest rate that a server sustains.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::Result;
use clap::ValueEnum;
use quell_load::{LimitedBy, ProtocolSpec, SearchSpec, search_peak};
use quell_model::Nanos;

use super::workload::{Common, Keys, Pages, Transactions, Work};
use quell_terminal::interrupted;

/// What the server speaks.
#[derive(Clone, Copy, ValueEnum)]
enum Speaks {
    /// memcached's text protocol
    Memcached,
    /// memcached's binary protocol
    MemcachedBinary,
    /// RESP, the protocol of Redis
    Redis,
    /// HTTP/1.1
    Http,
    /// PostgreSQL's, on a database that `pgbench -i` made
    Postgres,
    /// The protocol of `quell load serve`
    Synthetic,
}

/// Find the highest rate that a server sustains, by doubling and bisection with short runs
///
/// A rate is sustained if 99 % of it is answered and the 99th percentile stays within the bound.
#[derive(clap::Args)]
pub struct Args {
    /// What the server speaks
    #[arg(value_enum)]
    protocol: Speaks,
    /// The server
    #[arg(value_name = "HOST:PORT")]
    addr: String,
    /// Bound of the 99th percentile in microseconds
    #[arg(long, default_value_t = 1_000)]
    p99_us: u64,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    pages: Pages,
    #[command(flatten)]
    transactions: Transactions,
    #[command(flatten)]
    work: Work,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let protocol = match args.protocol {
        Speaks::Memcached => args.keys.protocol(ProtocolSpec::Memcached),
        Speaks::MemcachedBinary => args.keys.protocol(ProtocolSpec::MemcachedBinary),
        Speaks::Redis => args.keys.protocol(ProtocolSpec::Redis),
        Speaks::Http => args.pages.protocol(&args.addr),
        Speaks::Postgres => args.transactions.protocol(),
        Speaks::Synthetic => args.work.protocol(),
    };
    let mut spec = SearchSpec::new(args.common.spec(&args.addr, protocol)?);
    spec.p99_bound = Nanos::from_micros(args.p99_us);
    let stop = interrupted()?;
    let report = search_peak(&spec, &mut |probe| {
        let verdict = if probe.sustained { "sustained" } else { "not sustained" };
        eprintln!(
            "  {:>9.0}/s: {:>9.0} answered/s, p99 {:>8.1} us, {verdict}",
            probe.rate_rps, probe.achieved_rps, probe.p99_us
        );
        !stop.load(Ordering::Relaxed)
    })?;
    if let Some(path) = &args.common.json {
        write_json(path, &report)?;
    }
    let above = match report.limited_by {
        LimitedBy::Generator => "the generator is the limit: the server may do more",
        LimitedBy::Server => "the server is the limit",
        LimitedBy::None => "the highest rate that was tried",
    };
    println!("peak {:.0} requests/s ({above})", report.peak_rps);
    Ok(ExitCode::SUCCESS)
}

fn write_json(path: &PathBuf, report: &quell_load::PeakReport) -> Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    if path.as_os_str() == "-" {
        println!("{text}");
        return Ok(());
    }
    Ok(std::fs::write(path, text)?)
}
