//! The search for mistakes of a policy, for a time, on all cores of this machine.
//!
//! Seeds are looked at in blocks. A finished block is a line of the log, so that a search that was interrupted, or is to go on
//! for longer, begins behind what is done. What a seed means depends on the version of the simulator: a log belongs to one.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_model::{Event, Nanos};
use quell_policy::{Config, by_name};
use quell_sim::{Faults, Kernel, KernelModel, Scenario, fuzz};
use quell_trace::check::{Checker, Options, Verdict};
use serde::{Deserialize, Serialize};

use super::lines::Lines;
use quell_terminal::{Progress, Stop};

/// Seeds of a block: some tenths of a second's work.
const BLOCK: u64 = 16;
/// Intervals of the timeline of one that is drawn.
const SAMPLES: u64 = 200;

/// What to search.
#[derive(Clone, Debug)]
pub struct HuntSpec {
    /// The policies, each on the same seeds.
    pub policies: Vec<String>,
    /// The kernel model of all hosts, by name.
    pub kernel: String,
    /// For how long; the blocks that are begun by then are finished.
    pub time: Duration,
    /// The first seed.
    pub from: u64,
    /// Simulations at one time.
    pub threads: usize,
    /// Where finished blocks go, and come from.
    pub log: Option<PathBuf>,
    /// Whether the checker of `quell check` hears each scenario.
    pub check: bool,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Found {
    /// The policy.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// The first thing that is wrong with it.
    pub what: String,
    /// Whether the checker heard it; what replays it has to ask it, too. A block says it for all that it found, and the kernel.
    #[serde(skip)]
    pub checked: bool,
    /// The kernel model.
    #[serde(skip)]
    pub kernel: String,
}

/// What a search came to.
#[derive(Clone, Debug, Default)]
pub struct Hunted {
    /// Scenarios that were looked at, those of the log included.
    pub scenarios: u64,
    /// Those of the log.
    pub before: u64,
    /// What was found, by policy and seed, what the log has included.
    pub found: Vec<Found>,
    /// Whether it was stopped before its time was over.
    pub interrupted: bool,
}

/// A finished block, as it stands in the log.
#[derive(Debug, Serialize, Deserialize)]
struct Block {
    policy: String,
    from: u64,
    seeds: u64,
    found: Vec<Found>,
    /// Whether the checker heard them; logs of before it could say nothing.
    #[serde(default)]
    checked: bool,
    /// The kernel model; logs of before there were several have none.
    #[serde(default = "global")]
    kernel: String,
}

/// The kernel model with one queue for all cores.
pub const GLOBAL: &str = "global";

fn global() -> String {
    GLOBAL.to_owned()
}

/// The kernel model of this name.
fn kernel(name: &str) -> Result<Kernel> {
    if name == GLOBAL {
        return Ok(Kernel::Global);
    }
    let known = KernelModel::PRESETS.iter().find(|(known, _)| *known == name);
    let names = || KernelModel::PRESETS.map(|(name, _)| name).join(", ");
    let found = known.with_context(|| {
        format!("there is no kernel model `{name}`; choose one of: {GLOBAL}, {}", names())
    })?;
    Ok(Kernel::Linux(found.1))
}

/// The scenario of a seed under a kernel model.
fn scenario(seed: u64, kernel_name: &str) -> Result<Scenario> {
    Ok(Scenario { kernel: kernel(kernel_name)?, ..fuzz::scenario(seed) })
}

/// Searches until the time is over or a stop was asked for. Findings are told as they come.
///
/// # Errors
/// When there is no policy of a name, or the log cannot be read or written.
pub fn run(spec: &HuntSpec, progress: &mut (dyn Progress + Send), stop: &Stop) -> Result<Hunted> {
    // A name that nobody has is an error before the search, not in each case.
    spec.policies.iter().try_for_each(|policy| fuzz::look(0, policy).map(drop))?;
    kernel(&spec.kernel)?;
    let (log, known) = match &spec.log {
        Some(path) => {
            let (lines, known) = Lines::open::<Block>(path, "a search")?;
            (Some(lines), known)
        }
        None => (None, Vec::new()),
    };
    let is_wanted = |block: &Block| {
        spec.policies.contains(&block.policy)
            && block.seeds == BLOCK
            && block.checked >= spec.check
            && block.kernel == spec.kernel
    };
    let known: Vec<Block> = known.into_iter().filter(is_wanted).collect();
    let done = known.iter().map(|block| (block.policy.clone(), block.from)).collect();
    let mut hunted = Hunted::default();
    known.into_iter().for_each(|block| hunted.take(block));
    hunted.before = hunted.scenarios;
    let search = Search {
        spec,
        done,
        stop,
        started: Instant::now(),
        next: AtomicU64::new(0),
        so_far: Mutex::new(SoFar { hunted, log, progress }),
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..spec.threads.max(1)).map(|_| scope.spawn(|| search.work())).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a worker of the search failed"),
        })
    })?;
    let so_far = search.so_far.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut hunted = so_far.hunted;
    hunted.interrupted = stop.is_asked();
    hunted.found.sort();
    Ok(hunted)
}

struct Search<'a> {
    spec: &'a HuntSpec,
    done: BTreeSet<(String, u64)>,
    stop: &'a Stop,
    started: Instant,
    /// The number of the next block, over policies and seeds.
    next: AtomicU64,
    so_far: Mutex<SoFar<'a>>,
}

struct SoFar<'a> {
    hunted: Hunted,
    log: Option<Lines>,
    progress: &'a mut (dyn Progress + Send),
}

impl<'a> Search<'a> {
    fn work(&self) -> Result<()> {
        while self.started.elapsed() < self.spec.time {
            // Relaxed: who takes which block guards no other data.
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let policies = self.spec.policies.len() as u64;
            let policy = &self.spec.policies[(number % policies) as usize];
            let from = self.spec.from.saturating_add(number / policies * BLOCK);
            if self.done.contains(&(policy.clone(), from)) {
                continue;
            }
            let mut block = Block {
                policy: policy.clone(),
                from,
                seeds: BLOCK,
                found: Vec::new(),
                checked: self.spec.check,
                kernel: self.spec.kernel.clone(),
            };
            for seed in from..from.saturating_add(BLOCK) {
                if self.stop.is_asked() {
                    return Ok(());
                }
                if let Some(what) = first(seed, policy, &self.spec.kernel, self.spec.check)? {
                    let (policy, kernel) = (policy.clone(), self.spec.kernel.clone());
                    let found = Found { policy, seed, what, checked: self.spec.check, kernel };
                    self.lock().progress.note(&found.to_string());
                    block.found.push(found);
                }
            }
            self.finish(block)?;
        }
        Ok(())
    }

    fn finish(&self, block: Block) -> Result<()> {
        let mut so_far = self.lock();
        if let Some(log) = &mut so_far.log {
            log.add(&block)?;
        }
        so_far.hunted.take(block);
        let (passed, whole) = (self.started.elapsed().min(self.spec.time), self.spec.time);
        let Hunted { scenarios, found, .. } = &so_far.hunted;
        let what = format!("{scenarios} scenarios, {} with findings", found.len());
        so_far.progress.step(passed.as_secs() as usize, whole.as_secs() as usize, &what);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SoFar<'a>> {
        self.so_far.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Hunted {
    fn take(&mut self, block: Block) {
        self.scenarios += block.seeds;
        let Block { found, checked, kernel, .. } = block;
        let whole = |found| Found { checked, kernel: kernel.clone(), ..found };
        self.found.extend(found.into_iter().map(whole));
    }
}

/// The first thing that is wrong with a seed, a panic included.
fn first(seed: u64, policy: &str, kernel: &str, check: bool) -> Result<Option<String>> {
    // Nothing outlives the closure but what it returns.
    match catch_unwind(AssertUnwindSafe(|| look(seed, policy, kernel, check))) {
        Ok(findings) => Ok(findings?.into_iter().next()),
        Err(_) => Ok(Some("it panicked".to_owned())),
    }
}

/// All that is wrong with a seed under a policy; with `check`, also what the checker of `quell check` finds, if the
/// policy promises not to waste cores. A kernel with a queue for each core wastes some of its own accord.
///
/// # Errors
/// When there is no policy or no kernel model of this name.
pub fn look(seed: u64, policy: &str, kernel: &str, check: bool) -> Result<Vec<String>> {
    let scenario = scenario(seed, kernel)?;
    if !check || scenario.kernel != Kernel::Global {
        let findings = fuzz::look_at(&scenario, policy).context("the search")?;
        return Ok(findings.iter().map(ToString::to_string).collect());
    }
    let mut checker = Checker::new(&scenario.meta(policy), hunted_options(&scenario));
    let mut hears = |event: Event| checker.event(&event);
    let findings = fuzz::look_traced(&scenario, policy, &mut hears).context("the search")?;
    let mut findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
    let checked = checker.finish(scenario.length);
    if fuzz::PROMISE.contains(&policy) && checked.verdict == Verdict::Violated {
        findings.push(format!("wasted cores: {}", checked.verdict_reason));
    }
    Ok(findings)
}

/// Writes the trace of a seed's scenario under a policy, and draws its timeline; what was written where.
///
/// # Errors
/// When the policy is unknown or cannot run on the host of this seed, or a file cannot be written.
pub fn show(
    seed: u64,
    policy: &str,
    kernel: &str,
    trace: Option<&Path>,
    plot: Option<&Path>,
) -> Result<Vec<PathBuf>> {
    let mut scenario = scenario(seed, kernel)?;
    let driver = |scenario: &Scenario| {
        let driver = by_name(policy, scenario.host.clone(), Config::default());
        driver.with_context(|| format!("the host of seed {seed}"))
    };
    let mut written = Vec::new();
    if let Some(path) = trace {
        super::run(&scenario, driver(&scenario)?.as_mut(), Some(path))?;
        written.push(path.to_owned());
    }
    if let Some(path) = plot {
        // The search keeps no timeline.
        scenario.sample = Nanos((scenario.length.0 / SAMPLES).max(1_000));
        let report = quell_sim::run(&scenario, driver(&scenario)?.as_mut());
        written.extend(crate::plot::simulation(&scenario, policy, &report, path)?);
    }
    Ok(written)
}

/// Most scenarios are shorter than the checker's own window, so that it could never tell. Where actions of the back end go wrong
/// a thread may wait until they are tried again, a few times over.
fn hunted_options(scenario: &Scenario) -> Options {
    let own = Options::default();
    let faulty = scenario.faults != Faults::default();
    let patience = if faulty { Nanos(10 * Faults::RETRY.0) } else { Nanos::ZERO };
    Options { window: own.window.min(Nanos(scenario.length.0 / 4).max(patience)), ..own }
}

impl std::fmt::Display for Found {
    /// The line that replays it, and what is wrong.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Found { policy, seed, what, checked, kernel } = self;
        let check = if *checked { "" } else { " --no-check" };
        write!(f, "quell sim fuzz --policy {policy} --seed {seed}")?;
        if kernel != GLOBAL {
            write!(f, " --kernel {kernel}")?;
        }
        write!(f, "{check}: {what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_terminal::Silent;

    #[test]
    fn a_search_goes_on_behind_what_its_log_has() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("fuzz.jsonl");
        let spec = HuntSpec {
            policies: vec!["static".into(), "quell".into()],
            time: Duration::from_millis(300),
            from: 0,
            threads: 2,
            kernel: global(),
            log: Some(log.clone()),
            check: false,
        };
        let search = || run(&spec, &mut Silent, &Stop::default()).unwrap();
        let first = search();
        assert!(first.scenarios >= BLOCK && first.before == 0, "{first:?}");
        let second = search();
        assert_eq!(second.before, first.scenarios);
        assert!(second.scenarios > first.scenarios);
        let text = std::fs::read_to_string(&log).unwrap();
        let blocks: BTreeSet<(String, u64)> = text
            .lines()
            .map(|line| serde_json::from_str::<Block>(line).unwrap())
            .map(|block| (block.policy, block.from))
            .collect();
        assert_eq!(blocks.len(), text.lines().count(), "no block twice");
    }

    #[test]
    fn the_line_of_a_finding_asks_the_checker_if_the_search_did() {
        let found = |checked| Found {
            policy: "quell".into(),
            seed: 7,
            what: "odd".into(),
            checked,
            kernel: global(),
        };
        assert_eq!(found(true).to_string(), "quell sim fuzz --policy quell --seed 7: odd");
        assert_eq!(
            found(false).to_string(),
            "quell sim fuzz --policy quell --seed 7 --no-check: odd"
        );
        // Also when it comes out of a log.
        let block = |checked| Block {
            policy: "quell".into(),
            from: 0,
            seeds: BLOCK,
            found: vec![found(checked)],
            checked,
            kernel: global(),
        };
        for checked in [true, false] {
            let line = serde_json::to_string(&block(checked)).unwrap();
            let mut hunted = Hunted::default();
            hunted.take(serde_json::from_str(&line).unwrap());
            assert_eq!(hunted.found, [found(checked)]);
        }
    }

    #[test]
    fn a_search_that_is_stopped_says_so() {
        let stop = Stop::default();
        stop.now();
        let spec = HuntSpec {
            policies: vec!["static".into()],
            time: Duration::from_secs(60),
            from: 0,
            threads: 1,
            kernel: global(),
            log: None,
            check: false,
        };
        assert!(run(&spec, &mut Silent, &stop).unwrap().interrupted);
    }

    #[test]
    fn a_seed_can_be_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let [trace, plot] = ["trace.pftrace", "plot.svg"].map(|name| folder.path().join(name));
        let written = show(5, "quell", GLOBAL, Some(&trace), Some(&plot)).unwrap();
        assert_eq!(written.len(), 3);
        assert!(written.iter().all(|path| path.metadata().unwrap().len() > 100), "{written:?}");
        assert!(show(5, "best", GLOBAL, Some(&trace), None).is_err());
    }

    #[test]
    fn hosts_of_each_kernel_model_keep_the_invariants() {
        for (kernel, _) in KernelModel::PRESETS {
            for seed in 0..6 {
                assert_eq!(look(seed, "quell", kernel, true).unwrap(), [""; 0], "{kernel}, {seed}");
            }
        }
        let refused = look(0, "quell", "linux-2.4", true).unwrap_err().to_string();
        assert!(refused.contains("linux-2.4") && refused.contains("linux-6.12"), "{refused}");
        let found = Found {
            policy: "quell".into(),
            seed: 7,
            what: "odd".into(),
            checked: true,
            kernel: "linux-6.1".into(),
        };
        let line = "quell sim fuzz --policy quell --seed 7 --kernel linux-6.1: odd";
        assert_eq!(found.to_string(), line);
    }

    #[test]
    fn a_policy_that_nobody_has_is_an_error_at_once() {
        let spec = HuntSpec {
            policies: vec!["best".into()],
            time: Duration::from_secs(60),
            from: 0,
            threads: 1,
            kernel: global(),
            log: None,
            check: false,
        };
        let refused = run(&spec, &mut Silent, &Stop::default()).unwrap_err();
        assert!(refused.to_string().contains("no policy `best`"), "{refused}");
    }
}
