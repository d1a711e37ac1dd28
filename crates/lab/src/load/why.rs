//! Flags of `quell load` that say why requests were slow.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quell_bench::why;
use quell_load::LoadReport;
use quell_model::Nanos;
use quell_observe::procs;
use quell_os::Tid;
use quell_record::Recording;
use quell_terminal::quantity::time;
use quell_trace::why::{Bound, Report};

/// Flags of `quell load`.
#[derive(clap::Args)]
pub struct OfRequests {
    /// Say why requests were slow: the server's process id; needs root and BPF
    #[arg(long, value_name = "PID")]
    why: Option<i32>,
    /// What counts as slow, e.g. 500us [default: the slowest tenth of a percent]
    #[arg(long, value_name = "TIME", requires = "why", value_parser = time)]
    why_threshold: Option<Duration>,
    /// How many of the slowest to list
    #[arg(long, default_value_t = 10, value_name = "N")]
    slowest: usize,
    /// Write that report as JSON to this file, `-` for standard output
    #[arg(long, value_name = "FILE", requires = "why")]
    why_json: Option<PathBuf>,
    /// Write each measured request as `sent,answered` (CSV, nanoseconds of CLOCK_MONOTONIC), for
    /// `quell why TRACE --requests FILE`
    #[arg(long, value_name = "FILE")]
    requests_out: Option<PathBuf>,
}

impl OfRequests {
    /// Begins to record, if that was asked for.
    pub fn start(&self) -> Result<Option<Recording>> {
        self.why.map(|pid| Ok(Recording::start(&of_process(pid)?)?)).transpose()
    }

    /// Writes the requests, if that was asked for.
    pub fn write(&self, load: &LoadReport) -> Result<()> {
        let Some(path) = &self.requests_out else { return Ok(()) };
        std::fs::write(path, why::csv(load)).with_context(|| path.display().to_string())
    }

    /// Says why, after the run.
    pub fn tell(&self, recording: Recording, load: &LoadReport) -> Result<()> {
        let bound =
            self.why_threshold.map_or(Bound::Slowest(0.001), |time| Bound::AtLeast(nanos(time)));
        let report = why::report(load, recording.end(), bound, self.slowest);
        match &self.why_json {
            Some(path) if path.as_os_str() != "-" => {
                let text = serde_json::to_string_pretty(&report)?;
                std::fs::write(path, text).with_context(|| path.display().to_string())?;
                show(&report, false)
            }
            json => show(&report, json.is_some()),
        }
    }
}

fn show(report: &Report, json: bool) -> Result<()> {
    match json {
        true => println!("{}", serde_json::to_string_pretty(report)?),
        false => print!("{report}"),
    }
    Ok(())
}

fn of_process(pid: i32) -> Result<Vec<Tid>> {
    if !procs::exists(pid) {
        bail!("there is no process {pid}");
    }
    Ok(std::iter::once(pid).chain(procs::descendants(pid)).map(Tid).collect())
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
