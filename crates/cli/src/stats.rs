//! `quell stats`: figures of a trace.

use std::process::ExitCode;

use anyhow::Result;

use crate::trace_file::TraceFile;

/// Print figures of a trace: wakeup latency, migrations, run queues, wasted time of cores
///
/// Wakeup latency by the threads' name, from the wake-up until the thread runs; migrations by cause and by what the two
/// cores share; how many threads wanted a core, for how much of the time; and how long cores idled while threads
/// that may use them waited. What a loss hides is left out, and said.
///
/// Exit status 1: the trace is damaged; the figures are of what came before.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    trace: TraceFile,
    /// Print the figures as JSON, with all names
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let mut source = args.trace.open()?;
    let (report, error) = quell_trace::stats::read(source.as_mut());
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{report}"),
    }
    for remark in source.remarks() {
        eprintln!("{remark}");
    }
    Ok(match error {
        None => ExitCode::SUCCESS,
        Some(err) => {
            eprintln!("{}: {err}; the figures are of what came before", args.trace.name());
            ExitCode::from(1)
        }
    })
}
