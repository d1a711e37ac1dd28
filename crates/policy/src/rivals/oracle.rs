//! The oracle: the best division of a host that never changes, found by trying.
//!
//! It is what no controller can have, since it tries each candidate on the whole workload first, and bounds
//! from above what static partitioning can reach. [`Search`] proposes divisions and is told what each was
//! worth; it knows neither simulator nor workload. [`Oracle`] is the policy that holds one division.

use quell_model::{Nanos, Plan, Snapshot};

use super::Known;
use super::partition::{Division, Partition};
use crate::state::{put, take};
use crate::{BadState, Host, Policy, Wake};

/// Candidates in, scores out.
///
/// Small spaces are searched whole. Larger ones by steepest ascent, a core or a way at a time, from the equal
/// division and from each task's lion's share; that can end on a hill which is not the highest, and
/// [`Search::is_exhaustive`] says so.
#[derive(Clone, Debug)]
pub struct Search {
    tasks: usize,
    cores: u32,
    ways: u16,
    exhaustive: bool,
    /// To be tried, last first.
    open: Vec<Partition>,
    /// Tried in this climb or proposed, to try nothing twice.
    tried: Vec<Partition>,
    starts: Vec<Partition>,
    /// The best of this climb, and whether its neighbours were proposed.
    hill: Option<(f64, Partition, bool)>,
    best: Option<(f64, Partition)>,
}

impl Search {
    /// A search over `tasks` tasks, physical cores and ways of the last-level cache (0: not divided). A task has a
    /// core and, if they are divided, a way at least: with fewer there is no candidate. Spaces of up to `whole_below`
    /// candidates are searched whole.
    pub fn new(tasks: usize, cores: u32, ways: u16, whole_below: u64) -> Search {
        let mut search = Search {
            tasks,
            cores,
            ways,
            exhaustive: false,
            open: Vec::new(),
            tried: Vec::new(),
            starts: Vec::new(),
            hill: None,
            best: None,
        };
        let spare = |units: u32| u64::from(units).checked_sub(tasks as u64);
        let splits = |units| spare(units).map_or(0, |spare| choices(spare, tasks as u64));
        let space = match (tasks, ways) {
            (0, _) => 0,
            (_, 0) => splits(cores),
            _ => splits(cores).saturating_mul(splits(ways.into())),
        };
        search.exhaustive = (1..=whole_below).contains(&space);
        if search.exhaustive {
            search.propose_all();
        } else if space > 0 {
            search.starts = search.lions();
        }
        search
    }

    /// A search over the divisions of a host, with its managed physical cores and the ways that it can deal out.
    pub fn of(host: &Host, tasks: usize, whole_below: u64) -> Search {
        let cores = Division::new(host, &host.managed, tasks).units();
        Search::new(tasks, cores as u32, host.caps.llc_ways, whole_below)
    }

    /// All candidates that can be tried at one time, in order; each is to be answered by [`Search::score`] before more are
    /// asked for. None: it is over.
    pub fn batch(&mut self) -> Vec<Partition> {
        let mut batch: Vec<Partition> = self.next().into_iter().collect();
        while !self.open.is_empty() {
            batch.extend(self.next());
        }
        batch
    }

    /// Physical cores and ways that are divided.
    pub fn divided(&self) -> (u32, u16) {
        (self.cores, self.ways)
    }

    /// Whether every division is tried.
    pub fn is_exhaustive(&self) -> bool {
        self.exhaustive
    }

    /// The best division so far, and its score.
    pub fn best(&self) -> Option<(&Partition, f64)> {
        self.best.as_ref().map(|(score, partition)| (partition, *score))
    }

    /// Tells what a candidate was worth; more is better, and what is not a number is worth nothing.
    pub fn score(&mut self, candidate: Partition, score: f64) {
        let score = if score.is_nan() { f64::NEG_INFINITY } else { score };
        if self.best.as_ref().is_none_or(|(best, _)| score > *best) {
            self.best = Some((score, candidate.clone()));
        }
        if self.hill.as_ref().is_none_or(|(best, ..)| score > *best) {
            self.hill = Some((score, candidate, false));
        }
    }

    /// The divisions that differ from this one by one core or one way.
    fn neighbours(&self, of: &Partition) -> Vec<Partition> {
        let mut found = Vec::new();
        let pairs = || (0..self.tasks).flat_map(|a| (0..self.tasks).map(move |b| (a, b)));
        for (from, to) in pairs().filter(|(from, to)| from != to) {
            if of.cores[from] > 1 {
                let mut next = of.clone();
                next.cores[from] -= 1;
                next.cores[to] += 1;
                found.push(next);
            }
            if of.ways[from] > 1 {
                let mut next = of.clone();
                next.ways[from] -= 1;
                next.ways[to] += 1;
                found.push(next);
            }
        }
        found
    }

    /// Equal shares, and for each task the division in which the others have one core and way each.
    fn lions(&self) -> Vec<Partition> {
        let shares = |units: u32, lion: Option<usize>| -> Vec<u32> {
            let tasks = self.tasks as u32;
            (0..self.tasks)
                .map(|at| match lion {
                    _ if units == 0 => 0,
                    Some(lion) if lion == at => units - (tasks - 1),
                    Some(_) => 1,
                    None => units / tasks + u32::from((at as u32) < units % tasks),
                })
                .collect()
        };
        let start = |lion| Partition {
            cores: shares(self.cores, lion),
            ways: shares(self.ways.into(), lion).into_iter().map(|ways| ways as u16).collect(),
        };
        (0..self.tasks).rev().map(Some).chain([None]).map(start).collect()
    }

    fn propose_all(&mut self) {
        let mut all_cores = Vec::new();
        splits(self.cores, self.tasks, &mut Vec::new(), &mut all_cores);
        let mut all_ways = vec![vec![0; self.tasks]];
        if self.ways > 0 {
            all_ways.clear();
            splits(self.ways.into(), self.tasks, &mut Vec::new(), &mut all_ways);
        }
        for cores in all_cores.iter().rev() {
            for ways in all_ways.iter().rev() {
                let ways = ways.iter().map(|ways| *ways as u16).collect();
                self.open.push(Partition { cores: cores.clone(), ways });
            }
        }
    }
}

/// Candidates, each to be answered by [`Search::score`] before the next is asked for.
impl Iterator for Search {
    type Item = Partition;

    fn next(&mut self) -> Option<Partition> {
        loop {
            if let Some(candidate) = self.open.pop() {
                if !self.exhaustive {
                    self.tried.push(candidate.clone());
                }
                return Some(candidate);
            }
            match &mut self.hill {
                Some((_, top, proposed)) if !*proposed && !self.exhaustive => {
                    *proposed = true;
                    let top = top.clone();
                    let mut next = self.neighbours(&top);
                    next.retain(|candidate| !self.tried.contains(candidate));
                    self.open = next;
                }
                _ => {
                    self.hill = None;
                    self.open.push(self.starts.pop()?);
                }
            }
        }
    }
}

/// Ways to split `spare` units beyond one each over `tasks` tasks: `spare + tasks - 1` over `tasks - 1`.
fn choices(spare: u64, tasks: u64) -> u64 {
    let mut count = 1u128;
    for at in 1..tasks {
        count = count * u128::from(spare + at) / u128::from(at);
        if count > u128::from(u64::MAX) {
            return u64::MAX;
        }
    }
    count as u64
}

/// Every way to split `units` into `parts` parts of one or more.
fn splits(units: u32, parts: usize, chosen: &mut Vec<u32>, found: &mut Vec<Vec<u32>>) {
    let left = parts - chosen.len();
    if left == 1 {
        let mut split = chosen.clone();
        split.push(units);
        found.push(split);
        return;
    }
    for part in 1..=units.saturating_sub(left as u32 - 1) {
        chosen.push(part);
        splits(units - part, parts, chosen, found);
        chosen.pop();
    }
}

/// The policy that holds one division, as far as limits and the cores that are online allow it.
pub struct Oracle {
    host: Host,
    partition: Partition,
    known: Known,
    division: Division,
}

impl Oracle {
    /// The policy for a division that a [`Search`] found.
    pub fn new(host: Host, partition: Partition) -> Oracle {
        Oracle { host, partition, known: Known::default(), division: Division::default() }
    }
}

impl Policy for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn decide(&mut self, _now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        if self.known.changed(&self.host, seen) {
            self.division = Division::of(&self.host, &self.known.usable, seen, &self.partition);
        }
        self.division.write(&self.host, &self.known.usable, seen, plan);
        Wake::OnChange
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&self.partition, state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        self.partition = take(state)?;
        self.known = Known::default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the search against a worth that has one summit.
    fn climbed(mut search: Search, worth: impl Fn(&Partition) -> f64) -> (Search, usize) {
        let mut tried = 0;
        while let Some(candidate) = search.next() {
            tried += 1;
            let score = worth(&candidate);
            search.score(candidate, score);
        }
        (search, tried)
    }

    fn distance(from: &Partition, cores: [u32; 3], ways: [u16; 3]) -> f64 {
        let off = |a: i64, b: i64| (a - b).unsigned_abs() as f64;
        let cores = from.cores.iter().zip(cores).map(|(a, b)| off((*a).into(), b.into()));
        let ways = from.ways.iter().zip(ways).map(|(a, b)| off((*a).into(), b.into()));
        -(cores.sum::<f64>() + ways.sum::<f64>())
    }

    #[test]
    fn a_small_space_is_tried_whole_and_nothing_twice() {
        let (search, tried) = climbed(Search::new(3, 6, 5, 1_000), |candidate| {
            assert_eq!(candidate.cores.iter().sum::<u32>(), 6);
            distance(candidate, [1, 4, 1], [3, 1, 1])
        });
        assert!(search.is_exhaustive());
        assert_eq!(tried, 10 * 6, "5 over 2 times 4 over 2");
        let (best, score) = search.best().unwrap();
        assert_eq!((best.cores.as_slice(), best.ways.as_slice()), (&[1, 4, 1][..], &[3, 1, 1][..]));
        assert_eq!(score, 0.0);
    }

    #[test]
    fn candidates_in_batches_lead_to_the_same_summit() {
        for whole_below in [0, 1_000] {
            let worth = |candidate: &Partition| distance(candidate, [2, 3, 3], [1, 1, 4]);
            let (one, tried) = climbed(Search::new(3, 8, 6, whole_below), worth);
            let (mut batched, mut in_batches) = (Search::new(3, 8, 6, whole_below), 0);
            loop {
                let batch = batched.batch();
                if batch.is_empty() {
                    break;
                }
                in_batches += batch.len();
                let scores: Vec<f64> = batch.iter().map(worth).collect();
                batch.into_iter().zip(scores).for_each(|(it, score)| batched.score(it, score));
            }
            assert_eq!((batched.best(), in_batches), (one.best(), tried));
            assert_eq!(one.best().unwrap().1, 0.0);
        }
    }

    #[test]
    fn a_large_space_is_climbed_to_the_same_summit() {
        let (search, tried) = climbed(Search::new(3, 24, 20, 1_000), |candidate| {
            distance(candidate, [17, 5, 2], [3, 13, 4])
        });
        assert!(!search.is_exhaustive());
        assert_eq!(search.best().unwrap().1, 0.0);
        assert!(tried < 2_000, "{tried} of 43,000");
    }

    #[test]
    fn a_score_that_is_no_number_wins_nothing_and_too_few_cores_have_no_candidate() {
        let (search, _) = climbed(Search::new(2, 3, 0, 10), |candidate| {
            if candidate.cores == [1, 2] { f64::NAN } else { 1.0 }
        });
        assert_eq!(search.best().unwrap().0.cores, [2, 1]);
        assert_eq!(Search::new(3, 2, 0, 10).next(), None);
        assert_eq!(Search::new(0, 2, 0, 10).next(), None);
    }
}
