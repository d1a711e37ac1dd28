//! The figures as text.

use std::fmt;

use super::{Distance, Latency, Report};

/// Names of the table of latencies at most; `--json` has all.
const NAMES: usize = 25;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.to.since(self.from).0 as f64 / 1e9;
        writeln!(
            f,
            "{} events of {} on {} ({} cores) in {seconds:.3} s",
            self.events, self.kernel, self.host, self.cores
        )?;
        self.latencies(f)?;
        self.moves(f)?;
        self.depths(f)?;
        self.waste(f, seconds)?;
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
        writeln!(f, "\nwake-up latency, us")?;
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
            write!(f, "{:<16}", format!("{cause:?}").to_lowercase())?;
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
        let all: u64 = self.depth_core_ns.iter().sum();
        if all == 0 {
            return Ok(());
        }
        writeln!(
            f,
            "\nthreads that want a core, share of the cores' time; at most {}",
            self.deepest
        )?;
        for (depth, ns) in self.depth_core_ns.iter().enumerate() {
            let more = if depth + 1 == super::DEPTHS { "+" } else { "" };
            let share = *ns as f64 / all as f64 * 100.0;
            writeln!(f, "{:<16} {share:>9.3}%", format!("{depth}{more}"))?;
        }
        Ok(())
    }

    fn waste(&self, f: &mut fmt::Formatter<'_>, seconds: f64) -> fmt::Result {
        let told = seconds - self.untold.time_ns as f64 / 1e9;
        let share = |ns: u64| match told > 0.0 {
            true => ns as f64 / 1e9 / told * 100.0,
            false => 0.0,
        };
        let line = |what: &str, ns: u64, unit: &str| {
            format!("{what:<46} {:>10.6} {unit} ({:.2} % of the time)", ns as f64 / 1e9, share(ns))
        };
        let known = match self.knows_affinity {
            true => "threads that may use them",
            false => "threads; affinity is not known, each was taken to be free to move",
        };
        writeln!(f, "\nwasted: cores that idle beside waiting {known}")?;
        writeln!(f, "{}", line("any core and any thread", self.wasted.wall_ns, "s"))?;
        writeln!(f, "{}", line("idle cores, one a crowded core", self.wasted.core_ns, "core-s"))?;
        writeln!(f, "{}", line("idle cores, one a waiting thread", self.wasted.thread_ns, "core-s"))
    }

    fn gaps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let untold = &self.untold;
        if untold.lost_events > 0 || untold.gaps > 0 {
            writeln!(
                f,
                "\nlost: {} events, and {} gaps in their numbers. The queues of {:.3} s and the end of {} \
                 wake-ups could not be told and are not in these figures.",
                untold.lost_events,
                untold.gaps,
                untold.time_ns as f64 / 1e9,
                untold.wakeups
            )?;
        }
        Ok(())
    }
}
