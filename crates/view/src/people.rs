//! What each thread did: how long it ran and waited, how late it got a core after its wake-ups, who ran meanwhile,
//! and when.

use std::collections::{BTreeMap, HashMap};

use quell_model::Runner;
use serde::Serialize;

use crate::replay::{NOBODY, ThreadIndex};

/// Threads whose rows are drawn from aggregates too: those that waited longest.
const ROWS: usize = 256;
/// Buckets of these rows, at least.
const BUCKETS: u64 = 1024;
/// Antagonists that are told of a thread.
const ANTAGONISTS: usize = 8;
/// Threads that are told one by one; there may be many more.
const THREADS: usize = 1 << 16;

/// A thread of the recording.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Person {
    /// Its place among the threads of the recording.
    pub index: ThreadIndex,
    /// The kernel's number of it.
    pub thread: i32,
    /// Its process.
    pub process: i32,
    /// Its name, escaped.
    pub name: String,
    /// Time on a core, in nanoseconds.
    pub ran_ns: u64,
    /// Time runnable without a core.
    pub waited_ns: u64,
    /// Wake-ups that ended on a core.
    pub wakeups: u64,
    /// Latency of wake-ups in nanoseconds, as (upper bound, how many); bounds are a sixteenth apart.
    pub latencies: Vec<(u64, u32)>,
    /// The longest latency of a wake-up.
    pub latency_max_ns: u64,
    /// Who ran on its core while it waited, and for how long, longest first.
    pub antagonists: Vec<(ThreadIndex, u64)>,
}

/// A thread's share of a bucket of time: (bucket, nanoseconds on a core, nanoseconds of waiting).
type Slot = (u32, f32, f32);

#[derive(Default)]
struct Record {
    person: Person,
    latencies: BTreeMap<u16, u32>,
    antagonists: HashMap<ThreadIndex, u64>,
    slots: Vec<Slot>,
}

/// All threads while a recording is read.
pub(crate) struct People {
    width: u64,
    records: Vec<Record>,
}

impl People {
    pub fn new() -> People {
        let mut people = People { width: 1 << 16, records: Vec::new() };
        people.record(NOBODY).person.name = "idle".to_owned();
        people
    }

    fn record(&mut self, thread: ThreadIndex) -> &mut Record {
        let at = thread as usize;
        if self.records.len() <= at {
            self.records.resize_with(at + 1, Record::default);
        }
        &mut self.records[at]
    }

    pub fn named(&mut self, thread: ThreadIndex, runner: &Runner) {
        let person = &mut self.record(thread).person;
        person.index = thread;
        (person.thread, person.process) = (runner.thread, runner.process);
        person.name = runner.name.to_string();
    }

    pub fn ran(&mut self, thread: ThreadIndex, from: u64, to: u64) {
        self.record(thread).person.ran_ns += to - from;
        self.spread(thread, from, to, |slot, ns| slot.1 += ns);
    }

    pub fn waited(&mut self, thread: ThreadIndex, from: u64, to: u64) {
        self.record(thread).person.waited_ns += to - from;
        self.spread(thread, from, to, |slot, ns| slot.2 += ns);
    }

    pub fn latency(&mut self, thread: ThreadIndex, ns: u64) {
        let record = self.record(thread);
        record.person.wakeups += 1;
        record.person.latency_max_ns = record.person.latency_max_ns.max(ns);
        *record.latencies.entry(bin(ns)).or_default() += 1;
    }

    pub fn delayed(&mut self, thread: ThreadIndex, by: ThreadIndex, ns: u64) {
        if ns > 0 {
            *self.record(thread).antagonists.entry(by).or_default() += ns;
        }
    }

    fn spread(&mut self, thread: ThreadIndex, from: u64, to: u64, add: impl Fn(&mut Slot, f32)) {
        if to <= from {
            return;
        }
        while (to - 1) / self.width >= 2 * BUCKETS {
            self.width *= 2;
            self.records.iter_mut().for_each(|record| fold(&mut record.slots));
        }
        let width = self.width;
        let slots = &mut self.record(thread).slots;
        for bucket in from / width..=(to - 1) / width {
            let share = to.min((bucket * width).saturating_add(width)) - from.max(bucket * width);
            // Waiting is told at its end, thus after running that lies later only within few buckets.
            let at = slots.iter().rposition(|slot| slot.0 <= bucket as u32);
            let at = match at {
                Some(at) if slots[at].0 == bucket as u32 => at,
                before => {
                    let at = before.map_or(0, |at| at + 1);
                    slots.insert(at, (bucket as u32, 0.0, 0.0));
                    at
                }
            };
            add(&mut slots[at], share as f32);
        }
    }

    /// The threads, and the rows of those that waited longest.
    pub fn finish(self) -> (Vec<Person>, Rows) {
        let People { width, mut records } = self;
        let mut order: Vec<usize> = (1..records.len()).collect();
        order.sort_by_key(|&at| {
            let person = &records[at].person;
            (std::cmp::Reverse(person.waited_ns), std::cmp::Reverse(person.ran_ns), at)
        });
        let mut rows = Rows { width, threads: Vec::new() };
        for &at in order.iter().take(ROWS) {
            let slots = std::mem::take(&mut records[at].slots);
            rows.threads.push((at as ThreadIndex, slots));
        }
        let kept = [0].into_iter().chain(order).take(THREADS);
        let kept = kept.collect::<std::collections::BTreeSet<usize>>();
        let people = records.into_iter().enumerate().filter(|(at, _)| kept.contains(at));
        (people.map(|(_, record)| record.person()).collect(), rows)
    }
}

impl Record {
    fn person(self) -> Person {
        let mut antagonists: Vec<(ThreadIndex, u64)> = self.antagonists.into_iter().collect();
        antagonists.sort_by_key(|&(by, ns)| (std::cmp::Reverse(ns), by));
        antagonists.truncate(ANTAGONISTS);
        let latencies = self.latencies.into_iter().map(|(at, count)| (bound(at), count)).collect();
        Person { antagonists, latencies, ..self.person }
    }
}

/// When the threads that waited longest ran and waited.
pub struct Rows {
    /// The width of a bucket in nanoseconds.
    pub width: u64,
    /// Each thread and its buckets in ascending order, without empty ones.
    pub threads: Vec<(ThreadIndex, Vec<Slot>)>,
}

fn fold(slots: &mut Vec<Slot>) {
    slots.iter_mut().for_each(|slot| slot.0 /= 2);
    slots.dedup_by(|later, earlier| {
        let same = later.0 == earlier.0;
        if same {
            earlier.1 += later.1;
            earlier.2 += later.2;
        }
        same
    });
}

/// The bin of a latency: 16 to each doubling.
fn bin(ns: u64) -> u16 {
    if ns < 16 {
        return ns as u16;
    }
    let octave = ns.ilog2() - 4;
    (16 + 16 * octave as u16) + ((ns >> octave) as u16 - 16)
}

/// The least latency past a bin.
fn bound(bin: u16) -> u64 {
    match bin {
        0..16 => u64::from(bin) + 1,
        bin => {
            let (octave, within) = ((bin - 16) / 16, (bin - 16) % 16);
            (u64::from(within) + 17).checked_shl(u32::from(octave)).unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bin_is_a_sixteenth_wide(ns in 0u64..1 << 50) {
            let above = bound(bin(ns));
            prop_assert!(above > ns);
            prop_assert!(above - ns <= ns / 16 + 1, "{ns} is far below {above}");
        }

        #[test]
        fn rows_lose_no_time(spans in proptest::collection::vec((0u64..3_000_000, 1u64..3_000_000), 1..100)) {
            let mut people = People::new();
            let (mut at, mut ran) = (0, 0);
            for (sleeps, runs) in spans {
                people.waited(1, at, at + sleeps);
                at += sleeps;
                people.ran(1, at, at + runs);
                (at, ran) = (at + runs, ran + runs);
            }
            let (people, rows) = people.finish();
            let shown: f64 = rows.threads[0].1.iter().map(|slot| f64::from(slot.1)).sum();
            prop_assert!((shown - ran as f64).abs() < ran as f64 * 1e-4);
            prop_assert_eq!((people[1].ran_ns, people[1].waited_ns), (ran, at - ran));
            prop_assert!(rows.threads[0].1.is_sorted_by(|a, b| a.0 < b.0));
        }
    }
}
