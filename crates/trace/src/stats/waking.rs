//! How long threads wait between their wake-up and their core.

use std::collections::{BTreeMap, HashMap};

use hdrhistogram::Histogram;
use quell_model::{Left, Nanos, ThreadName, What};
use serde::Serialize;

use crate::old_host::Host;

/// Names that are told apart; those that come later are one.
const NAMES_MAX: usize = 1024;

/// Wake-up latency of the threads of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The name; empty for the threads of further names than are told apart.
    pub name: String,
    /// Wake-ups that ended with the thread on a core.
    pub wakeups: u64,
    /// Nanoseconds: the median.
    pub p50_ns: u64,
    /// Nanoseconds that one in ten exceeds.
    pub p90_ns: u64,
    /// Nanoseconds that one in a hundred exceeds.
    pub p99_ns: u64,
    /// Nanoseconds that one in a thousand exceeds.
    pub p999_ns: u64,
    /// Nanoseconds: the longest.
    pub max_ns: u64,
}

/// Follows wake-ups. Waiting begins with `sched_waking`, where there is none with the thread's arrival in a queue.
#[derive(Debug, Default)]
pub struct Wakeups {
    woken: HashMap<i32, Woken>,
    by_name: BTreeMap<ThreadName, Histogram<u64>>,
    others: Option<Histogram<u64>>,
    /// Wake-ups whose end a loss may hide.
    pub untold: u64,
}

#[derive(Clone, Copy, Debug)]
struct Woken {
    at: Nanos,
    /// It still had a core: it counts only if it leaves that without being woken again.
    while_running: bool,
}

impl Wakeups {
    /// Takes an event, before `host` does.
    pub fn event(&mut self, at: Nanos, what: &What, host: &Host) {
        let runs = |thread| host.place(thread).is_some_and(|place| place.runs);
        match what {
            What::Waking { thread, .. } => {
                let thread = thread.thread;
                let waits = self.woken.get(&thread).is_some_and(|woken| !woken.while_running);
                if !waits {
                    self.woken.insert(thread, Woken { at, while_running: runs(thread) });
                }
            }
            // It goes on as if it had not been about to sleep.
            What::Woken { thread, .. } if runs(thread.thread) => {
                self.woken.remove(&thread.thread);
            }
            What::Woken { thread, .. } => {
                let woken = Woken { at, while_running: false };
                self.woken.entry(thread.thread).or_insert(woken);
            }
            What::Switch { next, left, how, .. } => {
                if *how == Left::Preempted {
                    self.woken.remove(left);
                }
                if let Some(woken) = self.woken.remove(&next.thread) {
                    self.count(next.name, at.since(woken.at));
                }
            }
            What::Exit { thread } => drop(self.woken.remove(thread)),
            What::Lost { .. } => {
                self.untold += self.woken.len() as u64;
                self.woken.clear();
            }
            _ => {}
        }
    }

    fn count(&mut self, name: ThreadName, latency: Nanos) {
        let known = self.by_name.len();
        let histogram = match self.by_name.contains_key(&name) || known < NAMES_MAX {
            true => self.by_name.entry(name).or_insert_with(histogram),
            false => self.others.get_or_insert_with(histogram),
        };
        // It grows as far as there are numbers.
        let _ = histogram.record(latency.0);
    }

    /// Those that woke most often first.
    pub fn finish(self) -> Vec<Latency> {
        let named = self.by_name.into_iter().map(|(name, histogram)| (name.to_string(), histogram));
        let all = named.chain(self.others.map(|histogram| (String::new(), histogram)));
        let mut all: Vec<Latency> = all
            .map(|(name, histogram)| Latency {
                name,
                wakeups: histogram.len(),
                p50_ns: histogram.value_at_quantile(0.5),
                p90_ns: histogram.value_at_quantile(0.9),
                p99_ns: histogram.value_at_quantile(0.99),
                p999_ns: histogram.value_at_quantile(0.999),
                max_ns: histogram.max(),
            })
            .collect();
        all.sort_by(|a, b| b.wakeups.cmp(&a.wakeups).then_with(|| a.name.cmp(&b.name)));
        all
    }
}

/// One part in a hundred precise, up to minutes.
#[expect(clippy::expect_used, reason = "these bounds are valid")]
fn histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, 1 << 20, 2).expect("valid bounds");
    histogram.auto(true);
    histogram
}
