//! One measurement: load against the service for a while, and what everybody got meanwhile.

use std::time::Instant;

use anyhow::{Context as _, Result};
use quell_load::{LoadReport, LoadSpec};
use quell_model::Nanos;

use super::analysis::Run;
use super::cast::{BatchWork, Readings};
use super::lc::Server;
use super::spec::System;
use super::watch::{CoreWatch, StallWatch};
use crate::host::{PauseLoop, Usage, set_nice};
use crate::stall::{Evidence, Filtered, Gap, Holder, Request, Windows};
use crate::why;

/// Nice value of the client's thread: a foreign thread on its core would be measured as latency.
/// Not FIFO: that would starve the core's softirq thread.
const CLIENT_NICE: i32 = -10;

/// What everybody has used and done up to a moment.
struct Account {
    at: Instant,
    lc: Usage,
    work: Readings,
    turns: Option<u64>,
}

impl Account {
    fn read(lc: &Server, be: &BatchWork, pause: Option<&PauseLoop>) -> Result<Account> {
        Ok(Account {
            at: Instant::now(),
            lc: lc.program.usage()?,
            work: be.work()?,
            turns: pause.map(PauseLoop::turns),
        })
    }
}

/// Who is measured, and by what.
pub struct Scene<'a> {
    /// The service.
    pub lc: &'a Server,
    /// The batch programs.
    pub be: &'a BatchWork,
    /// The load to offer.
    pub load: &'a LoadSpec,
    /// How many cores service and batch work share.
    pub cores: usize,
    /// What watches these cores, if the host has it.
    pub watch: Option<&'a mut CoreWatch>,
    /// What finds stalls, if the host has it.
    pub stalls: Option<&'a mut StallWatch>,
    /// The loop beneath the service, in the system that has one.
    pub pause: Option<&'a PauseLoop>,
    /// Processes of Quell.
    pub quell: Vec<i32>,
}

/// Offers the load and measures.
///
/// # Errors
/// When the load generator fails.
pub fn measure(system: System, scene: Scene) -> Result<Run> {
    let Scene { lc, be, load, cores, mut watch, mut stalls, pause, quell } = scene;
    if let Some(watch) = &mut watch {
        watch.begin();
    }
    if let Some(stalls) = &mut stalls {
        stalls.begin()?;
    }
    // Whoever may not record measures all the same: the observer says why.
    let recording = watch.is_some().then(|| why::record(lc.program.pid())).transpose()?;
    let before = Account::read(lc, be, pause)?;
    // The generator's thread inherits the value.
    set_nice(0, CLIENT_NICE).context("favour the client")?;
    let report = quell_load::run(load, &mut quell_load::Silent);
    set_nice(0, 0).context("favour the client no longer")?;
    let report = report.context("offer load")?;
    let after = Account::read(lc, be, pause)?;
    let watched = watch.map(|watch| watch.end(&quell));
    let loop_gaps = &report.stalls.windows;
    let mut gaps = match stalls {
        Some(stalls) => stalls.end(loop_gaps, &quell, system == System::Alone)?,
        None => Vec::new(),
    };
    let client_lost = involved(&gaps);
    gaps.extend(watched.iter().flat_map(|watched| &watched.gaps));
    let windows = Windows::of(&gaps);
    let covered = windows.covered(report.overall.start_ns, report.overall.end_ns);
    let latencies = Filtered::of(&requests(&report), &windows, covered);
    let passed = (after.at - before.at).as_secs_f64();
    let mut run = Run::new(system, &latencies);
    run.lc_share = (after.lc.cpu - before.lc.cpu).0 as f64 / 1e9 / passed / cores as f64;
    let be_rates = after.work.rates_since(&before.work);
    let totals = &report.overall.totals;
    run.values.extend([
        ("lc_rps", report.overall.achieved_rps),
        ("cpu_utilisation", run.lc_share + be_rates.cpu() / cores as f64),
        ("wakes_per_s", (after.lc.sleeps - before.lc.sleeps) as f64 / passed),
        ("late_sends_share", totals.late as f64 / totals.scheduled.max(1) as f64),
    ]);
    if let Some(watched) = watched {
        let idle_us = watched.idle_while_lc_waits.0 as f64 / 1e3;
        run.values.insert("idle_while_lc_waits_us", idle_us / passed);
        let names = ["wakeup_latency_p99_us", "wakeup_latency_p999_us"];
        for (name, time) in names.into_iter().zip(watched.wake_to_run) {
            run.values.extend(time.map(|time| (name, time.0 as f64 / 1e3)));
        }
    }
    run.values.extend(recording.into_iter().flat_map(|recording| why::shares(&report, recording)));
    run.pause_turns = after.turns.zip(before.turns).map(|(now, then)| (now - then) as f64 / passed);
    run.covered = covered;
    run.client_lost = client_lost.0 as f64 / duration(&report).0.max(1) as f64;
    run.be_rates = system.has_be().then_some(be_rates);
    Ok(run)
}

fn duration(report: &LoadReport) -> Nanos {
    report.overall.end_ns - report.overall.start_ns
}

/// Time in which threads that are part of what is measured, or may be, had the client's core.
fn involved(gaps: &[Gap]) -> Nanos {
    let is =
        |gap: &&Gap| gap.quell_ran || gap.evidence == Evidence::SpinnerGap { by: Holder::Involved };
    gaps.iter().filter(is).fold(Nanos::ZERO, |sum, gap| sum + (gap.end - gap.start))
}

fn requests(report: &LoadReport) -> Vec<Request> {
    let samples = report.samples.iter();
    samples
        .map(|sample| Request {
            intended: sample.sent_ns,
            done: sample.sent_ns + sample.latency_ns,
        })
        .collect()
}
