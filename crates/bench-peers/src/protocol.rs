//! What a program of the benchmark is asked and what it answers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use quell_model::Nanos;
use quell_os::clock;
pub use quell_os::clock::now;
use serde::Serialize;

/// The cases, by the names that all programs share.
pub const CASES: [&str; 12] = [
    "mutex",
    "yield",
    "condvar",
    "spawn-join",
    "channel-stream",
    "channel-ping-pong",
    "park",
    "timer",
    "steal-polling",
    "steal-parked",
    "echo",
    "sleepers",
];
/// How long the timers of the benchmark sleep.
pub const SLEEP: Duration = Duration::from_micros(100);
/// Tasks that sleep at once in the case `sleepers`.
pub const SLEEPERS: usize = 1_000;
/// How long each of [`SLEEPERS`] sleeps.
pub const LONG_SLEEP: Duration = Duration::from_millis(10);
/// Messages in a burst of the case `channel-stream`; each burst is acknowledged.
pub const BURST: usize = 128;
/// How long a task that is ready may wait for an idle worker until its creator gives way.
pub const STEAL_PATIENCE: Nanos = Nanos::from_millis(10);
/// For how long the creator computes between two tasks: the idle worker still polls.
pub const GAP_POLLING: Nanos = Nanos::from_micros(3);
/// The same, long enough that the idle worker has parked.
pub const GAP_PARKED: Nanos = Nanos::from_micros(500);
/// Latencies that are kept at most.
const SAMPLES_MAX: usize = 50_000;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The case.
    pub case: String,
    /// Threads that the runtime may use at once.
    pub workers: usize,
    /// For how long it runs before anything counts.
    pub warm_up: Nanos,
    /// For how long it counts.
    pub time: Nanos,
}

impl Request {
    /// Reads the arguments after the case.
    ///
    /// # Errors
    /// When they are not a number of workers and two times.
    pub fn parse(case: &str, rest: &[&str]) -> Result<Request> {
        let [workers, warm_up, time] = rest else { bail!("{case} WORKERS WARM_UP_MS TIME_MS") };
        let number = |text: &str| text.parse::<u64>().with_context(|| format!("`{text}`"));
        let workers = number(workers)?;
        ensure!((1..=64).contains(&workers), "from 1 to 64 workers");
        let millis = |text| Ok::<_, anyhow::Error>(Nanos::from_millis(number(text)?.min(60_000)));
        Ok(Request {
            case: case.to_owned(),
            workers: workers as usize,
            warm_up: millis(warm_up)?,
            time: millis(time)?,
        })
    }

    /// How long the creator computes between two tasks, in the two cases of stealing.
    pub fn gap(&self) -> Nanos {
        if self.case == "steal-parked" { GAP_PARKED } else { GAP_POLLING }
    }
}

/// What is answered, as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// Operations in the time that counts.
    pub ops: u64,
    /// The time that counts.
    pub ns: u64,
    /// Processor time of the whole program in it.
    pub cpu_ns: u64,
    /// Latencies, where the case is one of latency.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<u64>,
}

impl Measured {
    /// Tells the benchmark.
    ///
    /// # Errors
    /// When nobody reads.
    pub fn print(&self) -> Result<()> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}

/// Computes for so long.
pub fn compute(time: Nanos) {
    let until = Nanos(now().0 + time.0);
    while now() < until {
        std::hint::spin_loop();
    }
}

/// Counts operations: first for nothing, then for the time asked.
pub struct Meter {
    counts_from: Nanos,
    time: Nanos,
    counting: Option<(Nanos, Nanos)>,
    ops: u64,
    others: u64,
    samples: Vec<u64>,
}

impl Meter {
    /// Begins to warm up.
    pub fn start(request: &Request) -> Meter {
        Meter {
            counts_from: Nanos(now().0 + request.warm_up.0),
            time: request.time,
            counting: None,
            ops: 0,
            others: 0,
            samples: Vec::with_capacity(SAMPLES_MAX),
        }
    }

    /// Whether to go on; `done` operations were done since the last call.
    pub fn goes_on(&mut self, done: u64) -> bool {
        self.goes_on_with(done, &AtomicU64::new(0))
    }

    /// As [`Meter::goes_on`], where others do operations as well, which they count for ever.
    pub fn goes_on_with(&mut self, done: u64, others: &AtomicU64) -> bool {
        let at = now();
        match self.counting {
            None if at >= self.counts_from => {
                self.samples.clear();
                self.ops = 0;
                self.others = others.load(Relaxed);
                self.counting = Some((at, clock::process_cpu()));
                true
            }
            None => true,
            Some((since, _)) => {
                self.ops += done;
                at.since(since) < self.time
            }
        }
    }

    /// Notes a latency.
    pub fn sample(&mut self, latency: Nanos) {
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(latency.0);
        }
    }

    /// What was measured.
    pub fn finish(self) -> Measured {
        self.finish_with(&AtomicU64::new(0))
    }

    /// As [`Meter::finish`], with what the others counted.
    pub fn finish_with(self, others: &AtomicU64) -> Measured {
        let (since, cpu) = self.counting.unwrap_or_default();
        Measured {
            ops: self.ops + others.load(Relaxed).saturating_sub(self.others),
            ns: now().since(since).0,
            cpu_ns: clock::process_cpu().since(cpu).0,
            samples: self.samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(warm_up: u64, time: u64) -> Request {
        let (warm_up, time) = (warm_up.to_string(), time.to_string());
        Request::parse("mutex", &["1", &warm_up, &time]).unwrap()
    }

    #[test]
    fn what_happens_while_it_warms_up_does_not_count() {
        let mut meter = Meter::start(&request(200, 5));
        let mut all = 0;
        while meter.goes_on(1) {
            meter.sample(Nanos(1));
            all += 1;
        }
        let measured = meter.finish();
        assert!(measured.ops > 0 && measured.ops < all, "{measured:?} of {all}");
        assert!(measured.ns >= 5_000_000);
        assert!(measured.samples.len() as u64 <= measured.ops + 1);
    }

    #[test]
    fn what_others_count_is_added_from_where_counting_began() {
        let others = AtomicU64::new(0);
        let mut meter = Meter::start(&request(0, 0));
        others.store(70, Relaxed);
        assert!(meter.goes_on_with(1, &others));
        others.store(100, Relaxed);
        assert!(!meter.goes_on_with(5, &others));
        assert_eq!(meter.finish_with(&others).ops, 35);
    }

    #[test]
    fn other_arguments_are_refused() {
        for rest in [&["0", "1", "1"][..], &["65", "1", "1"], &["1", "1"], &["1", "x", "1"]] {
            assert!(Request::parse("mutex", rest).is_err(), "{rest:?}");
        }
    }
}
