//! `quell sim oracle`: the division of a scenario's host that would have been best, had it never changed.
//!
//! Each candidate is simulated as a whole; [`Search`] says which comes next. What a candidate is worth is the batch work where
//! every service meets a target for its tail, and less than nothing where one does not.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};
use quell_model::{Class, Nanos};
use quell_policy::rivals::{Oracle, Partition, Search};
use quell_sim::{Change, Load, Report, Scenario, Style, TaskReport};
use serde::{Deserialize, Serialize};

use super::lines::Lines;
use super::source::{Resolved, Sum};
use super::{SimResult, parallel};
use quell_report::Row;
use quell_report::table::{Table, number};
use quell_terminal::{Progress, Stop};

/// Spaces up to this size are searched whole.
pub const WHOLE: u64 = 500;
/// The default target of a tail: half as long again as alone.
const SLACK: f64 = 1.5;

/// What to search.
pub struct OracleSpec {
    /// The scenario, and whose figures to show beside.
    pub resolved: Resolved,
    /// Targets of services by name; the others have half as much again as alone.
    pub targets: Vec<(String, Nanos)>,
    /// Spaces of up to so many divisions are searched whole.
    pub whole_below: u64,
    /// Simulations at one time.
    pub threads: usize,
    /// Where tried divisions go, and come from.
    pub out: Option<PathBuf>,
}

/// What a task has in the best division.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Its name.
    pub task: String,
    /// Physical cores.
    pub physical_cores: u32,
    /// Ways of the last-level cache, where they are divided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ways: Option<u16>,
    /// What its 99.9th percentile shall not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_us: Option<f64>,
}

/// What the search came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// `sim-oracle`.
    pub bench: &'static str,
    /// The scenario's name.
    pub scenario: String,
    /// The seed of all chance.
    pub seed: u64,
    /// The policy of the file, whose rows are beside those of `oracle`.
    pub against: String,
    /// Physical cores that are divided, and ways.
    pub divided: (u32, u16),
    /// Divisions that were tried.
    pub tried: u64,
    /// Whether these are all that there are.
    pub exhaustive: bool,
    /// Whether the search came to its end.
    pub finished: bool,
    /// Whether every service meets its target in the best.
    pub meets_targets: bool,
    /// What the best is worth: cores of batch work, or minus the sum of the shares by which tails exceed their targets.
    pub score: f64,
    /// The best division.
    pub division: Vec<Share>,
    /// Of the best division (`oracle`), and of the file's policy.
    pub rows: Vec<Row>,
}

/// A division that was tried, as it stands in the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Tried {
    fingerprint: String,
    division: Partition,
    score: f64,
}

/// Searches until all is tried, the climb ends, or a stop was asked for, which keeps the best so far.
///
/// # Errors
/// When the scenario has threads of the kernel, a target is of no service, the host has fewer physical cores or ways than tasks, the file's policy cannot run, or a
/// stop was asked for before anything was tried.
pub fn run(spec: &OracleSpec, progress: &mut (dyn Progress + Send), stop: &Stop) -> Result<Found> {
    let simulation = &spec.resolved.simulation;
    let scenario = &simulation.scenario;
    if scenario.tasks.iter().any(|task| task.style == Style::Kernel) {
        bail!("no division has cores for `kernel_threads`: take the table out of the file");
    }
    let mut driver = simulation.driver()?;
    let mut search = Search::of(&scenario.host, scenario.tasks.len(), spec.whole_below);
    if search.clone().next().is_none() {
        let (cores, ways) = search.divided();
        bail!(
            "{} tasks share {cores} physical cores and {ways} ways of the cache: each needs one of both at least",
            scenario.tasks.len()
        );
    }
    let targets = targets(spec, search.divided(), stop)?;
    let mut log = Log::open(spec, &targets)?;
    let own = quell_sim::run(scenario, driver.as_mut());
    let tried = climb(spec, &targets, &mut search, &mut log, progress, stop)?;
    let Some((best, score)) = search.best().map(|(best, score)| (best.clone(), score)) else {
        stop.check()?;
        bail!("no division could be tried");
    };
    let report = quell_sim::run(scenario, &mut Oracle::new(scenario.host.clone(), best.clone()));
    let rows = SimResult::new(scenario, "oracle", &report).rows;
    let against = SimResult::new(scenario, driver.name(), &own).rows;
    let (_, ways) = search.divided();
    let shares = scenario.tasks.iter().enumerate().map(|(at, task)| Share {
        task: task.name.clone(),
        physical_cores: best.cores.get(at).copied().unwrap_or_default(),
        ways: best.ways.get(at).copied().filter(|_| ways > 0),
        target_us: targets[at].map(super::us),
    });
    Ok(Found {
        bench: "sim-oracle",
        scenario: scenario.name.clone(),
        seed: scenario.seed,
        against: driver.name().to_owned(),
        divided: search.divided(),
        tried,
        exhaustive: search.is_exhaustive() && !stop.is_asked(),
        finished: !stop.is_asked(),
        meets_targets: score >= 0.0,
        score,
        division: shares.collect(),
        rows: rows.into_iter().chain(against).collect(),
    })
}

/// Tries what the search proposes; how many that were.
fn climb(
    spec: &OracleSpec,
    targets: &[Option<Nanos>],
    search: &mut Search,
    log: &mut Log,
    progress: &mut (dyn Progress + Send),
    stop: &Stop,
) -> Result<u64> {
    let scenario = &spec.resolved.simulation.scenario;
    let mut tried = 0;
    loop {
        let batch = search.batch();
        if batch.is_empty() || stop.is_asked() {
            return Ok(tried as u64);
        }
        let total = tried + batch.len();
        let shared = Mutex::new((&mut *log, &mut *progress, tried));
        let scores = parallel::for_each(&batch, spec.threads, |division| {
            let lock = || shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let known = lock().0.known(division);
            let score = match known {
                Some(score) => score,
                None if stop.is_asked() => return Ok(None),
                None => {
                    let mut oracle = Oracle::new(scenario.host.clone(), division.clone());
                    let score = worth(scenario, targets, &quell_sim::run(scenario, &mut oracle));
                    lock().0.add(division, score)?;
                    score
                }
            };
            let mut shared = lock();
            shared.2 += 1;
            let done = shared.2;
            shared.1.step(done, total, "divisions tried");
            Ok(Some(score))
        })?;
        // In the order of the batch, so that of equals the first wins however many threads there are.
        for (division, score) in batch.into_iter().zip(scores) {
            if let Some(score) = score {
                tried += 1;
                search.score(division, score);
            }
        }
    }
}

/// What a division was worth.
fn worth(scenario: &Scenario, targets: &[Option<Nanos>], report: &Report) -> f64 {
    let tasks = || scenario.tasks.iter().zip(&report.tasks).zip(targets);
    let excess = tasks().filter_map(|((_, result), target)| {
        let tail = tail(scenario, result).0 as f64;
        target.map(|target| (tail / target.0.max(1) as f64 - 1.0).max(0.0))
    });
    let excess: f64 = excess.sum();
    if excess > 0.0 {
        return -excess;
    }
    let batch = tasks().filter(|((task, _), _)| task.limits.class == Class::BestEffort);
    let work: u64 = batch.map(|((_, result), _)| result.work.0).sum();
    work as f64 / (scenario.length - scenario.warm_up).0.max(1) as f64
}

/// The tail of a service: the 99.9th percentile of its answers; or, where requests pile up that nobody answers, the time that
/// the last of them waits at least (Little's law: those that wait over the rate at which they come).
fn tail(scenario: &Scenario, result: &TaskReport) -> Nanos {
    if result.arrived == 0 {
        return Nanos::ZERO;
    }
    // So many may be under way.
    let waiting = result.unanswered.saturating_sub(scenario.host.managed.len() as u64);
    let backlog = u128::from(waiting) * u128::from(scenario.length.0) / u128::from(result.arrived);
    let answered = if result.answered == 0 { scenario.length } else { result.percentile(999) };
    answered.max(Nanos(backlog as u64))
}

/// By place, what the tail of each service shall not exceed.
fn targets(spec: &OracleSpec, divided: (u32, u16), stop: &Stop) -> Result<Vec<Option<Nanos>>> {
    let scenario = &spec.resolved.simulation.scenario;
    let is_service = |at: usize| {
        let task = &scenario.tasks[at];
        task.limits.class == Class::LatencyCritical && matches!(task.load, Load::Open { .. })
    };
    let services: Vec<usize> = (0..scenario.tasks.len()).filter(|at| is_service(*at)).collect();
    let name = |at: &usize| scenario.tasks[*at].name.as_str();
    if let Some((other, _)) =
        spec.targets.iter().find(|(named, _)| !services.iter().any(|at| name(at) == named))
    {
        let names = services.iter().map(name).collect::<Vec<_>>().join(", ");
        bail!("there is no service `{other}` for a target; the services are: {names}");
    }
    let found = parallel::for_each(&services, spec.threads, |at| {
        let given = spec.targets.iter().rev().find(|(named, _)| named == name(at));
        if let Some((_, target)) = given {
            return Ok(*target);
        }
        stop.check()?;
        let alone = alone(scenario, *at);
        let all = Partition {
            cores: (0..scenario.tasks.len())
                .map(|it| if it == *at { divided.0 } else { 0 })
                .collect(),
            ways: (0..scenario.tasks.len())
                .map(|it| if it == *at { divided.1 } else { 0 })
                .collect(),
        };
        let report = quell_sim::run(&alone, &mut Oracle::new(alone.host.clone(), all));
        Ok(Nanos((tail(&alone, &report.tasks[*at]).0 as f64 * SLACK) as u64))
    })?;
    let mut targets = vec![None; scenario.tasks.len()];
    services.into_iter().zip(found).for_each(|(at, target)| targets[at] = Some(target));
    Ok(targets)
}

/// The scenario in which the other tasks left at once: the same requests come at the same times.
fn alone(scenario: &Scenario, at: usize) -> Scenario {
    let mut alone = scenario.clone();
    let is_other = |task: &u32| *task as usize != at;
    alone.changes.retain(|(_, change)| match change {
        Change::Alive(task, _) | Change::Spin(task, _) | Change::Bind(task, _) => !is_other(task),
        Change::Online(..) => true,
    });
    let others = (0..scenario.tasks.len() as u32).filter(is_other);
    alone.changes.extend(others.map(|task| (Nanos::ZERO, Change::Alive(task, false))));
    alone.sample = Nanos::ZERO;
    alone
}

/// What was tried, in memory and in a file.
struct Log {
    fingerprint: String,
    lines: Option<Lines>,
    known: Vec<(Partition, f64)>,
}

impl Log {
    fn open(spec: &OracleSpec, targets: &[Option<Nanos>]) -> Result<Log> {
        let mut sum = Sum::new();
        sum.add(&spec.resolved.fingerprint);
        sum.add(&format!("{targets:?}"));
        let fingerprint = format!("{:016x}", sum.0);
        let (lines, tried) = match &spec.out {
            Some(path) => {
                let (lines, tried) = Lines::open::<Tried>(path, "a search for a division")?;
                (Some(lines), tried)
            }
            None => (None, Vec::new()),
        };
        let mine = tried.into_iter().filter(|tried| tried.fingerprint == fingerprint);
        let known = mine.map(|tried| (tried.division, tried.score)).collect();
        Ok(Log { fingerprint, lines, known })
    }

    fn known(&self, division: &Partition) -> Option<f64> {
        self.known.iter().find(|(known, _)| known == division).map(|(_, score)| *score)
    }

    fn add(&mut self, division: &Partition, score: f64) -> Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let (fingerprint, division) = (self.fingerprint.clone(), division.clone());
        lines.add(&Tried { fingerprint, division, score })
    }
}

impl Found {
    /// The table for a terminal, and how far it can be trusted.
    pub fn text(&self) -> String {
        let value = |task: &str, system: &str, metric: &str| {
            let mut rows = self.rows.iter();
            let found = rows.find(|row| {
                (row.case.as_str(), row.system.as_str(), row.metric.as_str())
                    == (task, system, metric)
            });
            found.map_or("-".to_owned(), |row| number(row.median))
        };
        let against = self.against.as_str();
        let figures = ["oracle", against]
            .map(|system| [format!("{system}: p99.9 us"), format!("{system}: work, cores")]);
        let head = ["task", "physical cores", "ways", "target us"].map(str::to_owned);
        let mut table = Table::new(head.into_iter().chain(figures.into_iter().flatten()));
        for share in &self.division {
            let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
            let cells = ["oracle", against].map(|system| {
                ["p999_us", "work_cores"].map(|metric| value(&share.task, system, metric))
            });
            let fixed = [
                share.task.clone(),
                share.physical_cores.to_string(),
                or_none(share.ways.map(|ways| ways.to_string())),
                or_none(share.target_us.map(number)),
            ];
            table.row(fixed.into_iter().chain(cells.into_iter().flatten()));
        }
        let (cores, ways) = self.divided;
        let ways = if ways > 0 { format!(" and {ways} ways") } else { String::new() };
        let space = format!("of {cores} physical cores{ways}");
        let tried = self.tried;
        let how = match (self.finished, self.exhaustive) {
            (false, _) => {
                format!("interrupted: the best of {tried} divisions {space} that were tried so far")
            }
            (true, true) => format!("the best of all {tried} divisions {space}"),
            (true, false) => format!(
                "the best of {tried} divisions {space}, by steepest ascent; there may be better ones"
            ),
        };
        let met = match self.meets_targets {
            true => "Every service meets its target.".to_owned(),
            false => format!(
                "No division that was tried meets every target; this one exceeds them by {} % in all.",
                number(-self.score * 100.0)
            ),
        };
        format!("{}, seed {}: {how}\n\n{}\n{met}\n", self.scenario, self.seed, table.text())
    }

    /// As JSON with one row a line.
    ///
    /// # Errors
    /// When a value cannot be shown as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        quell_report::lines(&serde_json::to_value(self)?)
    }
}

/// Reads a target: `TASK=US`.
///
/// # Errors
/// When it is no name and a number of microseconds above 0.
pub fn target(text: &str) -> Result<(String, Nanos)> {
    let remedy = || format!("`{text}` is no target; write it like cache=250, in microseconds");
    let (task, us) = text.split_once('=').with_context(remedy)?;
    let us: f64 = us.parse().with_context(remedy)?;
    if task.is_empty() || !(0.001..=1e9).contains(&us) {
        bail!(remedy());
    }
    Ok((task.to_owned(), Nanos((us * 1e3) as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::source::Source;
    use quell_terminal::Silent;

    const FILE: &str = "version = 1\nlength_ms = 4\n[machine]\nphysical = 6\nsmt = 2\ncache_mb = 12\nmemory_mb_s = 40000\n\
                        [host]\nllc_ways = 4\n[[task]]\nname = \"cache\"\nmodel = \"memcached\"\nrate = 700000\n\
                        [[task]]\nname = \"batch\"\nmodel = \"stream-dram\"\n";

    fn spec(folder: &std::path::Path, text: &str, whole_below: u64) -> OracleSpec {
        let file = folder.join("x.toml");
        std::fs::write(&file, text).unwrap();
        let resolved = Source::open(&file).unwrap().resolve(&[]).unwrap();
        OracleSpec { resolved, targets: Vec::new(), whole_below, threads: 2, out: None }
    }

    fn search(spec: &OracleSpec) -> Found {
        run(spec, &mut Silent, &Stop::default()).unwrap()
    }

    #[test]
    fn the_best_division_is_the_best_of_all_by_brute_force() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path(), FILE, WHOLE);
        let scenario = &spec.resolved.simulation.scenario;
        let targets = targets(&spec, (5, 4), &Stop::default()).unwrap();
        let mut scores = Vec::new();
        for (cores, ways) in (1..5).flat_map(|cores| (1..4).map(move |ways| (cores, ways))) {
            let division = Partition { cores: vec![cores, 5 - cores], ways: vec![ways, 4 - ways] };
            let mut oracle = Oracle::new(scenario.host.clone(), division);
            scores.push(worth(scenario, &targets, &quell_sim::run(scenario, &mut oracle)));
        }
        let best = scores.iter().copied().max_by(f64::total_cmp).unwrap();
        assert!(scores.iter().any(|score| *score < best), "all are worth the same: {scores:?}");
        let found = search(&spec);
        assert_eq!((found.exhaustive, found.tried), (true, 12));
        assert_eq!(found.score, best);
        // A climb sees fewer of them, and never a better one.
        let climbed = search(&OracleSpec { whole_below: 0, ..spec });
        assert!(!climbed.exhaustive && climbed.score <= best, "{climbed:?}");
    }

    #[test]
    fn a_target_decides_which_division_is_best() {
        let folder = tempfile::tempdir().unwrap();
        let with = |us: &str| {
            let mut spec = spec(folder.path(), FILE, WHOLE);
            spec.targets.push(target(&format!("cache={us}")).unwrap());
            search(&spec)
        };
        let (loose, tight) = (with("100000"), with("0.1"));
        assert!(loose.meets_targets && !tight.meets_targets);
        assert!(tight.score < 0.0 && loose.score > 0.0);
        assert!(tight.division[0].physical_cores > loose.division[0].physical_cores);
        assert!(tight.text().contains("No division that was tried meets every target"));
    }

    #[test]
    fn an_overloaded_service_has_no_short_tail() {
        let folder = tempfile::tempdir().unwrap();
        let text = FILE.replace("rate = 700000", "rate = 90000000");
        let mut spec = spec(folder.path(), &text, WHOLE);
        spec.targets.push(target("cache=500").unwrap());
        let found = search(&spec);
        assert!(!found.meets_targets, "{found:?}");
    }

    #[test]
    fn a_search_goes_on_where_it_was_and_a_stop_keeps_the_best() {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = spec(folder.path(), FILE, WHOLE);
        let out = folder.path().join("tried.jsonl");
        spec.out = Some(out.clone());
        let first = search(&spec);
        let text = std::fs::read_to_string(&out).unwrap();
        assert_eq!(text.lines().count(), 12);
        assert_eq!(search(&spec), first);
        assert_eq!(std::fs::read_to_string(&out).unwrap(), text, "nothing was tried again");

        /// Asks for the stop after three divisions.
        struct Impatient(Stop);
        impl Progress for Impatient {
            fn step(&mut self, done: usize, _: usize, _: &str) {
                if done >= 3 {
                    self.0.now();
                }
            }
            fn note(&mut self, _: &str) {}
        }
        let stop = Stop::default();
        spec.out = None;
        let cut = run(&spec, &mut Impatient(stop.clone()), &stop).unwrap();
        assert!(!cut.finished && !cut.exhaustive && (3..12).contains(&cut.tried), "{cut:?}");
        assert!(cut.text().contains("interrupted"));
    }

    #[test]
    fn what_cannot_be_searched_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let mut crowded = spec(folder.path(), &FILE.replace("physical = 6", "physical = 2"), WHOLE);
        let wrong =
            |spec: &OracleSpec| run(spec, &mut Silent, &Stop::default()).unwrap_err().to_string();
        assert!(wrong(&crowded).contains("2 tasks share 1 physical cores"));
        crowded = spec(folder.path(), FILE, WHOLE);
        crowded.targets.push(target("batch=5").unwrap());
        assert!(wrong(&crowded).contains("the services are: cache"));
        assert!(["cache", "=5", "cache=fast", "cache=-1"].iter().all(|text| target(text).is_err()));
    }
}
