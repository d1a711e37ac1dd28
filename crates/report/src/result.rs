//! The one shape in which every benchmark states what it measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::plot::Plot;
use crate::stats::{self, Interval};

/// What one run of a benchmark measured, with all that is needed to judge it and to make it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// The benchmark's name, as in `quell bench NAME`.
    pub bench: String,
    /// The commit that was measured; `-dirty` when the work tree had changes.
    pub commit: String,
    /// The command that makes this report again.
    pub command: String,
    /// Where it was measured.
    pub machine: Machine,
    /// What the machine could do, by capability: `yes`, or why not.
    pub capabilities: BTreeMap<String, String>,
    /// Measured values.
    pub rows: Vec<Row>,
    /// Paired ratios of systems that were measured side by side.
    pub ratios: Vec<Ratio>,
    /// Rules that were applied and what they took out, voided rounds, invalid cases: one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Pictures of other kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
}

/// One metric of one system in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The situation that was measured.
    pub case: String,
    /// Who was measured.
    pub system: String,
    /// What was measured, with its unit at the end of the name.
    pub metric: String,
    /// Median of the rounds.
    pub median: f64,
    /// Low end of the 95 % interval of the median.
    pub low: f64,
    /// High end of the 95 % interval of the median.
    pub high: f64,
    /// The value of each round, in the order of the rounds.
    pub raw: Vec<f64>,
}

/// How a system compares with another one that was measured in the same rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The situation that was measured.
    pub case: String,
    /// The numerator.
    pub system: String,
    /// The denominator.
    pub against: String,
    /// The metric that is compared.
    pub metric: String,
    /// Median of the ratios of the rounds.
    pub median: f64,
    /// Low end of the bootstrap 95 % interval of the median.
    pub low: f64,
    /// High end of the bootstrap 95 % interval of the median.
    pub high: f64,
}

/// The case that holds what was offered to the service, which is its system.
pub const LOAD_CASE: &str = "load";

impl BenchReport {
    /// An empty report of `bench` on this machine.
    pub fn new(bench: &str, command: &str) -> BenchReport {
        BenchReport {
            bench: bench.to_owned(),
            commit: quell_terminal::commit().to_owned(),
            command: command.to_owned(),
            machine: Machine::read(),
            capabilities: crate::machine::capabilities(),
            rows: Vec::new(),
            ratios: Vec::new(),
            notes: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Adds the values that `system` showed for `metric` in the rounds of `case`. Rounds without a
    /// finite value are left out; a metric without any is not added.
    pub fn push(&mut self, case: &str, system: &str, metric: &str, raw: Vec<f64>) {
        let raw: Vec<f64> =
            raw.into_iter().filter(|value| value.is_finite()).map(stats::rounded).collect();
        let Some(Interval { median, low, high }) = stats::median_interval(&raw) else { return };
        self.rows.push(Row {
            case: case.to_owned(),
            system: system.to_owned(),
            metric: metric.to_owned(),
            median,
            low,
            high,
            raw,
        });
    }

    /// Adds the ratio of `system` to `against` from values of the same rounds.
    pub fn compare(
        &mut self,
        case: &str,
        system: (&str, &[f64]),
        against: (&str, &[f64]),
        metric: &str,
    ) {
        let ratios = stats::paired_ratios(system.1, against.1);
        let Some(Interval { median, low, high }) = stats::median_interval(&ratios) else { return };
        self.ratios.push(Ratio {
            case: case.to_owned(),
            system: system.0.to_owned(),
            against: against.0.to_owned(),
            metric: metric.to_owned(),
            median,
            low,
            high,
        });
    }

    /// The row of a case, system and metric.
    pub fn row(&self, case: &str, system: &str, metric: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.case == case && row.system == system && row.metric == metric)
    }

    /// The ratio of a case, system and metric.
    pub fn ratio(&self, case: &str, system: &str, metric: &str) -> Option<&Ratio> {
        self.ratios
            .iter()
            .find(|ratio| ratio.case == case && ratio.system == system && ratio.metric == metric)
    }

    /// The cases in the order in which they first appear.
    pub fn cases(&self) -> Vec<&str> {
        distinct(self.rows.iter().map(|row| row.case.as_str()))
    }

    /// The systems of a case in the order in which they first appear.
    pub fn systems(&self, case: &str) -> Vec<&str> {
        distinct(self.rows.iter().filter(|row| row.case == case).map(|row| row.system.as_str()))
    }

    /// The service that was offered load, where there was one.
    pub fn service(&self) -> Option<&str> {
        self.systems(LOAD_CASE).first().copied()
    }

    /// Writes the report as JSON under the checksum of its text; the file is complete or absent.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let draft = path.with_extension("json.tmp");
        fs::write(&draft, crate::provenance::seal(&self.to_json()?))
            .with_context(|| format!("write {}", draft.display()))?;
        fs::rename(&draft, path).with_context(|| format!("write {}", path.display()))
    }

    /// The report as JSON with one row, ratio and curve a line, so that a changed figure is one
    /// changed line.
    ///
    /// # Errors
    /// When a value cannot be shown as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        lines(&serde_json::to_value(self)?)
    }

    /// Reads a report.
    ///
    /// # Errors
    /// When the file cannot be read or is not a report.
    pub fn read(path: &Path) -> Result<BenchReport> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a benchmark report", path.display()))
    }
}

/// An object as JSON with one entry of each of its lists a line.
pub fn lines(object: &serde_json::Value) -> serde_json::Result<String> {
    let serde_json::Value::Object(fields) = object else { return serde_json::to_string(object) };
    let mut lines = Vec::new();
    for (name, value) in fields {
        let value = match value {
            serde_json::Value::Array(entries) if !entries.is_empty() => {
                let entries: Vec<String> =
                    entries.iter().map(|entry| format!("    {entry}")).collect();
                format!("[\n{}\n  ]", entries.join(",\n"))
            }
            value => value.to_string(),
        };
        lines.push(format!("  {}: {value}", serde_json::Value::from(name.as_str())));
    }
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> BenchReport {
        let mut report = BenchReport::new("sample", "quell bench sample");
        report.push("stream", "quell", "lc_p999_us", vec![110.0, 90.0, 100.0]);
        report.push("stream", "alone-idle-poll", "lc_p999_us", vec![100.0, 100.0, 100.0]);
        report.compare(
            "stream",
            ("quell", &[110.0, 90.0, 100.0]),
            ("alone-idle-poll", &[100.0; 3]),
            "lc_p999_us",
        );
        report
    }

    #[test]
    fn a_report_survives_writing_and_reading() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/sample.json");
        let report = sample();
        report.write(&path).unwrap();
        assert_eq!(BenchReport::read(&path).unwrap(), report);
        let only = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(only, 1, "no draft is left behind");
    }

    #[test]
    fn the_shape_has_the_documented_keys() {
        let json: serde_json::Value = serde_json::from_str(&sample().to_json().unwrap()).unwrap();
        for key in ["bench", "commit", "command", "machine", "capabilities", "rows", "ratios"] {
            assert!(json.get(key).is_some(), "{key} is missing");
        }
        let row = json["rows"][0].as_object().unwrap();
        let mut keys: Vec<&str> = row.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["case", "high", "low", "median", "metric", "raw", "system"]);
        let ratio = json["ratios"][0].as_object().unwrap();
        assert!(ratio.contains_key("against") && !ratio.contains_key("raw"));
    }

    #[test]
    fn a_metric_without_a_value_is_left_out() {
        let mut report = sample();
        report.push("stream", "alone", "be_share_of_leftover", vec![f64::NAN]);
        assert!(report.row("stream", "alone", "be_share_of_leftover").is_none());
    }

    #[test]
    fn something_else_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.json");
        std::fs::write(&path, "{\"bench\": 3}").unwrap();
        let error = format!("{:#}", BenchReport::read(&path).unwrap_err());
        assert!(error.contains("other.json is not a benchmark report"), "{error}");
    }
}
