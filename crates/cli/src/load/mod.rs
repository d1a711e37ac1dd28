//! `quell load`: offer load, find a peak, serve fake work.

mod feed;
mod offer;
mod peak;
mod serve;
mod workload;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

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
    Memcached(offer::Memcached),
    Synthetic(offer::Synthetic),
    Peak(peak::Args),
    Serve(serve::Args),
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Memcached(args) => offer::memcached(args),
        Command::Synthetic(args) => offer::synthetic(args),
        Command::Peak(args) => peak::run(args),
        Command::Serve(args) => serve::run(args),
    }
}
