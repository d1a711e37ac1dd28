//! How busy cores are with other programs before a benchmark begins.

use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_model::{CoreId, CoreSet};
use quell_terminal::Stop;

/// Long enough for a hundred clock ticks, in which the kernel counts.
const WATCHED: Duration = Duration::from_secs(1);

/// The busiest of these cores and the share of a second that it was busy.
///
/// # Errors
/// When `/proc/stat` cannot be read, or a stop was asked for.
pub fn busiest(cores: &CoreSet, stop: &Stop) -> Result<(CoreId, f64)> {
    let read = || std::fs::read_to_string("/proc/stat").context("read /proc/stat");
    let before = read()?;
    stop.sleep(WATCHED)?;
    let after = read()?;
    let share = |core: CoreId| {
        let (before, after) = (ticks(&before, core)?, ticks(&after, core)?);
        let all = after.all.saturating_sub(before.all).max(1);
        Some((core, after.busy.saturating_sub(before.busy) as f64 / all as f64))
    };
    let found = cores.iter().filter_map(share).max_by(|a, b| a.1.total_cmp(&b.1));
    found.context("/proc/stat has none of the cores")
}

/// Clock ticks of a core since the start of the host.
#[derive(Debug, PartialEq)]
struct Ticks {
    busy: u64,
    all: u64,
}

/// The counters of a core in the text of `/proc/stat` (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal.
fn ticks(text: &str, core: CoreId) -> Option<Ticks> {
    let name = format!("cpu{} ", core.0);
    let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
    let counts: Option<Vec<u64>> =
        line.split_whitespace().take(8).map(|count| count.parse().ok()).collect();
    let counts = counts.filter(|counts| counts.len() == 8)?;
    let all = counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
    Some(Ticks { busy: all - counts[3] - counts[4], all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_and_waiting_for_disks_are_not_busy() {
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 1 5 70 4 3 2 5 0 0\ncpu1 x\n";
        assert_eq!(ticks(text, CoreId(0)), Some(Ticks { busy: 26, all: 100 }));
        assert_eq!(ticks(text, CoreId(1)), None);
        assert_eq!(ticks(text, CoreId(12)), None);
    }
}
