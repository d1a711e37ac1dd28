//! `quell lane status`: what lanes that run have done so far.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use quell_daemon::lanes;
use quell_model::Nanos;
use serde_json::Value;

/// Show the lanes that run, whose turn it is, and what they have done so far
///
/// `scheduler` is what the scheduler thread itself uses: its share of its core since it began, and that time for each
/// switch. One that spins (dedicated) has all of its core. `floor` is the shortest time seen from the end of a slice until the next member may run: no slice on this host is
/// more exact. `late` counts looks that came more than 50 us after their time.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON, an array of one object for each `quell lane run`
    #[arg(long)]
    json: bool,
    /// The run directory of the lanes [default: as for `quell run`]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let run_dir = args.run_dir.clone().unwrap_or_else(quell_control::run_dir::default_run_dir);
    let answers = lanes::ask(&run_dir).context("lanes run, but do not answer")?;
    if args.json {
        println!("[{}]", answers.join(","));
        return Ok(ExitCode::SUCCESS);
    }
    if answers.is_empty() {
        println!("no lane runs in {}", run_dir.display());
    }
    for answer in &answers {
        show(&serde_json::from_str(answer).context("lanes answer something else than a status")?);
    }
    Ok(ExitCode::SUCCESS)
}

/// A status for people.
pub fn show(status: &Value) {
    let time = |value: &Value| value.as_u64().map_or("-".to_owned(), |ns| Nanos(ns).to_string());
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    for lane in status["lanes"].as_array().into_iter().flatten() {
        println!(
            "core {}: {} ({}), turn: {}",
            lane["core"],
            text(&lane["policy"]),
            text(&status["pattern"]),
            text(&lane["running"]),
        );
        println!(
            "  {} switches, {} late (latest {}); a switch takes {} to {}, floor {}",
            lane["switches"],
            lane["late"],
            time(&lane["latest_ns"]),
            time(&lane["switch_min_ns"]),
            time(&lane["switch_mean_ns"]),
            time(&lane["floor_ns"]),
        );
        for member in lane["members"].as_array().into_iter().flatten() {
            println!(
                "  {}: {} slices, {}",
                text(&member["name"]),
                member["slices"],
                time(&member["slices_ns"])
            );
        }
        for note in lane["notes"].as_array().into_iter().flatten() {
            println!("  {}", text(note));
        }
    }
    for scheduler in status["schedulers"].as_array().into_iter().flatten() {
        println!("{}", cost(scheduler));
    }
}

/// What a scheduler thread costs: of its core, and for each switch.
fn cost(scheduler: &Value) -> String {
    let core = &scheduler["core"];
    let count = |key: &str| scheduler[key].as_u64();
    let (Some(cpu), Some(age)) = (count("cpu_ns"), count("uptime_ns").filter(|age| *age > 0))
    else {
        return format!("scheduler: on core {core}, its CPU time is not known");
    };
    // In thousandths, as numbers are shown.
    let share = (u128::from(cpu) * 1_000 / u128::from(age)) as f64 / 10.0;
    let switch = cpu.checked_div(count("switches").unwrap_or(0)).map(Nanos);
    let switch = switch.map_or(String::new(), |each| format!(", {each} a switch"));
    format!("scheduler: {share:.1} % of core {core}{switch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_a_share_of_the_core_and_a_time_for_each_switch_if_there_was_one() {
        let says = |cpu: Value, switches: u64| {
            let age = 1_000_000_000u64;
            cost(
                &serde_json::json!({"core": 1, "uptime_ns": age, "cpu_ns": cpu, "switches": switches}),
            )
        };
        let busy = says(32_000_000.into(), 7_800);
        assert_eq!(busy, format!("scheduler: 3.2 % of core 1, {} a switch", Nanos(4_102)));
        assert_eq!(says(2_000_000.into(), 0), "scheduler: 0.2 % of core 1");
        assert!(says(Value::Null, 3).contains("not known"));
    }
}
