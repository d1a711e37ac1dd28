//! The live line of `quell run`: one line on the terminal, rewritten once a second.

use std::io::Write;
use std::time::{Duration, Instant};

use super::Manager;

/// Between two rewrites.
const EVERY: Duration = Duration::from_secs(1);
/// Columns that are used at most.
const WIDTH: usize = 110;

/// Rewrites the line.
#[derive(Default)]
pub struct LiveLine {
    shown: Option<Instant>,
}

impl LiveLine {
    /// Shows the state, if a second has gone since the last time.
    pub fn show(&mut self, manager: &Manager) {
        if self.shown.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let Ok(status) = manager.status() else { return };
        let tasks: Vec<String> = status
            .tasks
            .iter()
            .map(|task| {
                let state = if task.frozen { " frozen" } else { "" };
                format!(
                    "{} {}{state} [{}]",
                    task.class,
                    task.name,
                    cores(&task.owned, &task.shared_cores)
                )
            })
            .collect();
        let line = format!(
            "{} s  {}  changes {}  tick {:.0} us",
            status.uptime_s,
            tasks.join("  "),
            status.counters.host_writes,
            status.counters.tick_mean_us
        );
        let line: String = line.chars().take(WIDTH).collect();
        let mut terminal = std::io::stderr().lock();
        // A terminal that went away takes its line with it.
        let _ = write!(terminal, "\r\x1b[K{line}");
        let _ = terminal.flush();
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        if self.shown.is_some() {
            eprintln!();
        }
    }
}

fn cores(owned: &str, shared_cores: &str) -> String {
    match (owned.is_empty(), shared_cores.is_empty()) {
        (true, true) => "no core".to_owned(),
        (false, true) => owned.to_owned(),
        (true, false) => format!("beneath {shared_cores}"),
        (false, false) => format!("{owned}, beneath {shared_cores}"),
    }
}
