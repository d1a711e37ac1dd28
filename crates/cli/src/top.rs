//! `quell top`: what runs where and why, live.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_top::Options;

use crate::client::Daemon;

/// Show live what runs where, who ran on each core, what was decided, and why
///
/// Keys: `?` in it lists them. Needs no more than the right to use the daemon's control socket, and
/// changes nothing. A daemon that goes away is waited for.
#[derive(clap::Args)]
pub struct Args {
    /// Milliseconds between two samples
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval: u64,
    /// No colours [also: the environment variable NO_COLOR]
    #[arg(long)]
    no_color: bool,
    /// Print one frame, of two samples an interval apart, as plain text and end
    #[arg(long)]
    once: bool,
    /// Columns of that frame
    #[arg(long, value_name = "N", default_value_t = 80, requires = "once", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    width: u16,
    /// Rows of that frame
    #[arg(long, value_name = "N", default_value_t = 24, requires = "once", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    height: u16,
    #[command(flatten)]
    daemon: Daemon,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let no_color = args.no_color || std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    let options = Options {
        socket: args.daemon.socket(),
        interval: Duration::from_millis(args.interval),
        colours: !no_color,
    };
    if args.once {
        let frame = quell_top::once(&options, args.width, args.height)?;
        std::io::stdout().write_all(frame.as_bytes())?;
    } else {
        quell_top::run(&options)?;
    }
    Ok(ExitCode::SUCCESS)
}
