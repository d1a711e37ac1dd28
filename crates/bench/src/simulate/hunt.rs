//! The search for mistakes of a policy, for a time, on all cores of this machine.
//!
//! Seeds are looked at in blocks. A finished block is a line of the log, so that a search that was interrupted, or is to go on
//! for longer, begins behind what is done. What a seed means depends on the version of the simulator: a log belongs to one.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_sim::hunt;
use serde::{Deserialize, Serialize};

use super::lines::Lines;
use crate::{Progress, Stop};

/// Seeds of a block: some tenths of a second's work.
const BLOCK: u64 = 16;

/// What to search.
#[derive(Clone, Debug)]
pub struct HuntSpec {
    /// The policies, each on the same seeds.
    pub policies: Vec<String>,
    /// For how long; the blocks that are begun by then are finished.
    pub time: Duration,
    /// The first seed.
    pub from: u64,
    /// Simulations at one time.
    pub threads: usize,
    /// Where finished blocks go, and come from.
    pub log: Option<PathBuf>,
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
}

/// A finished block, as it stands in the log.
#[derive(Debug, Serialize, Deserialize)]
struct Block {
    policy: String,
    from: u64,
    seeds: u64,
    found: Vec<Found>,
}

/// Searches until the time is over or a stop was asked for. Findings are told as they come.
///
/// # Errors
/// When there is no policy of a name, or the log cannot be read or written.
pub fn run(spec: &HuntSpec, progress: &mut (dyn Progress + Send), stop: &Stop) -> Result<Hunted> {
    // A name that nobody has is an error before the search, not in each case.
    spec.policies.iter().try_for_each(|policy| hunt::look(0, policy).map(drop))?;
    let (log, known) = match &spec.log {
        Some(path) => {
            let (lines, known) = Lines::open::<Block>(path, "a search")?;
            (Some(lines), known)
        }
        None => (None, Vec::new()),
    };
    let is_wanted = |block: &Block| spec.policies.contains(&block.policy) && block.seeds == BLOCK;
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
            let mut block = Block { policy: policy.clone(), from, seeds: BLOCK, found: Vec::new() };
            for seed in from..from.saturating_add(BLOCK) {
                if self.stop.is_asked() {
                    return Ok(());
                }
                if let Some(what) = look(seed, policy)? {
                    let found = Found { policy: policy.clone(), seed, what };
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
        self.found.extend(block.found);
    }
}

/// The first thing that is wrong with a seed, a panic included.
fn look(seed: u64, policy: &str) -> Result<Option<String>> {
    // Nothing outlives the closure but what it returns.
    let looked = catch_unwind(AssertUnwindSafe(|| hunt::look(seed, policy)));
    match looked {
        Ok(findings) => {
            let findings = findings.context("the search")?;
            Ok(findings.first().map(ToString::to_string))
        }
        Err(_) => Ok(Some("it panicked".to_owned())),
    }
}

impl std::fmt::Display for Found {
    /// The line that replays it, and what is wrong.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Found { policy, seed, what } = self;
        write!(f, "quell sim hunt --policy {policy} --seed {seed}: {what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    #[test]
    fn a_search_goes_on_behind_what_its_log_has() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("hunt.jsonl");
        let spec = HuntSpec {
            policies: vec!["static".into(), "quell".into()],
            time: Duration::from_millis(300),
            from: 0,
            threads: 2,
            log: Some(log.clone()),
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
    fn a_policy_that_nobody_has_is_an_error_at_once() {
        let spec = HuntSpec {
            policies: vec!["best".into()],
            time: Duration::from_secs(60),
            from: 0,
            threads: 1,
            log: None,
        };
        let refused = run(&spec, &mut Silent, &Stop::default()).unwrap_err();
        assert!(refused.to_string().contains("no policy `best`"), "{refused}");
    }
}
