//! A scenario over parameters and seeds, on all cores of this machine.
//!
//! Each case is one line of a file of JSON lines, written when it is done and keyed by its parameters; a sweep that was
//! interrupted goes on where it was. Cases are independent and deterministic, so their order in the file is
//! all that differs between two sweeps.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail};
use quell_sim::file::{FileError, Simulation};
use serde::{Deserialize, Serialize};

use super::lines::Lines;
use super::overlay::set;
use super::{SimResult, parallel};
use crate::table::{Table, number};
use crate::{Progress, Stop};

/// The most cases of one sweep.
const CASES_MAX: usize = 100_000;

/// What to sweep.
#[derive(Clone, Debug)]
pub struct SweepSpec {
    /// The scenario.
    pub file: PathBuf,
    /// Keys of the file and the values that they take: `host.policy`, `task.NAME.rate`.
    pub parameters: Vec<(String, Vec<toml::Value>)>,
    /// Seeds, from the file's on.
    pub seeds: u64,
    /// Where the results go.
    pub out: PathBuf,
    /// Simulations at one time.
    pub threads: usize,
}

/// One finished case, as it stands in the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// Its parameters and its seed: what it is known by.
    pub key: String,
    /// Its rows: case, metric, value.
    pub values: Vec<(String, String, f64)>,
    /// Breaches and faults.
    pub findings: Vec<String>,
    /// Whether none of those must not be: as [`SimResult::is_sound`].
    pub sound: bool,
    /// As in [`SimResult::digest`].
    pub digest: String,
}

struct Planned {
    key: String,
    simulation: Simulation,
}

/// Reads a parameter: `KEY=VALUE,VALUE...`; what is no TOML value is a text.
///
/// # Errors
/// When there is no key or no value.
pub fn parameter(text: &str) -> Result<(String, Vec<toml::Value>)> {
    let (key, values) =
        text.split_once('=').context("write it like task.cache.rate=100000,200000")?;
    let value = |text: &str| {
        let typed = text.parse::<toml::Value>();
        typed.unwrap_or_else(|_| toml::Value::String(text.to_owned()))
    };
    let values: Vec<toml::Value> =
        values.split(',').map(str::trim).filter(|text| !text.is_empty()).map(value).collect();
    if key.is_empty() || values.is_empty() {
        bail!("`{text}` names no key or no value; write it like task.cache.rate=100000,200000");
    }
    Ok((key.to_owned(), values))
}

/// Runs what is not in the file yet, and returns every case of the sweep in its order.
///
/// # Errors
/// When the scenario, a parameter or the file of results is wrong, or a stop was asked for; finished cases are kept.
pub fn run(
    spec: &SweepSpec,
    progress: &mut (dyn Progress + Send),
    stop: &Stop,
) -> Result<Vec<Case>> {
    let planned = plan(spec)?;
    let (lines, known) = Lines::open::<Case>(&spec.out, "a sweep")?;
    let done: BTreeSet<&str> = known.iter().map(|case| case.key.as_str()).collect();
    let open: Vec<&Planned> =
        planned.iter().filter(|case| !done.contains(case.key.as_str())).collect();
    if open.len() < planned.len() {
        let text = format!(
            "{} of {} cases are in {}",
            planned.len() - open.len(),
            planned.len(),
            spec.out.display()
        );
        progress.note(&text);
    }
    let fresh = simulate(&open, spec.threads, &Mutex::new((lines, progress)), stop)?;
    let order = |case: &Case| planned.iter().position(|planned| planned.key == case.key);
    let mut cases: Vec<Case> =
        known.into_iter().chain(fresh).filter(|case| order(case).is_some()).collect();
    cases.sort_by_key(order);
    cases.dedup_by(|one, other| one.key == other.key);
    Ok(cases)
}

/// The cases as a table: the tail of each service, the work of each batch task.
pub fn table(cases: &[Case]) -> Table {
    let shown = |metric: &str| matches!(metric, "p999_us" | "work_cores");
    let columns = cases.first().map_or(&[][..], |case| &case.values);
    let columns = columns.iter().filter(|(_, metric, _)| shown(metric));
    let columns: Vec<(String, String)> =
        columns.map(|(task, metric, _)| (task.clone(), metric.clone())).collect();
    let head = columns.iter().map(|(task, metric)| format!("{task} {metric}"));
    let mut table =
        Table::new(["case".to_owned()].into_iter().chain(head).chain(["findings".to_owned()]));
    for case in cases {
        let value = |(task, metric): &(String, String)| {
            let mut values = case.values.iter();
            let found = values.find(|(at, what, _)| at == task && what == metric);
            found.map_or("-".to_owned(), |(_, _, value)| number(*value))
        };
        let cells = columns.iter().map(value);
        let findings = case.findings.len().to_string();
        table.row([case.key.clone()].into_iter().chain(cells).chain([findings]));
    }
    table
}

type Output<'a> = Mutex<(Lines, &'a mut (dyn Progress + Send))>;

fn simulate(open: &[&Planned], threads: usize, out: &Output, stop: &Stop) -> Result<Vec<Case>> {
    // Relaxed: a count for the progress line, written under the lock.
    let finished = AtomicUsize::new(0);
    parallel::for_each(open, threads, |planned| {
        stop.check()?;
        let case = case(planned)?;
        let mut out = out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        out.0.add(&case)?;
        let finished = finished.fetch_add(1, Ordering::Relaxed) + 1;
        out.1.step(finished, open.len(), &planned.key);
        Ok(case)
    })
}

fn case(planned: &Planned) -> Result<Case> {
    let Simulation { scenario, policy, .. } = &planned.simulation;
    let report = quell_sim::run(scenario, super::policy(&planned.simulation)?.as_mut());
    let result = SimResult::new(scenario, policy, &report);
    Ok(Case {
        key: planned.key.clone(),
        sound: result.is_sound(),
        values: result.rows.into_iter().map(|row| (row.case, row.metric, row.median)).collect(),
        findings: result.findings,
        digest: result.digest,
    })
}

/// Every combination of values and seeds.
fn plan(spec: &SweepSpec) -> Result<Vec<Planned>> {
    let combinations: usize = spec.parameters.iter().map(|(_, values)| values.len()).product();
    if combinations.saturating_mul(spec.seeds as usize) > CASES_MAX {
        bail!("this sweep has more than {CASES_MAX} cases; name fewer values or seeds");
    }
    let file = spec.file.display().to_string();
    let first = Simulation::load(&spec.file)?.scenario;
    let text = std::fs::read_to_string(&spec.file).with_context(|| format!("read {file}"))?;
    let table: toml::Table = toml::from_str(&text).with_context(|| file.clone())?;
    let folder = spec.file.parent().unwrap_or(Path::new("."));
    let mut planned = Vec::new();
    for combination in 0..combinations {
        let mut table = table.clone();
        let mut key = String::new();
        let mut rest = combination;
        for (name, values) in &spec.parameters {
            let value = &values[rest % values.len()];
            rest /= values.len();
            set(&mut table, name, value.clone())?;
            key += &format!("{name}={} ", value.to_string().trim_matches('"'));
        }
        let other = |name: &str| {
            std::fs::read_to_string(folder.join(name)).map_err(|err| FileError {
                file: name.to_owned(),
                line: None,
                what: err.to_string(),
                remedy: String::new(),
            })
        };
        for seed in first.seed..first.seed + spec.seeds.max(1) {
            table.insert("seed".to_owned(), toml::Value::Integer(seed as i64));
            let text = toml::to_string(&table)?;
            // Lines of the changed text mean nothing to who wrote the file.
            let simulation =
                Simulation::parse(&text, &file, &first.name, &other).map_err(|err| {
                    anyhow::anyhow!("{file} with {key}: {} ({})", err.what, err.remedy)
                })?;
            planned.push(Planned { key: format!("{key}seed={seed}"), simulation });
        }
    }
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    const FILE: &str = "version = 1\nlength_ms = 2\n[machine]\nphysical = 3\n[[task]]\nname = \"a\"\nmodel = \"memcached\"\nrate = 1000\n";

    fn spec(folder: &Path) -> SweepSpec {
        let file = folder.join("x.toml");
        std::fs::write(&file, FILE).unwrap();
        SweepSpec {
            parameters: vec![
                parameter("task.a.rate=1000, 90000").unwrap(),
                parameter("host.policy=quell,static").unwrap(),
            ],
            seeds: 2,
            out: folder.join("x.jsonl"),
            threads: 2,
            file,
        }
    }

    #[test]
    fn a_sweep_goes_on_where_it_was_and_gives_the_same_cases() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path());
        let whole = run(&spec, &mut Silent, &Stop::default()).unwrap();
        assert_eq!(whole.len(), 8);
        assert!(whole.iter().all(|case| case.findings.is_empty()));
        let text = std::fs::read_to_string(&spec.out).unwrap();
        let kept: Vec<&str> = text.lines().take(3).collect();
        // The fourth was cut short.
        std::fs::write(&spec.out, format!("{}\n{{\"key\"", kept.join("\n"))).unwrap();
        let again = run(&spec, &mut Silent, &Stop::default()).unwrap();
        // And what was written behind the cut reads, too.
        assert_eq!(run(&spec, &mut Silent, &Stop::default()).unwrap().len(), 8);
        let keys = |cases: &[Case]| {
            cases.iter().map(|case| (case.key.clone(), case.digest.clone())).collect::<Vec<_>>()
        };
        assert_eq!(keys(&again), keys(&whole));
    }

    #[test]
    fn what_cannot_be_swept_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let wrong = |text: &str| {
            let spec =
                SweepSpec { parameters: vec![parameter(text).unwrap()], ..spec(folder.path()) };
            format!("{:#}", run(&spec, &mut Silent, &Stop::default()).unwrap_err())
        };
        assert!(wrong("task.b.rate=1").contains("no task `b`"));
        assert!(wrong("task.a.rate=fast").contains("with task.a.rate=fast"));
        assert!(parameter("rate").is_err() && parameter("=1").is_err() && parameter("a=").is_err());
    }
}
