//! memcached beside a program that fills the memory, under each system.

use anyhow::Result;

use super::super::case::{Case, MEMCACHED_STREAM, Ran, Runner};
use super::super::{Figure, MarkTarget as _, Outcome, line, scale};
use super::{largest, percent};

pub const FIGURE: Figure = Figure {
    name: "memcached-stream",
    title: "memcached beside stream-DRAM",
    about: "memcached may use all 22 threads, and the batch program reads arrays larger than the cache. Linux 5.4 shares cores \
            (SCHED_IDLE), has memcached's requests wait in its network stack (11 us of processor time each instead of \
            1.25) and belong to one thread each, and is compared with itself. Both programs have sessions of their own. PARTIES* has cache ways to deal out and a target of 20 us, and \
            is measured after it had 10 s to converge.",
    run,
};

/// Systems with kernel bypass, what they are called, and the policy.
const SYSTEMS: [&str; 2] = ["shenango", "caladan"];
const TASK: &str = "memcached";
const BATCH: &str = "stream";
/// Processor time of a request through Linux's network stack (estimated: 10 to 12 us).
const LINUX_REQUEST_NS: i64 = 11_000;
/// The most that Linux serves alone: 22 threads with busy siblings.
const LINUX_PEAK: f64 = 22e6 / (11.0 * 1.5);
/// The authors' kernel.
const LINUX: &str = "linux-5.4";
/// 80 % of the published peak, million requests a second.
const MOST: f64 = 0.8 * 12.0;

fn run(runner: &Runner) -> Result<Outcome> {
    let mut out = Outcome::default();
    let rates = runner.choose(&[1.0, 2.0, 4.0, 6.0, 8.0, 9.6, 11.0, 13.0][..], &[1.0, 9.6, 13.0]);
    let length = runner.choose(30, 20);
    let base = Case::new(MEMCACHED_STREAM)?.with("length_ms", length)?;
    let alone = sweep(runner, &base.clone().without(BATCH), rates, &mut out, "alone")?;
    let mut tails = vec![tails("alone", &alone)?.into_reference()];
    let mut work = Vec::new();
    for system in SYSTEMS {
        // Shenango looks each 5 us.
        let tick = if system == "shenango" { 5 } else { 10 };
        let case = base.clone().policy(system)?.with("host.tick_us", tick)?;
        let beside = sweep(runner, &case, rates, &mut out, system)?;
        let at_one = beside[0].1.tail_us(TASK)? / alone[0].1.tail_us(TASK)?;
        let throughput = percent(peak(&beside)?, peak(&alone)?);
        match system {
            "shenango" => {
                out.value("shenango_tail_times", at_one);
                out.value("shenango_throughput_percent", throughput);
                let times = ratios(&beside, &alone, MOST, Ran::client_tail_us)?;
                out.value("shenango_client_tail_times", largest(times));
            }
            _ => {
                let times = ratios(&beside, &alone, MOST, Ran::tail_us)?;
                out.value("caladan_tail_times", largest(times));
                let times = ratios(&beside, &alone, MOST, Ran::client_tail_us)?;
                out.value("caladan_client_tail_times", largest(times));
                out.value("caladan_throughput_percent", throughput);
            }
        }
        tails.push(self::tails(system, &beside)?);
        work.push(line(system, beside.iter().map(|(rate, ran)| (*rate, ran.work_cores(BATCH)))));
        if system == "caladan" && !runner.short {
            let parties = parties(runner, rates, &mut out)?;
            let times = ratios(&parties, &beside, MOST, Ran::tail_us)?;
            out.value("parties_tail_times", times[0]);
            out.value("parties_largest_tail_times", largest(times));
            tails.push(self::tails("parties-star", &parties)?);
            let done = parties.iter().map(|(rate, ran)| (*rate, ran.work_cores(BATCH)));
            work.push(line("parties-star", done));
        }
    }
    let linux = linux(runner, &mut out)?;
    out.panels = vec![
        scale("offered, million requests a second", "99.9 %, µs", tails).logarithmic(),
        scale("offered, million requests a second", "batch work, cores", work),
        scale(
            "offered to Linux, million requests a second",
            "99.9 % against alone, ×",
            vec![linux],
        )
        .logarithmic()
        .mark("linux_tail_times", 1.0, None),
    ];
    Ok(out)
}

type Swept = Vec<(f64, Ran)>;

/// Runs a case at each rate, in million requests a second.
fn sweep(
    runner: &Runner,
    base: &Case,
    rates: &[f64],
    out: &mut Outcome,
    system: &str,
) -> Result<Swept> {
    let cases =
        rates.iter().map(|rate| base.clone().with("task.memcached.rate", (rate * 1e6) as u64));
    let ran = runner.run(&cases.collect::<Result<Vec<_>>>()?)?;
    for (rate, ran) in rates.iter().zip(&ran) {
        let case = format!("{} M/s", quell_report::table::number(*rate));
        out.point(&case, system, "p999_us", ran.tail_us(TASK)?);
        out.point(&case, system, "served_mrps", ran.served_mrps(TASK)?);
        out.point(&case, system, "batch_work_cores", ran.work_cores(BATCH));
    }
    Ok(rates.iter().copied().zip(ran).collect())
}

fn tails(name: &str, swept: &Swept) -> Result<quell_report::plot::Line> {
    let points: Result<Vec<_>> =
        swept.iter().map(|(rate, ran)| Ok((*rate, ran.tail_us(TASK)?))).collect();
    Ok(line(name, points?))
}

fn peak(swept: &Swept) -> Result<f64> {
    let served: Result<Vec<f64>> = swept.iter().map(|(_, ran)| ran.served_mrps(TASK)).collect();
    Ok(largest(served?))
}

/// Tails against those alone, at rates up to `most`.
fn ratios(
    beside: &Swept,
    alone: &Swept,
    most: f64,
    tail: fn(&Ran, &str) -> Result<f64>,
) -> Result<Vec<f64>> {
    let both = beside.iter().zip(alone).filter(|((rate, _), _)| *rate <= most);
    both.map(|((_, ran), (_, alone))| Ok(tail(ran, TASK)? / tail(alone, TASK)?)).collect()
}

/// Linux beside batch work against Linux alone.
fn linux(runner: &Runner, out: &mut Outcome) -> Result<quell_report::plot::Line> {
    let shares = runner.choose(&[0.1, 0.2, 0.4, 0.6, 0.7, 0.8][..], &[0.1, 0.8]);
    let rates: Vec<f64> = shares.iter().map(|share| share * LINUX_PEAK / 1e6).collect();
    let service: toml::Table = toml::Table::from_iter([
        ("distribution".to_owned(), "lognormal".into()),
        ("mean_ns".to_owned(), LINUX_REQUEST_NS.into()),
        ("sigma_permille".to_owned(), 250.into()),
    ]);
    let base = Case::new(MEMCACHED_STREAM)?
        .with("length_ms", runner.choose(300, 60))?
        .set("host.cores", "shared")?
        .set("kernel.model", LINUX)?
        .set("task.memcached.service", service)?
        .set("task.memcached.own_connections", true)?
        .policy("sched-idle")?;
    let alone = sweep(runner, &base.clone().without(BATCH), &rates, out, "linux alone")?;
    let beside = sweep(runner, &base, &rates, out, "linux")?;
    let times = ratios(&beside, &alone, f64::INFINITY, Ran::tail_us)?;
    out.value("linux_tail_times", largest(times.iter().copied()));
    let together = base.clone().set("kernel.autogroup", false)?;
    let together = sweep(runner, &together, &rates, out, "linux, one session")?;
    let together = ratios(&together, &alone, f64::INFINITY, Ran::tail_us)?;
    out.value("linux_one_session_tail_times", largest(together));
    let equals = base.policy("linux-default")?;
    let equals = sweep(runner, &equals, &rates, out, "linux, one class")?;
    let equals = ratios(&equals, &alone, f64::INFINITY, Ran::tail_us)?;
    out.value("linux_slices_tail_times", largest(equals));
    Ok(line("linux", rates.into_iter().zip(times)))
}

/// PARTIES* up to the last rate that counts, each after its convergence.
fn parties(runner: &Runner, rates: &[f64], out: &mut Outcome) -> Result<Swept> {
    let case = Case::new(MEMCACHED_STREAM)?
        .with("length_ms", 12_000)?
        .with("warm_up_ms", 10_000)?
        .with("report_interval_ms", 500)?
        .with("host.llc_ways", 20)?
        .with("task.memcached.latency_target_us", 20)?
        .policy("parties-star")?;
    let rates: Vec<f64> = rates.iter().copied().filter(|rate| *rate <= MOST).collect();
    sweep(runner, &case, &rates, out, "parties-star")
}
