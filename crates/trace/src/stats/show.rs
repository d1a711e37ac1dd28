//! The figures as text.

use std::fmt;

use quell_model::MoveCause;

use super::{DEPTHS, DataLoss, Distance, Latency, Report};
use crate::host::{CoreTimes, WastedSplit};
use crate::import::UNKNOWN;

/// Names of the table of latencies at most; `--json` has all.
const NAMES: usize = 25;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.to.since(self.from).0 as f64 / 1e9;
        write!(f, "{} events in {seconds:.3} s, {} cores", self.events, self.cores)?;
        match self.host == UNKNOWN {
            true => writeln!(f)?,
            false => writeln!(f, ", {} with {}", self.host, self.kernel)?,
        }
        self.latencies(f)?;
        self.moves(f)?;
        self.depths(f)?;
        self.idle_beside_waiting(f)?;
        self.gaps(f)?;
        for absent in &self.absent {
            writeln!(f, "not in this trace: {absent}")?;
        }
        Ok(())
    }
}

impl Report {
    fn latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.wakeups.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nwakeup latency, us")?;
        writeln!(
            f,
            "{:<16} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "THREADS", "WAKE-UPS", "P50", "P90", "P99", "P99.9", "MAX"
        )?;
        for latency in self.wakeups.iter().take(NAMES) {
            let Latency { p50_ns, p90_ns, p99_ns, p999_ns, max_ns, .. } = *latency;
            let name = if latency.name.is_empty() { "(others)" } else { &latency.name };
            write!(f, "{name:<16} {:>10}", latency.wakeups)?;
            for ns in [p50_ns, p90_ns, p99_ns, p999_ns, max_ns] {
                write!(f, " {:>9.1}", ns as f64 / 1e3)?;
            }
            writeln!(f)?;
        }
        if self.wakeups.len() > NAMES {
            writeln!(f, "and {} more names: --json has all", self.wakeups.len() - NAMES)?;
        }
        Ok(())
    }

    fn moves(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FAR: [Distance; 4] =
            [Distance::Sibling, Distance::Llc, Distance::Node, Distance::Further];
        if self.migrations.is_empty() {
            return writeln!(f, "\nno migrations");
        }
        writeln!(f, "\nmigrations, by what the cores share")?;
        writeln!(f, "{:<16} {:>10} {:>10} {:>10} {:>10}", "CAUSE", "CORE", "LLC", "NODE", "HOST")?;
        let mut causes: Vec<_> = self.migrations.iter().map(|moves| moves.cause).collect();
        causes.dedup();
        for cause in causes {
            write!(f, "{:<16}", name(cause))?;
            for distance in FAR {
                let is =
                    |moves: &&super::Migrations| moves.cause == cause && moves.distance == distance;
                let count = self.migrations.iter().find(is).map_or(0, |moves| moves.count);
                write!(f, " {count:>10}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn depths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.depth_core_ns.iter().fold(0u64, |all, ns| all.saturating_add(*ns));
        if all == 0 {
            return Ok(());
        }
        writeln!(
            f,
            "\nthreads that want a core, share of the cores' time; at most {}",
            self.deepest
        )?;
        for (depth, ns) in self.depth_core_ns.iter().enumerate() {
            let more = if depth + 1 == DEPTHS { "+" } else { "" };
            let share = *ns as f64 / all as f64 * 100.0;
            writeln!(f, "{:<16} {share:>9.3}%", format!("{depth}{more}"))?;
        }
        Ok(())
    }

    fn idle_beside_waiting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.to.since(self.from).0.saturating_sub(self.data_loss.time_ns);
        let cell = |ns: u64| {
            let share = if time > 0 { ns as f64 / time as f64 * 100.0 } else { 0.0 };
            format!("{:.6} ({share:.2} %)", ns as f64 / 1e9)
        };
        let threads = match self.knows_affinity {
            true => "threads that may use them",
            false => "threads; affinity is not known, each was taken to be free to move",
        };
        let WastedSplit { wasted, allowed_by_policy, affinity_unknown } = &self.idle;
        let mut columns = vec![("WASTED", wasted), ("ALLOWED BY POLICY", allowed_by_policy)];
        if *affinity_unknown != CoreTimes::default() {
            columns.push(("AFFINITY UNKNOWN", affinity_unknown));
        }
        writeln!(f, "\ncores that idle beside waiting {threads}: seconds, share of the time")?;
        write!(f, "{:<34}", "TIME")?;
        columns.iter().try_for_each(|(name, _)| write!(f, " {name:>24}"))?;
        writeln!(f)?;
        let names = [
            "wall: any core and any thread",
            "core: one for each crowded core",
            "thread: one for each waiting one",
        ];
        for (row, name) in names.iter().enumerate() {
            write!(f, "{name:<34}")?;
            for (_, CoreTimes { wall_ns, core_ns, thread_ns }) in &columns {
                write!(f, " {:>24}", cell([*wall_ns, *core_ns, *thread_ns][row]))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn gaps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DataLoss { lost_events, gaps, time_ns, wakeups } = self.data_loss;
        if lost_events > 0 || gaps > 0 {
            writeln!(
                f,
                "\nlost: {lost_events} events, and {gaps} gaps in their numbers. The queues of {:.3} s and the \
                 end of {wakeups} wake-ups are not known and not in these figures.",
                time_ns as f64 / 1e9
            )?;
        }
        Ok(())
    }
}

/// As in JSON.
fn name(cause: MoveCause) -> String {
    let json = serde_json::to_value(cause).unwrap_or_default();
    json.as_str().unwrap_or_default().to_owned()
}
