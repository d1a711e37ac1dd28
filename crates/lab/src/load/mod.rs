//! `quell load`: offer load, find a peak, serve fake work.

mod feed;
mod offer;
mod peak;
mod serve;
mod why;
mod workload;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use quell_load::ProtocolSpec;

use self::workload::{Keys, Pages, Transactions, Work};

/// Offer load to a service, find what it sustains, or serve fake work
///
/// The loop is open: requests are due at times fixed beforehand, and each latency counts from then, whatever
/// the server does (coordinated omission cannot happen). One thread spins; give it a core of its own.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Offer GETs and SETs in memcached's text protocol
    Memcached(offer::Args<Keys>),
    /// Offer GETs and SETs in memcached's binary protocol
    MemcachedBinary(offer::Args<Keys>),
    /// Offer GETs and SETs to Redis, or another server that speaks RESP
    Redis(offer::Args<Keys>),
    /// Offer GETs of pages in HTTP/1.1
    Http(offer::Args<Pages>),
    /// Offer pgbench's transactions to PostgreSQL, on a database that `pgbench -i` made
    Postgres(offer::Args<Transactions>),
    /// Offer fake work to `quell load serve`
    Synthetic(offer::Args<Work>),
    Peak(peak::Args),
    Serve(serve::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Memcached(args) => offer::run(args, Some("127.0.0.1:11211"), |keys, _| {
            keys.protocol(ProtocolSpec::Memcached)
        }),
        Command::MemcachedBinary(args) => offer::run(args, Some("127.0.0.1:11211"), |keys, _| {
            keys.protocol(ProtocolSpec::MemcachedBinary)
        }),
        Command::Redis(args) => {
            offer::run(args, Some("127.0.0.1:6379"), |keys, _| keys.protocol(ProtocolSpec::Redis))
        }
        Command::Http(args) => offer::run(args, Some("127.0.0.1:80"), Pages::protocol),
        Command::Postgres(args) => {
            offer::run(args, Some("127.0.0.1:5432"), |transactions, _| transactions.protocol())
        }
        Command::Synthetic(args) => offer::run(args, None, |work, _| work.protocol()),
        Command::Peak(args) => peak::run(args),
        Command::Serve(args) => serve::run(args),
    }
}
