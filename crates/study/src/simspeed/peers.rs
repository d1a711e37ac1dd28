//! The toy model in other simulators, in the same number of rounds.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::{Case, Cost, SimSpeedSpec, TOY};
use quell_report::BenchReport;
use quell_terminal::Stop;

/// By the name of the package. `make setup` installs them.
const PEERS: [(&str, &str); 2] =
    [("simpy", include_str!("simpy.py")), ("salabim", include_str!("salabim.py"))];

/// What the toy model cost a peer.
struct Peer {
    events_per_s: f64,
    mean_us: f64,
    peak_mb: f64,
    before_mb: f64,
}

/// Puts the peers beside what the toy model cost here. One that cannot be measured is a note with the reason.
///
/// # Errors
/// When a stop was asked for.
pub(super) fn compare(
    spec: &SimSpeedSpec,
    report: &mut BenchReport,
    case: &Case,
    ours: &[Cost],
    stop: &Stop,
) -> Result<()> {
    let rates: Vec<f64> = ours.iter().map(|cost| case.events(cost) / cost.took_s).collect();
    let memory: Vec<f64> = ours.iter().map(|cost| cost.peak_mb - cost.before_mb).collect();
    for (name, script) in PEERS {
        stop.check()?;
        let peers: Result<Vec<Peer>> = ours.iter().map(|ours| peer(spec, script, ours)).collect();
        let peers = match peers {
            Ok(peers) => peers,
            Err(why) => {
                report.notes.push(format!("{name} is not measured (n/a): {why:#}"));
                continue;
            }
        };
        let of = |value: fn(&Peer) -> f64| peers.iter().map(value).collect::<Vec<f64>>();
        let events = of(|peer| peer.events_per_s);
        let grown = of(|peer| peer.peak_mb - peer.before_mb);
        report.compare(&case.name, ("quell", &rates), (name, &events), "events_per_s");
        report.compare(&case.name, ("quell", &memory), (name, &grown), "simulation_memory_mb");
        report.push(&case.name, name, "events_per_s", events);
        report.push(&case.name, name, "peak_memory_mb", of(|peer| peer.peak_mb));
        report.push(&case.name, name, "simulation_memory_mb", grown);
    }
    Ok(())
}

fn peer(spec: &SimSpeedSpec, script: &str, ours: &Cost) -> Result<Peer> {
    let (servers, gap, service) = TOY;
    // A tenth is enough: they are slower.
    let length = spec.toy_ms as f64 * 1e3 / 10.0;
    let arguments = [servers.to_string(), gap.to_string(), service.to_string(), length.to_string()];
    let output = Command::new(&spec.python).arg("-c").arg(script).args(arguments).output();
    let output = output.with_context(|| spec.python.display().to_string())?;
    let error = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|text| text.parse().ok()).collect();
    let [events, took, mean_us, before_mb, peak_mb] = numbers[..] else {
        anyhow::bail!("{}", error.lines().last().unwrap_or("it printed nothing"));
    };
    let peer = Peer { events_per_s: events / took, mean_us, peak_mb, before_mb };
    // Both means estimate that of the same queue.
    ensure!(
        (peer.mean_us / ours.mean_us - 1.0).abs() < 0.1,
        "a mean latency of {} us, not {}: not the same model",
        peer.mean_us,
        ours.mean_us
    );
    Ok(peer)
}
