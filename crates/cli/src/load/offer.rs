//! `quell load memcached` and `quell load synthetic`: offer load, show it live, report it.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use quell_load::{Interval, LimitedBy, LoadReport, LoadSpec, Progress};

use super::feed::{self, Feed};
use super::workload::{Common, Keys, Work};
use crate::table;

/// Offer GETs and SETs in memcached's text protocol
#[derive(clap::Args)]
pub struct Memcached {
    /// The server
    #[arg(default_value = "127.0.0.1:11211", value_name = "HOST:PORT")]
    addr: String,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    feed: feed::Args,
}

/// Offer fake work to `quell load serve`
#[derive(clap::Args)]
pub struct Synthetic {
    /// The server
    #[arg(value_name = "HOST:PORT")]
    addr: String,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    work: Work,
    #[command(flatten)]
    feed: feed::Args,
}

pub fn memcached(args: Memcached) -> Result<ExitCode> {
    let spec = args.common.spec(&args.addr, args.keys.protocol())?;
    offer(&spec, &args.common, &args.feed)
}

pub fn synthetic(args: Synthetic) -> Result<ExitCode> {
    let spec = args.common.spec(&args.addr, args.work.protocol())?;
    offer(&spec, &args.common, &args.feed)
}

fn offer(spec: &LoadSpec, common: &Common, feed: &feed::Args) -> Result<ExitCode> {
    let shown = std::io::stderr().is_terminal();
    let mut live = Live { stop: interrupted()?, shown, feed: feed.connect()? };
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
    Ok(if report.limited_by == LimitedBy::Generator {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}

/// Set by the first Ctrl-C, which ends the run in order; a second one kills.
pub fn interrupted() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

struct Live {
    stop: Arc<AtomicBool>,
    shown: bool,
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
    let row = |name: String, step: &quell_load::StepReport| {
        let us = |ns: f64| format!("{ns:.1}");
        let latency = &step.latency;
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
            report.steps.iter().enumerate().map(|(at, step)| row((at + 1).to_string(), step)),
        );
    }
    rows.push(row("all".to_owned(), &report.overall));
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
