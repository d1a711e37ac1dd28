//! `quell doctor`: what this host can do.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use quell_control::run_dir::default_run_dir;
use quell_doctor::{Options, Status, Table, examine};
use quell_model::CoreSet;

use quell_terminal::quantity::time;

/// Show what this host can do for Quell, what it lacks, and how to mend that
///
/// Tries rather than asks: real-time priority, BPF and counters are used for real, briefly and without
/// lasting change. Exit status 0 if nothing that Quell needs is absent, 1 otherwise.
#[derive(clap::Args)]
pub struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Try real-time priority in this cgroup directory too, e.g. /sys/fs/cgroup/cpu/batch
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Examine as if these cores were managed [default: all but the lowest physical core]
    #[arg(long, value_name = "LIST")]
    managed: Option<CoreSet>,
    /// Show the file or system call behind each finding
    #[arg(long, short)]
    evidence: bool,
    /// How long to look for stalls of the hypervisor, at most 60s
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = time)]
    stall_test: Duration,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let options = Options {
        cgroup: args.cgroup,
        managed: args.managed,
        spin: args.stall_test.min(Duration::from_secs(60)),
        run_dir: default_run_dir(),
    };
    let findings = examine(&options);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&findings)?),
        false => {
            let table = Table::new(&findings, std::io::stdout().is_terminal());
            print!("{}", if args.evidence { table.with_evidence() } else { table });
        }
    }
    let needed = |id: &str| matches!(id, "realtime" | "realtime_target");
    let lacking = findings.iter().any(|found| needed(&found.id) && found.status == Status::Absent);
    Ok(if lacking { ExitCode::from(1) } else { ExitCode::SUCCESS })
}
