//! `quell lane status`: what the lanes of a daemon have done so far.

use std::process::ExitCode;

use anyhow::Result;
use quell_control::client::{Client, ClientError};
use quell_control::protocol::{LaneSchedulerStatus, LaneStatus, Method, Reply, Status};
use quell_model::Nanos;
use serde::Serialize;

use crate::client::Daemon;

/// Show the lanes that run, whose slice it is, and what they have done so far
///
/// `scheduler` is what the scheduler thread itself uses: its share of its core since it began, and that time for each
/// switch. One that spins (dedicated) has all of its core. `floor` is the shortest time seen from the end of a slice until the next member may run: no slice on this host is
/// more exact. `late` counts looks that came more than 50 us after their time.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: Daemon,
}

/// The lanes of a daemon, as JSON shows them.
#[derive(Serialize)]
pub struct Lanes {
    /// The daemon's process; none where no daemon runs.
    pid: Option<u32>,
    /// The lanes.
    lanes: Vec<Lane>,
    /// What this host lacks.
    degraded: Vec<String>,
}

#[derive(Serialize)]
struct Lane {
    task: String,
    state: String,
    #[serde(flatten)]
    status: LaneStatus,
}

impl Lanes {
    /// Those of a status whose tasks are meant.
    pub fn of(status: &Status, meant: impl Fn(&String) -> bool) -> Lanes {
        let tasks = status.tasks.iter().filter(|task| meant(&task.name));
        let lane = |task: &quell_control::protocol::TaskStatus| {
            let (name, state) = (task.name.clone(), task.state.clone());
            task.lane.clone().map(|status| Lane { task: name, state, status })
        };
        Lanes {
            pid: Some(status.pid),
            lanes: tasks.filter_map(lane).collect(),
            degraded: status.degraded.clone(),
        }
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let reply = Client::connect(&args.daemon.socket()).and_then(|mut it| it.call(Method::Status));
    let lanes = match reply {
        Ok(Reply::Status(status)) => Lanes::of(&status, |_| true),
        Ok(other) => anyhow::bail!("the daemon answered out of turn: {other:?}"),
        Err(ClientError::NotRunning(_)) => {
            Lanes { pid: None, lanes: Vec::new(), degraded: Vec::new() }
        }
        Err(err) => return Err(err.into()),
    };
    match args.json {
        true => println!("{}", serde_json::to_string(&lanes)?),
        false if lanes.lanes.is_empty() => println!("no lane runs"),
        false => show(&lanes),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lanes for people.
pub fn show(lanes: &Lanes) {
    let time = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| Nanos(ns).to_string());
    for Lane { task, status: lane, .. } in &lanes.lanes {
        let place = match (lane.core, lane.scheduling) {
            (Some(core), true) => format!("core {core}"),
            (Some(core), false) => format!("waits below the owner of core {core}"),
            (None, _) => "no core".to_owned(),
        };
        let running = lane.running.as_deref().unwrap_or("-");
        println!("{task}: {place}, {} ({}), slice of: {running}", lane.policy, lane.pattern);
        println!(
            "  {} switches, {} late (latest {}); a switch takes {} to {}, floor {}",
            lane.switches,
            lane.late,
            Nanos(lane.latest_ns),
            time(lane.switch_min_ns),
            time(lane.switch_mean_ns),
            time(lane.floor_ns),
        );
        for member in &lane.members {
            println!("  {}: {} slices, {}", member.name, member.slices, Nanos(member.slices_ns));
        }
        lane.notes.iter().for_each(|note| println!("  {note}"));
        println!("  {}", cost(&lane.scheduler, lane.switches));
    }
}

/// What a scheduler thread costs: of its core, and for each switch.
fn cost(scheduler: &LaneSchedulerStatus, switches: u64) -> String {
    let (Some(cpu), age @ 1..) = (scheduler.cpu_ns, scheduler.uptime_ns) else {
        return "scheduler: its CPU time is not known".to_owned();
    };
    // In thousandths, as numbers are shown.
    let share = (u128::from(cpu) * 1_000 / u128::from(age)) as f64 / 10.0;
    let switch = cpu.checked_div(switches).map(Nanos);
    let switch = switch.map_or(String::new(), |each| format!(", {each} a switch"));
    format!("scheduler: {share:.1} % of its core{switch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_a_share_of_the_core_and_a_time_for_each_switch_if_there_was_one() {
        let says = |cpu_ns, switches| {
            cost(&LaneSchedulerStatus { tid: 1, uptime_ns: 1_000_000_000, cpu_ns }, switches)
        };
        let busy = says(Some(32_000_000), 7_800);
        assert_eq!(busy, format!("scheduler: 3.2 % of its core, {} a switch", Nanos(4_102)));
        assert_eq!(says(Some(2_000_000), 0), "scheduler: 0.2 % of its core");
        assert!(says(None, 3).contains("not known"));
    }
}
