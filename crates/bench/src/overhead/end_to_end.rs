//! Batch work beside a loaded service: with priorities set by hand, and with a daemon that keeps them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quell_load::LoadSpec;
use quell_model::{Class, Nanos};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::{OverheadSpec, ticks};
use crate::daemon::{Adopted, Adoptee, Daemon, DaemonSpec};
use crate::host::{Policy, Quiet, lc_priority};
use crate::services::{BatchWork, Definition, Kind, Programs, Service};
use quell_report::BenchReport;
use quell_terminal::Stop;

const CASE: &str = "end to end";
const BY_HAND: &str = "by-hand";
const QUELL: &str = "quell";

/// Measures both in each round, in an order drawn anew.
pub fn run(
    report: &mut BenchReport,
    spec: &OverheadSpec,
    stop: &Stop,
    on_round: &mut dyn FnMut(usize),
) -> Result<()> {
    let lc = Service::start(&Definition::named("memcached")?, &spec.managed, stop)?;
    let programs = Programs { antagonist: spec.antagonist.clone(), go_gc: None };
    let be = BatchWork::start(Kind::Hog, &programs, None, &spec.managed, stop)?;
    let protocol = lc.protocol().context("memcached has a protocol")?.clone();
    let duration = Nanos(spec.duration.as_nanos() as u64);
    let mut load = LoadSpec::new(lc.addr, protocol, spec.rate_rps, duration);
    load.core = Some(spec.client);
    load.warmup = Nanos::from_millis(200);
    let mut quiet = Quiet::keep()?;
    quiet.allow_real_time()?;
    let mut values: [Vec<f64>; 3] = Default::default();
    for round in 0..spec.rounds {
        on_round(round);
        load.seed = round as u64;
        let mut order = [BY_HAND, QUELL];
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(round as u64));
        for system in order {
            stop.check()?;
            let rate = if system == QUELL {
                let daemon = start(spec, &lc, &be, stop)?;
                let (before, at) = (daemon.status()?, Instant::now());
                let rate = offer(&load, &be)?;
                let passed: Duration = at.elapsed();
                values[2].push(ticks::cpu_percent(&before, &daemon.status()?, passed));
                daemon.stop()?;
                rate
            } else {
                lc.group.set_policy(Policy::Fifo(lc_priority()), 0)?;
                be.group.set_policy(Policy::Idle, 0)?;
                let rate = offer(&load, &be);
                lc.group.set_policy(Policy::Other, 0)?;
                be.group.set_policy(Policy::Other, 0)?;
                rate?
            };
            values[usize::from(system == QUELL)].push(rate);
            load.preload = false;
        }
    }
    let [by_hand, quell, cpu] = values;
    report.compare(CASE, (QUELL, &quell), (BY_HAND, &by_hand), "be_ops_per_s");
    report.push(CASE, BY_HAND, "be_ops_per_s", by_hand);
    report.push(CASE, QUELL, "be_ops_per_s", quell);
    report.push(CASE, QUELL, "daemon_cpu_percent", cpu);
    Ok(())
}

/// Batch work a second while the load is offered.
fn offer(load: &LoadSpec, be: &BatchWork) -> Result<f64> {
    let before = be.work()?;
    quell_load::run(load, &mut quell_load::Silent).context("offer load")?;
    Ok(be.work()?.rates_since(&before).ops.iter().sum())
}

fn start(spec: &OverheadSpec, lc: &Service, be: &BatchWork, stop: &Stop) -> Result<Daemon> {
    let task = |name: &str, class, group: String, guaranteed| Adopted {
        name: name.to_owned(),
        class,
        what: Adoptee::Cgroup(group),
        guaranteed,
        max: spec.managed.len() as u32,
        runaway: None,
    };
    let service = task("service", Class::LatencyCritical, lc.group.path(), 1);
    let batch = task("batch", Class::BestEffort, be.group.path(), 0);
    let daemon = DaemonSpec {
        program: spec.quell.clone(),
        managed: spec.managed,
        host: Vec::new(),
        tasks: vec![service, batch],
    };
    Daemon::start(&daemon, stop)
}
