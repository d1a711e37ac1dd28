//! `quell sim hunt`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use quell_bench::Stop;
use quell_sim::hunt;

/// Search for mistakes of a policy with random hosts, loads, faults and changes
///
/// Every scenario follows from its seed. What breaks an invariant, starves a task, keeps cores moving for nothing, or
/// does not add up is printed with the line that replays it. Exit status 1 if anything was found.
#[derive(clap::Args)]
pub struct Args {
    /// The policy
    #[arg(long, value_name = "NAME", default_value = "quell")]
    policy: String,
    /// How long to search: 30s, 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time, conflicts_with = "seed")]
    time: Duration,
    /// Begin with this seed
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Look at this seed alone, and describe its scenario
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    // A name that nobody has is an error before the search, not in each case.
    if let Some(seed) = args.seed {
        println!("{}", hunt::describe(seed));
        let findings = hunt::look(seed, &args.policy)?;
        findings.iter().for_each(|finding| println!("{finding}"));
        return Ok(ExitCode::from(u8::from(!findings.is_empty())));
    }
    let stop = Stop::on_signals()?;
    let (started, mut seed, mut found) = (Instant::now(), args.from, 0);
    while started.elapsed() < args.time && !stop.is_asked() {
        let findings = hunt::look(seed, &args.policy)?;
        if let Some(first) = findings.first() {
            found += 1;
            println!("quell sim hunt --policy {} --seed {seed}: {first}", args.policy);
        }
        seed += 1;
    }
    let seconds = started.elapsed().as_secs();
    println!("{} scenarios in {seconds} s, {found} with findings", seed - args.from);
    Ok(ExitCode::from(u8::from(found > 0)))
}

fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_alphabetic()).len());
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => 0,
    };
    let number: u64 = number.parse().unwrap_or(0);
    match number.checked_mul(seconds) {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("`{text}` is no time; write it like 30s, 10m or 1h")),
    }
}
