//! A scenario over parameters and seeds, on all cores of this machine.
//!
//! Each case is one line of a file of JSON lines, written when it is done and known by a fingerprint of its whole scenario; a
//! sweep that was interrupted goes on where it was. Cases are independent and deterministic, so their order in the file is
//! all that differs between two sweeps.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail};
use quell_sim::file::Simulation;
use quell_trace::check::Verdict;
use serde::{Deserialize, Serialize};

use super::lines::Lines;
use super::source::{Resolved, Setting, Source, described};
use super::{SimResult, parallel};
use quell_report::table::{Table, number};
use quell_terminal::{Progress, Stop};

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
    /// Whether the checker of `quell check` hears each.
    pub check: bool,
}

/// One finished case, as it stands in the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// Its parameters and its seed.
    pub key: String,
    /// Of its scenario: what it is known by. Lines of before there was one are of nobody.
    #[serde(default)]
    pub fingerprint: String,
    /// Its rows: case, metric, value.
    pub values: Vec<(String, String, f64)>,
    /// Why it was not simulated, if it was not: what the policy needs and this host lacks.
    #[serde(default, rename = "n/a", skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// What the checker of `quell check` says, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Verdict>,
    /// Whether the checker was asked.
    #[serde(default)]
    pub checked: bool,
    /// Breaches and faults, and what the checker found.
    pub findings: Vec<String>,
    /// Whether none of those must not be: as [`SimResult::is_sound`].
    pub sound: bool,
    /// As in [`SimResult::digest`].
    pub digest: String,
}

struct Planned {
    key: String,
    fingerprint: String,
    simulation: Simulation,
    checked: bool,
    /// As [`Case::lacks`].
    lacks: Option<String>,
}

impl Planned {
    /// Whether a finished case stands for it. One that nobody checked does not stand for one that somebody shall.
    fn is(&self, case: &Case) -> bool {
        (self.fingerprint.as_str(), self.checked) == (case.fingerprint.as_str(), case.checked)
    }
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
    let (mine, others): (Vec<Case>, Vec<Case>) =
        known.into_iter().partition(|case| planned.iter().any(|planned| planned.is(case)));
    let open: Vec<&Planned> =
        planned.iter().filter(|planned| !mine.iter().any(|case| planned.is(case))).collect();
    let (out, all) = (spec.out.display(), planned.len());
    if open.len() < all {
        progress.note(&format!("{} of {all} cases are in {out}", all - open.len()));
    }
    if !others.is_empty() {
        progress.note(&format!(
            "{} lines of {out} are of other scenarios, parameters or versions of quell; they are left out",
            others.len()
        ));
    }
    let fresh = simulate(&open, spec.threads, &Mutex::new((lines, progress)), stop)?;
    let done: Vec<Case> = mine.into_iter().chain(fresh).collect();
    // By plan, not by what the file calls it: a line may have been written for the same scenario under another name.
    let cases = planned.iter().filter_map(|planned| {
        let case = done.iter().find(|case| planned.is(case))?;
        Some(Case { key: planned.key.clone(), ..case.clone() })
    });
    Ok(cases.collect())
}

/// The cases for a terminal: the table, and why some were not simulated.
pub fn text(cases: &[Case]) -> String {
    let mut text = table(cases).text();
    for case in cases {
        if let Some(lacks) = &case.lacks {
            text += &format!("n/a: {}: {lacks}\n", case.key);
        }
    }
    text
}

/// The tail of each service, the work of each batch task.
fn table(cases: &[Case]) -> Table {
    let shown = |metric: &str| matches!(metric, "p999_us" | "work_cores");
    let mut columns: Vec<(&str, &str)> = Vec::new();
    for (task, metric, _) in cases.iter().flat_map(|case| &case.values) {
        let column = (task.as_str(), metric.as_str());
        if shown(metric) && !columns.contains(&column) {
            columns.push(column);
        }
    }
    let head = columns.iter().map(|(task, metric)| format!("{task} {metric}"));
    let last = ["check", "findings"].map(str::to_owned);
    let mut table = Table::new(["case".to_owned()].into_iter().chain(head).chain(last));
    for case in cases {
        let value = |(task, metric): &(&str, &str)| {
            let mut values = case.values.iter();
            let found = values.find(|(at, what, _)| at == task && what == metric);
            found.map_or("-".to_owned(), |(_, _, value)| number(*value))
        };
        let cells = columns.iter().map(value);
        let check = case.check.map_or("-".to_owned(), |verdict| verdict.to_string());
        let findings = match &case.lacks {
            Some(_) => "n/a".to_owned(),
            None => case.findings.len().to_string(),
        };
        table.row([case.key.clone()].into_iter().chain(cells).chain([check, findings]));
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
    let mut case = Case {
        key: planned.key.clone(),
        fingerprint: planned.fingerprint.clone(),
        values: Vec::new(),
        lacks: planned.lacks.clone(),
        check: None,
        checked: planned.checked,
        findings: Vec::new(),
        sound: true,
        digest: String::new(),
    };
    if case.lacks.is_some() {
        return Ok(case);
    }
    let Simulation { scenario, policy, .. } = &planned.simulation;
    let mut driver = super::policy(&planned.simulation)?;
    let (report, checked) = match planned.checked {
        true => {
            let (report, checked) = super::run_checked(scenario, driver.as_mut(), None)?;
            (report, Some(checked))
        }
        false => (quell_sim::run(scenario, driver.as_mut()), None),
    };
    let mut result = SimResult::new(scenario, policy, &report);
    result.check = checked.as_ref().map(Into::into);
    case.sound = result.is_sound();
    case.check = result.check.as_ref().map(|check| check.verdict);
    let wasted = result.check.filter(|check| check.verdict == Verdict::Violated);
    let wasted = wasted.map(|check| format!("check: {}", check.verdict_reason));
    case.values = result.rows.into_iter().map(|row| (row.case, row.metric, row.median)).collect();
    case.findings = result.findings.into_iter().chain(wasted).collect();
    case.digest = result.digest;
    Ok(case)
}

/// Every combination of values and seeds.
fn plan(spec: &SweepSpec) -> Result<Vec<Planned>> {
    let combinations: usize = spec.parameters.iter().map(|(_, values)| values.len()).product();
    if combinations.saturating_mul(spec.seeds as usize) > CASES_MAX {
        bail!("this sweep has more than {CASES_MAX} cases; name fewer values or seeds");
    }
    for (at, (name, _)) in spec.parameters.iter().enumerate() {
        if name == "seed" {
            bail!(
                "`seed` is no parameter of a sweep; use --seeds N, which counts from the seed of the file"
            );
        }
        if spec.parameters[..at].iter().any(|(other, _)| other == name) {
            bail!("`{name}` is set twice; write all its values after one --set");
        }
    }
    let source = Source::open(&spec.file)?;
    let first = source.seed()?;
    let mut planned = Vec::new();
    for combination in 0..combinations {
        let mut rest = combination;
        let mut settings: Vec<Setting> = Vec::new();
        for (name, values) in &spec.parameters {
            settings.push((name, &values[rest % values.len()]));
            rest /= values.len();
        }
        for seed in first..first.saturating_add(spec.seeds.max(1)) {
            planned.push(case_of(&source, &settings, seed, spec.check)?);
        }
    }
    Ok(planned)
}

fn case_of(source: &Source, settings: &[Setting], seed: u64, checked: bool) -> Result<Planned> {
    let typed = toml::Value::Integer(i64::try_from(seed).context("the seed is too large")?);
    let seeded = [settings, &[("seed", &typed)]].concat();
    // Without a key of its own the file keeps its lines for messages; the seed is no reason to lose them.
    let resolved = match settings {
        [] => source.seeded(seed)?,
        _ => source.resolve(&seeded)?,
    };
    let Resolved { simulation, fingerprint } = resolved;
    let lacks = simulation.lacks()?;
    Ok(Planned { key: described(&seeded), fingerprint, simulation, checked, lacks })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::simulate::source::parameter;
    use quell_terminal::Silent;

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
            check: false,
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
    fn a_sweep_with_the_checker_takes_no_case_of_one_without() {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = spec(folder.path());
        let without = run(&spec, &mut Silent, &Stop::default()).unwrap();
        spec.check = true;
        let with = run(&spec, &mut Silent, &Stop::default()).unwrap();
        assert_eq!(std::fs::read_to_string(&spec.out).unwrap().lines().count(), 16);
        for (without, with) in without.iter().zip(&with) {
            assert_eq!((with.check.is_some(), without.check.is_some()), (true, false));
            assert_eq!((&with.digest, &with.values), (&without.digest, &without.values));
        }
    }

    /// Hears what is said.
    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Progress for Notes {
        fn step(&mut self, _: usize, _: usize, _: &str) {}
        fn note(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
    }

    #[test]
    fn a_sweep_never_takes_the_results_of_another_scenario() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path());
        let first = run(&spec, &mut Silent, &Stop::default()).unwrap();
        std::fs::write(&spec.file, FILE.replace("physical = 3", "physical = 2")).unwrap();
        let mut notes = Notes::default();
        let second = run(&spec, &mut notes, &Stop::default()).unwrap();
        assert_eq!((second.len(), notes.0.len()), (8, 1));
        assert!(notes.0[0].starts_with("8 lines of "), "{notes:?}", notes = notes.0);
        for (one, other) in first.iter().zip(&second) {
            assert_eq!(one.key, other.key);
            assert_ne!((&one.digest, &one.fingerprint), (&other.digest, &other.fingerprint));
        }
        // Both are in the file, and each is found again.
        std::fs::write(&spec.file, FILE).unwrap();
        let mut notes = Notes::default();
        let third = run(&spec, &mut notes, &Stop::default()).unwrap();
        assert!(notes.0[0].starts_with("8 of 8 cases are in"), "{notes:?}", notes = notes.0);
        assert!(third.iter().zip(&first).all(|(third, first)| third.digest == first.digest));
    }

    #[test]
    fn unusable_policy_is_a_row_and_unknown_name_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path());
        let with = |policies: &str| SweepSpec {
            parameters: vec![parameter(policies).unwrap()],
            ..spec.clone()
        };
        let run = |spec: &SweepSpec| run(spec, &mut Silent, &Stop::default());
        let cases = run(&with("host.policy=perfiso,quell")).unwrap();
        let lacks = cases.iter().map(|case| case.lacks.is_some()).collect::<Vec<_>>();
        assert_eq!(lacks, [true, true, false, false]);
        assert!(cases[0].values.is_empty() && cases.iter().all(|case| case.sound));
        let text = text(&cases);
        let why = "n/a: host.policy=perfiso seed=1: the policy `perfiso` cannot run here";
        assert!(text.contains(why), "{text}");
        assert!(text.contains("a p999_us"), "{text}");
        let line = std::fs::read_to_string(&spec.out).unwrap();
        assert!(line.contains("\"n/a\":\"the policy `perfiso`"), "{line}");
        let error = run(&with("host.policy=quell,best")).unwrap_err().to_string();
        assert!(error.contains("x.toml: `host.policy=best`: there is no policy"), "{error}");
    }

    #[test]
    fn what_cannot_be_swept_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let wrong = |texts: &[&str]| {
            let parameters = texts.iter().map(|text| parameter(text).unwrap()).collect();
            let spec = SweepSpec { parameters, ..spec(folder.path()) };
            format!("{:#}", run(&spec, &mut Silent, &Stop::default()).unwrap_err())
        };
        assert!(wrong(&["task.b.rate=1"]).contains("no task `b`"));
        assert!(wrong(&["task.a.rate=fast"]).contains("with task.a.rate=fast"));
        assert!(wrong(&["seed=4,5"]).contains("use --seeds"));
        assert!(wrong(&["length_ms=4", "length_ms=5"]).contains("set twice"));
    }
}
