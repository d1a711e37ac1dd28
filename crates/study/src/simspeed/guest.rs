//! The same recipe of CPU hogs in the simulator and in an emulated virtual machine: what a simulated second costs of each.
//!
//! Both are programs that are started, simulate, and end: the time of all of that counts. A guest's clock is that of the host, so
//! that a second of it lasts a second; its cores get less of that second than real ones would.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

use super::{SimSpeedSpec, measure};

/// The recipe as a scenario.
const SCENARIO: &str = include_str!("recipe.toml");
/// Its name in `crates/sim/tests/placement/recipes.txt`, the kernel, and how long hogs run.
const RECIPE: &str = "24-mask";
const SERIES: &str = "6.12";
const LENGTH_S: u32 = 7;

const CASE: &str = "8 cores, ten CPU hogs (recipe 24-mask)";
const SIMULATED: &str = "quell, linux-6.12";
const EMULATED: &str = "QEMU, Linux 6.12";

/// Boots for one run.
const BOOTS_MAX: usize = 4;
/// The exit status of `scripts/vm/boot.sh` for a guest that died.
const DIED: i32 = 125;

/// What one run cost.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RunCost {
    simulated_s: f64,
    /// From the start of the program to its end.
    wall_s: f64,
    /// CPU time of the host.
    cpu_s: f64,
    /// Until the hogs ran.
    start_s: f64,
}

/// Puts a recipe in the simulator and in a virtual machine beside each other. Without a virtual machine its row is a note with the
/// reason.
///
/// # Errors
/// When the recipe cannot be simulated, or a stop was asked for.
pub(super) fn compare(
    spec: &SimSpeedSpec,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let mut simulated = Vec::new();
    for _ in 0..spec.rounds {
        stop.check()?;
        let run = || Ok(Some((measure::apart(&spec.quell, SCENARIO, false)?.simulated_s, 0.0)));
        simulated.extend(timed(run)?);
    }
    put(report, SIMULATED, &simulated);
    let Some(script) = &spec.guest else {
        report.notes.push(format!("{EMULATED} is not measured (n/a): --quick leaves it out"));
        return Ok(());
    };
    let mut emulated = Vec::new();
    for round in 0..spec.rounds {
        stop.check()?;
        progress.step(round, spec.rounds, &format!("{CASE}: {EMULATED}"));
        match emulate(script, stop).with_context(|| script.display().to_string()) {
            Ok(cost) => emulated.push(cost),
            Err(why) => {
                // A guest that was stopped with us is no reason.
                stop.check()?;
                report.notes.push(format!("{EMULATED} is not measured (n/a): {why:#}"));
                return Ok(());
            }
        }
    }
    put(report, EMULATED, &emulated);
    let walls = [&simulated, &emulated].map(|costs| of(costs, wall));
    report.compare(CASE, (SIMULATED, &walls[0]), (EMULATED, &walls[1]), WALL);
    Ok(())
}

/// Boots until a guest reaches its end: the emulator fails some of their kernels at boot.
fn emulate(script: &Path, stop: &Stop) -> Result<RunCost> {
    for _ in 0..BOOTS_MAX {
        stop.check()?;
        let mut command = Command::new(script);
        command.args([RECIPE, SERIES, &LENGTH_S.to_string()]).env("QUELL_VM_FETCH", "0");
        if let Some(cost) = timed(|| guest(&mut command))? {
            return Ok(cost);
        }
    }
    bail!("{BOOTS_MAX} guests died before they had run the recipe")
}

const WALL: &str = "wall_s_per_simulated_s";

fn wall(cost: &RunCost) -> f64 {
    cost.wall_s / cost.simulated_s
}

fn of(costs: &[RunCost], value: fn(&RunCost) -> f64) -> Vec<f64> {
    costs.iter().map(value).collect()
}

fn put(report: &mut BenchReport, system: &str, costs: &[RunCost]) {
    report.push(CASE, system, WALL, of(costs, wall));
    report.push(CASE, system, "cpu_s_per_simulated_s", of(costs, |it| it.cpu_s / it.simulated_s));
    report.push(CASE, system, "took_s", of(costs, |it| it.wall_s));
    report.push(CASE, system, "start_s", of(costs, |it| it.start_s));
}

/// Runs programs, which say how much they simulated and how long they took to get there, if they got there.
fn timed(run: impl FnOnce() -> Result<Option<(f64, f64)>>) -> Result<Option<RunCost>> {
    let (began, before) = (Instant::now(), children_cpu_s()?);
    let Some((simulated_s, start_s)) = run()? else { return Ok(None) };
    let (wall_s, cpu_s) = (began.elapsed().as_secs_f64(), children_cpu_s()? - before);
    Ok(Some(RunCost { simulated_s, wall_s, cpu_s, start_s }))
}

/// Runs `scripts/vm/recipe.sh`, which prints the uptime of the guest when hogs began and when they had ended; `None` if it died.
fn guest(command: &mut Command) -> Result<Option<(f64, f64)>> {
    let output = command.output()?;
    if output.status.code() == Some(DIED) {
        return Ok(None);
    }
    let error = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{}", error.lines().last().unwrap_or("it failed without a word"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [begin, end] if begin >= 0.0 && end > begin && end.is_finite() => {
            Ok(Some((end - begin, begin)))
        }
        _ => bail!("it printed `{}`, not when the hogs began and ended", text.trim()),
    }
}

/// CPU time of the children that ended, and of theirs.
fn children_cpu_s() -> Result<f64> {
    /// Ticks a second of these counts, whatever the kernel's own (`USER_HZ`).
    const TICKS: f64 = 100.0;
    let text = fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
    // The name of the program may have spaces and ends with the last parenthesis; the third word follows it.
    let words = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<f64> = words.skip(13).take(2).filter_map(|word| word.parse().ok()).collect();
    anyhow::ensure!(ticks.len() == 2, "/proc/self/stat has no CPU times of children");
    Ok(ticks.iter().sum::<f64>() / TICKS)
}

#[cfg(test)]
mod tests {
    use quell_sim::file::Simulation;

    use super::*;

    fn shell(script: &str) -> Result<Option<(f64, f64)>> {
        guest(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn guest_reports_when_hogs_ran_or_why_not() {
        assert_eq!(shell("echo 4.25 11.75").unwrap(), Some((7.5, 4.25)));
        assert_eq!(shell("echo 4.25 11.75; exit 125").unwrap(), None, "it died");
        let error = shell("echo 'vm: error: no kernel' >&2; exit 69").unwrap_err().to_string();
        assert_eq!(error, "vm: error: no kernel");
        for wrong in ["echo 4", "echo 9 4", "echo x y", "true", "echo 1 inf"] {
            assert!(shell(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cpu_time_of_children_counts() {
        let spin = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; echo 1 2";
        let cost = timed(|| shell(spin)).unwrap().unwrap();
        assert!(cost.cpu_s > 0.0 && cost.simulated_s == 1.0, "{cost:?}");
    }

    #[test]
    fn scenario_has_the_hogs_of_the_recipe() {
        let recipes = include_str!("../../../sim/tests/placement/recipes.txt");
        let recipe = format!("recipe {RECIPE} nodes\n");
        let (_, rest) = recipes.split_once(&recipe).unwrap();
        let hogs: Vec<&str> = rest.lines().take_while(|line| line.starts_with("hogs")).collect();
        assert_eq!(hogs, ["hogs 2 0 - 0 0", "hogs 8 0 - 0,1,2,3,4,5,6,7 6"]);
        let other = |_: &str| unreachable!("it names no file");
        let simulation = Simulation::parse(SCENARIO, "recipe.toml", "recipe", &other).unwrap();
        let scenario = &simulation.scenario;
        assert_eq!(scenario.length.0, u64::from(LENGTH_S) * 1_000_000_000);
        let report = quell_sim::run(scenario, simulation.driver().unwrap().as_mut());
        // Core 0 is for the two that are bound to it, the others are busy since the eight may use them.
        assert_eq!(report.broken, []);
        let cpu: Vec<f64> = report.tasks.iter().map(|task| task.ran.0 as f64 / 1e9).collect();
        assert!((6.9..=7.0).contains(&cpu[0]) && (40.0..=43.0).contains(&cpu[1]), "{cpu:?}");
    }
}
