//! Costs as a host measured them: `quell bench mechanism --json FILE`.

use quell_model::Nanos;
use serde::Deserialize;

use crate::scenario::Costs;

#[derive(Deserialize)]
struct Report {
    bench: String,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    case: String,
    system: String,
    metric: String,
    median: f64,
}

impl Costs {
    /// Reads the median delays of a report of `quell bench mechanism`; what it does not tell stays as it is in `self`.
    ///
    /// # Errors
    /// When the text is no such report, in words.
    pub fn measured(self, report: &str) -> Result<Costs, String> {
        let report: Report = serde_json::from_str(report).map_err(|err| err.to_string())?;
        if report.bench != "mechanism" {
            return Err(format!("it is a report of `{}`", report.bench));
        }
        let delay = |case: &str, system: &str, default: Nanos| {
            let row = report.rows.iter().find(|row| {
                row.case == case && row.system == system && row.metric == "delay_ns_p50"
            });
            // A cost beyond a second is no cost of these.
            let sane = row.filter(|row| (0.0..1e9).contains(&row.median));
            sane.map_or(default, |row| Nanos(row.median as u64))
        };
        Ok(Costs {
            grant: delay("wake on idle core", "futex", self.grant),
            preempt: delay("preempt", "setscheduler", self.preempt),
            rights: delay("preempt", "setscheduler", self.rights),
            idle: delay("idle", "cgroup-freezer", self.idle),
            migrate: delay("migrate running", "setaffinity", self.migrate),
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_report_of_a_host_is_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/results/mechanism.json");
        let costs = Costs::KERNEL.measured(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(costs.preempt > Nanos(1_000) && costs.preempt != Costs::KERNEL.preempt);
        assert!(costs.idle > costs.preempt, "freezing takes longer: {costs:?}");
        assert_eq!(costs.switch, Costs::KERNEL.switch);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(Costs::KERNEL.measured("{}").is_err());
        let other = r#"{"bench": "why", "rows": []}"#;
        assert_eq!(Costs::KERNEL.measured(other).unwrap_err(), "it is a report of `why`");
    }
}
