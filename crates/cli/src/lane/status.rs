//! `quell lane status`: what lanes that run have done so far.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use quell_daemon::lanes;
use quell_model::Nanos;
use serde_json::Value;

/// Show the lanes that run, whose turn it is, and what they have done so far
///
/// `floor` is the shortest time seen from the end of a slice until the next member may run: no slice on this host is
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
    let run_dir = args.run_dir.clone().unwrap_or_else(quell_daemon::default_run_dir);
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
            "  {} switches, {} late (latest {}); a hand-over takes {} to {}, floor {}",
            lane["switches"],
            lane["late"],
            time(&lane["latest_ns"]),
            time(&lane["hand_over_min_ns"]),
            time(&lane["hand_over_mean_ns"]),
            time(&lane["floor_ns"]),
        );
        for member in lane["members"].as_array().into_iter().flatten() {
            println!(
                "  {}: {} turns, {}",
                text(&member["name"]),
                member["turns"],
                time(&member["turns_ns"])
            );
        }
        for note in lane["notes"].as_array().into_iter().flatten() {
            println!("  {}", text(note));
        }
    }
}
