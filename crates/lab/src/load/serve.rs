//! `quell load serve`: the synthetic LC server.

use std::process::ExitCode;

use anyhow::Result;
use quell_load::serve::{ServeSpec, serve};

use super::workload::resolve;

/// Serve fake work: each request says how much CPU work it wants
///
/// Ends on SIGTERM or Ctrl-C with a line of totals.
#[derive(clap::Args)]
pub struct Args {
    /// Where to listen; port 0 for any free one
    #[arg(default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    addr: String,
    /// Worker threads, each with an epoll of its own
    #[arg(long, short, default_value_t = 1)]
    workers: usize,
    /// Obey requests that make a worker spin without sleeping (for tests of runaway threads)
    #[arg(long)]
    allow_runaway: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let spec = ServeSpec {
        workers: args.workers,
        allow_runaway: args.allow_runaway,
        ..ServeSpec::new(resolve(&args.addr)?)
    };
    let report = serve(&spec, |server| println!("listening on {}", server.addr()))?;
    println!(
        "served {}, refused {}, runaways {}, malformed {}",
        report.served, report.refused, report.runaways, report.malformed
    );
    Ok(ExitCode::SUCCESS)
}
