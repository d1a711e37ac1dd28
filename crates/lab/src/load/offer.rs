//! `quell load PROTOCOL`: offer load, show it live, report it.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::timeline;
use anyhow::{Context, Result};
use quell_load::{Interval, LimitedBy, LoadReport, LoadSpec, Progress, ProtocolSpec};
use quell_record::Recording;

use super::feed::{self, Feed};
use super::workload::Common;
use quell_terminal::{interrupted, table};

/// Flags of a load, with those of its workload.
#[derive(clap::Args)]
pub struct Args<W: clap::Args> {
    /// The server [default: this host, at the usual port]
    #[arg(value_name = "HOST:PORT")]
    addr: Option<String>,
    #[command(flatten)]
    common: Common,
    /// Plot latency and rates over time, as SVG and PNG (FILE.svg and FILE.png)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    workload: W,
    #[command(flatten)]
    feed: feed::FeedTo,
}

/// Offers the load that `protocol` makes of the workload and the server's address; `usual` is where the
/// server is if nothing else is said.
pub fn run<W: clap::Args>(
    args: Args<W>,
    usual: Option<&str>,
    protocol: impl FnOnce(&W, &str) -> ProtocolSpec,
) -> Result<ExitCode> {
    let addr = args.addr.as_deref().or(usual).context("say where the server is, as HOST:PORT")?;
    let spec = args.common.spec(addr, protocol(&args.workload, addr))?;
    let report = offer(&spec, &args.common, &args.feed)?;
    if let Some(path) = &args.plot {
        for file in timeline::timeline(&report, addr, path)? {
            eprintln!("wrote {}", file.display());
        }
    }
    Ok(match report.limited_by {
        LimitedBy::Generator => ExitCode::from(1),
        LimitedBy::Server | LimitedBy::None => ExitCode::SUCCESS,
    })
}

fn offer(spec: &LoadSpec, common: &Common, feed: &feed::FeedTo) -> Result<LoadReport> {
    let recording = common.why.start()?;
    let shown = std::io::stderr().is_terminal();
    let mut live = Live { stop: interrupted()?, shown, recording, feed: feed.connect()? };
    let report = quell_load::run(spec, &mut live)?;
    match &common.json {
        Some(path) if path.as_os_str() == "-" => {
            println!("{}", serde_json::to_string_pretty(&report)?);
        }
        Some(path) => {
            let text = serde_json::to_string_pretty(&report)?;
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
            print!("{}", in_words(&report));
        }
        None => print!("{}", in_words(&report)),
    }
    common.why.write(&report)?;
    if let Some(recording) = live.recording {
        common.why.tell(recording, &report)?;
    }
    Ok(report)
}

struct Live {
    stop: Arc<AtomicBool>,
    shown: bool,
    recording: Option<Recording>,
    feed: Option<Feed>,
}

impl Progress for Live {
    fn interval(&mut self, at: &Interval) {
        if let Some(feed) = &mut self.feed {
            feed.send(at);
        }
        if self.shown {
            eprintln!(
                "  {:>9.0} offered/s  {:>9.0} answered/s  p50 {:>7.1} us  p99 {:>8.1} us  late {}  waiting {}",
                at.offered_rps, at.achieved_rps, at.p50_us, at.p99_us, at.late, at.outstanding
            );
        }
    }

    fn stop(&mut self) -> bool {
        if let Some(recording) = &mut self.recording {
            // What cannot be taken over now is lost later, and counted.
            let _ = recording.collect();
        }
        // Relaxed: a flag alone, nothing is published by it.
        self.stop.load(Ordering::Relaxed)
    }
}

fn in_words(report: &LoadReport) -> String {
    let header = [
        "STEP",
        "TARGET/S",
        "ANSWERED/S",
        "P50_US",
        "P90_US",
        "P99_US",
        "P99.9_US",
        "P99.99_US",
        "MAX_US",
        "LATE",
        "UNANSWERED",
    ];
    let row = |name: String, step: &quell_load::StepReport, latency: &quell_load::Latency| {
        let us = |ns: f64| format!("{ns:.1}");
        vec![
            name,
            format!("{:.0}", step.target_rps),
            format!("{:.0}", step.achieved_rps),
            us(latency.p50_us),
            us(latency.p90_us),
            us(latency.p99_us),
            us(latency.p999_us),
            us(latency.p9999_us),
            us(latency.max_us),
            step.totals.late.to_string(),
            (step.totals.unanswered + step.totals.unsent).to_string(),
        ]
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    if report.steps.len() > 1 {
        rows.extend(
            report
                .steps
                .iter()
                .enumerate()
                .map(|(at, step)| row((at + 1).to_string(), step, &step.latency)),
        );
    }
    rows.push(row("all".to_owned(), &report.overall, &report.overall.latency));
    if let Some(short) = &report.overall.short {
        rows.push(row("short".to_owned(), &report.overall, short));
    }
    if let Some(received) = &report.overall.received {
        rows.push(row("received".to_owned(), &report.overall, received));
    }
    let mut out = table::render(&header, &rows);
    out.push_str(&format!(
        "limited by {}: {}\n",
        match report.limited_by {
            LimitedBy::Generator => "the generator",
            LimitedBy::Server => "the server",
            LimitedBy::None => "nothing",
        },
        report.limited_because
    ));
    if let Some(why) = &report.ended_early {
        out.push_str(&format!("ended early: {why}\n"));
    }
    out
}
