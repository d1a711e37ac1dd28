//! Batch work beside a loaded service: with priorities set by hand, and with a daemon that keeps them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quell_load::LoadSpec;
use quell_model::{Class, Nanos};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::{OverheadSpec, ticks};
use crate::colocate::{BatchWork, Lc, Mix, Server, lc_priority};
use crate::daemon::{Adopted, Adoptee, Daemon, DaemonSpec};
use crate::host::Policy;
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
    let lc = Server::start(Lc::Memcached, &spec.managed)?;
    let be = BatchWork::start(&spec.antagonist, &spec.managed, Mix::Hog, None)?;
    let duration = Nanos(spec.duration.as_nanos() as u64);
    let mut load = LoadSpec::new(lc.addr, lc.lc.protocol(), spec.rate_rps, duration);
    load.core = Some(spec.client);
    load.warmup = Nanos::from_millis(200);
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
                lc.program.set_policy(Policy::Fifo(lc_priority()), 0)?;
                set_batch(&be, Policy::Idle)?;
                let rate = offer(&load, &be);
                lc.program.set_policy(Policy::Other, 0)?;
                set_batch(&be, Policy::Other)?;
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

fn set_batch(be: &BatchWork, policy: Policy) -> Result<()> {
    be.programs().try_for_each(|program| program.set_policy(policy, 0))
}

/// Batch work a second while the load is offered.
fn offer(load: &LoadSpec, be: &BatchWork) -> Result<f64> {
    let before = be.work()?;
    quell_load::run(load, &mut quell_load::Silent).context("offer load")?;
    Ok(be.work()?.rates_since(&before).ops())
}

fn start(spec: &OverheadSpec, lc: &Server, be: &BatchWork, stop: &Stop) -> Result<Daemon> {
    let task = |name: &str, class, pid, guaranteed| Adopted {
        name: name.to_owned(),
        class,
        what: Adoptee::Process(pid),
        guaranteed,
        max: spec.managed.len() as u32,
        runaway: None,
    };
    let service = task("service", Class::LatencyCritical, lc.program.pid(), 1);
    let batch = be.programs().enumerate();
    let batch = batch
        .map(|(at, program)| task(&format!("batch-{at}"), Class::BestEffort, program.pid(), 0));
    let daemon = DaemonSpec {
        program: spec.quell.clone(),
        managed: spec.managed,
        host: Vec::new(),
        tasks: std::iter::once(service).chain(batch).collect(),
    };
    Daemon::start(&daemon, stop)
}
